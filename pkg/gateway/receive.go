package gateway

import (
	"time"

	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
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
	if !verified {
		e = envelope.Envelope{}
	}
	g.refuse(s, refusal, e, d.Queue, d.Ack)
	return e, s, false
}

// receiveInbox is the consumer of one agent's inbox.
func (a *agent) receiveInbox(d bus.Delivery) {
	g := a.g
	e, s, ok := g.verify(d)
	if !ok {
		return
	}
	if refusal := g.judge(a, e); refusal != nil {
		g.refuse(s, refusal, e, d.Queue, d.Ack)
		return
	}
	a.post(func() { a.arrive(arrival{env: e, sealed: s, ack: d.Ack}) })
}

// judge checks what needs memory: whom e is for, and whether its sender was asked
// (R18, R19).
func (g *Gateway) judge(a *agent, e envelope.Envelope) *envelope.Refusal {
	rule, _ := envelope.RuleOf(e.Kind)
	if rule.Exchange != envelope.ViaMessages || rule.Lane != envelope.Durable {
		return envelope.Refuse(envelope.ReasonUnknownKind, "a %s does not belong into an inbox", e.Kind)
	}
	if identity.GID(e.To) != a.gid {
		return envelope.Refuse(envelope.ReasonWrongRecipient, "it is addressed to another agent")
	}
	if !e.Exp.IsZero() && e.Kind == envelope.Send && g.now().After(e.Exp.Time) {
		// Its sender times it too; here it only must not go in.
		return envelope.Refuse(envelope.ReasonExpired, "it was useless after %s", e.Exp.UTC().Format(time.RFC3339))
	}
	if rule.Answers {
		return g.judgeAnswer(e)
	}
	if owner, known := g.who.owner(e.From); known && owner != e.FromHost {
		return envelope.Refuse(envelope.ReasonWrongHost, "its sender belongs to %s", owner)
	}
	return nil
}

// judgeAnswer says whether e comes from the agent that the message in Re was
// addressed to, and on the host that it was addressed at.
func (g *Gateway) judgeAnswer(e envelope.Envelope) *envelope.Refusal {
	row, ok, err := g.sentRow(identity.GID(e.To), e.Re)
	if err != nil {
		g.log.Error("can't read what was sent", "err", err)
	}
	if !ok && g.minted(e.Re, identity.GID(e.To), e.From, e.FromHost) {
		return nil // the row was lost with a gateway that was killed before it was written
	}
	if !ok || row.To != e.From || row.ToHost != e.FromHost {
		return envelope.Refuse(envelope.ReasonNotAsked, "it answers a message that its sender did not get from here")
	}
	return nil
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
		if refusal := g.judgeAnswer(e); refusal != nil {
			g.refuse(s, refusal, e, d.Queue, d.Ack)
			return
		}
		r, err := body[envelope.Receipt](e)
		if err != nil {
			g.refuse(s, envelope.Refuse(envelope.ReasonMalformed, "its body is not a receipt"), e, d.Queue, d.Ack)
			return
		}
		line := trace.Of(trace.Received, e)
		line.Reason, line.Evidence = r.Reason, r.Evidence
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
	a.parked[e.From] = append(waits, r)
	if len(waits) == 0 {
		a.g.who.need(e.FromHost)
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
		a.post(func() { a.unpark(from, host) })
	}()
}

func (a *agent) unpark(from identity.GID, host identity.Host) {
	waits := a.parked[from]
	delete(a.parked, from)
	known := a.g.who.knows(from, host)
	for _, r := range waits {
		if known {
			a.put(r)
			continue
		}
		a.g.refuse(r.sealed, envelope.Refuse(envelope.ReasonUnknownSender, "%s never announced its sender", host), r.env,
			a.queueName(), r.ack)
	}
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
	m := row(r, a.g.now())
	n, err := a.g.endUnread(a, m, a.farewell)
	if err != nil {
		a.g.log.Error("can't end a message for a stopped agent", "id", r.env.ID, "err", err)
		return // unacknowledged
	}
	a.g.store.Go(func(tx *mailbox.Tx) error {
		known, ok := tx.Seen(a.gid, r.env.FromHost, r.env.From, r.env.ID)
		if ok && decodeStatus(known.Status).State != "" {
			n = nil
			return nil // it was dealt with when it came first
		}
		return n.write(a.g, tx)
	}, func(err error) {
		if err != nil {
			return // unacknowledged
		}
		r.ack()
		if n != nil {
			n.written(a.g)
		}
	})
}
