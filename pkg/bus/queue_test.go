package bus

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/bus/proxy"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

func TestR1_SharedObjectsArePassive(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		first := w.start(nil) // declares what is missing
		first.up()
		for _, x := range topology.Exchanges() {
			w.admin.must(func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(w.admin.name(x.Name), x.Type, true, false, false, false, nil)
			})
		}
		if _, err := w.admin.look(w.admin.name(topology.DLQ)); err != nil {
			t.Fatal(err)
		}
		w.admin.must(func(ch *amqp.Channel) error {
			return ch.Publish(w.admin.name(topology.DeadLetters), "", false, false, amqp.Publishing{MessageId: "dead"})
		})
		w.admin.holds(w.admin.name(topology.DLQ), 1)
		first.end()
		var active atomic.Int64
		w.onFrames(func(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
			if m, _ := f.Method(); dir == proxy.ToBroker && m == (proxy.Method{Class: 40, Method: 10}) {
				// reserved short, name, type, bits
				name := int(f.Payload[6])
				kind := int(f.Payload[7+name])
				if f.Payload[8+name+kind]&1 == 0 {
					active.Add(1)
				}
			}
			return []proxy.Frame{f}
		})
		second := w.start(nil)
		second.up()
		if n := active.Load(); n != 0 {
			t.Fatalf("%d exchanges declared that were there", n)
		}
	})
}

func TestR4_QueueWithOtherArguments(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		name := "control." + string(w.host)
		w.admin.must(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-max-length": int64(7)})
			return err
		})
		w.admin.deleteLater(name)
		w.admin.must(func(ch *amqp.Channel) error {
			return ch.Publish("", name, false, false, amqp.Publishing{MessageId: "old"})
		})
		var out logs
		b := w.start(func(c *Config) { c.Log = out.logger() })
		got := make(chan Delivery, 10)
		b.Attach(name, b.cfg.Layout.Control, 10, func(d Delivery) { got <- d })
		b.up()
		b.served(name)
		if d := w.next(got); d.ID != "old" {
			t.Fatalf("got %s", d.ID)
		} else {
			d.Ack()
		}
		m := to(string(w.host), "new")
		m.Route.Exchange = topology.Control
		b.want(b.send(m), Accepted)
		w.next(got).Ack()
		w.proxy.Cut()
		b.until("reconnected", func(s State) bool { return s.Link == Up && s.Reconnects >= 2 })
		b.served(name)
		if n := strings.Count(out.String(), "stands with other arguments"); n != 1 {
			t.Fatalf("%d warnings:\n%s", n, out.String())
		}
		if _, err := w.admin.look(name); err != nil {
			t.Fatal(err)
		}
	})
}

func TestR5_QuorumQueues(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Layout.Type = topology.Quorum })
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		for i := range 50 {
			b.send(to(gid, fmt.Sprint(i)))
		}
		inOrder(t, w, got, 50)
		left := make(chan Delivery, 10)
		if err := b.DetachAndDelete(w.ctx, name, func(d Delivery) { left <- d; d.Ack() }); err != nil {
			t.Fatal(err)
		}
		if _, err := w.admin.look(name); codeOf(err) != amqp.NotFound {
			t.Fatalf("the queue is still there: %v", err)
		}
	})
}

func TestR6_DetachAndDelete(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(3)
		for i := range 10 {
			b.want(b.send(to(gid, fmt.Sprint(i))), Accepted)
		}
		// Three are out and stay so for now; seven wait on the broker.
		var out []Delivery
		for range 3 {
			out = append(out, w.next(got))
		}
		done := make(chan error, 1)
		left := make(chan Delivery, 20)
		go func() { done <- b.DetachAndDelete(w.ctx, name, func(d Delivery) { left <- d }) }()
		over := time.Now().Add(patience)
		for b.want1of(b.send(to(gid, random(4))), Accepted, Unroutable) != Unroutable {
			if time.Now().After(over) {
				t.Fatal("still bound")
			}
		}
		select {
		case err := <-done:
			t.Fatalf("deleted with messages out: %v", err)
		default:
		}
		for _, d := range out {
			d.Ack()
		}
		var last Delivery
		for i := 3; i < 10; i++ {
			d := w.next(left)
			if d.ID != fmt.Sprint(i) {
				t.Fatalf("left over %s, want %d", d.ID, i)
			}
			if i < 9 {
				d.Ack()
			} else {
				last = d
			}
		}
		select {
		case err := <-done:
			t.Fatalf("deleted with one message out: %v", err)
		case <-time.After(5 * drainLook):
		}
		last.Ack()
		for finished := false; !finished; { // those that came before the unbinding
			select {
			case d := <-left:
				d.Ack()
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				finished = true
			case <-time.After(patience):
				t.Fatal("not deleted")
			}
		}
		if _, err := w.admin.look(name); codeOf(err) != amqp.NotFound {
			t.Fatalf("the queue is still there: %v", err)
		}
		if err := b.DetachAndDelete(w.ctx, name, nil); !errors.Is(err, fault.NotFound) {
			t.Fatalf("a second time: %v", err)
		}
	})
}

