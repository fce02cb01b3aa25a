package gateway

import (
	"context"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/trace"
)

// lease keeps a message that one client is taking from the others, until it is
// acknowledged or the bound passes: then the client is gone, and the message
// comes again.
type lease struct {
	seq   uint64
	until time.Time
}

// offer shows a terminal outcome to who waits for it, leased; else it waits for
// the inbox.
func (a *agent) offer(e envelope.Envelope, seq uint64) {
	if s := a.g.sends.find(a.gid, e.Re); s != nil && s.ended(e) {
		a.leases[e.ID] = &lease{seq: seq, until: a.g.now().Add(a.g.cfg.Bounds.Lease)}
		return
	}
	a.g.audit.Write(trace.Of(trace.Held, e))
}

// offerAgain gives a send that was joined late the outcome that is there.
func (s *sending) offerAgain() {
	a := s.g.agents.get(s.row.From)
	if a == nil {
		s.fail(fault.New(fault.NotFound, "the sender of %s is no longer an agent of this host", s.row.ID))
		return
	}
	note := s.row.Outcome
	a.post(func() {
		m, ok, err := readMessage(a.g, a.gid, note.Seq)
		switch {
		case err != nil:
			s.queue.put(func() { s.fail(err) })
		case ok:
			// Also where it is leased: who goes on with the id may be the successor of
			// a client that was killed with it, and a second copy is harmless.
			e, err := stored(m.Sealed)
			if err != nil {
				s.queue.put(func() { s.fail(err) })
				return
			}
			s.mu.Lock()
			wanted := s.waiters > 0 || s.row.First == nil
			s.mu.Unlock()
			if wanted {
				a.leases[m.ID] = &lease{seq: m.Seq, until: a.g.now().Add(a.g.cfg.Bounds.Lease)}
				s.queue.put(func() {
					if !s.isOver() {
						s.last(s.outcomeEvent(e))
					}
				})
			}
		default:
			s.queue.put(s.taken)
		}
	})
}

// catchUp offers a waiter that has joined an outcome that came while nobody
// waited.
func (s *sending) catchUp() {
	if s.isOver() {
		return
	}
	row, ok, err := s.g.sentRow(s.row.From, s.row.ID)
	if err == nil && ok && row.Outcome != nil {
		s.row.Outcome = row.Outcome
		s.offerAgain()
	}
}

// taken shows an outcome that was drained before.
func (s *sending) taken() {
	row, ok, err := s.g.sentRow(s.row.From, s.row.ID)
	if err != nil || !ok || row.Outcome == nil || row.Outcome.Message == nil {
		s.fail(fault.New(fault.Stale, "the outcome of %s was taken before and is no longer kept", s.row.ID))
		return
	}
	m := row.Outcome.Message
	ev := api.Event{Step: api.StepReply, Text: m.Text, Reason: m.Reason, Detail: m.Detail}
	if m.Kind != envelope.Reply {
		ev.Step = api.StepFailed
		ev.Fault = outcomeFault(m.Reason, m.Detail, "")
	}
	s.last(ev)
}

func readMessage(g *Gateway, gid identity.GID, seq uint64) (m mailbox.Message, ok bool, err error) {
	err = g.store.Read(func(tx *mailbox.Tx) (err error) {
		m, ok, err = tx.Message(gid, seq)
		return err
	})
	return m, ok, err
}

func (a *agent) leased(id envelope.ID) bool {
	l := a.leases[id]
	if l == nil {
		return false
	}
	if a.g.now().After(l.until) {
		delete(a.leases, id)
		return false
	}
	return true
}

// pushed says whether m goes into the agent's pane, not to whoever asks.
func (a *agent) pushed(m mailbox.Message) bool { return !a.role.Pulls() && m.Kind == envelope.Send }

