package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/roster"
	"fleet/pkg/trace"
)

// sending is one send of this host. Its goroutine (run) drives it; watchers read
// its events from any position.
type sending struct {
	g       *Gateway
	from    identity.GID // who sends; with key, set before the send can be found
	key     string       // in sendsTable
	queue   *queue[func()]
	started sync.Once
	gone    chan struct{} // closed when run has ended, or never began

	// recorded is closed once it is known whether the send may begin. What follows
	// is written before, and of row only First and Outcome change after it: by run,
	// First under mu.
	recorded chan struct{}
	failed   bool // it may not
	row      sendRow
	env      envelope.Envelope
	sealed   envelope.Sealed

	mu       sync.Mutex // guards all but changed
	events   []api.Event
	watchers int
	waiters  int  // of the watchers, those that wait for the terminal outcome
	proven   bool // the recipient's side has the message
	over     bool // the last event is there
	ending   bool // run is over: nobody may join any more
	changed  signal

	// ---- owned by run
	tries int       // how often it was handed over
	asked time.Time // when last, or when that was thought of
	sent  time.Time // when last
	begun time.Time // when it was taken up, by this gateway
	doubt bool      // published while it was not known whether the recipient's host is there
	under int       // publications whose verdict is not there yet
	away  bool      // published while the recipient's host was away, which it has been since
	// routed: its inbox on the broker has had it, so a copy that is refused later
	// means nothing.
	routed bool
	told   bool // a result was emitted, by this gateway
}

// run drives the send until its last event, or until its first result is known
// and nobody watches.
func (s *sending) run(ctx context.Context) {
	defer close(s.gone)
	defer s.g.sends.drop(s)
	s.begun = s.g.now()
	if s.resume() {
		s.deliver(ctx)
	}
	for ctx.Err() == nil && !s.finish() {
		wait, cancel := context.WithTimeout(ctx, s.nextLook())
		for _, f := range s.queue.take(wait) {
			f()
		}
		cancel()
		s.look(ctx)
	}
}

// resume goes on from what an earlier try of the same id came to. It returns
// whether the message must be handed over (again).
func (s *sending) resume() bool {
	first := s.row.First
	if s.row.Outcome != nil {
		s.prove()
		switch {
		case first != nil && first.Step != api.StepUnknown && first.Step != api.StepOffline && first.Step != api.StepDeferred:
			s.emitEarlier(*first)
		case s.row.Outcome.Kind == envelope.Reply:
			s.first(api.Event{Step: api.StepInjected, Evidence: "reply"}) // R10a
		default: // the failure says more, and is the first result
			s.mu.Lock()
			s.row.First = nil
			s.mu.Unlock()
		}
		if !s.isOver() {
			s.offerAgain()
		}
		return false
	}
	if first == nil || first.Step == api.StepUnknown || first.Step == api.StepOffline {
		s.routed = first != nil && first.Step == api.StepOffline
		return true
	}
	if first.Fault == nil {
		s.prove()
	}
	s.emitEarlier(*first)
	return false
}

// deliver hands the message over: to an agent of this host, or to the broker.
func (s *sending) deliver(ctx context.Context) {
	s.tries++
	s.asked = s.g.now()
	s.sent = s.asked
	if s.row.ToHost == s.g.cfg.Host {
		s.deliverHere()
		return
	}
	if s.g.bus == nil {
		s.fail(noBroker())
		return
	}
	m := s.g.message(s.env, s.sealed)
	if passed(s.row.Exp, s.sent) {
		m.Until = s.sent.Add(s.g.cfg.Bounds.Receipt) // it only asks what became of the message
	}
	p, err := s.g.bus.Publish(ctx, m)
	if err != nil {
		s.notPublished(err)
		return
	}
	s.under++
	go func() { // ends with the publication, whose own bound is the message's
		<-p.Done()
		outcome, detail := p.Outcome()
		s.queue.put(func() { s.published(outcome, detail) })
	}()
}

