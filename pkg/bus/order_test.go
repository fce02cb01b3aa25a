package bus

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"fleet/pkg/bus/proxy"
	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

// inOrder reads n messages, whose ids are numbers, and wants the first
// appearance of each in order.
func inOrder(t *testing.T, w *world, got <-chan Delivery, n int) {
	t.Helper()
	next := 0
	for next < n {
		d := w.next(got)
		d.Ack()
		var id int
		if _, err := fmt.Sscan(d.ID, &id); err != nil {
			t.Fatal(err)
		}
		if id > next {
			t.Fatalf("message %d comes before %d", id, next)
		}
		if id == next {
			next++
		}
	}
}

func TestR8_OrderOverLostConnections(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(20)
		w.admin.deleteLater(name)
		const n = 1500
		var frames atomic.Int64
		w.onFrames(func(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
			if frames.Add(1)%1700 == 0 {
				go w.proxy.Cut()
			}
			return []proxy.Frame{f}
		})
		go func() {
			for i := 0; i < n; {
				b.up()
				if _, err := b.Publish(w.ctx, to(gid, fmt.Sprint(i))); err == nil {
					i++
				}
			}
		}()
		inOrder(t, w, got, n)
		if b.State().Reconnects < 2 {
			t.Fatalf("only %d reconnects: nothing was tested", b.State().Reconnects)
		}
	})
}

func TestR8_RepublishedBeforeNew(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Window = 8 })
		b.up()
		gid, name, got := b.inbox(20)
		w.admin.deleteLater(name)
		w.proxy.Hold(proxy.BasicPublish, proxy.ToBroker, true)
		for i := range 8 {
			b.send(to(gid, fmt.Sprint(i)))
		}
		full := make(chan error, 1)
		go func() {
			_, err := b.Publish(w.ctx, to(gid, "never"))
			full <- err
		}()
		select {
		case err := <-full:
			t.Fatalf("a full window took a message: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		w.proxy.Cut()
		if err := <-full; !errors.Is(err, fault.NoBroker) {
			t.Fatalf("a waiting publish after a lost link: %v", err)
		}
		w.proxy.Hold(proxy.BasicPublish, proxy.ToBroker, false)
		b.up()
		b.send(to(gid, "8"))
		inOrder(t, w, got, 9)
	})
}

func TestR13_NoBrokerFailsAtOnce(t *testing.T) {
	b := New(Config{URL: "amqp://127.0.0.1:1/", Layout: topology.Layout{Host: "alpha"}})
	if _, err := b.Publish(t.Context(), to("x", "1")); !errors.Is(err, fault.NoBroker) {
		t.Fatalf("publish without a link: %v", err)
	}
}
