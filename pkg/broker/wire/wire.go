// Package wire reads and writes AMQP 0-9-1 as it goes over the line, on a
// server's side of it: frames, methods, content headers, property lists and
// field tables, with RabbitMQ's extensions (basic.nack, confirm, exchange
// bindings, blocked connections, secrets that are renewed) and RabbitMQ's
// reading of the field tags.
//
// It knows no connection: which frame may follow which, what a channel is, what
// a reply code does to it, deadlines and limits on anything but one frame are
// its caller's business. It trusts nothing it reads: a length makes it allocate
// only what has arrived, tables nest at most 32 deep, and rubbish is an *Error.
//
// The source of numbers and fields is the protocol's XML as the RabbitMQ project
// extends it (amqp0-9-1.stripped.extended.xml). The reply codes of what can't be
// read are those that RabbitMQ 3.10.8 was seen to give, with these exceptions, all
// of them for bytes that no client sends on purpose: an unknown method is 540 and a
// bad table 502, where it drops the connection without a word; bad properties are
// 502 (it: 541), as are unknown flags of theirs (it ignores them) and tables nested
// more than 32 deep (it has no bound); and the eight bytes around a payload count
// against frame-max (it lets payloads alone be that large).
package wire

import (
	"encoding/binary"
	"fmt"
)

// What is true of every frame.
const (
	FrameMethod    = 1
	FrameHeader    = 2
	FrameBody      = 3
	FrameHeartbeat = 8
	FrameEnd       = 0xCE
	FrameMin       = 4096 // bytes, the smallest frame-max that can be negotiated

	frameHead = 7             // bytes: type, channel, length of the payload
	frameOver = frameHead + 1 // bytes around the payload, the end among them
)

// The reply codes of what this package refuses.
const (
	frameError      = 501 // it can't be taken apart
	syntaxError     = 502 // it can, and a value in it is impossible
	unexpectedFrame = 505
	notImplemented  = 540
)

// Error is a violation of the protocol by the peer. Code is the reply code to
// close the connection with; Class and Method are the offending method's, or 0
// where there is none. Text is small-letter and free of the peer's bytes.
type Error struct {
	Code          uint16
	Text          string
	Class, Method uint16
}

func (e *Error) Error() string { return fmt.Sprintf("amqp %d: %s", e.Code, e.Text) }

// Method is one method with its arguments, always a pointer to one of this
// package's structs.
type Method interface {
	Class() uint16
	ID() uint16
	Name() string // as the protocol writes it: "queue.declare"

	// walk reads or writes each argument in turn. The codec goes in and out by
	// value, because a pointer through an interface would cost an allocation.
	walk(codec) codec
}

// ParseMethod takes the payload of a method frame apart; nothing of the result
// refers to payload. What can't be parsed is an *Error that names the method: 540
// for one that does not exist, 501 for a payload that is too short or too long
// for it, 502 for a table that is none.
func ParseMethod(payload []byte) (Method, error) {
	if len(payload) < 4 {
		return nil, &Error{Code: frameError, Text: "method frame of less than four bytes"}
	}
	class, id := binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
	m := newMethod(class, id)
	if m == nil {
		return nil, &Error{notImplemented, fmt.Sprintf("unknown method %d.%d", class, id), class, id}
	}
	c := m.walk(codec{buf: payload[4:], reading: true})
	if c.err == nil && len(c.buf) > 0 {
		c.err = errTrailing
	}
	if c.err != nil {
		return nil, &Error{c.err.Code, m.Name() + ": " + c.err.Text, class, id}
	}
	return m, nil
}

// AppendMethod appends m as a whole frame. A short string over 255 bytes is cut
// at the end of a UTF-8 character. A method is never split, so that it is for the
// caller to keep tables and long strings within the peer's frame-max.
func AppendMethod(b []byte, channel uint16, m Method) []byte {
	b, start := openFrame(b, FrameMethod, channel)
	b = binary.BigEndian.AppendUint16(b, m.Class())
	b = binary.BigEndian.AppendUint16(b, m.ID())
	return closeFrame(m.walk(codec{buf: b}).buf, start)
}

// AppendHeartbeat appends a heartbeat frame, which belongs to channel 0.
func AppendHeartbeat(b []byte) []byte {
	return append(b, FrameHeartbeat, 0, 0, 0, 0, 0, 0, FrameEnd)
}

// openFrame appends a frame's head and returns where the payload starts;
// closeFrame fills in the length.
func openFrame(b []byte, kind byte, channel uint16) ([]byte, int) {
	b = append(b, kind, byte(channel>>8), byte(channel), 0, 0, 0, 0)
	return b, len(b)
}

func closeFrame(b []byte, start int) []byte {
	binary.BigEndian.PutUint32(b[start-4:], uint32(len(b)-start))
	return append(b, FrameEnd)
}
