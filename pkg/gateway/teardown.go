package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/topology"
	"fleet/pkg/trace"
	"fleet/pkg/turn"
)

// gravesTable holds the agents whose end has begun, until nothing of them is left:
// no pane, no mailbox, and no inbox on the broker.
const gravesTable mailbox.Table = "graves"

// grave says how an agent ended. It is written before the pane is closed, so that
// a gateway that is killed meanwhile has a successor that goes on (R6, R16).
type grave struct {
	GID    identity.GID  `json:"gid"`
	Name   string        `json:"name"`
	Role   api.Role      `json:"role"`
	Kind   envelope.Kind `json:"kind"` // how what is still in it is answered
	Reason fault.Kind    `json:"reason"`
	Detail string        `json:"detail"`
	Screen string        `json:"screen,omitempty"`
}

func (r grave) farewell() failure {
	return failure{kind: r.Kind, reason: r.Reason, dead: envelope.ReasonUndeliverable, detail: r.Detail, screen: r.Screen}
}

// howEnded says in words how a program ended.
func howEnded(exit pane.Exit) string {
	if exit.Signal != "" {
		return "signal " + exit.Signal
	}
	return fmt.Sprintf("exit status %d", exit.Code)
}

func errStopping(a *agent) error {
	return fault.New(fault.NotFound, "agent %s has ended", a.name).WithHint("`fleet roster` lists the agents")
}

// stopped is what became of a request to stop: how many turns were open, or why
// the agent is still there.
type stopped struct {
	turns int
	err   error
}

// Stop ends an agent of this host. Stopping what is not there is no error (R34).
// Where the agent's program can't be ended it fails; the agent takes nothing any
// more, and the gateway goes on trying.
func (g *Gateway) Stop(ctx context.Context, _ localapi.Caller, r api.StopRequest) (api.StopResult, error) {
	a, err := g.local(r.Agent)
	if errors.Is(err, fault.NotFound) {
		return api.StopResult{Name: r.Agent}, nil
	}
	if err != nil {
		return api.StopResult{}, err
	}
	if a.role == api.Operator {
		return api.StopResult{}, fault.New(fault.Refused, "the operator of a host can't be stopped").
			WithHint("end the gateway to take the host out")
	}
	over := make(chan stopped, 1)
	a.post(func() {
		if a.gone {
			over <- stopped{}
			return
		}
		a.stops = append(a.stops, over)
		a.teardown(failure{kind: envelope.Abandoned, reason: fault.Abandoned, dead: envelope.ReasonUndeliverable,
			detail: a.name + " was stopped"})
	})
	select {
	case s := <-over:
		return a.stopResult(s)
	case <-ctx.Done():
		return api.StopResult{}, ctx.Err()
	case <-a.ended:
		select {
		case s := <-over:
			return a.stopResult(s)
		default:
			return api.StopResult{Name: r.Agent}, nil // another request was faster, or the gateway ends
		}
	}
}

func (a *agent) stopResult(s stopped) (api.StopResult, error) {
	if s.err != nil {
		return api.StopResult{}, s.err
	}
	return api.StopResult{GID: a.gid, Name: a.name, Stopped: true, Abandoned: s.turns}, nil
}

// tellStops answers everybody who waits for the agent's end.
func (a *agent) tellStops(s stopped) {
	for _, over := range a.stops {
		over <- s
	}
	a.stops = nil
}

// teardown ends the agent: its pane is closed, every message and open turn gets
// its terminal outcome, and its inbox is read out and deleted. Who waits for it
// stands in a.stops, and is told once all but the inbox is over.
func (a *agent) teardown(f failure) {
	if a.closing {
		return
	}
	a.closing, a.farewell = true, f
	for id := range a.proving {
		a.certain(id)
	}
	for gid, waits := range a.parked {
		for _, r := range waits {
			a.turnAway(r)
		}
		delete(a.parked, gid)
	}
	a.dig(digFirst)
}

// The pauses between tries to end an agent's program.
const (
	digFirst = 2 * time.Second
	digMost  = time.Minute
)

