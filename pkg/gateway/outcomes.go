package gateway

import (
	"encoding/json"
	"errors"
	"fmt"

	"fleet/pkg/api"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/mailbox"
	"fleet/pkg/trace"
	"fleet/pkg/turn"
)

// failure is a terminal outcome that is no answer.
type failure struct {
	kind   envelope.Kind   // FAILED or ABANDONED
	reason fault.Kind      // what the sender is told
	dead   envelope.Reason // why the message itself goes to the dead letters, where it was never injected
	detail string
	screen string
}

// ending is one turn's end, ready to be written.
type ending struct {
	turn    turn.Turn
	env     envelope.Envelope
	sealed  envelope.Sealed
	state   status
	dead    *deadRow
	deadKey string

	target *agent // the sender, where it lives here and takes the outcome at once
	kept   kept
	stored string // the key in outcomesTable otherwise
}

// end builds the terminal outcome of t.
func (g *Gateway) end(t turn.Turn, kind envelope.Kind, body any, s status) (*ending, error) {
	raw, err := envelope.Encode(body)
	if err != nil {
		return nil, err
	}
	e := envelope.Envelope{Kind: kind, ID: t.OutcomeID(), Trace: t.Trace, From: t.Agent, FromHost: g.cfg.Host,
		To: string(t.From), Turn: t.ID, Re: t.Message, Body: raw}
	env, sealed, err := envelope.Seal(e, g.signer, g.cfg.Limits)
	if err != nil {
		return nil, err
	}
	return &ending{turn: t, env: env, sealed: sealed, state: s}, nil
}

// write puts the turn's end into one transaction: the turn is closed, its brief
// leaves the mailbox, and the outcome is either in its recipient's mailbox on
// this host or stored until the broker has it. So a reply is never told as given
// and then lost, and never given twice.
func (n *ending) write(g *Gateway, tx *mailbox.Tx) error {
	t := n.turn
	n.target, n.stored = nil, "" // a group that fails to commit is run again
	if err := mailbox.Delete(tx, turnsTable, t.Key()); err != nil {
		return err
	}
	if err := tx.Remove(t.Agent, t.Seq); err != nil {
		return err
	}
	if err := tx.SetStatus(t.Agent, t.FromHost, t.From, t.Message, n.state.encode()); err != nil {
		return err
	}
	if n.dead != nil && g.bus != nil {
		if err := mailbox.Set(tx, deadTable, n.deadKey, *n.dead); err != nil {
			return err
		}
	}
	if t.FromHost == g.cfg.Host {
		if target := g.agents.get(t.From); target != nil {
			k, err := g.keep(tx, target.gid, target.role, arrival{env: n.env, sealed: n.sealed}, false)
			if err == nil {
				n.target, n.kept = target, k
				return nil
			}
			if !errors.Is(err, fault.Full) {
				return err
			}
			// The outcome waits here like one for another host.
		}
	}
	number, err := tx.Counter("outcomes")
	if err != nil {
		return err
	}
	n.stored = fmt.Sprintf("%020d", number)
	return mailbox.Set(tx, outcomesTable, n.stored, outcomeRow{
		Sealed: n.sealed, From: t.Agent, To: t.From, ToHost: t.FromHost, Stored: g.now()})
}

// written goes on once the transaction is on disk. sent, where the outcome is
// for another host, is closed once the broker has it.
func (n *ending) written(g *Gateway) (sent <-chan struct{}) {
	line := trace.Of(trace.Answered, n.env)
	line.Reason = n.state.Reason
	g.audit.Write(line)
	if n.dead != nil && g.bus != nil {
		g.outbox.add(deadTable, n.deadKey, n.deadKey)
	}
	if n.target == nil {
		return g.outbox.add(outcomesTable, n.stored, outcomeLane(n.turn.Agent, n.turn.From))
	}
	target, env, k := n.target, n.env, n.kept
	target.post(func() {
		if k.seen.New {
			g.audit.Write(trace.Of(trace.Received, env))
			target.took(env, k)
		}
	})
	return nil
}