// notPublished ends a first try without a broker at once (R13). Of what an earlier
// call sent it says that nobody knows; a later try just waits for the next.
func (s *sending) notPublished(err error) {
	switch {
	case s.tries > 1:
	case s.row.First == nil:
		s.fail(err)
	default: // an earlier gateway, or call, may have got it through
		s.unproven(fault.From(err).Message)
	}
}

func (s *sending) deliverHere() {
	target := s.g.agents.get(s.row.To)
	if target == nil {
		s.fail(fault.New(fault.NotFound, "agent %s has been stopped", s.row.ToName).WithHint("`fleet roster` lists the agents"))
		return
	}
	target.post(func() {
		target.arrive(arrival{env: s.env, sealed: s.sealed, result: func(err error) {
			if err != nil {
				s.queue.put(func() { s.fail(err) })
			}
		}})
	})
	go func() { // ends with the send, the agent or the gateway; an agent that ended runs nothing more
		select {
		case <-target.ended:
			s.queue.put(s.agentEnded)
		case <-s.gone:
		case <-s.g.ctx.Done():
		}
	}()
}

func (s *sending) agentEnded() {
	if !s.isProven() && s.row.First == nil {
		s.fail(fault.New(fault.NotFound, "agent %s has been stopped", s.row.ToName))
	}
}

// mayBeThere says whether a copy may have got through, of this gateway or of an
// earlier one: then what becomes of a further copy says nothing of the message.
func (s *sending) mayBeThere() bool { return s.routed || s.row.First != nil }

// bounced goes on with a copy that did not get through. It returns whether that
// goes for the message.
func (s *sending) bounced(why string) bool {
	s.returned(why)
	if !s.mayBeThere() {
		return true
	}
	if !s.told {
		s.unproven("a further copy did not get through: " + why)
	}
	return false
}

// published goes on with the broker's verdict.
func (s *sending) published(o bus.Outcome, detail error) {
	s.under--
	if o == bus.Accepted {
		s.g.audit.Write(trace.Of(trace.Published, s.env))
	}
	if s.isProven() || s.finished() {
		return // a receipt was faster
	}
	switch o {
	case bus.Accepted:
		s.routed = true
		s.emit(api.Event{Step: api.StepPublished})
		s.offline()
	case bus.Unroutable:
		if !s.bounced("no queue takes it") {
			return
		}
		s.fail(fault.New(fault.NotFound, "%s has no inbox on the broker, so the message was not sent", s.address()).
			WithHint("its host may have been away for longer than its inbox lives; `fleet roster` shows who is there"))
	case bus.Full:
		if !s.bounced("the inbox is full") {
			return
		}
		s.fail(fault.New(fault.Full, "the inbox of %s is full, so the message was not sent", s.address()).
			WithHint("it takes messages again once some of what waits there is taken"))
		s.g.buryLater(s.env, s.sealed, envelope.ReasonInboxFull)
	case bus.Refused:
		if !s.bounced("the broker refused it") {
			return
		}
		s.fail(fault.New(fault.Failed, "the broker refused the message: %v", detail).
			WithHint("check the gateway's permissions and the exchanges on the broker"))
	default:
		s.unproven("the broker has not confirmed it")
	}
}

func (s *sending) returned(why string) {
	line := trace.Of(trace.Returned, s.env)
	line.Reason = why
	s.g.audit.Write(line)
}

// offline is the first result where the recipient's gateway is away: the message
// rests in its inbox.
func (s *sending) offline() {
	h, ok := s.g.who.host(s.row.ToHost)
	// Just after a reconnect, silence says nothing of the other host yet.
	s.doubt = ok && h.State == hostUnknown && h.Why == roster.WhyLink
	if s.doubt || ok && h.State != hostUnknown || s.told {
		return
	}
	s.away = true
	s.first(api.Event{Step: api.StepOffline, Warning: fmt.Sprintf(
		"%s is away; the message rests in the inbox of %s until its gateway is back", s.row.ToHost, s.address())})
}

