package gateway

import (
	"time"

	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/trace"
)

// verify opens what the broker handed over. Of a message that is refused, only
// what a configured peer signed is believed for the log. ok is false when it has
// been dealt with.
func (g *Gateway) verify(d bus.Delivery) (e envelope.Envelope, s envelope.Sealed, ok bool) {
	s = envelope.Sealed{Bytes: d.Body, Key: identity.KeyID(d.Headers[envelope.HeaderKey]),
		Signature: d.Headers[envelope.HeaderSignature]}
	e, verified, refusal := envelope.Open(s, g.keys, g.cfg.Limits, g.now())
	if refusal == nil {
		return e, s, true
	}
	g.refuse(s, refusal, e.Printable(verified), d.Queue, d.Ack)
	return e, s, false
}

// receiveInbox is the consumer of one agent's inbox.
func (a *agent) receiveInbox(d bus.Delivery) {
	g := a.g
	e, s, ok := g.verify(d)
	if !ok {
		return
	}
	refusal, err := g.judge(a, e)
	if err != nil {
		// Not to be read is no reason to refuse: unacknowledged it stays the broker's,
		// and is judged again.
		g.log.Error("can't judge a message; trying again", "agent", a.name, "trace", e.Trace, "id", e.ID, "err", err)
		time.AfterFunc(2*time.Second, func() {
			if a.ctx.Err() == nil {
				a.receiveInbox(d)
			}
		})
		return
	}
	if refusal != nil {
		g.refuse(s, refusal, e, d.Queue, d.Ack)
		return
	}
	a.post(func() { a.arrive(arrival{env: e, sealed: s, ack: d.Ack}) })
}

// judge checks what needs memory: whom e is for, and whether its sender was asked
// (R18, R19).
func (g *Gateway) judge(a *agent, e envelope.Envelope) (*envelope.Refusal, error) {
	rule, _ := envelope.RuleOf(e.Kind)
	if rule.Exchange != envelope.ViaMessages || rule.Lane != envelope.Durable {
		return envelope.Refuse(envelope.ReasonUnknownKind, "a %s does not belong into an inbox", e.Kind), nil
	}
	if identity.GID(e.To) != a.gid {
		return envelope.Refuse(envelope.ReasonWrongRecipient, "it is addressed to another agent"), nil
	}
	if rule.Answers {
		return g.judgeAnswer(e)
	}
	if owner, known := g.who.owner(e.From); known && owner != e.FromHost {
		return envelope.Refuse(envelope.ReasonWrongHost, "its sender belongs to %s", owner), nil
	}
	return nil, nil
}

// judgeAnswer says whether e comes from the agent that the message in Re was
// addressed to, and on the host that it was addressed at.
func (g *Gateway) judgeAnswer(e envelope.Envelope) (*envelope.Refusal, error) {
	if g.minted(e.Re, identity.GID(e.To), e.From, e.FromHost) {
		return nil, nil // its id says so, also where the row was lost with a killed gateway
	}
	row, ok, err := g.sentRow(identity.GID(e.To), e.Re)
	if err != nil {
		return nil, err
	}
	if !ok || row.To != e.From || row.ToHost != e.FromHost {
		return envelope.Refuse(envelope.ReasonNotAsked, "it answers a message that its sender did not get from here"), nil
	}
	return nil, nil
}

// sentRow is what this host remembers of a message that from sent.
func (g *Gateway) sentRow(from identity.GID, id envelope.ID) (sendRow, bool, error) {
	return readRow[sendRow](g, sendsTable, sendKey(from, id))
}

// receiveLive is the consumer of the host's live queue.
func (g *Gateway) receiveLive(d bus.Delivery) {
	e, s, ok := g.verify(d)
	if !ok {
		return
	}
	rule, _ := envelope.RuleOf(e.Kind)
	switch {
	case rule.Lane != envelope.Live:
		g.refuse(s, envelope.Refuse(envelope.ReasonUnknownKind, "a %s is not a live message", e.Kind), e, d.Queue, d.Ack)
		return
	case e.Kind == envelope.State:
		if identity.GID(e.To) != identity.OperatorGID(g.cfg.Host) {
			g.refuse(s, envelope.Refuse(envelope.ReasonWrongRecipient, "it is addressed to another host"), e, d.Queue, d.Ack)
			return
		}
		g.who.hearState(e)
	default:
		refusal, err := g.judgeAnswer(e)
		if err != nil { // a receipt is worthless later; whoever waits asks again
			g.log.Error("can't judge a receipt", "trace", e.Trace, "id", e.ID, "err", err)
			d.Ack()
			return
		}
		if refusal != nil {
			g.refuse(s, refusal, e, d.Queue, d.Ack)
			return
		}
		r, err := body[envelope.Receipt](e)
		if err != nil {
			g.refuse(s, envelope.Refuse(envelope.ReasonMalformed, "its body is not a receipt"), e, d.Queue, d.Ack)
			return
		}
		line := trace.Of(trace.Received, e)
		line.Reason, line.Evidence = word(r.Reason), word(r.Evidence)
		g.audit.Write(line)
		g.sends.receipt(identity.GID(e.To), e.Re, e.Kind, r)
	}
	d.Ack()
}

