package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/fault"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/output"
	"fleet/pkg/roster"
)

// Send sends, or joins the send of the same id, and emits its events until the
// caller has what it came for.
func (g *Gateway) Send(ctx context.Context, from localapi.Caller, r api.SendRequest, emit func(api.Event) error) error {
	if r.RequireLive {
		if err := g.who.requireLive(r.To); err != nil {
			return err
		}
	}
	s, err := g.accept(ctx, from, r)
	if err != nil {
		return err
	}
	defer s.begin()
	defer s.leave(r.Wait)
	if r.TimeoutSeconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.TimeoutSeconds*float64(time.Second)))
		defer cancel()
	}
	for next := 0; ; {
		changed := s.changed.next()
		for _, e := range s.since(next) {
			next++
			// Without Wait the first result is all the caller came for.
			e.Last = e.Last || !r.Wait && isResult(e.Step)
			if err := emit(e); err != nil || e.Last {
				return err
			}
			// Only now, so that the caller has the id to go on with before anything
			// happens to the message.
			s.begin()
		}
		select {
		case <-changed:
		case <-s.gone:
			if len(s.since(next)) == 0 {
				return fault.New(fault.NoGateway, "the gateway is closing").WithID(string(s.row.ID)).
					WithHint("fleet send --id %s, with the same agent and text, goes on with this message", s.row.ID)
			}
		case <-ctx.Done():
			return s.leftBy(ctx.Err())
		}
	}
}

// begin starts to drive the send, once.
func (s *sending) begin() { s.started.Do(func() { go s.run(s.g.ctx) }) }

// leftBy explains a watcher's own end.
func (s *sending) leftBy(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	what := "no proof that it arrived came in time"
	if s.isProven() {
		what = "no reply came in time"
	}
	return fault.New(fault.TimedOut, "%s: %s", s.address(), what).WithID(string(s.row.ID)).
		WithHint("the reply will be in the inbox: fleet inbox --re %s --wait; or go on waiting: fleet send --id %s --wait and the same agent and text", s.row.ID, s.row.ID)
}

// isResult says whether a step is a first result of a send.
func isResult(step string) bool {
	return step != api.StepAccepted && step != api.StepPublished
}

// join adds a watcher, unless the send is ending.
func (s *sending) join(wait bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.watchers++
	if wait {
		s.waiters++
	}
	return true
}

func (s *sending) leave(wait bool) {
	s.mu.Lock()
	s.watchers--
	if wait {
		s.waiters--
	}
	s.mu.Unlock()
	s.queue.put(func() {}) // so that run looks whether anybody is left
}

func (s *sending) since(n int) []api.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events[n:]
}

func (s *sending) prove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proven = true
}

func (s *sending) isProven() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proven
}

func (s *sending) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// finished says whether run has nothing left to do.
func (s *sending) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over || s.watchers == 0 && s.row.First != nil
}

// finish is finished, after which nobody joins.
func (s *sending) finish() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = s.ending || s.over || s.watchers == 0 && s.row.First != nil
	return s.ending
}

// stamp fills in what all events of a send have.
func (s *sending) stamp(e api.Event) api.Event {
	e.ID, e.Trace, e.To, e.ToName, e.ToHost = s.row.ID, s.row.Trace, s.row.To, s.row.ToName, s.row.ToHost
	if e.At.IsZero() {
		e.At = s.g.now().UTC()
	}
	return e
}

// emit adds an event for all watchers.
func (s *sending) emit(e api.Event) {
	e = s.stamp(e)
	s.mu.Lock()
	s.over = s.over || e.Last
	s.events = append(s.events, e)
	s.mu.Unlock()
	s.changed.fire()
}

// emitEarlier shows the result of an earlier try again.
func (s *sending) emitEarlier(e api.Event) {
	e.Last, s.told = e.Fault != nil && e.Step == api.StepFailed, true
	s.emit(e)
}

// first emits a result and keeps it for retries of the same id. A result that
// says more than the one before takes its place.
func (s *sending) first(e api.Event) {
	old := s.row.First
	if old == nil || old.Step == api.StepUnknown || old.Step == api.StepOffline || old.Step == api.StepDeferred {
		s.save(e)
	}
	s.told = true
	s.emit(e)
}

// last emits the event after which the send is over.
func (s *sending) last(e api.Event) {
	e.Last, s.told = true, true
	switch {
	case s.row.First != nil:
	case e.Step == api.StepReply:
		s.save(api.Event{Step: api.StepInjected, Evidence: "reply"}) // what a retry without --wait is told
	default:
		s.save(e)
	}
	s.emit(e)
}

// fail ends a send that did not get through. Such an end is not kept: a retry of
// the same id tries again.
func (s *sending) fail(err error) {
	if s.isOver() {
		return
	}
	s.emit(api.Event{Step: api.StepFailed, Fault: fault.From(err).WithID(string(s.row.ID)), Last: true})
}