// heard goes on with a receipt.
func (s *sending) heard(kind envelope.Kind, r envelope.Receipt) {
	if s.isOver() {
		return
	}
	switch kind {
	case envelope.Injected:
		s.prove()
		s.first(api.Event{Step: api.StepInjected, Evidence: r.Evidence})
	case envelope.Held:
		s.prove()
		s.first(api.Event{Step: api.StepHeld})
	case envelope.Deferred:
		s.prove() // its gateway has it
		s.first(api.Event{Step: api.StepDeferred, Reason: r.Reason, Detail: r.Detail, Position: r.Position})
	case envelope.Refused:
		s.refused(r)
	}
}

func (s *sending) refused(r envelope.Receipt) {
	detail := r.Detail
	if detail == "" {
		detail = "the recipient's gateway refused the message"
	}
	kind := fault.Kind(r.Reason)
	if !mayRefuse[kind] {
		kind = fault.Refused
	}
	if kind == fault.Unknown {
		s.unknownForGood(detail)
		return
	}
	s.fail(fault.New(kind, "%s", detail))
}

// unknownForGood ends a send of which the recipient's gateway itself can't tell
// what became.
func (s *sending) unknownForGood(detail string) {
	s.last(api.Event{Step: api.StepUnknown, Detail: detail, Fault: s.unknownFault(detail)})
}

func (s *sending) unknownFault(detail string) *fault.Fault {
	return fault.New(fault.Unknown, "it is not known whether %s got the message: %s", s.address(), detail).
		WithHint("fleet send --id %s, with the same agent and text, goes on with this message; it is never delivered twice", s.row.ID).WithID(string(s.row.ID))
}

// unproven notes that no proof came in time.
func (s *sending) unproven(detail string) {
	s.first(api.Event{Step: api.StepUnknown, Detail: detail, Fault: s.unknownFault(detail)})
}

// ended takes the terminal outcome, which lies in the sender's mailbox. It
// returns whether somebody waits for it here, who then acknowledges it.
func (s *sending) ended(e envelope.Envelope) bool {
	s.mu.Lock()
	wanted := !s.over && (s.waiters > 0 || (s.watchers > 0 && !s.proven && e.Kind != envelope.Reply))
	s.mu.Unlock()
	s.queue.put(func() {
		s.prove()
		switch {
		case wanted, !s.told && e.Kind != envelope.Reply:
			s.last(s.outcomeEvent(e))
		case !s.told:
			s.first(api.Event{Step: api.StepInjected, Evidence: "reply"})
		}
	})
	return wanted
}

// outcomeEvent shows a terminal outcome to a watcher.
func (s *sending) outcomeEvent(e envelope.Envelope) api.Event {
	ev := api.Event{Step: api.StepReply, Message: e.ID}
	if e.Kind == envelope.Reply {
		t, err := body[envelope.Text](e)
		if err != nil {
			s.g.log.Error("can't decode a reply", "id", e.ID, "err", err)
		}
		ev.Text, ev.Mark = t.Text, t.Mark
		return ev
	}
	o, err := body[envelope.Outcome](e)
	if err != nil {
		s.g.log.Error("can't decode an outcome", "id", e.ID, "err", err)
	}
	ev.Step, ev.Reason, ev.Detail = api.StepFailed, o.Reason, o.Detail
	ev.Fault = outcomeFault(o.Reason, o.Detail, o.Screen)
	return ev
}

// outcomeFault is what a failed turn looks like to who waits for it.
func outcomeFault(reason, detail, screen string) *fault.Fault {
	kind := fault.Kind(reason)
	if !mayEnd[kind] {
		kind = fault.AgentFailed
	}
	f := fault.New(kind, "%s", clean(detail))
	for line := range strings.Lines(screen) {
		f = f.WithAlso(clean(strings.TrimSuffix(line, "\n")))
	}
	return f
}

func (s *sending) address() string {
	if s.row.ToName == "" {
		return string(s.row.To)
	}
	return s.row.ToName + "@" + string(s.row.ToHost)
}