// take leases m to the caller, unless somebody has it, or it is about to be
// failed.
func (a *agent) take(m mailbox.Message) bool {
	if a.leased(m.ID) || m.Kind == envelope.Send && passed(m.Exp, a.g.now()) {
		return false
	}
	a.leases[m.ID] = &lease{seq: m.Seq, until: a.g.now().Add(a.g.cfg.Bounds.Lease)}
	return true
}

// Ack takes the messages that the caller has out of its mailbox.
func (g *Gateway) Ack(ctx context.Context, from localapi.Caller, r api.AckRequest) (api.AckResult, error) {
	a := g.agents.get(from.GID)
	if a == nil {
		return api.AckResult{}, fault.New(fault.NotFound, "agent %s is not registered", from.GID)
	}
	wanted := make(map[envelope.ID]uint64, len(r.IDs))
	if err := a.ask(ctx, func() {
		for _, id := range r.IDs {
			if l := a.leases[id]; l != nil {
				wanted[id] = l.seq
			} else {
				wanted[id] = 0 // its lease ran out, or the gateway was restarted
			}
		}
	}); err != nil {
		return api.AckResult{}, err
	}
	var drained []envelope.Envelope
	var stats mailbox.Stats
	result := make(chan error, 1)
	g.store.Go(func(tx *mailbox.Tx) (err error) {
		drained = drained[:0]
		for id, seq := range wanted {
			e, ok, err := g.drain(tx, a, id, seq)
			if err != nil {
				return err
			}
			if ok {
				drained = append(drained, e)
			}
		}
		stats, err = tx.Stats(a.gid)
		return err
	}, func(err error) {
		if err == nil { // posted here, so that the counts of two acks arrive in order
			a.post(func() {
				for id := range wanted {
					delete(a.leases, id)
				}
				a.counted(stats)
			})
		}
		result <- err
	})
	if err := <-result; err != nil { // not ctx: once it is handed in, what it did must be known
		return api.AckResult{}, err
	}
	for _, e := range drained {
		g.audit.Write(trace.Of(trace.Drained, e))
	}
	return api.AckResult{Acked: len(drained)}, nil
}

// drain removes one message. The outcome of a send is kept with it, so that a
// retry of the same id gets it again (R23).
func (g *Gateway) drain(tx *mailbox.Tx, a *agent, id envelope.ID, seq uint64) (e envelope.Envelope, ok bool, err error) {
	gid := a.gid
	if seq == 0 {
		heads, err := tx.Heads(gid, 0, 1<<30)
		if err != nil {
			return e, false, err
		}
		for _, h := range heads {
			if h.ID == id {
				seq = h.Seq
			}
		}
	}
	m, ok, err := tx.Message(gid, seq)
	if err != nil || !ok || a.pushed(m) {
		return e, false, err
	}
	if e, err = stored(m.Sealed); err != nil {
		return e, false, err
	}
	if m.Kind.Terminal() {
		key := sendKey(gid, m.Re)
		row, known, err := mailbox.Get[sendRow](tx, sendsTable, key)
		if err != nil {
			return e, false, err
		}
		if known {
			view, err := g.show(m)
			if err != nil {
				return e, false, err
			}
			row.Outcome = &outcomeNote{Seq: seq, Kind: m.Kind, Message: &view}
			if err := mailbox.Set(tx, sendsTable, key, row); err != nil {
				return e, false, err
			}
		}
	}
	return e, true, tx.Remove(gid, seq)
}

// watchHeld has a puller's message failed when it expires before it is taken.
func (a *agent) watchHeld(w waiting) {
	if w.exp.IsZero() {
		return
	}
	a.held = append(a.held, w)
	a.setExpiry()
}

// dueAt is when a message is to be failed; zero for never. What somebody is just
// taking is not: it was in time.
func (a *agent) dueAt(w waiting) time.Time {
	if l := a.leases[w.id]; l != nil && !w.exp.IsZero() && l.until.After(w.exp) {
		return l.until
	}
	return w.exp
}
