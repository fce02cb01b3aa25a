package gateway

import (
	"context"
	"encoding/json"
	"time"

	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/topology"
	"fleet/pkg/trace"
)

// The headers of a dead letter that fleet itself wrote.
const (
	headerReason = "fleet-reason" // an envelope.Reason
	headerQueue  = "fleet-queue"  // where it was found
	headerHost   = "fleet-refused-by"
	headerTold   = "fleet-sender-told" // "yes": a replay skips it unless it is named (R12a)
)

// longestHeader bounds what is copied of a message's own headers: a signature has
// 86 characters.
const longestHeader = 256

// linkUp is the state in which messages pass.
const linkUp = bus.Up

// noBroker is the fault of a host without a configured broker.
func noBroker() *fault.Fault {
	return fault.New(fault.NoBroker, "no broker is configured, so only agents of this host can be reached").
		WithHint("set broker.url in fleet.yaml: a broker's URL, or embedded")
}

// route says where e is published (R2).
func route(e envelope.Envelope) topology.Route {
	rule, _ := envelope.RuleOf(e.Kind)
	r := topology.Route{Mandatory: rule.Mandatory, Persistent: rule.Lane == envelope.Durable, TTL: rule.TTL}
	switch rule.Exchange {
	case envelope.ViaControl:
		r.Exchange, r.Key = topology.Control, e.To
	case envelope.ViaRoster:
		r.Exchange, r.Key = topology.RosterTopic, topology.RosterKey(e.FromHost)
	default:
		r.Exchange, r.Key = topology.Messages, e.To
		if rule.Lane == envelope.Live {
			r.Key = topology.LiveKey(identity.GID(e.To))
		}
	}
	return r
}

// message is e as AMQP carries it (R17).
func (g *Gateway) message(e envelope.Envelope, s envelope.Sealed) bus.Message {
	r := route(e)
	m := bus.Message{
		Route: r, ID: string(e.ID), Kind: string(e.Kind), Correlation: e.Turn,
		Headers: map[string]string{envelope.HeaderKey: string(s.Key), envelope.HeaderSignature: s.Signature,
			envelope.HeaderTrace: e.Trace.Parent(e.ID)},
		ContentType: envelope.ContentType, AppID: "fleet/" + g.version, Body: s.Bytes, Timestamp: e.TS.Time,
	}
	switch {
	case r.TTL > 0:
		m.Until = g.now().Add(r.TTL)
	case !e.Exp.IsZero():
		m.Until = e.Exp.Time
	}
	return m
}

// publish hands a durable message to the broker and waits for its verdict. It
// fails with NoBroker, NotFound (no queue took it), Full, Refused or Unknown.
func (g *Gateway) publish(ctx context.Context, e envelope.Envelope, s envelope.Sealed) error {
	if g.bus == nil {
		return noBroker()
	}
	p, err := g.bus.Publish(ctx, g.message(e, s))
	if err != nil {
		return err
	}
	return verdict(p.Wait(ctx))
}

// verdict turns a publication's outcome into an error.
func verdict(o bus.Outcome, detail error) error {
	why := ""
	if detail != nil {
		why = ": " + detail.Error()
	}
	switch o {
	case bus.Accepted:
		return nil
	case bus.Unroutable:
		return fault.New(fault.NotFound, "no queue on the broker takes it")
	case bus.Full:
		return fault.New(fault.Full, "the inbox on the broker is full")
	case bus.Refused:
		return fault.New(fault.Refused, "the broker refused it%s", why)
	default:
		return fault.New(fault.Unknown, "the broker has not confirmed it")
	}
}

// live is a receipt or another message that is worthless later.
type live struct {
	env    envelope.Envelope
	sealed envelope.Sealed
}

