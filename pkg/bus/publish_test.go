package bus

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/bus/proxy"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

func TestR9_PipelinedOutcomes(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(50)
		w.admin.deleteLater(name)
		nobody := identity.NewGID()
		var all []*Publication
		for i := range 300 {
			m := to(gid, fmt.Sprint(i))
			if i%3 == 0 {
				m = to(nobody, fmt.Sprint(i))
			}
			all = append(all, b.send(m))
		}
		for i, p := range all {
			if i%3 == 0 {
				if err := b.want(p, Unroutable); !errors.Is(err, fault.NotFound) {
					t.Fatalf("unroutable with %v", err)
				}
				continue
			}
			b.want(p, Accepted)
			d := w.next(got)
			d.Ack()
			if d.ID != fmt.Sprint(i) || d.Kind != "SEND" || string(d.Body) != "text "+d.ID || d.Headers["fleet-sig"] != "s" {
				t.Fatalf("delivery %d: %+v", i, d)
			}
		}
		m := to(nobody, "announcement")
		m.Route.Mandatory = false
		b.want(b.send(m), Accepted)
	})
}

func TestR9_ReturnBeforeConfirm(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		returned := make(chan struct{}, 1)
		w.onFrames(func(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
			if m, _ := f.Method(); dir == proxy.ToClient && m == proxy.BasicReturn {
				returned <- struct{}{}
			}
			return []proxy.Frame{f}
		})
		w.proxy.Hold(proxy.BasicAck, proxy.ToClient, true)
		p := b.send(to(identity.NewGID(), "gone"))
		<-returned
		if err := w.proxy.AwaitHeld(w.ctx, 1); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Done():
			t.Fatal("decided before the confirm")
		default:
		}
		if o, err := p.Outcome(); o != Unknown || !errors.Is(err, fault.Unknown) {
			t.Fatalf("before the confirm: %s, %v", o, err)
		}
		w.proxy.Hold(proxy.BasicAck, proxy.ToClient, false)
		b.want(p, Unroutable)
	})
}

func TestR9_FullInboxIsNacked(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Layout.Limits.InboxMessages = 3 })
		b.up()
		gid, name, _ := b.inbox(1)
		w.admin.deleteLater(name)
		if err := b.Detach(w.ctx, name); err != nil {
			t.Fatal(err)
		}
		var all []*Publication
		for i := range 8 {
			all = append(all, b.send(to(gid, fmt.Sprint(i))))
		}
		for i, p := range all {
			if i < 3 {
				b.want(p, Accepted)
			} else if err := b.want(p, Full); !errors.Is(err, fault.Full) {
				t.Fatalf("full with %v", err)
			}
		}
	})
}

// LavinMQ answers a full queue with a return and a nack.
func TestR9_ReturnAndNackIsFull(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		w.onFrames(func(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
			if m, _ := f.Method(); dir == proxy.ToClient && m == proxy.BasicAck {
				f = proxy.NewMethod(f.Channel, proxy.BasicNack, f.Payload[4:])
			}
			return []proxy.Frame{f}
		})
		b.want(b.send(to(identity.NewGID(), "x")), Full)
	})
}

func TestR9_ConnectionLostBeforeTheBrokerHasIt(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		w.proxy.Hold(proxy.BasicPublish, proxy.ToBroker, true)
		p := b.send(to(gid, "one"))
		if err := w.proxy.AwaitHeld(w.ctx, 1); err != nil {
			t.Fatal(err)
		}
		w.proxy.Drop()
		w.proxy.Hold(proxy.BasicPublish, proxy.ToBroker, false)
		w.proxy.Cut()
		b.want(p, Accepted)
		d := w.next(got)
		d.Ack()
		if d.ID != "one" {
			t.Fatalf("got %s", d.ID)
		}
		if b.State().Reconnects == 0 {
			t.Fatal("no reconnect counted")
		}
	})
}

