package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"
)

// stage is a proxy between a client and a peer that sends every frame back.
type stage struct {
	t      *testing.T
	ctx    context.Context
	proxy  *Proxy
	client net.Conn
	peers  chan net.Conn
}

func newStage(t *testing.T) *stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := &stage{t: t, ctx: ctx, peers: make(chan net.Conn, 10)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.peers <- c
			go func() {
				if _, err := io.CopyN(io.Discard, c, int64(len(greeting))); err == nil {
					_, _ = io.Copy(c, c)
				}
			}()
		}
	}()
	if s.proxy, err = New(ctx, "127.0.0.1:0", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	s.client = s.dial()
	return s
}

func (s *stage) dial() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.proxy.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = c.Write([]byte(greeting))
	return c
}

func (s *stage) say(frames ...Frame) {
	s.t.Helper()
	for _, f := range frames {
		if _, err := s.client.Write(f.bytes()); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *stage) hear(want ...Frame) {
	s.t.Helper()
	for _, w := range want {
		f, err := readFrame(s.client)
		if err != nil || !bytes.Equal(f.bytes(), w.bytes()) {
			s.t.Fatalf("heard %+v, %v; want %+v", f, err, w)
		}
	}
}

func (s *stage) held(n int) {
	s.t.Helper()
	if err := s.proxy.AwaitHeld(s.ctx, n); err != nil || s.proxy.Held() != n {
		s.t.Fatalf("%d held, %v; want %d", s.proxy.Held(), err, n)
	}
}

var (
	publish = NewMethod(1, BasicPublish, []byte("args"))
	declare = NewMethod(1, QueueDeclare, nil)
	body    = Frame{TypeBody, 1, []byte("body")}
	beat    = Frame{Type: TypeHeartbeat}
)

func TestFramesPass(t *testing.T) {
	s := newStage(t)
	s.say(publish, body, beat)
	s.hear(publish, body, beat)
}

func TestHoldFromAMethodOn(t *testing.T) {
	for _, dir := range []Dir{ToBroker, ToClient} {
		s := newStage(t)
		s.proxy.HoldMethod(60, 40, dir, true)
		s.say(declare, publish, body, declare, beat)
		s.hear(declare, beat)
		s.held(3)
		s.proxy.HoldMethod(60, 40, dir, false)
		s.hear(publish, body, declare)
		s.say(publish)
		s.hear(publish)
		if s.proxy.Held() != 0 {
			t.Fatal("still holding")
		}
	}
}

func TestDropForgetsWhatIsHeld(t *testing.T) {
	s := newStage(t)
	s.proxy.Hold(BasicPublish, ToBroker, true)
	s.say(publish, body)
	s.held(2)
	s.proxy.Drop()
	s.say(declare)
	s.held(1)
	s.proxy.Hold(BasicPublish, ToBroker, false)
	s.hear(declare)
}

func TestStallStopsADirection(t *testing.T) {
	s := newStage(t)
	s.proxy.Stall(ToClient, true)
	s.say(declare)
	_ = s.client.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if f, err := readFrame(s.client); err == nil {
		t.Fatalf("heard %+v", f)
	}
	_ = s.client.SetReadDeadline(time.Now().Add(30 * time.Second))
	s.proxy.Stall(ToClient, false)
	s.hear(declare)
}

func TestCutAndRefuse(t *testing.T) {
	s := newStage(t)
	s.say(declare)
	s.hear(declare)
	s.proxy.Refuse(true)
	s.proxy.Cut()
	if _, err := readFrame(s.client); err == nil {
		t.Fatal("not cut")
	}
	if c, err := net.Dial("tcp", s.proxy.Addr()); err == nil { // the reset may be there by now
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := readFrame(c); err == nil {
			t.Fatal("not refused")
		}
	}
	s.proxy.Refuse(false)
	s.client = s.dial()
	s.say(declare)
	s.hear(declare)
	if err := s.proxy.AwaitConnections(s.ctx, 2); err != nil {
		t.Fatal(err)
	}
}

func TestAbandonLeavesTheBrokersSide(t *testing.T) {
	s := newStage(t)
	s.say(declare)
	s.hear(declare)
	peer := <-s.peers
	s.proxy.Abandon()
	if _, err := readFrame(s.client); err == nil {
		t.Fatal("the client is still connected")
	}
	for range 3 {
		if _, err := peer.Write(declare.bytes()); err != nil {
			t.Fatalf("the broker's side is closed: %v", err)
		}
	}
	peer.Close()
	if err := s.proxy.await(s.ctx, func() bool { return len(s.proxy.pairs) == 0 }); err != nil {
		t.Fatal("the pair outlives the broker's side")
	}
}

func TestRewriteAndInject(t *testing.T) {
	s := newStage(t)
	s.proxy.Rewrite(func(dir Dir, f Frame) []Frame {
		if m, _ := f.Method(); dir == ToBroker && m == BasicPublish {
			return []Frame{declare, declare}
		}
		return []Frame{f}
	})
	s.say(publish, body)
	s.hear(declare, declare, body)
	if err := s.proxy.Inject(ToClient, publish); err != nil {
		t.Fatal(err)
	}
	s.hear(publish)
}

func TestEndsWithItsContext(t *testing.T) {
	s := newStage(t)
	ctx, cancel := context.WithCancel(s.ctx)
	p, err := New(ctx, "127.0.0.1:0", s.proxy.target)
	if err != nil {
		t.Fatal(err)
	}
	s.proxy = p
	s.client = s.dial()
	s.say(declare)
	s.hear(declare)
	cancel()
	if _, err := readFrame(s.client); err == nil {
		t.Fatal("not cut")
	}
	if err := p.await(s.ctx, func() bool { return len(p.pairs) == 0 }); err != nil {
		t.Fatal(err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(publish.bytes())
	f.Add([]byte{1, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := readFrame(bytes.NewReader(b))
		if err == nil && !bytes.HasPrefix(b, frame.bytes()) {
			t.Fatalf("%q became %+v", b, frame)
		}
	})
}
