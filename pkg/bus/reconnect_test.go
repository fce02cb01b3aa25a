package bus

import (
	"context"
	"encoding/binary"
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

func TestR14_ConsumersAndBindingsComeBack(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		live := make(chan Delivery, 10)
		b.OnLive(func(d Delivery) { live <- d })
		b.up()
		gid, name, got := b.inbox(5)
		w.admin.deleteLater(name)
		key := topology.LiveKey(gid)
		b.BindLive(key)
		b.served(key)
		for round := range int64(3) {
			b.want(b.send(to(gid, "0")), Accepted)
			inOrder(t, w, got, 1)
			b.want(b.send(to(key, "live")), Accepted)
			w.next(live).Ack()
			w.proxy.Refuse(true)
			w.proxy.Cut()
			b.until("down", func(s State) bool { return s.Link == Down && s.Reason != "" })
			if _, err := b.Publish(w.ctx, to(gid, "x")); !errors.Is(err, fault.NoBroker) {
				t.Fatalf("publish while down: %v", err)
			}
			w.proxy.Refuse(false)
			b.until("up again", func(s State) bool { return s.Link == Up && s.Reconnects >= 2*(round+1) })
			b.served(name, key)
		}
		b.UnbindLive(key)
		over := time.Now().Add(patience)
		for b.want1of(b.send(to(key, random(4))), Accepted, Unroutable) != Unroutable {
			if time.Now().After(over) {
				t.Fatal("still bound")
			}
		}
	})
}

func TestR14_StaleAcknowledgementsDoNothing(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		var out logs
		b := w.start(func(c *Config) { c.Log = out.logger() })
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		for i := range 4 {
			b.want(b.send(to(gid, fmt.Sprint(i))), Accepted)
		}
		var old []Delivery
		for range 4 {
			old = append(old, w.next(got))
		}
		old[0].Ack()
		old[1].Ack()
		w.proxy.Cut()
		var again []Delivery
		for len(again) == 0 || again[len(again)-1].ID != "3" {
			again = append(again, w.next(got))
		}
		for _, d := range old {
			d.Ack() // the tags are others' by now
			d.Ack()
		}
		// Had one of them been sent, this cut would not bring that message back.
		w.proxy.Cut()
		back := map[string]bool{}
		for len(back) < 2 {
			d := w.next(got)
			if d.ID == "2" || d.ID == "3" {
				back[d.ID] = true
			}
			d.Ack()
			d.Ack() // twice is once
		}
		// A wrong tag would have closed the channel before this message's turn.
		b.up()
		b.want(b.send(to(gid, "last")), Accepted)
		for d := w.next(got); d.ID != "last"; d = w.next(got) {
			d.Ack()
		}
		b.end()
		w.admin.holds(name, 1)
		if strings.Contains(out.String(), "a consuming channel was closed") {
			t.Fatalf("a channel was closed:\n%s", out.String())
		}
	})
}

func TestR14_ChannelsDeathIsRepaired(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		var out logs
		b := w.start(func(c *Config) { c.Log = out.logger() })
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		other, otherName, others := b.inbox(10)
		w.admin.deleteLater(otherName)
		var once atomic.Bool
		w.onFrames(func(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
			if m, _ := f.Method(); dir == proxy.ToBroker && m == proxy.BasicAck && once.CompareAndSwap(false, true) {
				args := append(binary.BigEndian.AppendUint64(nil, 4711), 0)
				f = proxy.NewMethod(f.Channel, proxy.BasicAck, args) // unknown tag: 406
			}
			return []proxy.Frame{f}
		})
		for i := range 30 {
			b.send(to(gid, fmt.Sprint(i)))
			b.send(to(other, fmt.Sprint(i)))
		}
		inOrder(t, w, got, 30)
		inOrder(t, w, others, 30)
		if !once.Load() {
			t.Fatal("no channel died")
		}
		if s := b.State(); s.Reconnects != 0 {
			t.Fatalf("it cost the connection: %+v\n%s", s, out.String())
		}
		w.admin.holds(name, 0)
	})
}

func TestR14_VanishedQueueIsDeclaredAnew(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(10)
		w.admin.deleteLater(name)
		w.admin.must(func(ch *amqp.Channel) error { _, err := ch.QueueDelete(name, false, false, false); return err })
		b.until("unserved", func(s State) bool { _, is := s.Unserved[name]; return is })
		b.served(name)
		b.want(b.send(to(gid, "0")), Accepted)
		inOrder(t, w, got, 1)
		if s := b.State(); s.Reconnects != 0 {
			t.Fatalf("it cost the connection: %+v", s)
		}
	})
}

