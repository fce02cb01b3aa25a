package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

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

// The most of a failure's words that an outcome carries, encoded: with both, it
// is within every host's limit, so that its sender always learns of the failure.
const (
	detailMost = 1 << 10
	screenMost = 7 << 10
)

// outcome is the failure as its sender is told it: the beginning of the detail,
// and the end of the screen.
func (f failure) outcome() envelope.Outcome {
	detail, screen := strings.ToValidUTF8(f.detail, "?"), strings.ToValidUTF8(f.screen, "?")
	room := detailMost
	for i, r := range detail {
		if room -= encodedLen(r); room < 0 {
			detail = detail[:i]
			break
		}
	}
	room = screenMost
	for i := len(screen); i > 0; {
		r, size := utf8.DecodeLastRuneInString(screen[:i])
		if room -= encodedLen(r); room < 0 {
			screen = screen[i:]
			break
		}
		i -= size
	}
	return envelope.Outcome{Reason: string(f.reason), Detail: detail, Screen: screen}
}

// encodedLen is the most bytes that r takes in JSON.
func encodedLen(r rune) int {
	switch {
	case r < ' ' || r == '\u2028' || r == '\u2029' || r == 0x7f:
		return 6
	case r == '"' || r == '\\':
		return 2
	default:
		return utf8.RuneLen(r)
	}
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
	// Another sender's brief of the same id may hold the key.
	if row, ok, err := mailbox.Get[turn.Turn](tx, turnsTable, t.Key()); err != nil {
		return err
	} else if ok && row.ID == t.ID {
		if err := mailbox.Delete(tx, turnsTable, t.Key()); err != nil {
			return err
		}
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
	lane, behind := "", false
	if t.FromHost == g.cfg.Host {
		// What waits here for the same agent goes first (R8).
		lane = outcomeLane(t.Agent, t.From) + "/"
		var err error
		if behind, err = waits(tx, lane); err != nil {
			return err
		}
		if target := g.agents.get(t.From); target != nil && !behind {
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
	n.stored = fmt.Sprintf("%s%020d", lane, number)
	return mailbox.Set(tx, outcomesTable, n.stored, outcomeRow{
		Sealed: n.sealed, From: t.Agent, To: t.From, ToHost: t.FromHost, Stored: g.now()})
}

// waits says whether a row of a local lane waits in the outbox.
func waits(tx *mailbox.Tx, lane string) (bool, error) {
	some := errors.New("there is one")
	err := mailbox.Each(tx, outcomesTable, lane, func(string, json.RawMessage) error { return some })
	if errors.Is(err, some) {
		return true, nil
	}
	return false, err
}

// written goes on once the transaction is on disk. sent, where the outcome is
// for another host, is closed once the broker has it.
func (n *ending) written(g *Gateway) (sent <-chan struct{}) {
	g.unspool(n.turn)
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

// unspool removes the text of a turn that has ended, where it was long enough to
// be given as a file.
func (g *Gateway) unspool(t turn.Turn) {
	path := filepath.Join(g.cfg.Paths().Spool(), string(t.Agent), string(t.Message)+".txt")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.log.Warn("a spooled text stays", "path", path, "err", err)
	}
}

// reply ends the turn of message with the agent's answer. done learns where the
// reply is, or why there is none.
func (a *agent) reply(message envelope.ID, text string, done func(replied)) {
	if a.closing {
		done(replied{err: errStopping(a)})
		return
	}
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
	if implied {
		a.g.audit.Write(trace.Line{Step: trace.Injected, Trace: t.Trace, ID: t.Message, Kind: envelope.Send, From: t.From,
			FromHost: t.FromHost, To: string(t.Agent), Turn: t.ID, Evidence: t.Evidence})
	}
	a.endTurn(t, n, func(sent <-chan struct{}, err error) {
		if err != nil {
			done(replied{err: err})
			return
		}
		state := "stored"
		if n.target != nil {
			state = "held"
		}
		done(replied{result: api.ReplyResult{ID: n.env.ID, Re: t.Message, Trace: t.Trace, State: state}, sent: sent})
	})
}

// giveUp ends a turn whose brief can never be typed into its pane.
func (a *agent) giveUp(message envelope.ID, detail string) {
	t, err := a.turns.Answerable(message)
	if err != nil || a.closing {
		return // answered, or ended, meanwhile
	}
	f := failure{reason: fault.NotSubmitted, detail: detail}
	n, err := a.g.end(t, envelope.Failed, f.outcome(), status{State: failed, Reason: string(fault.NotSubmitted)})
	if err != nil {
		a.g.log.Error("can't end a turn", "agent", a.name, "trace", t.Trace, "id", message, "err", err)
		return
	}
	a.endTurn(t, n, func(_ <-chan struct{}, err error) {
		if err != nil {
			a.g.log.Error("can't end a turn; trying again", "agent", a.name, "trace", t.Trace, "id", message, "err", err)
			a.after(2*time.Second, func() { a.giveUp(message, detail) })
		}
	})
}

// endTurn writes the end of an open turn and goes on with the line. done runs in
// the agent's goroutine.
func (a *agent) endTurn(t turn.Turn, n *ending, done func(sent <-chan struct{}, err error)) {
	// Dropped before it is written, so that a second reply meanwhile is stale.
	a.turns.Drop(t.Message)
	var stats mailbox.Stats
	a.g.store.Go(func(tx *mailbox.Tx) (err error) {
		if _, open, err := mailbox.Get[turn.Turn](tx, turnsTable, t.Key()); err != nil {
			return err
		} else if !open {
			return fault.New(fault.Stale, "the turn of message %s has ended", t.Message).WithHint("nothing was sent")
		}
		if err := n.write(a.g, tx); err != nil {
			return err
		}
		stats, err = tx.Stats(a.gid)
		return err
	}, func(err error) {
		a.post(func() {
			if err != nil {
				if !errors.Is(err, fault.Stale) {
					a.turns.Put(t)
				}
				done(nil, err)
				return
			}
			a.certain(t.Message)
			sent := n.written(a.g)
			a.counted(stats)
			a.advance()
			done(sent, nil)
		})
	})
}

// failMessage ends a message that was never injected. It has left the line, so
// that a write that fails is tried again.
func (g *Gateway) failMessage(a *agent, seq uint64, f failure) {
	var n *ending
	var stats mailbox.Stats
	g.store.Go(func(tx *mailbox.Tx) error {
		n = nil // a group that fails to commit is run again
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
				g.log.Error("can't end a message; trying again", "agent", a.name, "seq", seq, "err", err)
				a.after(2*time.Second, func() { g.failMessage(a, seq, f) })
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
			if open, ok := a.turns.Find(n.turn.Message); ok && open.Seq == seq {
				a.turns.Drop(open.Message) // a puller's is open from its arrival
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
	n, err := g.end(turn.Open(a.gid, m.Seq, e, g.now()), f.kind, f.outcome(), status{State: failed, Reason: string(f.reason)})
	if err == nil {
		n.dead = &deadRow{Sealed: m.Sealed, Reason: f.dead, Queue: a.queueName(), Told: true, ID: m.ID, Kind: m.Kind}
		n.deadKey = string(a.gid) + "/" + string(m.ID)
	}
	return n, err
}

// buryLater has a copy of a message that its sender knows to have failed go to
// the dead letters (R12a).
func (g *Gateway) buryLater(e envelope.Envelope, s envelope.Sealed, reason envelope.Reason) {
	key := e.To + "/" + string(e.ID)
	g.store.Go(func(tx *mailbox.Tx) error {
		return mailbox.Set(tx, deadTable, key, deadRow{Sealed: s, Reason: reason, Told: true, ID: e.ID, Kind: e.Kind})
	}, func(err error) {
		if err != nil {
			g.log.Error("can't keep a dead letter", "id", e.ID, "err", err)
			return
		}
		g.outbox.add(deadTable, key, key)
	})
}
