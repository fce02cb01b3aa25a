package broker_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/broker"
	"fleet/pkg/broker/wire"
)

// plain is a connection without a client library: frames are written by hand.
type plain struct {
	net.Conn
	in *wire.Reader
}

func connect(t *testing.T, n *node) *plain {
	t.Helper()
	u := strings.TrimSuffix(strings.TrimPrefix(n.url, "amqp://guest:guest@"), "/")
	c, err := net.Dial("tcp", u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return &plain{c, wire.NewReader(c)}
}

// login shakes hands up to the open virtual host.
func login(t *testing.T, n *node) *plain {
	t.Helper()
	p := connect(t, n)
	p.Write([]byte("AMQP\x00\x00\x09\x01"))
	p.method(t, "connection.start")
	p.say(&wire.ConnectionStartOK{Mechanism: "PLAIN", Response: "\x00guest\x00guest", Locale: "en_US"})
	p.method(t, "connection.tune")
	p.in.SetMax(131072)
	p.say(&wire.ConnectionTuneOK{ChannelMax: 2047, FrameMax: 131072})
	p.say(&wire.ConnectionOpen{VirtualHost: "/"})
	p.method(t, "connection.open-ok")
	return p
}

func (p *plain) say(m wire.Method) { p.sayOn(0, m) }

func (p *plain) sayOn(channel uint16, m wire.Method) { p.Write(wire.AppendMethod(nil, channel, m)) }

// method reads the next method, which must have the name.
func (p *plain) method(t *testing.T, name string) wire.Method {
	t.Helper()
	f, err := p.in.Next()
	if err != nil {
		t.Fatalf("%s was expected: %v", name, err)
	}
	m, err := wire.ParseMethod(f.Payload)
	if err != nil || m.Name() != name {
		t.Fatalf("got %v (%v), not %s", m, err, name)
	}
	return m
}

// closed reads the broker's good-bye, which must have the code, up to the end.
func (p *plain) closed(t *testing.T, code uint16) {
	t.Helper()
	for {
		f, err := p.in.Next()
		if err != nil {
			t.Fatalf("a close with %d was expected: %v", code, err)
		}
		if m, err := wire.ParseMethod(f.Payload); err == nil {
			if c, ok := m.(*wire.ConnectionClose); ok {
				if c.ReplyCode != code {
					t.Fatalf("closed with %d %s, not %d", c.ReplyCode, c.ReplyText, code)
				}
				p.say(&wire.ConnectionCloseOK{})
				io.Copy(io.Discard, p)
				return
			}
		}
	}
}

// works shows that the broker serves somebody else.
func works(t *testing.T, ch *amqp.Channel) {
	t.Helper()
	if err := ch.PublishWithContext(within(t), "", "witness", true, false, amqp.Publishing{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	m, ok, err := ch.Get("witness", true)
	if err != nil || !ok || string(m.Body) != "x" {
		t.Fatalf("the broker does not serve others: %v %v %v", m, ok, err)
	}
}

func TestR61_HostileClients(t *testing.T) {
	n := start(t, broker.Options{Limits: broker.Limits{MessageBytes: 1 << 20}})
	_, ch := dial(t, n.url)
	declare(t, ch, "witness", nil)
	frame := func(kind byte, channel uint16, size uint32, rest string) []byte {
		b := append([]byte{kind}, 0, 0, 0, 0, 0, 0)
		binary.BigEndian.PutUint16(b[1:], channel)
		binary.BigEndian.PutUint32(b[3:], size)
		return append(b, rest...)
	}
	t.Run("garbage instead of the protocol header", func(t *testing.T) {
		p := connect(t, n)
		p.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		answer, err := io.ReadAll(p)
		if string(answer) != "AMQP\x00\x00\x09\x01" {
			t.Errorf("answered %q, %v", answer, err)
		}
		works(t, ch)
	})
	t.Run("garbage after the login", func(t *testing.T) {
		p := login(t, n)
		p.Write([]byte(strings.Repeat("garbage", 100)))
		p.closed(t, 501)
		works(t, ch)
	})
	t.Run("four GiB", func(t *testing.T) {
		p := login(t, n)
		p.Write(frame(wire.FrameBody, 1, 0xFFFFFFFF, "x"))
		p.closed(t, 501)
		works(t, ch)
	})
	t.Run("half a frame, then nothing", func(t *testing.T) {
		p := login(t, n)
		p.Write(frame(wire.FrameMethod, 1, 1000, "half"))
		works(t, ch)
		p.Close()
		works(t, ch)
	})
	t.Run("a body of exabytes", func(t *testing.T) {
		p := login(t, n)
		p.sayOn(1, &wire.ChannelOpen{})
		p.method(t, "channel.open-ok")
		p.sayOn(1, &wire.BasicPublish{RoutingKey: "witness"})
		head := make([]byte, 14)
		binary.BigEndian.PutUint16(head, 60)
		binary.BigEndian.PutUint64(head[4:], 1<<60)
		p.Write(append(frame(wire.FrameHeader, 1, 14, string(head)), wire.FrameEnd))
		p.Write(append(frame(wire.FrameBody, 1, 4, "some"), wire.FrameEnd))
		works(t, ch)
	})
	t.Run("ten thousand channels", func(t *testing.T) {
		p := login(t, n)
		go func() { // ends with the socket
			var b []byte
			for i := range 10_000 {
				b = wire.AppendMethod(b, uint16(i+1), &wire.ChannelOpen{})
			}
			p.Write(b)
		}()
		p.closed(t, 530)
		works(t, ch)
	})
	t.Run("many messages that are never whole", func(t *testing.T) {
		p := login(t, n)
		go func() { // ends with the socket
			body := strings.Repeat("x", 100_000)
			for i := range uint16(100) {
				p.sayOn(i+1, &wire.ChannelOpen{})
				p.sayOn(i+1, &wire.BasicPublish{RoutingKey: "witness"})
				head := make([]byte, 14)
				binary.BigEndian.PutUint16(head, 60)
				binary.BigEndian.PutUint64(head[4:], 200_000)
				p.Write(append(frame(wire.FrameHeader, i+1, 14, string(head)), wire.FrameEnd))
				p.Write(append(frame(wire.FrameBody, i+1, 100_000, body), wire.FrameEnd))
			}
		}()
		p.closed(t, 506)
		works(t, ch)
	})
	t.Run("a handshake that stops", func(t *testing.T) {
		p := connect(t, n)
		p.Write([]byte("AMQP\x00\x00\x09\x01"))
		p.method(t, "connection.start")
		works(t, ch)
	})
}

// TestR61_SlowConsumer has a client that takes nothing from its socket: the
// broker must neither grow nor stand.
func TestR61_SlowConsumer(t *testing.T) {
	n := start(t, broker.Options{})
	_, ch := dial(t, n.url)
	declare(t, ch, "witness", nil)
	declare(t, ch, "many", nil)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	p := login(t, n)
	p.sayOn(1, &wire.ChannelOpen{})
	p.method(t, "channel.open-ok")
	p.sayOn(1, &wire.BasicConsume{Queue: "many", ConsumerTag: "c"})
	p.method(t, "basic.consume-ok")
	body := make([]byte, 64<<10)
	const count = 1000 // 64 MB
	var last *amqp.DeferredConfirmation
	for range count {
		d, err := ch.PublishWithDeferredConfirmWithContext(within(t), "", "many", true, false, amqp.Publishing{DeliveryMode: 2, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		last = d
	}
	if ok, err := last.WaitContext(within(t)); !ok || err != nil {
		t.Fatalf("not confirmed: %v", err)
	}
	if s, err := ch.QueueDeclarePassive("many", true, false, false, false, nil); err != nil || s.Messages < count/2 {
		t.Errorf("%d of %d wait in the queue, the rest in memory: %v", s.Messages, count, err)
	}
	works(t, ch)
	// When it reads at last, it gets all.
	got := 0
	for got < count {
		f, err := p.in.Next()
		if err != nil {
			t.Fatalf("after %d: %v", got, err)
		}
		if f.Type == wire.FrameHeader {
			got++
		}
	}
}

// TestR53_BytesLimit has more stored than is allowed: publishers are told and
// stand, consumers go on, and then so do the publishers.
func TestR53_BytesLimit(t *testing.T) {
	n := start(t, broker.Options{Limits: broker.Limits{Bytes: 1 << 20}})
	conn, ch := dial(t, n.url)
	declare(t, ch, "q", nil)
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 4))
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	stopped := make(chan int, 1)
	go func() { // ends with the connection, or when all is confirmed
		total := 0
		for range 4000 {
			if _, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", "q", true, false, amqp.Publishing{DeliveryMode: 2, Body: make([]byte, 1024)}); err != nil {
				break
			}
			total++
		}
		d, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", "q", true, false, amqp.Publishing{Body: []byte("last")})
		if err == nil {
			d.WaitContext(ctx)
		}
		stopped <- total
	}()
	if b := await(t, ctx, blocked); !b.Active {
		t.Fatalf("got %+v", b)
	}
	_, taker := dial(t, n.url)
	got := 0
	msgs, err := taker.Consume("q", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for m := range msgs {
		if got++; string(m.Body) == "last" {
			break
		}
	}
	if total := await(t, ctx, stopped); got != total+1 {
		t.Errorf("published %d, got %d", total+1, got)
	}
	if b := await(t, ctx, blocked); b.Active {
		t.Errorf("got %+v", b)
	}
}

func await[T any](t *testing.T, ctx context.Context, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-ctx.Done():
		t.Fatal("it did not come")
		panic("unreachable")
	}
}