func TestR14_ManyQueuesShareChannels(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := New(w.config())
		got := make(chan Delivery, 1000)
		var names []string
		var gids []identity.GID
		for range 150 {
			gid := identity.NewGID()
			name := b.cfg.Layout.Inbox(topology.Dialect{}, gid, false, nil).Name
			b.Attach(name, func(d topology.Dialect) topology.Queue { return b.cfg.Layout.Inbox(d, gid, false, nil) }, 5,
				func(d Delivery) { got <- d })
			names, gids = append(names, name), append(gids, gid)
			w.admin.deleteLater(name)
		}
		r := w.run(b)
		if s := r.up(); len(s.Unserved) != 0 {
			t.Fatalf("up with %d queues without a consumer", len(s.Unserved))
		}
		b.wants.mu.Lock()
		groups := map[*group]int{}
		for _, a := range b.wants.queues {
			groups[a.group]++
		}
		b.wants.mu.Unlock()
		for _, n := range groups {
			if n > groupMost {
				t.Fatalf("%d queues on a channel", n)
			}
		}
		if len(groups) != 3 {
			t.Fatalf("%d channels for 150 queues", len(groups))
		}
		for i, gid := range gids {
			r.send(to(gid, fmt.Sprint(i)))
		}
		for range gids {
			w.next(got).Ack()
		}
		for _, name := range names {
			if err := r.Detach(w.ctx, name); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestR14_CloseOnADeadLink(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, _ := b.inbox(5)
		w.admin.deleteLater(name)
		w.proxy.Stall(proxy.ToBroker, true)
		w.proxy.Stall(proxy.ToClient, true)
		m := to(gid, "large")
		m.Body = make([]byte, 16<<20) // more than the buffers between: the write blocks
		p := b.send(m)
		started := time.Now()
		b.stop()
		select {
		case <-b.done:
		case <-time.After(patience):
			t.Fatal("Run hangs")
		}
		if d := time.Since(started); d > 15*time.Second {
			t.Fatalf("Run took %v", d)
		}
		if o, err := p.Outcome(); o != Unknown || !errors.Is(err, fault.Unknown) {
			t.Fatalf("%s, %v", o, err)
		}
		select {
		case <-p.Done():
		default:
			t.Fatal("not decided after Run")
		}
	})
}

func TestR14_HalfOpenLinkIsNoticed(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Heartbeat = time.Second })
		b.up()
		gid, name, _ := b.inbox(5)
		w.admin.deleteLater(name)
		w.proxy.Stall(proxy.ToClient, true)
		b.until("down", func(s State) bool { return s.Link == Down })
		w.proxy.Cut()
		w.proxy.Stall(proxy.ToClient, false)
		b.up()
		b.want(b.send(to(gid, "0")), Accepted)
	})
}

func TestR47_CredentialsAreNeverShown(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		const password = "s3cr3t-&word"
		for _, at := range []string{
			strings.Replace(w.url, "guest:guest", "guest:s3cr3t-%26word", 1),
			"amqp://guest:s3cr3t-&wo/rd@" + w.proxy.Addr(),
			"amqp://guest:" + password + "@127.0.0.1:1/",
		} {
			var out logs
			b := w.start(func(c *Config) { c.URL = at; c.Log = out.logger() })
			state := b.until("refused", func(s State) bool { return s.Link == Down && s.Err != nil && s.Reason != "not connected yet" })
			for _, text := range []string{state.Reason, state.Err.Error(), out.String()} {
				if strings.Contains(text, "s3cr3t") {
					t.Fatalf("%s shows the password", text)
				}
			}
			b.end()
		}
	})
}

func TestR14_RefusedLoginIsRetried(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.URL = strings.Replace(w.url, "guest:guest", "guest:wrong", 1) })
		state := b.until("refused", func(s State) bool { return strings.Contains(s.Reason, "refuses the login") })
		if state.Link != Down || !errors.Is(state.Err, fault.NoBroker) {
			t.Fatalf("the state is %+v", state)
		}
		ctx, cancel := context.WithTimeout(w.ctx, patience)
		defer cancel()
		_, made := w.proxy.Connections()
		if err := w.proxy.AwaitConnections(ctx, made+2); err != nil {
			t.Fatal("it has given up")
		}
	})
}

func TestR14_Backoff(t *testing.T) {
	b := backoff{first: 250 * time.Millisecond, most: 30 * time.Second}
	for n := range 100 {
		bound := min(250*time.Millisecond<<min(n, 10), 30*time.Second)
		if d := b.next(); d < 0 || d > bound {
			t.Fatalf("try %d waits %v, over %v", n, d, bound)
		}
	}
	r := (&Bus{cfg: Config{Bounds: Bounds{BackoffMost: 30 * time.Second}}}).newRetry()
	for range 100 {
		if d := r.after(&loginRefused{amqp.ErrCredentials}, 0); d > time.Minute {
			t.Fatalf("a refused login waits %v", d)
		}
	}
}