// reply ends the turn of message with the agent's answer. done learns where the
// reply is, or why there is none.
func (a *agent) reply(message envelope.ID, text string, done func(replied)) {
	t, err := a.turns.Answerable(message)
	if err != nil {
		done(replied{err: err})
		return
	}
	implied := t.Proof != turn.Confirmed // the reply is faster than the proof, and is one
	if implied {
		t.Evidence = "reply"
	}
	n, err := a.g.end(t, envelope.Reply, envelope.Text{Text: text}, status{State: answered, Evidence: t.Evidence})
	if err != nil {
		done(replied{err: err})
		return
	}
	// Dropped before it is written, so that a second reply meanwhile is stale.
	a.turns.Drop(t.Message)
	var stats mailbox.Stats
	a.g.store.Go(func(tx *mailbox.Tx) (err error) {
		if err := n.write(a.g, tx); err != nil {
			return err
		}
		stats, err = tx.Stats(a.gid)
		return err
	}, func(err error) {
		a.post(func() {
			if err != nil {
				a.turns.Put(t)
				done(replied{err: err})
				return
			}
			a.certain(t.Message)
			if implied {
				a.g.audit.Write(trace.Line{Step: trace.Injected, Trace: t.Trace, ID: t.Message, Kind: envelope.Send, From: t.From,
					FromHost: t.FromHost, To: string(t.Agent), Turn: t.ID, Evidence: t.Evidence})
			}
			sent := n.written(a.g)
			a.counted(stats)
			a.advance()
			state := "stored"
			if n.target != nil {
				state = "held"
			}
			done(replied{result: api.ReplyResult{ID: n.env.ID, Re: t.Message, Trace: t.Trace, State: state}, sent: sent})
		})
	})
}

// failMessage ends a message that was never injected.
func (g *Gateway) failMessage(a *agent, seq uint64, f failure) {
	var n *ending
	var stats mailbox.Stats
	g.store.Go(func(tx *mailbox.Tx) error {
		m, ok, err := tx.Message(a.gid, seq)
		if err != nil || !ok {
			return err
		}
		if n, err = g.endUnread(a, m, f); err != nil {
			return err
		}
		if err := n.write(g, tx); err != nil {
			return err
		}
		stats, err = tx.Stats(a.gid)
		return err
	}, func(err error) {
		a.post(func() {
			if err != nil {
				g.log.Error("can't end a message", "agent", a.name, "seq", seq, "err", err)
				return
			}
			if n == nil {
				return
			}
			if f.reason == fault.Expired {
				line := trace.Of(trace.Expired, n.env)
				line.ID, line.Re = n.turn.Message, ""
				g.audit.Write(line)
			}
			n.written(g)
			a.counted(stats)
		})
	})
}

// endUnread builds the end of a message that waits in a's mailbox.
func (g *Gateway) endUnread(a *agent, m mailbox.Message, f failure) (*ending, error) {
	var e envelope.Envelope
	if err := json.Unmarshal(m.Sealed.Bytes, &e); err != nil {
		return nil, fmt.Errorf("decode stored message: %w", err)
	}
	n, err := g.end(turn.Open(a.gid, m.Seq, e, g.now()), f.kind,
		envelope.Outcome{Reason: string(f.reason), Detail: f.detail, Screen: f.screen},
		status{State: failed, Reason: string(f.reason)})
	if err == nil {
		n.dead = &deadRow{Sealed: m.Sealed, Reason: f.dead, Queue: a.queueName(), Told: true}
		n.deadKey = string(a.gid) + "/" + string(m.ID)
	}
	return n, err
}

// buryLater has a copy of a message that its sender knows to have failed go to
// the dead letters (R12a).
func (g *Gateway) buryLater(e envelope.Envelope, s envelope.Sealed, reason envelope.Reason) {
	key := e.To + "/" + string(e.ID)
	g.store.Go(func(tx *mailbox.Tx) error {
		return mailbox.Set(tx, deadTable, key, deadRow{Sealed: s, Reason: reason, Told: true})
	}, func(err error) {
		if err != nil {
			g.log.Error("can't keep a dead letter", "id", e.ID, "err", err)
			return
		}
		g.outbox.add(deadTable, key, key)
	})
}
