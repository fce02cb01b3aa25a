package broker_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// post is a message and where it goes.
type post struct {
	exchange, key, body  string
	mandatory, immediate bool
	expiration           string
	headers              amqp.Table
	transient            bool
	change               func(*amqp.Publishing)
}

func (p post) publishing() amqp.Publishing {
	m := amqp.Publishing{Headers: p.headers, Expiration: p.expiration, DeliveryMode: amqp.Persistent, Body: []byte(p.body)}
	if p.transient {
		m.DeliveryMode = amqp.Transient
	}
	if p.change != nil {
		p.change(&m)
	}
	return m
}

// send publishes and waits for nothing.
func (ch *channel) send(p post) {
	err := ch.PublishWithContext(ch.s.ctx, p.exchange, p.key, p.mandatory, p.immediate, p.publishing())
	ch.s.need("publish "+p.body, err)
}

// publish sends a message on a confirming channel and notes what came back for
// it, in the order in which the frames came.
func (ch *channel) publish(p post) {
	label := "publish " + p.body
	if len(p.body) > 40 {
		label = fmt.Sprintf("publish %d bytes", len(p.body))
	}
	ch.conn.tap.forget()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ch.s.ctx, p.exchange, p.key, p.mandatory, p.immediate, p.publishing())
	if err != nil {
		ch.says(label, err)
		return
	}
	_, err = confirm.WaitContext(ch.s.ctx)
	ch.s.need("confirm of "+p.body, err)
	var seen []string
	confirmed := false
	for _, f := range ch.conn.tap.seen() {
		seen = append(seen, f.String())
		confirmed = confirmed || f.confirms()
	}
	if !confirmed {
		seen = append(seen, ch.fate(amqp.ErrClosed))
	}
	ch.s.say("%s: %s", label, strings.Join(seen, ", "))
}

// answer is a frame about a publish: a return or a confirm.
type answer struct {
	method    uint16
	multiple  bool
	tag       uint64
	code      uint16
	text, key string
}

const (
	basicReturn = 50
	basicAck    = 80
	basicNack   = 120
)

func (a answer) confirms() bool { return a.method != basicReturn }

func (a answer) String() string {
	switch a.method {
	case basicReturn:
		return fmt.Sprintf("return %d %s", a.code, a.text)
	case basicAck:
		return "ack"
	}
	return "nack"
}

// tap sees what a broker sends on a connection, before the client does.
type tap struct {
	net.Conn
	mu      sync.Mutex
	partial []byte   // guarded by mu, as is answers
	answers []answer // on any channel
}

func (t *tap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.partial = append(t.partial, b[:n]...)
	for len(t.partial) >= 8 {
		size := int(binary.BigEndian.Uint32(t.partial[3:])) + 8
		if len(t.partial) < size {
			break
		}
		if t.partial[0] == 1 {
			t.note(t.partial[7 : size-1])
		}
		t.partial = t.partial[size:]
	}
	return n, err
}

// note keeps a method if it answers a publish. The caller holds mu.
func (t *tap) note(m []byte) {
	if binary.BigEndian.Uint16(m) != 60 {
		return
	}
	a := answer{method: binary.BigEndian.Uint16(m[2:])}
	switch m = m[4:]; a.method {
	case basicReturn:
		a.code = binary.BigEndian.Uint16(m)
		text, rest := short(m[2:])
		_, rest = short(rest) // the exchange
		key, _ := short(rest)
		a.text, a.key = string(text), string(key)
	case basicAck, basicNack:
		a.tag, a.multiple = binary.BigEndian.Uint64(m), m[8]&1 != 0
	default:
		return
	}
	t.answers = append(t.answers, a)
}

// short takes a short string off b.
func short(b []byte) (s, rest []byte) { return b[1 : 1+b[0]], b[1+b[0]:] }

func (t *tap) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers = nil
}

func (t *tap) seen() []answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers
}
