package bus

import (
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

func TestR7_HostIsHeld(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		first := w.start(nil)
		first.up()
		if s := first.State(); !s.HadHost || !s.HeldSince.IsZero() {
			t.Fatalf("the first: %+v", s)
		}
		second := w.start(nil)
		state := second.until("held", func(s State) bool { return s.Link == Held })
		if state.HadHost || state.HeldSince.IsZero() || !errors.Is(state.Err, fault.HostHeld) || !strings.Contains(state.Reason, string(w.host)) {
			t.Fatalf("the second: %+v", state)
		}
		if _, err := second.Publish(w.ctx, to("x", "1")); !errors.Is(err, fault.HostHeld) {
			t.Fatalf("publish without the host: %v", err)
		}
		first.end()
		if s := second.up(); !s.HadHost || !s.HeldSince.IsZero() {
			t.Fatalf("after it: %+v", s)
		}
	})
}

func TestR7_NobodyElseConsumes(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		_, name, _ := b.inbox(5)
		w.admin.deleteLater(name)
		for _, exclusive := range []bool{true, false} {
			err := w.admin.ask(func(ch *amqp.Channel) error {
				_, err := ch.Consume(name, "", false, exclusive, false, false, nil)
				return err
			})
			if codeOf(err) != amqp.AccessRefused {
				t.Fatalf("a stranger consumes (exclusive %v): %v", exclusive, err)
			}
		}
	})
}

func TestR7_C44_InboxInAStrangersHand(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		good, goodName, got := b.inbox(5)
		gid, name, held := b.inbox(5)
		w.admin.deleteLater(goodName)
		w.admin.deleteLater(name)
		if err := b.Detach(w.ctx, name); err != nil {
			t.Fatal(err)
		}
		stranger, err := w.admin.conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stranger.Consume(name, "", false, true, false, false, nil); err != nil {
			t.Fatal(err)
		}
		b.Attach(name, func(d topology.Dialect) topology.Queue { return b.cfg.Layout.Inbox(d, gid, false, nil) }, 5,
			func(d Delivery) { held <- d })
		state := b.until("in trouble", func(s State) bool { return s.Unserved[name] != "" })
		if !strings.Contains(strings.ToLower(state.Reason), "exclusive") || state.Link != Up {
			t.Fatalf("the state is %+v", state)
		}
		// The next refusal must not cost the good one's channel.
		over := time.Now().Add(patience)
		for b.sameChannel(goodName, name) {
			if time.Now().After(over) {
				t.Fatal("a refused queue shares a channel")
			}
			time.Sleep(time.Millisecond)
		}
		b.served(goodName)
		b.want(b.send(to(good, "0")), Accepted)
		inOrder(t, w, got, 1)
		if err := stranger.Close(); err != nil {
			t.Fatal(err)
		}
		b.served(name)
		b.want(b.send(to(gid, "0")), Accepted)
		inOrder(t, w, held, 1)
		if s := b.State(); len(s.Unserved) != 0 || s.Reason != "" {
			t.Fatalf("after it: %+v", s)
		}
	})
}

// The broker keeps a vanished host's lock and consumers until it misses
// heartbeats.
func TestR7_OwnGhostHoldsTheHost(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Heartbeat = time.Second })
		b.up()
		gid, name, got := b.inbox(5)
		w.admin.deleteLater(name)
		w.proxy.Abandon()
		state := b.until("held", func(s State) bool { return s.Link == Held })
		if !state.HadHost || state.HeldSince.IsZero() {
			t.Fatalf("held: %+v", state)
		}
		b.up()
		b.served(name)
		b.want(b.send(to(gid, "0")), Accepted)
		inOrder(t, w, got, 1)
	})
}

// sameChannel says whether two attached queues share a channel.
func (r *running) sameChannel(a, b string) bool {
	r.wants.mu.Lock()
	defer r.wants.mu.Unlock()
	return r.wants.queues[a].group == r.wants.queues[b].group
}
