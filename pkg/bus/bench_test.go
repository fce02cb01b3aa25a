package bus

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

// BenchmarkPublish sets this bus beside a bare client with the same window on
// the same queue, in turns, so that both see the same machine: 512 bytes,
// persistent, mandatory, confirmed. The figure is "ratio", bus to bare.
func BenchmarkPublish(b *testing.B) {
	_, at, ok := strings.Cut(strings.Split(os.Getenv("FLEET_TEST_BROKERS"), ",")[0], "=")
	if !ok {
		b.Skip("FLEET_TEST_BROKERS names no broker")
	}
	host := identity.Host("t" + random(5))
	link := New(Config{URL: at, Layout: topology.Layout{Host: host}})
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(b.Context())
	go func() { defer close(done); _ = link.Run(ctx) }()
	defer func() { cancel(); <-done }()
	gid := identity.NewGID()
	queue := link.cfg.Layout.Inbox(topology.Dialect{}, gid, false, nil).Name
	link.Attach(queue, func(d topology.Dialect) topology.Queue {
		q := link.cfg.Layout.Inbox(d, gid, false, nil)
		delete(q.Args, "x-max-length")
		return q
	}, 50, func(d Delivery) { d.Ack() })
	for changed := link.Changed(); link.State().Link != Up; changed = link.Changed() {
		<-changed
	}
	if err := link.Served(ctx, queue); err != nil {
		b.Fatal(err)
	}
	bare := newBare(b, at)
	defer func() { _, _ = bare.ch.QueueDelete(queue, false, false, false); _ = bare.conn.Close() }()
	body := make([]byte, 512)
	const slice = 2000
	var ours, theirs time.Duration
	for left := b.N; left > 0; left -= slice {
		n := min(left, slice)
		began := time.Now()
		bare.publish(b, string(gid), n, body)
		theirs += time.Since(began)
		began = time.Now()
		publishAll(b, link, gid, n, body)
		ours += time.Since(began)
	}
	b.ReportMetric(float64(b.N)/ours.Seconds(), "bus/s")
	b.ReportMetric(float64(b.N)/theirs.Seconds(), "bare/s")
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "ratio")
}

func publishAll(b *testing.B, link *Bus, gid identity.GID, n int, body []byte) {
	all := make([]*Publication, n)
	for i := range n {
		m := to(gid, fmt.Sprint(i))
		m.Body, m.Headers = body, nil
		p, err := link.Publish(b.Context(), m)
		if err != nil {
			b.Fatal(err)
		}
		all[i] = p
	}
	for _, p := range all {
		if o, err := p.Wait(b.Context()); o != Accepted {
			b.Fatal(o, err)
		}
	}
}

// bare is the simplest correct publisher with a window.
type bare struct {
	conn *amqp.Connection
	ch   *amqp.Channel
}

func newBare(b *testing.B, at string) *bare {
	conn, err := amqp.Dial(at)
	if err != nil {
		b.Fatal(err)
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		b.Fatal(err)
	}
	return &bare{conn, ch}
}

func (x *bare) publish(b *testing.B, key string, n int, body []byte) {
	window := make([]*amqp.DeferredConfirmation, 0, n)
	for i := range n {
		if i >= 64 {
			window[i-64].Wait()
		}
		c, err := x.ch.PublishWithDeferredConfirm(topology.Messages, key, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(i), Type: "SEND", Timestamp: time.Now(), Body: body,
		})
		if err != nil {
			b.Fatal(err)
		}
		window = append(window, c)
	}
	for _, c := range window {
		if !c.Wait() {
			b.Fatal("not accepted")
		}
	}
}