// dig writes the agent's grave and then closes its pane. Where either fails it
// tries again after a pause: an agent whose program lives has not ended.
func (a *agent) dig(pause time.Duration) {
	f := a.farewell
	row := grave{GID: a.gid, Name: a.name, Role: a.role, Kind: f.kind, Reason: f.reason, Detail: f.detail, Screen: f.screen}
	a.g.store.Go(func(tx *mailbox.Tx) error {
		return mailbox.Set(tx, gravesTable, string(a.gid), row)
	}, func(err error) {
		if err == nil {
			a.post(a.announce) // not before, so that who is seen stopping does stop
		}
		go func() { // ends with the pane's close, which is bounded
			if err == nil {
				err = a.closePane()
			}
			a.post(func() {
				if err != nil {
					a.g.log.Error("can't end an agent; trying again", "agent", a.name, "err", err)
					a.tellStops(stopped{err: err})
					a.after(pause, func() { a.dig(min(2*pause, digMost)) })
					return
				}
				a.finish = a.bequeath
				if a.writes == 0 {
					a.finish = nil
					a.bequeath()
				}
			})
		}()
	})
}

// closePane ends the agent's program, and removes the long texts that nobody will
// read any more.
func (a *agent) closePane() error {
	if a.pane != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 20*time.Second)
		defer cancel()
		if err := a.pane.Close(ctx); err != nil {
			return fault.New(fault.Failed, "the program of %s can't be ended: %v", a.name, err).
				WithHint("the agent takes nothing any more, and its gateway goes on trying to end it")
		}
	}
	if err := os.RemoveAll(a.spool()); err != nil {
		a.g.log.Warn("an agent's spooled texts stay", "agent", a.name, "err", err)
	}
	return nil
}

// bequeath writes the outcomes of everything that is left, in one transaction
// with the agent's end, and tries until that is on disk.
func (a *agent) bequeath() {
	// Before the transaction, so that no outcome is kept for the agent after it.
	a.gone = true
	a.g.agents.remove(a)
	open := a.turns.Len()
	var left legacy
	a.g.store.Go(func(tx *mailbox.Tx) (err error) {
		left, err = a.writeEnds(tx)
		return err
	}, func(err error) {
		a.post(func() {
			if err != nil {
				a.g.log.Error("can't write an agent's end; trying again", "agent", a.name, "err", err)
				a.after(2*time.Second, a.bequeath)
				return
			}
			for _, n := range left.ends {
				n.written(a.g)
			}
			for _, key := range left.letters {
				a.g.outbox.add(deadTable, key, key)
			}
			a.g.who.remove(a.gid)
			a.g.audit.Write(trace.Line{Step: trace.Stopped, To: string(a.gid), Detail: a.farewell.detail})
			a.g.log.Info("ended", "agent", a.name, "gid", a.gid, "turns", open)
			a.tellStops(stopped{turns: open})
			if a.g.bus == nil {
				a.g.agents.forget(a.gid)
				a.cancel()
				return
			}
			a.g.running.Go(a.closeInbox)
		})
	})
}

// legacy is what an agent's end has written: the outbox takes it over once that
// is on disk.
type legacy struct {
	ends    []*ending
	letters []string // keys in deadTable
}

