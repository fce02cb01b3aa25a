package bus

import (
	"context"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

const (
	// shortMost is the longest AMQP short string, in bytes. A longer one makes
	// the client library close the whole connection.
	shortMost = 255
	// headersMost keeps the headers far inside one frame (128 KiB), beyond which
	// the broker closes the connection.
	headersMost = 16 << 10
	// givenUp is how long a message without a bound of its own is published again.
	givenUp = 10 * time.Minute
)

// Message is one message to publish. ID is needed where Route is mandatory: by
// it a returned message is told from the others.
type Message struct {
	Route       topology.Route
	ID          string
	Kind        string // the type property
	Correlation string
	Headers     map[string]string
	ContentType string
	AppID       string
	Body        []byte // not changed, and not to be changed until the outcome is there
	Timestamp   time.Time
	// Until is when to give up publishing again; zero: in 10 minutes.
	Until time.Time
}

// check refuses what the client library or the broker answers by closing a
// connection, or what would route a message elsewhere than its route says.
func (m Message) check() error {
	if m.ID == "" && m.Route.Mandatory {
		return fault.New(fault.Usage, "a mandatory message needs an id")
	}
	for _, field := range [...]struct{ name, value string }{
		{"exchange name", m.Route.Exchange}, {"routing key", m.Route.Key}, {"message id", m.ID}, {"kind", m.Kind},
		{"correlation id", m.Correlation}, {"content type", m.ContentType}, {"application id", m.AppID},
	} {
		if len(field.value) > shortMost {
			return fault.New(fault.Usage, "the %s has %d bytes; the broker takes %d", field.name, len(field.value), shortMost)
		}
	}
	size := 0
	for key, value := range m.Headers {
		if len(key) > shortMost {
			return fault.New(fault.Usage, "the name of a header has %d bytes; the broker takes %d", len(key), shortMost)
		}
		if steers(key) {
			return fault.New(fault.Usage, "the header %q is the broker's own", key)
		}
		size += len(key) + len(value) + 6 // length bytes and type tag
	}
	if size > headersMost {
		return fault.New(fault.Usage, "the headers have %d bytes; at most %d are allowed", size, headersMost)
	}
	if m.Route.TTL < 0 {
		return fault.New(fault.Usage, "a negative time to live")
	}
	return nil
}

// steers says whether brokers act on a header: copies to other keys (CC, BCC)
// or, with LavinMQ, a dead-letter exchange of the message's own (x-…).
func steers(header string) bool {
	return strings.HasPrefix(strings.ToLower(header), "x-") ||
		strings.EqualFold(header, "CC") || strings.EqualFold(header, "BCC")
}

func (m Message) publishing() amqp.Publishing {
	p := amqp.Publishing{
		ContentType:   m.ContentType,
		DeliveryMode:  amqp.Transient,
		CorrelationId: m.Correlation,
		MessageId:     m.ID,
		Timestamp:     m.Timestamp,
		Type:          m.Kind,
		AppId:         m.AppID,
		Body:          m.Body,
	}
	if m.Route.Persistent {
		p.DeliveryMode = amqp.Persistent
	}
	if m.Route.TTL > 0 {
		p.Expiration = strconv.FormatInt(max(m.Route.TTL.Milliseconds(), 1), 10)
	}
	if len(m.Headers) > 0 {
		p.Headers = make(amqp.Table, len(m.Headers))
		for key, value := range m.Headers {
			p.Headers[key] = value
		}
	}
	return p
}

// Outcome is what became of a publish.
type Outcome string

// The outcomes. Only Unknown leaves open whether the message is on the broker;
// the same message, with the same id, may then be published once more.
const (
	Accepted   Outcome = "accepted"   // the broker has it, and a queue took it if the route is mandatory
	Unroutable Outcome = "unroutable" // no queue is bound to the key; it is on no queue
	Full       Outcome = "full"       // a queue refused it; with several queues bound, others may have it
	Refused    Outcome = "refused"    // the broker will not take it: no such exchange, no permission, too large
	Unknown    Outcome = "unknown"    // no confirm came before Until or the end of Run
)

// Publication is a message on its way.
type Publication struct {
	m    Message
	done chan struct{}

	outcome Outcome // written before done is closed
	err     error

	// The publisher's own.
	confirm    *amqp.DeferredConfirmation // nil: not published on this channel
	sent       time.Time
	redeclared bool // the exchanges have been declared again for its sake
}

func newPublication(m Message) *Publication {
	if m.Until.IsZero() {
		m.Until = time.Now().Add(givenUp)
	}
	return &Publication{m: m, done: make(chan struct{})}
}

// Done is closed once the outcome is decided.
func (p *Publication) Done() <-chan struct{} { return p.done }

// Outcome is valid once Done is closed; before, it is Unknown. The error is nil
// for Accepted, else a fault with the detail: NotFound, Full, Refused, Unknown.
func (p *Publication) Outcome() (Outcome, error) {
	select {
	case <-p.done:
		return p.outcome, p.err
	default:
		return Unknown, fault.New(fault.Unknown, "the broker has not confirmed the message yet").WithID(p.m.ID)
	}
}

// Wait waits for the outcome. If ctx ends first it returns Unknown; the message
// stays in the window all the same, and goes on being published until it is
// confirmed or its Until passes.
func (p *Publication) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	return p.Outcome()
}

func (p *Publication) settle(o Outcome, err error) {
	p.outcome, p.err = o, err
	close(p.done)
}
