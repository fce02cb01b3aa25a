package gateway

import (
	"context"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/topology"
	"fleet/pkg/trace"
	"fleet/pkg/turn"
)

// gravesTable holds the agents that have ended while their inboxes may still
// stand on the broker.
const gravesTable mailbox.Table = "graves"

// grave is an inbox that is to be read out and deleted (R6).
type grave struct {
	GID    identity.GID  `json:"gid"`
	Name   string        `json:"name"`
	Role   api.Role      `json:"role"`
	Kind   envelope.Kind `json:"kind"` // how what is still in it is answered
	Reason fault.Kind    `json:"reason"`
	Detail string        `json:"detail"`
}

func errStopping(a *agent) error {
	return fault.New(fault.NotFound, "agent %s has ended", a.name).WithHint("`fleet roster` lists the agents")
}

// Stop ends an agent of this host. Stopping what is not there is no error (R34).
func (g *Gateway) Stop(ctx context.Context, _ localapi.Caller, r api.StopRequest) (api.StopResult, error) {
	a, err := g.local(r.Agent)
	if fault.Exit(err) == fault.Exit(fault.New(fault.NotFound, "x")) && fault.From(err).Kind == fault.NotFound {
		return api.StopResult{Name: r.Agent}, nil
	}
	if err != nil {
		return api.StopResult{}, err
	}
	if a.role == api.Operator {
		return api.StopResult{}, fault.New(fault.Refused, "the operator of a host can't be stopped").
			WithHint("end the gateway to take the host out")
	}
	abandoned := make(chan int, 1)
	a.post(func() {
		a.teardown(failure{kind: envelope.Abandoned, reason: fault.Abandoned, dead: envelope.ReasonUndeliverable,
			detail: a.name + " was stopped"}, func(turns int) { abandoned <- turns })
	})
	select {
	case n := <-abandoned:
		return api.StopResult{GID: a.gid, Name: a.name, Stopped: true, Abandoned: n}, nil
	case <-ctx.Done():
		return api.StopResult{}, ctx.Err()
	case <-a.ended:
		return api.StopResult{Name: r.Agent}, nil
	}
}

// teardown ends the agent: its pane is closed, every message and open turn gets
// its terminal outcome, and its inbox is read out and deleted. done learns how
// many turns were open, once all but the inbox is over.
func (a *agent) teardown(f failure, done func(int)) {
	if a.closing {
		if done != nil {
			done(0)
		}
		return
	}
	a.closing, a.farewell = true, f
	open := a.turns.Len()
	for id := range a.proving {
		a.certain(id)
	}
	for gid, waits := range a.parked {
		for _, r := range waits {
			a.turnAway(r)
		}
		delete(a.parked, gid)
	}
	a.g.who.update(a.view())
	go func() { // ends with the pane's close, which is bounded
		if a.pane != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 20*time.Second)
			defer cancel()
			if err := a.pane.Close(ctx); err != nil {
				a.g.log.Error("can't close a pane", "agent", a.name, "err", err)
			}
		}
		a.post(func() {
			a.finish = func() { a.bequeath(done, open) }
			if a.writes == 0 {
				finish := a.finish
				a.finish = nil
				finish()
			}
		})
	}()
}

// bequeath writes the outcomes of everything that is left, in one transaction
// with the agent's end, and tries until that is on disk.
func (a *agent) bequeath(done func(int), open int) {
	var ends []*ending
	a.g.store.Go(func(tx *mailbox.Tx) (err error) {
		ends, err = a.writeEnds(tx)
		return err
	}, func(err error) {
		a.post(func() {
			if err != nil {
				a.g.log.Error("can't write an agent's end; trying again", "agent", a.name, "err", err)
				a.after(2*time.Second, func() { a.bequeath(done, open) })
				return
			}
			for _, n := range ends {
				n.written(a.g)
			}
			a.g.agents.remove(a)
			a.g.who.remove(a.gid)
			a.g.audit.Write(trace.Line{Step: trace.Stopped, To: string(a.gid), Detail: a.farewell.detail})
			a.g.log.Info("ended", "agent", a.name, "gid", a.gid, "turns", open)
			if done != nil {
				done(open)
			}
			if a.g.bus == nil {
				a.cancel()
				return
			}
			a.g.running.Go(a.closeInbox)
		})
	})
}

// writeEnds ends every message of the mailbox and forgets the agent.
func (a *agent) writeEnds(tx *mailbox.Tx) (ends []*ending, err error) {
	left, err := tx.Messages(a.gid, 0, 1<<30)
	if err != nil {
		return nil, err
	}
	turns := map[uint64]turn.Turn{}
	var held []turn.Turn // drained by their puller and not answered
	if err := mailbox.Each(tx, turnsTable, turn.Prefix(a.gid), func(_ string, t turn.Turn) error {
		turns[t.Seq] = t
		held = append(held, t)
		return nil
	}); err != nil {
		return nil, err
	}
	f := a.farewell
	end := func(n *ending, err error) error {
		if err != nil {
			return err
		}
		ends = append(ends, n)
		return n.write(a.g, tx)
	}
	for _, m := range left {
		switch _, open := turns[m.Seq]; {
		case open:
		case m.Kind == envelope.Send:
			if err := end(a.g.endUnread(a, m, f)); err != nil {
				return nil, err
			}
		default:
			if err := a.buryUnread(tx, m); err != nil {
				return nil, err
			}
		}
	}
	for _, t := range held {
		if err := end(a.g.end(t, f.kind, envelope.Outcome{Reason: string(f.reason), Detail: f.detail, Screen: f.screen},
			status{State: failed, Reason: string(f.reason)})); err != nil {
			return nil, err
		}
	}
	if a.g.bus != nil {
		if err := mailbox.Set(tx, gravesTable, string(a.gid), grave{GID: a.gid, Name: a.name, Role: a.role, Kind: f.kind,
			Reason: f.reason, Detail: f.detail}); err != nil {
			return nil, err
		}
	}
	if err := mailbox.Delete(tx, agentsTable, string(a.gid)); err != nil {
		return nil, err
	}
	return ends, tx.DropAgent(a.gid)
}

// buryUnread moves an outcome that its recipient never took to the dead letters.
func (a *agent) buryUnread(tx *mailbox.Tx, m mailbox.Message) error {
	if a.g.bus != nil {
		key := string(a.gid) + "/" + string(m.ID)
		if err := mailbox.Set(tx, deadTable, key, deadRow{Sealed: m.Sealed, Reason: envelope.ReasonUndeliverable,
			Queue: a.queueName()}); err != nil {
			return err
		}
		a.g.outbox.add(deadTable, key, key)
	}
	return tx.Remove(a.gid, m.Seq)
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
	if err != nil && a.ctx.Err() == nil {
		a.g.log.Error("can't forget an ended agent", "agent", a.name, "err", err)
	}
}