// receiveControl is the consumer of the host's control queue.
func (g *Gateway) receiveControl(d bus.Delivery) {
	e, s, ok := g.verify(d)
	if !ok {
		return
	}
	switch {
	case e.Kind != envelope.Query:
		g.refuse(s, envelope.Refuse(envelope.ReasonUnknownKind, "a %s is no request to a gateway", e.Kind), e, d.Queue, d.Ack)
		return
	case e.To != string(g.cfg.Host):
		g.refuse(s, envelope.Refuse(envelope.ReasonWrongRecipient, "it is addressed to another host"), e, d.Queue, d.Ack)
		return
	}
	g.who.hearQuery(e)
	d.Ack()
}

// receiveRoster is the consumer of the presence of all hosts.
func (g *Gateway) receiveRoster(d bus.Delivery) {
	defer d.Ack()
	s := envelope.Sealed{Bytes: d.Body, Key: identity.KeyID(d.Headers[envelope.HeaderKey]),
		Signature: d.Headers[envelope.HeaderSignature]}
	e, _, refusal := envelope.Open(s, g.keys, g.cfg.Limits, g.now())
	if refusal == nil && e.Kind != envelope.Presence {
		refusal = envelope.Refuse(envelope.ReasonUnknownKind, "a %s is no presence", e.Kind)
	}
	if refusal != nil {
		// Presence is repeated every few seconds, and a host that is no peer of ours
		// may well be there: not worth a dead letter, nor a line each time.
		g.who.refused(refusal)
		return
	}
	g.who.hearPresence(e)
}

// park holds a brief whose sender the roster does not know yet. Its other
// messages line up behind it; nobody else's do.
func (a *agent) park(r arrival) bool {
	e := r.env
	waits := a.parked[e.From]
	if len(waits) == 0 && a.g.who.knows(e.From, e.FromHost) {
		return false
	}
	parked := 0
	for _, w := range a.parked {
		parked += len(w)
	}
	if parked >= max(1, a.g.room()/2) { // what is parked must not keep the others' from coming
		a.refuseUnknown(r)
		return true
	}
	a.parked[e.From] = append(waits, r)
	if len(waits) == 0 {
		a.unparkWhenKnown(e.From, e.FromHost, a.g.now().Add(unknownSenderBound))
	}
	return true
}

// unknownSenderBound is how long a brief waits for its sender to be announced.
const unknownSenderBound = 15 * time.Second

// unparkWhenKnown waits outside the agent's goroutine for the sender to be known
// or the bound to pass.
func (a *agent) unparkWhenKnown(from identity.GID, host identity.Host, until time.Time) {
	go func() { // ends with the agent or the bound
		timer := time.NewTimer(until.Sub(a.g.now()))
		defer timer.Stop()
		for {
			changed := a.g.who.changed.next()
			if a.g.who.knows(from, host) {
				break
			}
			select {
			case <-changed:
				continue
			case <-timer.C:
			case <-a.ctx.Done():
				return
			}
			break
		}
		a.post(func() { a.unpark(from) })
	}()
}

func (a *agent) unpark(from identity.GID) {
	waits := a.parked[from]
	delete(a.parked, from)
	for _, r := range waits {
		if a.g.who.knows(from, r.env.FromHost) {
			a.put(r)
			continue
		}
		a.refuseUnknown(r)
	}
}

// refuseUnknown refuses a brief whose sender its host has not announced.
func (a *agent) refuseUnknown(r arrival) {
	e := r.env
	detail := string(e.FromHost) + " has not announced the sender of the message"
	a.tell(e, envelope.Refused, envelope.Receipt{Reason: string(fault.Refused), Detail: detail})
	a.g.refuse(r.sealed, envelope.Refuse(envelope.ReasonUnknownSender, "%s", detail), e, a.queueName(), r.ack)
}

// word is a peer's one-word answer as it may stand in the audit log and be acted
// on: a short name, or nothing.
func word(s string) string {
	if identity.CheckName(s) != nil {
		return ""
	}
	return s
}

// What a peer's word may make of a send here: the kinds that a recipient's side
// can know of. Anything else would let a peer choose our exit status.
var (
	mayEnd = map[fault.Kind]bool{fault.AgentFailed: true, fault.Abandoned: true, fault.Expired: true,
		fault.NotSubmitted: true, fault.Failed: true}
	mayRefuse = map[fault.Kind]bool{fault.Refused: true, fault.Conflict: true, fault.Full: true, fault.Unknown: true,
		fault.AgentFailed: true, fault.Abandoned: true, fault.Expired: true, fault.NotSubmitted: true, fault.Failed: true}
)
