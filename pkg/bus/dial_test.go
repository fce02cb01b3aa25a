package bus

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"fleet/pkg/bus/proxy"
)

func TestSocketBoundsEveryReadAndWrite(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	s := newSocket(near, 20*time.Millisecond, 20*time.Millisecond)
	defer s.Close()
	late := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	b := make([]byte, 1)
	_, err := s.Write(b)
	late("a write that nobody reads", err)
	_, err = s.Read(b)
	late("a read of nothing", err)
	// The library clears the deadlines after its handshake, when a read may be
	// waiting already. That read is the inner connection's.
	if err := s.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Conn.Read(b)
	late("a read over the clearing", err)
	s = newSocket(near, time.Hour, time.Hour)
	if err := s.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err = s.Write(b)
	late("a write under a hard deadline", err)
	_, err = s.Read(b)
	late("a read under a hard deadline", err)
}

func TestR9_WriteBound(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		b := w.start(func(c *Config) { c.Bounds.Write = 300 * time.Millisecond; c.Heartbeat = time.Minute })
		b.up()
		gid, name, _ := b.inbox(5)
		w.admin.deleteLater(name)
		w.proxy.Stall(proxy.ToBroker, true)
		m := to(gid, "0")
		m.Body = make([]byte, 16<<20) // more than the buffers between
		p := b.send(m)
		b.until("down", func(s State) bool { return s.Link == Down })
		w.proxy.Cut()
		w.proxy.Stall(proxy.ToBroker, false)
		b.want(p, Accepted)
	})
}