// runLive publishes live messages in the order in which they were told, until
// ctx ends. With the link down they are dropped: their waiters learn the state
// by asking again.
func (g *Gateway) runLive(ctx context.Context) {
	for ctx.Err() == nil {
		for _, l := range g.live.take(ctx) {
			// Nobody waits for a receipt's own fate.
			if _, err := g.bus.Publish(ctx, g.message(l.env, l.sealed)); err != nil {
				g.log.Debug("a live message is dropped", "kind", l.env.Kind, "trace", l.env.Trace, "err", err)
			}
		}
	}
}

// tell sends a receipt about e to its sender.
func (a *agent) tell(e envelope.Envelope, kind envelope.Kind, r envelope.Receipt) {
	g := a.g
	if e.FromHost == g.cfg.Host {
		g.sends.receipt(e.From, e.ID, kind, r)
		return
	}
	if g.bus == nil {
		return
	}
	body, err := envelope.Encode(r)
	if err != nil {
		g.log.Error("can't encode a receipt", "err", err)
		return
	}
	env, sealed, err := envelope.Seal(envelope.Envelope{Kind: kind, Trace: e.Trace, From: a.gid, FromHost: g.cfg.Host,
		To: string(e.From), Re: e.ID, Body: body}, g.signer, g.cfg.Limits)
	if err != nil {
		g.log.Error("can't seal a receipt", "kind", kind, "err", err)
		return
	}
	g.live.put(live{env, sealed})
}

// bury copies a message to the dead letters, byte for byte, and waits for the
// confirm.
func (g *Gateway) bury(ctx context.Context, d deadRow) error {
	m := bus.Message{
		Route: topology.Route{Exchange: topology.DeadLetters, Mandatory: true, Persistent: true},
		Headers: map[string]string{
			headerReason: string(d.Reason), headerHost: string(g.cfg.Host), headerQueue: d.Queue,
		},
		ContentType: envelope.ContentType, AppID: "fleet/" + g.version, Body: d.Sealed.Bytes, Timestamp: g.now(),
	}
	// A header that is longer than any of ours comes from a stranger; with it the
	// letter could never be published, and would stay in the inbox for ever.
	for name, value := range map[string]string{envelope.HeaderKey: string(d.Sealed.Key), envelope.HeaderSignature: d.Sealed.Signature} {
		if value != "" && len(value) <= longestHeader {
			m.Headers[name] = value
		}
	}
	if d.Told {
		m.Headers[headerTold] = "yes"
	}
	m.ID, m.Kind = string(d.ID), string(d.Kind)
	if m.ID == "" {
		m.ID = string(envelope.NewID()) // a mandatory publish needs one
	}
	p, err := g.bus.Publish(ctx, m)
	if err != nil {
		return err
	}
	if err := verdict(p.Wait(ctx)); err != nil {
		return err
	}
	g.letters.added()
	return nil
}

// refuse takes a delivery that is not accepted out of its queue: a copy with the
// reason goes to the dead letters, and only when that is confirmed the broker's
// delivery is acknowledged (R20). It returns at once.
func (g *Gateway) refuse(s envelope.Sealed, r *envelope.Refusal, e envelope.Envelope, queue string, ack func()) {
	line := trace.Of(trace.Refused, e)
	line.Reason, line.Detail = string(r.Reason), r.Detail
	g.audit.Write(line)
	g.log.Warn("a message is refused", "reason", r.Reason, "detail", r.Detail, "queue", queue,
		"trace", e.Trace, "id", e.ID, "from_host", e.FromHost)
	go func() { // ends with the confirm or the gateway
		for pause := 250 * time.Millisecond; ; pause = min(2*pause, 15*time.Second) {
			if err := g.bury(g.ctx, deadRow{Sealed: s, Reason: r.Reason, Queue: queue, ID: e.ID, Kind: e.Kind}); err == nil {
				ack()
				return
			}
			select {
			case <-g.ctx.Done():
				return // unacknowledged: the broker hands it over again
			case <-time.After(pause):
			}
		}
	}()
}

// body decodes an envelope's body.
func body[T any](e envelope.Envelope) (v T, err error) {
	err = json.Unmarshal(e.Body, &v)
	return v, err
}
