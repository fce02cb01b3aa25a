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
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/roster"
	"fleet/pkg/trace"
)

// sends are the sends of this host whose outcome is awaited.
type sends struct {
	g  *Gateway
	mu sync.Mutex // guards active
	// active holds a send from its acceptance until its first result is known and
	// nobody watches it any more.
	active map[string]*sending
}

// sending is one send of this host. Its goroutine (run) drives it; watchers read
// its events from any position.
type sending struct {
	g      *Gateway
	row    sendRow
	env    envelope.Envelope
	sealed envelope.Sealed
	queue  *queue[func()]
	gone   chan struct{} // closed when run has ended

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
	asked time.Time // when last
	begun time.Time // when it was taken up, by this gateway
	doubt bool      // published while it was not known whether the recipient's host is there
	// routed: its inbox on the broker has had it, so a copy that is refused later
	// means nothing.
	routed bool
	told   bool // a result was emitted, by this gateway
}

// accept is where every message of a local caller enters the fleet. It returns
// once the send is recorded under its id, so that a retry finds it.
func (g *Gateway) accept(ctx context.Context, from localapi.Caller, r api.SendRequest) (*sending, error) {
	if len(r.Text) > g.cfg.Limits.TextBytes {
		return nil, fault.New(fault.Usage, "the text has %d bytes, more than the %d that a message may have", len(r.Text), g.cfg.Limits.TextBytes).
			WithHint("limits.text_bytes in fleet.yaml sets the limit; a file's path may be better sent than its content")
	}
	to, err := g.recipient(from, r)
	if err != nil {
		return nil, g.unresolved(r.To, err)
	}
	if to.GID == from.GID {
		return nil, fault.New(fault.Refused, "%s is the sender itself", r.To).
			WithHint("a message to oneself would never be answered")
	}
	if me := g.agents.get(from.GID); r.Wait && me != nil && me.mailboxFull(ctx) {
		return nil, fault.New(fault.Full, "the own mailbox is full, so an answer would have no place").
			WithHint("`fleet inbox` takes what waits there")
	}
	s, err := g.newSending(from, to, r)
	if err != nil {
		return nil, err
	}
	if r.ID == "" {
		return g.sends.startNew(s)
	}
	return g.sends.start(ctx, s)
}

// recipient is the agent that a send is for. What was sent before goes on also
// where the roster does not know its recipient: yet, after a restart, or any
// more, so that its outcome can still be had.
func (g *Gateway) recipient(from localapi.Caller, r api.SendRequest) (api.Agent, error) {
	to, err := g.who.resolve(r.To)
	if err == nil || r.ID == "" {
		return to, err
	}
	row, ok, readErr := g.sentRow(from.GID, sendID(from.GID, r.ID))
	if readErr != nil || !ok || r.To != row.ToName && r.To != row.ToName+"@"+string(row.ToHost) && r.To != string(row.To) {
		return to, err
	}
	return api.Agent{GID: row.To, Name: row.ToName, Host: row.ToHost}, nil
}

// unresolved explains why an address fits nobody. Without a link, an agent of
// another host can't be said to be missing (R13).
func (g *Gateway) unresolved(address string, err error) error {
	_, host, remote := strings.Cut(address, "@")
	if !remote || host == string(g.cfg.Host) || g.bus == nil || fault.From(err).Kind != fault.NotFound {
		return err
	}
	if s := g.bus.State(); s.Link == bus.Down || s.Link == bus.Held {
		return s.Err
	}
	return err
}