func TestR9_ConfirmLost(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		w.proxy.Hold(proxy.BasicAck, proxy.ToClient, true)
		p := b.send(to(gid, "one"))
		if err := w.proxy.AwaitHeld(w.ctx, 1); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Done():
			t.Fatal("decided without a confirm")
		default:
		}
		w.proxy.Hold(proxy.BasicReturn, proxy.ToClient, true) // keeps the confirm held until the cut
		w.proxy.Cut()
		w.proxy.Hold(proxy.BasicAck, proxy.ToClient, false)
		w.proxy.Hold(proxy.BasicReturn, proxy.ToClient, false)
		b.want(p, Accepted)
		// The broker had it, and got it again with the same id. What was handed
		// over before the cut may come a third time.
		for range 2 {
			if d := w.next(got); d.ID != "one" {
				t.Fatalf("got %s", d.ID)
			}
		}
	})
}

func TestR9_ConfirmBound(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Bounds.Confirm = 300 * time.Millisecond })
		b.up()
		gid, name, _ := b.inbox(10)
		w.admin.deleteLater(name)
		w.proxy.Hold(proxy.BasicAck, proxy.ToClient, true)
		p := b.send(to(gid, "one"))
		b.until("down", func(s State) bool { return s.Link == Down })
		w.proxy.Hold(proxy.BasicAck, proxy.ToClient, false)
		b.want(p, Accepted)
	})
}

func TestR9_GivesUpAfterUntil(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, _ := b.inbox(10)
		w.admin.deleteLater(name)
		w.proxy.Hold(proxy.BasicPublish, proxy.ToBroker, true)
		m := to(gid, "late")
		m.Until = time.Now().Add(200 * time.Millisecond)
		inFlight := b.send(m)
		if err := b.want(inFlight, Unknown); !errors.Is(err, fault.Unknown) {
			t.Fatalf("unknown with %v", err)
		}
		select {
		case <-inFlight.Done():
		default:
			t.Fatal("not decided")
		}
		m.ID, m.Until = "later", time.Now().Add(time.Second)
		p := b.send(m)
		w.proxy.Refuse(true)
		w.proxy.Cut()
		b.want(p, Unknown) // the link is down all the while
	})
}

func TestR9_BlockedConnection(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		const bound = 2 * time.Second
		b := w.start(func(c *Config) { c.Bounds.Confirm = bound })
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		w.proxy.Hold(proxy.BasicPublish, proxy.ToBroker, true)
		p := b.send(to(gid, "before"))
		if err := w.proxy.AwaitHeld(w.ctx, 1); err != nil {
			t.Fatal(err)
		}
		blocked := proxy.NewMethod(0, proxy.Method{Class: 10, Method: 60}, proxy.Short("low on memory"))
		if err := w.proxy.Inject(proxy.ToClient, blocked); err != nil {
			t.Fatal(err)
		}
		state := b.until("blocked", func(s State) bool { return s.Link == Blocked })
		if !strings.Contains(state.Reason, "low on memory") {
			t.Fatalf("reason %q", state.Reason)
		}
		if _, err := b.Publish(w.ctx, to(gid, "during")); !errors.Is(err, fault.NoBroker) {
			t.Fatalf("publish while blocked: %v", err)
		}
		// Longer than the bound for a confirm: it does not count now.
		select {
		case <-time.After(bound + bound/2):
		case <-p.Done():
			t.Fatal("decided while blocked")
		}
		if s := b.State(); s.Link != Blocked || s.Reconnects != 0 {
			t.Fatalf("dropped the connection: %+v", s)
		}
		// What arrives still arrives: the other connection is not frozen.
		w.admin.must(func(ch *amqp.Channel) error {
			return ch.Publish("", name, false, false, amqp.Publishing{MessageId: "beside"})
		})
		d := w.next(got)
		d.Ack()
		if d.ID != "beside" {
			t.Fatalf("got %s", d.ID)
		}
		unblocked := proxy.NewMethod(0, proxy.Method{Class: 10, Method: 61}, nil)
		if err := w.proxy.Inject(proxy.ToClient, unblocked); err != nil {
			t.Fatal(err)
		}
		b.up()
		// From here it counts anew: nothing is late yet.
		select {
		case <-time.After(bound / 4):
		case <-p.Done():
			t.Fatal("decided without a confirm")
		}
		w.proxy.Hold(proxy.BasicPublish, proxy.ToBroker, false)
		b.want(p, Accepted)
		b.want(b.send(to(gid, "after")), Accepted)
		if s := b.State(); s.Reconnects != 0 {
			t.Fatalf("dropped the connection after the alarm: %+v", s)
		}
	})
}

