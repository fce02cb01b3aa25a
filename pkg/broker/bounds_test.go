package broker_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/broker"
	"fleet/pkg/broker/wire"
)

// confirmed publishes and waits for the confirm, which must be an ack.
func confirmed(t *testing.T, ch *amqp.Channel, exchange, key string, p amqp.Publishing) {
	t.Helper()
	d, err := ch.PublishWithDeferredConfirmWithContext(within(t), exchange, key, false, false, p)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := d.WaitContext(within(t)); !ok || err != nil {
		t.Fatalf("not confirmed: %v", err)
	}
}

// must is for calls whose failure ends the test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestR53_DeadLetterAmongCopies has a message go to two queues, the first of which
// lets its oldest die into the second: after a restart what was acked is gone, and
// what was not is there.
func TestR53_DeadLetterAmongCopies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n := start(t, broker.Options{Dir: dir})
	_, ch := dial(t, n.url)
	must(t, ch.Confirm(false))
	must(t, ch.ExchangeDeclare("x", "fanout", true, false, false, false, nil))
	declare(t, ch, "q1", amqp.Table{"x-max-length": int64(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q2"})
	declare(t, ch, "q2", nil)
	must(t, ch.QueueBind("q1", "", "x", false, nil))
	must(t, ch.QueueBind("q2", "", "x", false, nil))
	for _, body := range []string{"A", "B"} {
		confirmed(t, ch, "x", "", amqp.Publishing{DeliveryMode: 2, Body: []byte(body)})
	}
	for range 3 { // A, B, and A that died in q1; that one stays
		m, ok, err := ch.Get("q2", false)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if m.Headers["x-death"] == nil {
			must(t, m.Ack(false))
		}
	}
	n.stop(t)
	n = start(t, broker.Options{Dir: dir})
	_, ch = dial(t, n.url)
	m, ok, err := ch.Get("q2", true)
	if err != nil || !ok || string(m.Body) != "A" || m.Headers["x-death"] == nil {
		t.Errorf("got %q %v %v", m.Body, ok, err)
	}
	if m, ok, _ := ch.Get("q2", true); ok {
		t.Errorf("%q is back", m.Body)
	}
}

// TestR61_ManyWays has 2^30 ways through a net of exchanges: one message takes no
// time all the same.
func TestR61_ManyWays(t *testing.T) {
	n := start(t, broker.Options{})
	_, ch := dial(t, n.url)
	name := func(layer, i int) string { return fmt.Sprintf("x%d-%d", layer, i) }
	for layer := range 31 {
		for i := range 2 {
			must(t, ch.ExchangeDeclare(name(layer, i), "fanout", false, false, false, false, nil))
			for j := range 2 {
				if layer > 0 {
					must(t, ch.ExchangeBind(name(layer, i), "", name(layer-1, j), false, nil))
				}
			}
		}
	}
	declare(t, ch, "q", nil)
	must(t, ch.QueueBind("q", "", name(30, 0), false, nil))
	must(t, ch.Confirm(false))
	confirmed(t, ch, name(0, 0), "", amqp.Publishing{})
	if _, ok, err := ch.Get("q", true); !ok || err != nil {
		t.Error("it did not come", err)
	}
	if _, ok, _ := ch.Get("q", true); ok {
		t.Error("it came twice")
	}
}

// TestR61_MuchDiesAtOnce has far more die than may lie in memory.
func TestR61_MuchDiesAtOnce(t *testing.T) {
	n := start(t, broker.Options{})
	_, ch := dial(t, n.url)
	must(t, ch.Confirm(false))
	declare(t, ch, "dead", nil)
	declare(t, ch, "q", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
	const count = 300
	body := make([]byte, 1<<20)
	var last amqp.Delivery
	for range count {
		confirmed(t, ch, "", "q", amqp.Publishing{DeliveryMode: 2, Body: body})
		m, ok, err := ch.Get("q", false)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		last = m
	}
	must(t, last.Nack(true, false))
	var most uint64
	for deadline := time.Now().Add(time.Minute); ; {
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		most = max(most, mem.HeapAlloc)
		q, err := ch.QueueDeclarePassive("dead", true, false, false, false, nil)
		must(t, err)
		if q.Messages == count {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d died", q.Messages, count)
		}
	}
	if most > 200<<20 {
		t.Errorf("%d MiB of memory for %d MiB of dead letters", most>>20, count)
	}
}

// TestR61_ReturnsNobodyReads has a client publish what has no route, and read
// nothing: it is not read either.
func TestR61_ReturnsNobodyReads(t *testing.T) {
	n := start(t, broker.Options{})
	p := login(t, n)
	p.sayOn(1, &wire.ChannelOpen{})
	p.method(t, "channel.open-ok")
	publish := wire.AppendMethod(nil, 1, &wire.BasicPublish{RoutingKey: "nowhere", Mandatory: true})
	publish = wire.AppendContent(publish, 1, []byte{0, 0}, make([]byte, 1<<20), 131072)
	p.SetWriteDeadline(time.Now().Add(3 * time.Second)) // long enough for gigabytes
	sent := 0
	for ; sent < 500; sent++ {
		if _, err := p.Write(publish); err != nil {
			break
		}
	}
	if sent == 500 {
		t.Error("500 MiB of returns were taken, and nobody reads them")
	}
}

// TestR53_GoodbyeBehindADeclare sends all in one piece: what came before the
// connection's end counts.
func TestR53_GoodbyeBehindADeclare(t *testing.T) {
	n := start(t, broker.Options{})
	p := login(t, n)
	b := wire.AppendMethod(nil, 1, &wire.ChannelOpen{})
	b = wire.AppendMethod(b, 1, &wire.QueueDeclare{Queue: "q", Durable: true})
	for range 10 {
		b = wire.AppendMethod(b, 1, &wire.BasicPublish{RoutingKey: "q"})
		b = wire.AppendContent(b, 1, []byte{0, 0}, []byte("x"), 131072)
	}
	p.Write(wire.AppendMethod(b, 0, &wire.ConnectionClose{ReplyCode: 200}))
	p.method(t, "channel.open-ok")
	p.method(t, "queue.declare-ok")
	p.method(t, "connection.close-ok")
	_, ch := dial(t, n.url)
	if q, err := ch.QueueDeclarePassive("q", true, false, false, false, nil); err != nil || q.Messages != 10 {
		t.Errorf("%d of 10 messages, %v", q.Messages, err)
	}
}

// TestR53_NamesOfAnyBytes keeps apart what JSON would make the same.
func TestR53_NamesOfAnyBytes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n := start(t, broker.Options{Dir: dir})
	_, ch := dial(t, n.url)
	must(t, ch.Confirm(false))
	names := []string{"a\xff", "a\xfe"}
	for _, name := range names {
		declare(t, ch, name, nil)
		must(t, ch.QueueBind(name, name, "amq.direct", false, nil))
		confirmed(t, ch, "amq.direct", name, amqp.Publishing{DeliveryMode: 2})
	}
	n.stop(t)
	n = start(t, broker.Options{Dir: dir})
	_, ch = dial(t, n.url)
	must(t, ch.Confirm(false))
	for _, name := range names {
		confirmed(t, ch, "amq.direct", name, amqp.Publishing{DeliveryMode: 2})
		if q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil); err != nil || q.Messages != 2 {
			t.Errorf("%q: %d messages, %v", name, q.Messages, err)
		}
	}
}
