package bus

import (
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
)

func TestR22_LimitsBeforePublishing(t *testing.T) {
	long := strings.Repeat("k", 256)
	for name, change := range map[string]func(*Message){
		"key":     func(m *Message) { m.Route.Key = long },
		"id":      func(m *Message) { m.ID = long },
		"kind":    func(m *Message) { m.Kind = long },
		"no id":   func(m *Message) { m.ID = "" },
		"headers": func(m *Message) { m.Headers = map[string]string{"a": strings.Repeat("v", 17<<10)} },
		"header":  func(m *Message) { m.Headers = map[string]string{long: ""} },
		"copies":  func(m *Message) { m.Headers = map[string]string{"CC": "somebody"} },
		"dlx":     func(m *Message) { m.Headers = map[string]string{"x-dead-letter-exchange": "e"} },
		"ttl":     func(m *Message) { m.Route.TTL = -1 },
	} {
		m := to("k", "1")
		change(&m)
		if err := m.check(); !errors.Is(err, fault.Usage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := to(strings.Repeat("k", 255), "1")
	if err := m.check(); err != nil {
		t.Error(err)
	}
}

func TestR9_Decide(t *testing.T) {
	for _, c := range []struct {
		acked, returned, closed bool
		want                    Outcome
	}{
		{true, false, false, Accepted}, {true, false, true, Accepted},
		{true, true, false, Unroutable}, {true, true, true, Unroutable},
		{false, false, false, Full}, {false, true, false, Full},
		{false, false, true, ""}, {false, true, true, ""},
	} {
		if got := decide(c.acked, c.returned, c.closed); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestR9_WhatMayBeSent(t *testing.T) {
	p := newPublisher(New(Config{}))
	p.window = []*Publication{newPublication(Message{}), newPublication(Message{})}
	for _, c := range []struct {
		blocked        bool
		sent, suspects int
		want           bool
	}{
		{false, 0, 0, true}, {false, 1, 0, true}, {false, 2, 0, false},
		{true, 0, 0, false}, {true, 1, 0, false},
		{false, 0, 2, true}, {false, 1, 2, false}, // one at a time, while one is suspected
	} {
		p.sent, p.suspects = c.sent, c.suspects
		if got := p.maySend(c.blocked); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A number in a table is 64 bits on the wire, whatever its type in Go.
func TestTableNumbersAreLong(t *testing.T) {
	wire := encode(t, table(map[string]any{"a": 4 << 30, "b": int64(5 << 30), "c": "s", "d": true}))
	for key, n := range map[string]uint64{"a": 4 << 30, "b": 5 << 30} {
		want := "\x01" + key + "l" + string(binary.BigEndian.AppendUint64(nil, n))
		if !strings.Contains(wire, want) {
			t.Errorf("no %q in %q", want, wire)
		}
	}
	for _, want := range []string{"\x01cS\x00\x00\x00\x01s", "\x01dt\x01"} {
		if !strings.Contains(wire, want) {
			t.Errorf("no %q in %q", want, wire)
		}
	}
}

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
