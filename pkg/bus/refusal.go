package bus

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
)

// A broker answers a publish it will not take by closing the channel, and does
// not say which of the messages in flight it meant. This file finds that one,
// so that the others get through and none loops for ever.

// refusing are the codes with which a broker closes a channel over one message.
var refusing = []int{amqp.ContentTooLarge, amqp.NoConsumers, amqp.AccessRefused, amqp.NotFound,
	amqp.ResourceLocked, amqp.PreconditionFailed}

// afterRefusal deals with a closed channel; the connection lives. It says false
// if the connection should go as well.
func (p *publisher) afterRefusal(ctx context.Context, l *link, cause *amqp.Error) bool {
	text := p.broker.redact(cause.Reason)
	p.log.Warn("the broker closed the publishing channel", "code", cause.Code, "text", text, "in_flight", p.sent)
	if shortOfSpace(cause) {
		p.board.publishBlocked(orText(text, "the disk is full"))
		defer p.board.publishBlocked("")
		return p.await(ctx, nil, between(p.lockRetry()))
	}
	if !slices.Contains(refusing, cause.Code) {
		return false
	}
	if p.sent != 1 {
		p.suspects = p.sent
		if cause.Code == amqp.NotFound {
			p.redeclare(l)
		}
		return true
	}
	guilty := p.window[0]
	if cause.Code == amqp.NotFound && !guilty.redeclared {
		guilty.redeclared = true
		p.suspects = max(p.suspects, 1)
		p.redeclare(l)
		return true
	}
	guilty.settle(Refused, fault.New(fault.Refused, "the broker refuses the message: %s", text).WithID(guilty.m.ID))
	p.drop()
	return true
}

// shortOfSpace knows LavinMQ's answer when its disk is low; it has no alarm.
func shortOfSpace(e *amqp.Error) bool {
	return e.Code == amqp.PreconditionFailed && strings.Contains(strings.ToLower(e.Reason), "low on disk")
}

// redeclare makes shared exchanges that somebody has deleted. Bindings went
// with them, so the consuming side binds again.
func (p *publisher) redeclare(l *link) {
	d := &desk{conn: l.conn}
	defer d.close()
	made, err := declareShared(d, p.cfg.Layout, l.dialect)
	if err != nil {
		p.log.Error("an exchange is missing and can't be declared", "err", p.broker.redact(err.Error()))
	}
	if made {
		p.log.Warn("shared exchanges were missing and are declared again")
		p.wants.rebind()
	}
}

// lockRetry bounds the wait before asking again for what another holds now.
func (b *Bus) lockRetry() (low, high time.Duration) {
	high = min(5*time.Second, b.cfg.Bounds.BackoffMost)
	return high / 5, high
}

// retry waits between dials: quickly after a failure of the network, slowly
// after one that only an operator can mend.
type retry struct {
	quick, slow backoff
}

func (b *Bus) newRetry() *retry {
	most := b.cfg.Bounds.BackoffMost
	return &retry{
		quick: backoff{first: min(250*time.Millisecond, most), most: most},
		slow:  backoff{first: min(4*time.Second, most), most: 2 * most},
	}
}

// after is the wait after err ended a connection that had lasted so long.
func (r *retry) after(err error, lasted time.Duration) time.Duration {
	if lasted > stable {
		r.quick.reset()
		r.slow.reset()
	}
	if operators(err) {
		return r.slow.next()
	}
	return r.quick.next()
}

// operators says whether err is likely to stay until somebody changes the
// broker's or the gateway's configuration. A login that seems refused may be a
// network that failed in the handshake, so nothing here is final.
func operators(err error) bool {
	if errors.Is(err, fault.Config) {
		return true
	}
	switch codeOf(err) {
	case amqp.AccessRefused, amqp.NotAllowed:
		return true
	}
	return false
}

// codeOf is the AMQP reply code in err's chain, or 0.
func codeOf(err error) int {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// explain says for people why a connection is down.
func (b *Bus) explain(err error) (string, error) {
	if err == nil {
		return "the connection was closed", nil
	}
	var f *fault.Fault
	if errors.As(err, &f) {
		return f.Message, f
	}
	text := b.broker.redact(err.Error())
	if !operators(err) {
		return text, nil
	}
	reason := "the broker refuses what a gateway needs (" + text + ")"
	var login *loginRefused
	if errors.As(err, &login) {
		// Both look the same to a client that gets no reason.
		reason = "the broker refuses the login, or the network cut the handshake (" + text + ")"
	}
	return reason, fault.New(fault.NoBroker, "%s", reason).
		WithHint("check user, password, virtual host and permissions")
}
