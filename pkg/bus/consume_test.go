package bus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
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

// encode is t as the client library writes it, taken from a handshake.
func encode(t *testing.T, table amqp.Table) string {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	defer client.Close()
	go func() {
		_, _ = amqp.Open(client, amqp.Config{Properties: table, SASL: []amqp.Authentication{&amqp.PlainAuth{}}})
	}()
	read := func(n int) []byte {
		b := make([]byte, n)
		for i := 0; i < n; {
			k, err := server.Read(b[i:])
			if err != nil {
				t.Fatal(err)
			}
			i += k
		}
		return b
	}
	read(8)
	start := "\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"
	frame := append([]byte{1, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(len(start)))...)
	if _, err := server.Write(append(append(frame, start...), 0xCE)); err != nil {
		t.Fatal(err)
	}
	return string(read(int(binary.BigEndian.Uint32(read(7)[3:]))))
}

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
		for i := 3; i < 10; i++ {
			d := w.next(left)
			if d.ID != fmt.Sprint(i) {
				t.Fatalf("left over %s, want %d", d.ID, i)
			}
			d.Ack()
		}
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
		w.admin.holds(name, 15)
		b.Resume(name)
		for i := 5; i < 20; i++ {
			d := w.next(got)
			d.Ack()
			if d.ID != fmt.Sprint(i) {
				t.Fatalf("got %s, want %d", d.ID, i)
			}
		}
	})
}

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
		b := w.start(nil)
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
		w.admin.holds(name, 0)
	})
}

func TestR14_ChannelsDeathIsRepaired(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
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
			t.Fatalf("it cost the connection: %+v", s)
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

func TestDetachStopsHandingOver(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(nil)
		b.up()
		gid, name, got := b.inbox(5)
		w.admin.deleteLater(name)
		for i := range 10 {
			b.want(b.send(to(gid, fmt.Sprint(i))), Accepted)
		}
		first := w.next(got)
		if err := b.Detach(w.ctx, name); err != nil {
			t.Fatal(err)
		}
		out := []Delivery{first}
		for len(got) > 0 {
			out = append(out, <-got)
		}
		for _, d := range out {
			d.Ack()
		}
		w.admin.holds(name, 10-len(out))
		if len(got) != 0 {
			t.Fatal("handed over after Detach")
		}
		// A second attachment takes what is left, in order.
		b.Attach(name, func(d topology.Dialect) topology.Queue { return b.cfg.Layout.Inbox(d, gid, false, nil) }, 5,
			func(d Delivery) { got <- d })
		for i := len(out); i < 10; i++ {
			d := w.next(got)
			d.Ack()
			if d.ID != fmt.Sprint(i) {
				t.Fatalf("got %s, want %d", d.ID, i)
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