// newSending builds the message.
func (g *Gateway) newSending(from localapi.Caller, to api.Agent, r api.SendRequest) (*sending, error) {
	body, err := envelope.Encode(envelope.Text{Text: r.Text})
	if err != nil {
		return nil, err
	}
	id := sendID(from.GID, r.ID)
	if id == "" {
		id = g.mintID(from.GID, to.GID, to.Host)
	}
	e := envelope.Envelope{Kind: envelope.Send, ID: id, Trace: envelope.NewTrace(), From: from.GID,
		FromHost: g.cfg.Host, To: string(to.GID), TS: envelope.At(g.now()), Body: body}
	if r.ExpiresSeconds > 0 {
		e.Exp = envelope.At(g.now().Add(time.Duration(r.ExpiresSeconds * float64(time.Second))))
	}
	s := &sending{g: g, queue: newQueue[func()](), gone: make(chan struct{}), env: e}
	if r.Wait {
		s.waiters = 1 // before it runs, so that an outcome that is there already finds the waiter
	}
	s.row = sendRow{ID: e.ID, From: e.From, To: to.GID, ToHost: to.Host, ToName: to.Name, Trace: e.Trace,
		Digest: e.Digest(), Created: g.now(), Exp: e.Exp.Time}
	return s, nil
}

// sendID is the id of a message whose sender asked for word: a UUID as it is,
// any other word as what derives from sender and word; empty without a word.
func sendID(from identity.GID, word string) envelope.ID {
	if word == "" {
		return ""
	}
	if id, ok := envelope.ParseID(word); ok {
		return id
	}
	return envelope.DeriveID(string(from), "send "+word)
}

// startNew begins a send whose id has just been minted, so that it can't have
// been sent before. Its record goes to the disk with the next commit, and nobody
// waits for that: should the gateway be killed before, the id itself proves whom
// the message was for (mintID), and a retry of it learns from the recipient's side
// what this one would have known.
func (x *sends) startNew(s *sending) (*sending, error) {
	var err error
	if s.env, s.sealed, err = envelope.Seal(s.env, x.g.signer, x.g.cfg.Limits); err != nil {
		return nil, err
	}
	s.watchers = 1
	key := sendKey(s.row.From, s.row.ID)
	x.mu.Lock()
	x.active[key] = s
	x.mu.Unlock()
	row := s.row
	x.g.store.Later(func(tx *mailbox.Tx) error { return mailbox.Set(tx, sendsTable, key, row) }, func(err error) {
		if err != nil {
			x.g.log.Error("can't record a send", "id", row.ID, "trace", row.Trace, "err", err)
		}
	})
	x.g.audit.Write(trace.Of(trace.Accepted, s.env))
	s.emit(api.Event{Step: api.StepAccepted})
	go s.run(x.g.ctx)
	return s, nil
}

// start records the send and begins it, or joins the one that has its id.
func (x *sends) start(ctx context.Context, s *sending) (*sending, error) {
	key := sendKey(s.row.From, s.row.ID)
	for {
		x.mu.Lock()
		other := x.active[key]
		if other == nil {
			x.active[key] = s
			s.watchers++ // until the caller watches, so that it does not end before
		} else if !other.join(s.waiters > 0) {
			// It is ending this very moment.
			x.mu.Unlock()
			<-other.gone
			continue
		}
		x.mu.Unlock()
		if other == nil {
			break
		}
		if other.row.Digest != s.row.Digest {
			other.leave(s.waiters > 0)
			return nil, x.conflict(s.row.ID)
		}
		if s.waiters > 0 {
			other.queue.put(other.catchUp)
		}
		return other, nil
	}
	known, err := x.record(ctx, s)
	if err != nil {
		x.drop(s)
		return nil, err
	}
	if !known {
		x.g.audit.Write(trace.Of(trace.Accepted, s.env))
	}
	s.emit(api.Event{Step: api.StepAccepted})
	go s.run(x.g.ctx)
	return s, nil
}

func (x *sends) conflict(id envelope.ID) error {
	return fault.New(fault.Conflict, "message %s was sent before with another text or to another agent", id).
		WithHint("an id stands for one message: use another id, or send the same text again")
}

