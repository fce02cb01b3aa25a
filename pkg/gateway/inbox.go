package gateway

import (
	"context"
	"errors"
	"strings"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
)

// inboxPage is how many messages one look at the mailbox reads.
const inboxPage = 64

// Inbox emits the caller's waiting messages.
func (g *Gateway) Inbox(ctx context.Context, from localapi.Caller, r api.InboxRequest, emit func(api.Message) error) error {
	a := g.agents.get(from.GID)
	if a == nil {
		return fault.New(fault.NotFound, "agent %s is not registered", from.GID)
	}
	match, err := g.inboxFilter(r)
	if err != nil {
		return err
	}
	if a.role == api.Operator && r.Lease && !r.All && r.Re == "" && r.Trace == "" && r.From == "" {
		return fault.New(fault.Usage, "the operator's inbox is shared by all scripts of this host, so a filter must say which messages to take").
			WithHint("use --re, --trace or --from; --all takes everything; --peek only looks")
	}
	if r.Within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Within*float64(time.Second)))
		defer cancel()
	}
	l := &look{a: a, request: r, match: match, emit: emit}
	recheck := time.NewTicker(g.cfg.Bounds.Lease) // a lease that has run out makes a message visible
	defer recheck.Stop()
	for {
		changed := a.changed.next()
		if err := l.page(ctx); err != nil || l.done() {
			return err
		}
		select {
		case <-changed:
		case <-recheck.C:
			if g.agents.get(a.gid) != a {
				return errStopping(a) // while its inbox is read out, or cannot be
			}
			if err := l.again(ctx); err != nil || l.done() {
				return err
			}
		case <-a.ended:
			if g.ctx.Err() != nil {
				return fault.New(fault.NoGateway, "the gateway is closing")
			}
			return errStopping(a)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fault.New(fault.TimedOut, "no message came in time").
					WithHint("what comes later waits in the inbox")
			}
			return ctx.Err()
		}
	}
}

// look is one reader's walk through a mailbox.
type look struct {
	a       *agent
	request api.InboxRequest
	match   func(mailbox.Message) bool
	emit    func(api.Message) error

	after   uint64   // the place up to which it has seen
	skipped []uint64 // before that place, leased by others
	given   int
}

func (l *look) enough() bool { return l.request.Most > 0 && l.given >= l.request.Most }

func (l *look) done() bool {
	return l.enough() || !l.request.Follow && (!l.request.Wait || l.given > 0)
}

// page emits what waits after the place.
func (l *look) page(ctx context.Context) error {
	for {
		var found []mailbox.Message
		if err := l.a.g.store.Read(func(tx *mailbox.Tx) (err error) {
			found, err = tx.Messages(l.a.gid, l.after, inboxPage)
			return err
		}); err != nil || len(found) == 0 {
			return err
		}
		for _, m := range found {
			if l.enough() {
				return nil
			}
			l.after = m.Seq
			if !l.match(m) || l.a.pushed(m) {
				continue
			}
			if err := l.give(ctx, m); err != nil {
				return err
			}
		}
	}
}

// again looks at what others had leased: of a client that was killed it comes
// again.
func (l *look) again(ctx context.Context) error {
	skipped := l.skipped
	l.skipped = nil
	for i, seq := range skipped {
		if l.enough() {
			l.skipped = append(l.skipped, skipped[i:]...)
			return nil
		}
		m, ok, err := readMessage(l.a.g, l.a.gid, seq)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := l.give(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// give emits one message, unless another client has it.
func (l *look) give(ctx context.Context, m mailbox.Message) error {
	if l.request.Lease {
		free := false
		if err := l.a.ask(ctx, func() { free = l.a.take(m) }); err != nil {
			return err
		}
		if !free {
			l.skipped = append(l.skipped, m.Seq)
			return nil
		}
	}
	view, err := l.a.g.show(m)
	if err != nil {
		return err
	}
	l.given++
	return l.emit(view)
}

// show is a message as its recipient sees it.
func (g *Gateway) show(m mailbox.Message) (api.Message, error) {
	e, err := stored(m.Sealed)
	if err != nil {
		return api.Message{}, err
	}
	v := api.Message{ID: m.ID, Kind: m.Kind, From: m.From, FromName: g.who.nameOf(m.From, m.FromHost), FromHost: m.FromHost,
		Trace: m.Trace, Re: m.Re, Sent: e.TS.Time, Arrived: m.Arrived}
	switch m.Kind {
	case envelope.Send, envelope.Reply:
		t, err := body[envelope.Text](e)
		v.Text = t.Text
		return v, err
	default:
		o, err := body[envelope.Outcome](e)
		v.Reason, v.Detail, v.Text = o.Reason, o.Detail, o.Screen
		return v, err
	}
}

// inboxFilter makes r's filters one predicate.
func (g *Gateway) inboxFilter(r api.InboxRequest) (func(mailbox.Message) bool, error) {
	var from identity.GID
	if r.From != "" {
		agent, err := g.who.resolve(r.From)
		if err != nil {
			return nil, err
		}
		from = agent.GID
	}
	if r.Re != "" {
		if _, ok := envelope.ParseID(r.Re); !ok {
			return nil, fault.New(fault.Usage, "%q is not a message id", r.Re)
		}
	}
	return func(m mailbox.Message) bool {
		return (r.Re == "" || strings.EqualFold(string(m.Re), r.Re)) &&
			(r.Trace == "" || string(m.Trace) == r.Trace) && (from == "" || m.From == from)
	}, nil
}
