package bus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"fleet/pkg/bus/proxy"
	"fleet/pkg/fault"
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

func TestRedact(t *testing.T) {
	a := parseAddress("amqps://gw-alpha:s3cr3t-%26word@broker.example/fleet?heartbeat=7", 5*time.Second)
	text := a.redact("dial amqp://gw-alpha:s3cr3t-%26word@broker.example as gw-alpha with s3cr3t-&word")
	if strings.Contains(text, "s3cr3t") || !strings.Contains(text, "gw-alpha with") {
		t.Fatalf("redacted to %q", text)
	}
	if a.shown != "amqps://broker.example/fleet" || a.heartbeat != 7*time.Second || !a.tls || strings.Contains(a.url, "heartbeat") {
		t.Fatalf("%+v", a)
	}
}

func TestAddressThatCannotBe(t *testing.T) {
	for _, raw := range []string{"", "broker", "http://broker/", "amqp:///", "amqp://u:p/w@broker/", "amqp://u:p w@broker/",
		"amqps://broker/?cacertfile=/ca.pem", "amqps://broker/?verify=verify_none"} {
		if a := parseAddress(raw, time.Second); !errors.Is(a.bad, fault.Config) {
			t.Errorf("%q: %v", raw, a.bad)
		}
	}
}

// A broker may send what was under way on a channel that it has closed.
func TestSieveDropsWhatComesAfterAChannelsClose(t *testing.T) {
	frame := func(channel uint16, kind byte, payload string) string {
		b := binary.BigEndian.AppendUint16([]byte{kind}, channel)
		b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
		return string(b) + payload + "\xCE"
	}
	const closing, opened, deliver = "\x00\x14\x00\x28text", "\x00\x14\x00\x0b\x00\x00\x00\x00", "\x00\x3c\x00\x3cargs"
	stream := []struct {
		frame  string
		passes bool
	}{
		{frame(1, 1, deliver), true},
		{frame(1, 1, closing), true},
		{frame(1, 1, deliver), false},
		{frame(1, 2, "header"), false},
		{frame(1, 3, strings.Repeat("b", 40_000)), false},
		{frame(2, 1, deliver), true},
		{frame(0, 8, ""), true},
		{frame(1, 1, opened), true},
		{frame(1, 1, deliver), true},
		{frame(1, 3, strings.Repeat("b", 40_000)), true},
	}
	var all, want string
	for _, s := range stream {
		all += s.frame
		if s.passes {
			want += s.frame
		}
	}
	near, far := net.Pipe()
	go func() {
		for chunk := range slices.Chunk([]byte(all), 1000) {
			_, _ = far.Write(chunk)
		}
		far.Close()
	}()
	got, err := io.ReadAll(newSieve(near))
	if err != nil || string(got) != want {
		t.Fatalf("%d bytes passed, %v; want %d", len(got), err, len(want))
	}
	near, far = net.Pipe()
	go func() { _, _ = far.Write([]byte("AMQP\x00\x00\x09\x01 and more")); far.Close() }()
	if got, err := io.ReadAll(newSieve(near)); err != nil || string(got) != "AMQP\x00\x00\x09\x01 and more" {
		t.Fatalf("another greeting became %q, %v", got, err)
	}
}

func FuzzSieve(f *testing.F) {
	f.Add([]byte("\x01\x00\x01\x00\x00\x00\x04\x00\x14\x00\x28\xCE\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x3c\xCE"))
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far := net.Pipe()
		go func() { _, _ = far.Write(b); far.Close() }()
		got, _ := io.ReadAll(newSieve(near))
		near.Close()
		if len(got) > len(b) {
			t.Fatalf("%d bytes became %d", len(b), len(got))
		}
	})
}

func TestR45_TLS(t *testing.T) {
	eachBroker(t, func(t *testing.T, w *world) {
		server := httptest.NewTLSServer(nil) // for its certificate of 127.0.0.1
		defer server.Close()
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: server.TLS.Certificates})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() { // ended by the listener's close
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				inner, err := net.Dial("tcp", w.proxy.Addr())
				if err != nil {
					c.Close()
					continue
				}
				go func() { _, _ = io.Copy(inner, c); inner.Close() }()
				go func() { _, _ = io.Copy(c, inner); c.Close() }()
			}
		}()
		at := strings.Replace(strings.Replace(w.url, w.proxy.Addr(), l.Addr().String(), 1), "amqp:", "amqps:", 1)
		stranger := w.start(func(c *Config) { c.URL = at })
		stranger.until("refused", func(s State) bool { return strings.Contains(s.Reason, "certificate") })
		stranger.end()
		conf := &tls.Config{RootCAs: x509.NewCertPool()}
		conf.RootCAs.AddCert(server.Certificate())
		b := w.start(func(c *Config) { c.URL, c.TLS = at, conf })
		b.up()
		if conf.ServerName != "" {
			t.Fatal("the caller's TLS configuration was changed")
		}
		b.want(b.send(to("nobody", "1")), Unroutable)
		b.end()
	})
}

// A caller's own way to the broker is taken, and a fault of it is the reason that
// people read.
func TestR14_DialByTheCaller(t *testing.T) {
	asked := make(chan string, 100)
	why := fault.New(fault.NoBroker, "the broker sleeps").WithHint("wake it")
	b := New(Config{URL: "amqp://a:b@embedded/", Bounds: Bounds{BackoffMost: time.Millisecond},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("the dial has no bound")
			}
			select {
			case asked <- network + " " + address:
			default:
			}
			return nil, why
		}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	if got := <-asked; got != "tcp embedded:5672" {
		t.Errorf("asked for %s", got)
	}
	for {
		changed := b.Changed()
		if s := b.State(); s.Reason == why.Message {
			if f := fault.From(s.Err); f.Hint != why.Hint || f.Kind != fault.NoBroker {
				t.Errorf("the fault is %+v", f)
			}
			break
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Fatalf("the state is %+v", b.State())
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