// record writes the send's row, or takes over the row that is there.
func (x *sends) record(ctx context.Context, s *sending) (known bool, err error) {
	key := sendKey(s.row.From, s.row.ID)
	err = x.g.store.Write(ctx, func(tx *mailbox.Tx) error {
		old, ok, err := mailbox.Get[sendRow](tx, sendsTable, key)
		if err != nil {
			return err
		}
		known = ok
		if !ok {
			if err := findOutcome(tx, &s.row); err != nil {
				return err
			}
			return mailbox.Set(tx, sendsTable, key, s.row)
		}
		if old.Digest != s.row.Digest {
			return x.conflict(old.ID)
		}
		s.row = old
		return nil
	})
	if err != nil {
		return false, err
	}
	s.env.Trace = s.row.Trace
	s.env.Exp = envelope.At(s.row.Exp)
	if s.row.Exp.IsZero() {
		s.env.Exp = envelope.Time{}
	}
	s.env, s.sealed, err = envelope.Seal(s.env, x.g.signer, x.g.cfg.Limits)
	return known, err
}

// findOutcome looks whether the outcome of a send without a record is there
// already: a gateway was killed between the two.
func findOutcome(tx *mailbox.Tx, row *sendRow) error {
	heads, err := tx.Heads(row.From, 0, 1<<30)
	if err != nil {
		return err
	}
	for _, m := range heads {
		if m.Re == row.ID && m.Kind.Terminal() && m.From == row.To {
			row.Outcome = &outcomeNote{Seq: m.Seq}
		}
	}
	return nil
}

func (x *sends) drop(s *sending) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if key := sendKey(s.row.From, s.row.ID); x.active[key] == s {
		delete(x.active, key)
	}
}

func (x *sends) find(from identity.GID, id envelope.ID) *sending {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.active[sendKey(from, id)]
}

// receipt takes what a recipient's gateway, or an agent of this host, says of a
// message.
func (x *sends) receipt(from identity.GID, id envelope.ID, kind envelope.Kind, r envelope.Receipt) {
	if s := x.find(from, id); s != nil {
		s.queue.put(func() { s.heard(kind, r) })
	}
}

// filled ends the waits of a sender whose own mailbox has become full: an answer
// would have no place (R11).
func (x *sends) filled(from identity.GID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.active {
		if s.row.From == from {
			s.queue.put(func() {
				if s.isAwaited() {
					s.fail(fault.New(fault.Full, "the own mailbox has filled up, so an answer would have no place").
						WithHint("`fleet inbox` takes what waits there; fleet send --id %s --wait goes on with this message", s.row.ID))
				}
			})
		}
	}
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
		default:
			s.row.First = nil // the failure says more, and is the first result
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
	if s.row.ToHost == s.g.cfg.Host {
		s.deliverHere()
		return
	}
	if s.g.bus == nil {
		s.fail(noBroker())
		return
	}
	p, err := s.g.bus.Publish(ctx, s.g.message(s.env, s.sealed))
	if err != nil {
		s.notPublished(err)
		return
	}
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

// published goes on with the broker's verdict.
func (s *sending) published(o bus.Outcome, detail error) {
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
		s.returned("no queue takes it")
		s.fail(fault.New(fault.NotFound, "%s has no inbox on the broker, so the message was not sent", s.address()).
			WithHint("its host may have been away for longer than its inbox lives; `fleet roster` shows who is there"))
	case bus.Full:
		if s.routed {
			return
		}
		s.returned("the inbox is full")
		s.fail(fault.New(fault.Full, "the inbox of %s is full, so the message was not sent", s.address()).
			WithHint("it takes messages again once some of what waits there is taken"))
		s.g.buryLater(s.env, s.sealed, envelope.ReasonInboxFull)
	case bus.Refused:
		s.returned("the broker refused it")
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
	if _, known := fault.Kinds()[kind]; !known {
		kind = fault.Refused // a reason that this build has no word for
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
		WithHint("fleet send --id %s goes on with this message; it is never delivered twice", s.row.ID).WithID(string(s.row.ID))
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
	if _, known := fault.Kinds()[kind]; !known {
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

// mailboxFull asks the agent.
func (a *agent) mailboxFull(ctx context.Context) bool {
	full := false
	if err := a.ask(ctx, func() { full = a.full() }); err != nil {
		return false
	}
	return full
}