// writeEnds ends every message of the mailbox and forgets the agent.
func (a *agent) writeEnds(tx *mailbox.Tx) (all legacy, err error) {
	left, err := tx.Messages(a.gid, 0, 1<<30)
	if err != nil {
		return all, err
	}
	turns := map[uint64]turn.Turn{}
	var held []turn.Turn // drained by their puller and not answered
	if err := mailbox.Each(tx, turnsTable, turn.Prefix(a.gid), func(_ string, t turn.Turn) error {
		turns[t.Seq] = t
		held = append(held, t)
		return nil
	}); err != nil {
		return all, err
	}
	f := a.farewell
	end := func(n *ending, err error) error {
		if err != nil {
			return err
		}
		all.ends = append(all.ends, n)
		return n.write(a.g, tx)
	}
	for _, m := range left {
		switch _, open := turns[m.Seq]; {
		case open:
		case m.Kind == envelope.Send:
			if err := end(a.g.endUnread(a, m, f)); err != nil {
				return all, err
			}
		default:
			key, err := a.buryUnread(tx, m)
			if err != nil {
				return all, err
			}
			if key != "" {
				all.letters = append(all.letters, key)
			}
		}
	}
	for _, t := range held {
		if err := end(a.g.end(t, f.kind, f.outcome(), status{State: failed, Reason: string(f.reason)})); err != nil {
			return all, err
		}
	}
	if a.g.bus == nil { // no inbox is left to be read
		if err := mailbox.Delete(tx, gravesTable, string(a.gid)); err != nil {
			return all, err
		}
	}
	if err := mailbox.Delete(tx, agentsTable, string(a.gid)); err != nil {
		return all, err
	}
	return all, tx.DropAgent(a.gid)
}

// buryUnread moves an outcome that its recipient never took to the dead letters,
// and returns its key there; without a broker there is none.
func (a *agent) buryUnread(tx *mailbox.Tx, m mailbox.Message) (key string, err error) {
	if a.g.bus != nil {
		key = string(a.gid) + "/" + string(m.ID)
		if err := mailbox.Set(tx, deadTable, key, deadRow{Sealed: m.Sealed, Reason: envelope.ReasonUndeliverable,
			Queue: a.queueName(), ID: m.ID, Kind: m.Kind}); err != nil {
			return "", err
		}
	}
	return key, tx.Remove(a.gid, m.Seq)
}

// turnAway ends what still arrives for an agent that is being stopped.
func (a *agent) turnAway(r arrival) {
	if r.result != nil {
		r.result(errStopping(a))
		return
	}
	if r.env.Kind != envelope.Send {
		a.g.refuse(r.sealed, envelope.Refuse(envelope.ReasonUndeliverable, "its recipient has been stopped"), r.env, a.queueName(), r.ack)
		return
	}
	var n *ending
	a.g.store.Go(func(tx *mailbox.Tx) (err error) {
		n = nil // a group that fails to commit is run again
		known, ok := tx.Seen(a.gid, r.env.FromHost, r.env.From, r.env.ID)
		if ok && decodeStatus(known.Status).State != "" {
			return nil // it was dealt with when it came first
		}
		if n, err = a.g.endUnread(a, row(r, a.g.now()), a.farewell); err != nil {
			return err
		}
		return n.write(a.g, tx)
	}, func(err error) {
		a.post(func() {
			if err != nil {
				// Unacknowledged it holds up the inbox's end, which is as it must be.
				a.g.log.Error("can't end a message for a stopped agent; trying again", "agent", a.name, "id", r.env.ID, "err", err)
				a.after(2*time.Second, func() { a.turnAway(r) })
				return
			}
			r.ack()
			if n != nil {
				n.written(a.g)
			}
		})
	})
}

// closeInbox reads the inbox out and deletes it, as soon as the broker is there.
// It ends with that, or with the gateway; then the next one goes on.
func (a *agent) closeInbox() {
	defer a.cancel()
	b := a.g.bus
	b.UnbindLive(topology.LiveKey(a.gid))
	for a.ctx.Err() == nil {
		changed := b.Changed()
		if link := b.State().Link; link == bus.Up || link == bus.Blocked {
			err := b.DetachAndDelete(a.ctx, a.queueName(), a.receiveInbox)
			if err == nil || fault.From(err).Kind == fault.NotFound {
				break
			}
			a.g.log.Warn("an ended agent's inbox still stands", "agent", a.name, "err", err)
		}
		select {
		case <-changed:
		case <-a.ctx.Done():
			return
		}
	}
	err := a.g.store.Write(a.ctx, func(tx *mailbox.Tx) error { return mailbox.Delete(tx, gravesTable, string(a.gid)) })
	a.g.agents.forget(a.gid)
	if err != nil && a.ctx.Err() == nil {
		a.g.log.Error("can't forget an ended agent", "agent", a.name, "err", err)
	}
}