// save keeps e as the first result. Nobody waits for it: without it a retry
// asks the recipient's side again.
func (s *sending) save(e api.Event) {
	e.At = s.g.now().UTC()
	s.mu.Lock()
	s.row.First = &e
	s.mu.Unlock()
	key := s.key
	s.g.store.Later(func(tx *mailbox.Tx) error {
		row, ok, err := mailbox.Get[sendRow](tx, sendsTable, key)
		if err != nil || !ok {
			return err
		}
		row.First = &e
		return mailbox.Set(tx, sendsTable, key, row)
	}, func(err error) {
		if err != nil {
			s.g.log.Error("can't save a result", "id", s.row.ID, "err", err)
		}
	})
}

// lookEvery bounds how long a send goes without looking at its times and at its
// recipient's host.
const lookEvery = 2 * time.Second

// nextLook is how long run may sleep.
func (s *sending) nextLook() time.Duration {
	wait := lookEvery
	if !s.isProven() {
		wait = min(wait, s.asked.Add(s.patience()).Sub(s.g.now()))
		if last := s.lastWord(); !last.IsZero() {
			wait = min(wait, last.Sub(s.g.now()))
		}
	}
	return max(wait, time.Millisecond)
}

// patience is how long a proof may take: longer with every try.
func (s *sending) patience() time.Duration {
	return s.g.cfg.Bounds.Receipt << min(max(s.tries-1, 0), 4)
}

// lastWord is when a send that expires ends where nobody has said a word of it; zero
// where that is up to its recipient's side. That fails what it has not claimed in
// time, and what was claimed in time may be proven later: so its word is waited for,
// as after a copy that asked again.
func (s *sending) lastWord() time.Time {
	if s.row.Exp.IsZero() || s.row.ToHost == s.g.cfg.Host {
		return time.Time{}
	}
	last := s.row.Exp
	if s.sent.After(last) {
		last = s.sent
	}
	return last.Add(s.g.cfg.Bounds.Receipt)
}

// expired ends a send that expired and of which nothing was heard.
func (s *sending) expired() {
	if s.away || s.under == 0 && !s.mayBeThere() {
		s.fail(fault.New(fault.Expired, "%s did not take the message before it expired", s.address()))
		return
	}
	s.unknownForGood("it has expired, and " + string(s.row.ToHost) + " has not said whether it was in time")
}

// look ends or repeats what has waited too long.
func (s *sending) look(ctx context.Context) {
	if s.finished() {
		return
	}
	now := s.g.now()
	if !s.isProven() {
		if s.doubt {
			s.offline()
		}
		s.away = s.away && s.rests()
		if passed(s.lastWord(), now) {
			s.expired()
			return
		}
		if now.Sub(s.asked) >= s.patience() {
			if !s.told {
				s.unproven(fmt.Sprintf("no word from %s within %s", s.row.ToHost, s.patience().Round(time.Second)))
			}
			if s.isAwaited() && !s.rests() {
				s.deliver(ctx) // the same id: what is known there is answered with its state
			} else {
				s.asked = now // who does not wait has its result by now, and leaves
			}
			return
		}
	}
	s.lookAtHost(now)
}

// isAwaited says whether a watcher wants more than the first result.
func (s *sending) isAwaited() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiters > 0
}

// rests says whether the message lies in its inbox while the recipient's gateway
// is away: a further copy would only take room there.
func (s *sending) rests() bool {
	h, ok := s.g.who.host(s.row.ToHost)
	return s.routed && (!ok || h.State == hostUnknown && h.Why != roster.WhyLink)
}

// lookAtHost ends the wait for a reply from a host that has been silent for too
// long (R24).
func (s *sending) lookAtHost(now time.Time) {
	if s.row.ToHost == s.g.cfg.Host {
		return
	}
	h, ok := s.g.who.host(s.row.ToHost)
	if !s.isProven() || ok && h.State != hostUnknown {
		return
	}
	since, silent := s.begun, "is not there" // a gateway that has just started knows no host yet
	if ok {
		since, silent = h.Since, "has been silent for "+now.Sub(h.Since).Round(time.Second).String()
	}
	if now.Sub(since) < s.g.cfg.Bounds.Away {
		return
	}
	detail := fmt.Sprintf("%s %s", s.row.ToHost, silent)
	f := fault.New(fault.Unknown, "%s, so nobody can tell what becomes of the turn", detail).WithID(string(s.row.ID)).
		WithHint("a reply that is given all the same will be in the inbox: fleet inbox --re %s --wait", s.row.ID)
	s.emit(api.Event{Step: api.StepUnknown, Detail: detail, Fault: f, Last: true})
}

// clean makes text from another host fit for one line of a message to people.
func clean(text string) string { return output.Clean(text) }