func TestR9_C47_MissingExchange(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		var out logs
		b := w.start(func(c *Config) { c.Log = out.logger() })
		b.up()
		gid, name, got := b.inbox(64)
		w.admin.deleteLater(name)
		var good []*Publication
		var bad *Publication
		for i := range 20 {
			if i == 7 {
				m := to(gid, "bad")
				m.Route.Exchange = "no-such-exchange"
				bad = b.send(m)
			}
			good = append(good, b.send(to(gid, fmt.Sprint(i))))
		}
		err := b.want(bad, Refused)
		if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "no-such-exchange") {
			t.Fatalf("refused with %v", err)
		}
		for _, p := range good {
			b.want(p, Accepted)
		}
		inOrder(t, w, got, 20)
		if s := b.State(); s.Reconnects != 0 {
			t.Fatalf("a bad message cost the connection: %+v", s)
		}
		// Once in the stream, once alone, once more after declaring exchanges.
		if n := strings.Count(out.String(), "closed the publishing channel"); n > 3 {
			t.Fatalf("a bad message cost %d channels", n)
		}
	})
}

func TestR9_C47_DeletedExchangeComesBack(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(64)
		w.admin.deleteLater(name)
		b.BindLive(topology.LiveKey(gid))
		b.served(topology.LiveKey(gid))
		w.admin.must(func(ch *amqp.Channel) error { return ch.ExchangeDelete(w.admin.name(topology.Messages), false, false) })
		// The first may be unroutable, as the bindings come back a moment later.
		b.want1of(b.send(to(gid, "first")), Accepted, Unroutable)
		over := time.Now().Add(patience)
		for i := 0; ; i++ {
			if b.want1of(b.send(to(gid, fmt.Sprint(i))), Accepted, Unroutable) == Accepted {
				break
			}
			if time.Now().After(over) {
				t.Fatal("the bindings do not come back")
			}
		}
		w.next(got).Ack()
		for b.want1of(b.send(to(topology.LiveKey(gid), random(4))), Accepted, Unroutable) != Accepted {
			if time.Now().After(over) {
				t.Fatal("the live binding does not come back")
			}
		}
	})
}

func (r *running) want1of(p *Publication, these ...Outcome) Outcome {
	r.w.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
	}
	got, err := p.Outcome()
	for _, o := range these {
		if got == o {
			return got
		}
	}
	r.w.t.Fatalf("message %s: %s (%v), want one of %v", p.m.ID, got, err, these)
	return got
}

func TestR9_RefusedByPrecondition(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(64)
		w.admin.deleteLater(name)
		// A wrong expiration, put in on the way: 406, again and again.
		w.onFrames(func(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
			if dir == proxy.ToBroker && f.Type == proxy.TypeHeader {
				f.Payload = []byte(strings.ReplaceAll(string(f.Payload), "\x05"+"77777", "\x05"+"abcde"))
			}
			return []proxy.Frame{f}
		})
		var good []*Publication
		m := to(gid, "bad")
		m.Route.TTL = 77777 * time.Millisecond
		for i := range 5 {
			good = append(good, b.send(to(gid, fmt.Sprint(i))))
		}
		bad := b.send(m)
		for i := range 5 {
			good = append(good, b.send(to(gid, fmt.Sprint(5+i))))
		}
		b.want(bad, Refused)
		for _, p := range good {
			b.want(p, Accepted)
		}
		inOrder(t, w, got, 10)
	})
}