func TestR6_PausedQueueDoesNotExpire(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Layout.Limits.WorkerExpires = 1500 * time.Millisecond })
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		looks := make(chan struct{}, 100)
		w.onFrames(func(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
			if m, _ := f.Method(); dir == proxy.ToBroker && m == proxy.QueueDeclare {
				looks <- struct{}{}
			}
			return []proxy.Frame{f}
		})
		b.Pause(name)
		b.want(b.send(to(gid, "0")), Accepted)
		for range 8 { // each a third of the expiry after the other
			select {
			case <-looks:
			case <-time.After(patience):
				t.Fatal("the paused queue is not looked at")
			}
		}
		b.Resume(name)
		inOrder(t, w, got, 1)
	})
}

func TestR11_PauseAndResume(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(5)
		w.admin.deleteLater(name)
		for i := range 20 {
			b.want(b.send(to(gid, fmt.Sprint(i))), Accepted)
		}
		var out []Delivery
		for range 5 {
			out = append(out, w.next(got))
		}
		b.Pause(name)
		over := time.Now().Add(patience)
		for q, _ := w.admin.look(name); q.Consumers != 0; q, _ = w.admin.look(name) {
			if time.Now().After(over) {
				t.Fatal("still consumed")
			}
		}
		for _, d := range out {
			d.Ack()
		}
		w.admin.holds(name, 15)
		w.proxy.Cut() // it stays paused over a reconnect
		b.until("reconnected", func(s State) bool { return s.Link == Up && s.Reconnects >= 2 })
		if q, err := w.admin.look(name); err != nil || q.Consumers != 0 || q.Messages < 15 || len(got) != 0 {
			t.Fatalf("paused, and %d handed over: %+v, %v", len(got), q, err)
		}
		b.Resume(name)
		// The cut may have lost acknowledgements, so that up to five come again.
		for next := 5; next < 20; {
			d := w.next(got)
			d.Ack()
			switch {
			case d.ID == fmt.Sprint(next):
				next++
			case next > 5:
				t.Fatalf("got %s, want %d", d.ID, next)
			}
		}
	})
}

func TestDetachStopsHandingOver(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid := identity.NewGID()
		inbox := func(d topology.Dialect) topology.Queue { return b.cfg.Layout.Inbox(d, gid, false, nil) }
		name := inbox(topology.Dialect{}).Name
		var detached, late atomic.Bool
		out := make(chan Delivery, 100)
		slow := func(d Delivery) {
			late.Store(late.Load() || detached.Load())
			out <- d
			time.Sleep(5 * time.Millisecond) // so that Detach finds it at work
		}
		b.Attach(name, inbox, 20, slow)
		b.served(name)
		w.admin.deleteLater(name)
		for i := range 40 {
			b.send(to(gid, fmt.Sprint(i)))
		}
		first := w.next(out)
		if err := b.Detach(w.ctx, name); err != nil {
			t.Fatal(err)
		}
		detached.Store(true)
		n := 1 + len(out)
		first.Ack() // what is out can still be acknowledged
		for range n - 1 {
			(<-out).Ack()
		}
		w.admin.holds(name, 40-n)
		// A second attachment takes what is left, in order.
		got := make(chan Delivery, 100)
		b.Attach(name, inbox, 5, func(d Delivery) { got <- d })
		for i := n; i < 40; i++ {
			d := w.next(got)
			d.Ack()
			if d.ID != fmt.Sprint(i) {
				t.Fatalf("got %s, want %d", d.ID, i)
			}
		}
		if late.Load() {
			t.Fatal("handed over after Detach")
		}
	})
}
