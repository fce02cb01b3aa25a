package broker_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Frame types.
const (
	methodFrame    = 1
	headerFrame    = 2
	bodyFrame      = 3
	heartbeatFrame = 8
)

// raw is a client without manners: it sends what it is told, and no heartbeats.
type raw struct {
	s    *scene
	conn net.Conn
	in   *bufio.Reader
}

// raw connects and sends nothing.
func (s *scene) raw() *raw {
	conn, err := net.DialTimeout("tcp", s.at.address(), patience)
	s.need("connect", err)
	s.atEnd(func() { _ = conn.Close() })
	s.need("deadline", conn.SetDeadline(time.Now().Add(2*patience)))
	return &raw{s, conn, bufio.NewReader(conn)}
}

// enc builds the arguments of a method.
type enc []byte

func (b enc) u8(v byte) enc    { return append(b, v) }
func (b enc) u16(v uint16) enc { return binary.BigEndian.AppendUint16(b, v) }
func (b enc) u32(v uint32) enc { return binary.BigEndian.AppendUint32(b, v) }
func (b enc) u64(v uint64) enc { return binary.BigEndian.AppendUint64(b, v) }
func (b enc) str(v string) enc { return append(b.u8(byte(len(v))), v...) }
func (b enc) lng(v string) enc { return append(b.u32(uint32(len(v))), v...) }

// write sends bytes; a broker that has hung up is told by what is read.
func (r *raw) write(b []byte) {
	if _, err := r.conn.Write(b); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		r.s.broke("the broker does not read: %v", err)
	}
}

func (r *raw) frame(kind byte, channel uint16, payload []byte) {
	r.write(append(append(enc{kind}.u16(channel).u32(uint32(len(payload))), payload...), 0xCE))
}

func (r *raw) method(channel, class, id uint16, arguments enc) {
	r.frame(methodFrame, channel, append(enc{}.u16(class).u16(id), arguments...))
}

// read reads one frame. It is false at the connection's end.
func (r *raw) read() (kind byte, channel uint16, payload []byte, ok bool) {
	var head [7]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			r.s.broke("the broker neither answers nor hangs up")
		}
		return 0, 0, nil, false
	}
	if string(head[:4]) == "AMQP" {
		rest := make([]byte, 1)
		_, _ = io.ReadFull(r.in, rest)
		return 'A', 0, append(head[4:], rest...), true
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	if _, err := io.ReadFull(r.in, payload); err != nil {
		return 0, 0, nil, false
	}
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], true
}

// names are the methods that a broker sends to a raw client.
var names = map[[2]uint16]string{
	{10, 10}: "connection.start", {10, 30}: "connection.tune", {10, 41}: "connection.open-ok", {10, 50}: "connection.close",
	{10, 51}: "connection.close-ok", {20, 11}: "channel.open-ok", {20, 40}: "channel.close", {20, 41}: "channel.close-ok",
	{40, 11}: "exchange.declare-ok", {50, 11}: "queue.declare-ok", {60, 11}: "basic.qos-ok", {60, 21}: "basic.consume-ok",
	{60, 30}: "basic.cancel", {60, 31}: "basic.cancel-ok", {60, 60}: "basic.deliver", {60, 71}: "basic.get-ok", {60, 72}: "basic.get-empty",
	{60, 80}: "basic.ack", {60, 111}: "basic.recover-ok", {85, 11}: "confirm.select-ok",
}

// next reads the next frame but heartbeats, and shows it.
func (r *raw) next() string {
	for {
		kind, channel, payload, ok := r.read()
		switch {
		case !ok:
			return "end"
		case kind == heartbeatFrame:
			continue
		case kind == 'A':
			return fmt.Sprintf("AMQP %v", payload)
		case kind != methodFrame:
			return fmt.Sprintf("frame %d on %d, %d bytes", kind, channel, len(payload))
		}
		id := [2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}
		name := names[id]
		if name == "" {
			name = fmt.Sprintf("method %d.%d", id[0], id[1])
		}
		switch name {
		case "connection.close", "channel.close":
			text, rest := short(payload[6:])
			return fmt.Sprintf("%s %d %s (class %d, method %d)", name, binary.BigEndian.Uint16(payload[4:]), text,
				binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:]))
		}
		return name
	}
}

// expect reads a frame that the scenario needs in order to go on.
func (r *raw) expect(want string) {
	if got := r.next(); got != want {
		r.s.broke("%s came instead of %s", got, want)
	}
}

const greeting = "AMQP\x00\x00\x09\x01"

// startOK answers connection.start, as a client that wants to be told why its
// login fails.
func (r *raw) startOK(mechanism, response, locale string) {
	wants := enc{}.str("authentication_failure_close").u8('t').u8(1)
	properties := enc{}.str("capabilities").u8('F').lng(string(wants))
	r.method(0, 10, 11, enc{}.lng(string(properties)).str(mechanism).lng(response).str(locale))
}

// tuneOK answers connection.tune.
func (r *raw) tuneOK(channels uint16, frame uint32, heartbeat uint16) {
	r.method(0, 10, 31, enc{}.u16(channels).u32(frame).u16(heartbeat))
}

func (r *raw) open(vhost string) { r.method(0, 10, 40, enc{}.str(vhost).str("").u8(0)) }

// rawOpen is a raw client with an open channel 1 and the heartbeat in seconds.
func (s *scene) rawOpen(heartbeat uint16) *raw { return s.rawFrames(131072, heartbeat) }

// rawFrames is like rawOpen, for a client that wants its frames no larger.
func (s *scene) rawFrames(size uint32, heartbeat uint16) *raw {
	r := s.raw()
	r.write([]byte(greeting))
	r.expect("connection.start")
	r.startOK("PLAIN", "\x00guest\x00guest", "en_US")
	r.expect("connection.tune")
	r.tuneOK(2047, size, heartbeat)
	r.open(s.at.vhost())
	r.expect("connection.open-ok")
	r.method(1, 20, 10, enc{}.str(""))
	r.expect("channel.open-ok")
	return r
}

// consume consumes a queue.
func (r *raw) consume(channel uint16, queue string, exclusive bool) {
	flags := byte(0)
	if exclusive {
		flags = 4
	}
	r.method(channel, 60, 20, enc{}.u16(0).str(queue).str("raw").u8(flags).u32(0))
	r.expect("basic.consume-ok")
}

// publish sends basic.publish without its content.
func (r *raw) publish(channel uint16, exchange, key string) {
	r.method(channel, 60, 40, enc{}.u16(0).str(exchange).str(key).u8(0))
}

// header sends a content header without properties.
func (r *raw) header(channel, class uint16, size uint64) {
	r.frame(headerFrame, channel, enc{}.u16(class).u16(0).u64(size).u16(0))
}

// question is something to ask a broker on a connection of its own.
type question struct {
	what string
	ask  func() string
}

// all asks at once, since a broker may take its time to hang up, and notes the
// answers in order.
func (s *scene) all(questions []question) {
	answers := make([]string, len(questions))
	var asked sync.WaitGroup
	for i, q := range questions {
		asked.Go(func() { answers[i] = q.ask() })
	}
	asked.Wait()
	for i, q := range questions {
		s.say("%s: %s", q.what, answers[i])
	}
}

// act is something to do on a raw client's open connection.
type act struct {
	what string
	do   func(*raw)
}

// each does each act on a connection of its own, and notes what comes first.
func (s *scene) each(acts []act) {
	var questions []question
	for _, a := range acts {
		questions = append(questions, question{a.what, func() string {
			r := s.rawOpen(10)
			a.do(r)
			return r.next()
		}})
	}
	s.all(questions)
}
