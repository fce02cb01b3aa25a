package wire

import (
	"encoding/binary"
	"math"
	"time"
)

// classBasic is the only class whose methods carry content.
const classBasic = 60

// AppendContent appends the header frame and the body frames of a message.
// properties is encoded, flags first (Properties.Append, ParseHeader). No body
// frame is larger than frameMax, in bytes with the eight around the payload; 0 is
// no limit, another value under FrameMin means FrameMin. The header frame is
// never split, so that properties larger than the peer's frame-max are for the
// caller to refuse.
func AppendContent(b []byte, channel uint16, properties, body []byte, frameMax uint32) []byte {
	b, start := openFrame(b, FrameHeader, channel)
	b = append(b, 0, classBasic, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	b = closeFrame(append(b, properties...), start)
	piece := len(body)
	if frameMax > 0 {
		piece = int(min(max(frameMax, FrameMin), math.MaxInt32)) - frameOver
	}
	for len(body) > 0 {
		n := min(piece, len(body))
		b, start = openFrame(b, FrameBody, channel)
		b = closeFrame(append(b, body[:n]...), start)
		body = body[n:]
	}
	return b
}

// ParseHeader takes the payload of a header frame apart. properties is the flags
// and the list, still encoded and not looked at: a part of payload. A payload too
// short is an *Error with code 501, a weight, which the protocol keeps for
// itself, one with code 505.
func ParseHeader(payload []byte) (class uint16, bodySize uint64, properties []byte, err error) {
	var weight uint16
	c := codec{buf: payload, reading: true}
	c.uint16(&class)
	c.uint16(&weight)
	c.uint64(&bodySize)
	properties = c.buf
	switch {
	case len(properties) < 2:
		return 0, 0, nil, &Error{Code: frameError, Text: "content header too short", Class: class}
	case weight != 0:
		return 0, 0, nil, &Error{Code: unexpectedFrame, Text: "content header with a weight", Class: class}
	}
	return class, bodySize, properties, nil
}

// The flags say which properties are in a list, in the order of the list.
const (
	FlagContentType     = 1 << 15
	FlagContentEncoding = 1 << 14
	FlagHeaders         = 1 << 13
	FlagDeliveryMode    = 1 << 12
	FlagPriority        = 1 << 11
	FlagCorrelationID   = 1 << 10
	FlagReplyTo         = 1 << 9
	FlagExpiration      = 1 << 8
	FlagMessageID       = 1 << 7
	FlagTimestamp       = 1 << 6
	FlagType            = 1 << 5
	FlagUserID          = 1 << 4
	FlagAppID           = 1 << 3
	FlagClusterID       = 1 << 2

	flagsUnknown = 1<<1 | 1 // the lowest would announce more flags
)

// Properties are a message's properties, decoded. One is there if it is not zero
// or if its flag is in Present, which tells an empty property from none; to take
// one out, Drop it.
type Properties struct {
	ContentType, ContentEncoding string
	Headers                      Table
	DeliveryMode, Priority       uint8 // mode 2 is persistent
	CorrelationID, ReplyTo       string
	Expiration, MessageID        string // an expiration is a number of milliseconds
	Timestamp                    time.Time
	Type, UserID, AppID          string
	ClusterID                    string

	Present uint16
}

// ParseProperties decodes flags and list. Rubbish is an *Error with code 502.
func ParseProperties(encoded []byte) (Properties, error) {
	var p Properties
	c := codec{buf: encoded, reading: true}
	c.uint16(&p.Present)
	c = p.walk(c, p.Present)
	if err := c.endOfProperties(p.Present); err != nil {
		return Properties{}, err
	}
	return p, nil
}

// endOfProperties is what is wrong with a list that has been read.
func (c *codec) endOfProperties(flags uint16) error {
	switch {
	case c.err != nil:
		return &Error{Code: syntaxError, Text: "properties: " + c.err.Text, Class: classBasic}
	case flags&flagsUnknown != 0:
		return &Error{Code: syntaxError, Text: "properties with unknown flags", Class: classBasic}
	case len(c.buf) > 0:
		return &Error{Code: syntaxError, Text: "properties: " + errTrailing.Text, Class: classBasic}
	}
	return nil
}

// Append appends flags and list.
func (p *Properties) Append(b []byte) []byte {
	flags := p.flags()
	return p.walk(codec{buf: binary.BigEndian.AppendUint16(b, flags)}, flags).buf
}

// Has tells whether a property is there, or one of several.
func (p *Properties) Has(flags uint16) bool { return p.flags()&flags != 0 }

// Drop takes properties out.
func (p *Properties) Drop(flags uint16) {
	p.Present &^= flags
	p.walk(codec{reading: true, err: errShort}, flags) // a failed codec reads zeros
}

func (p *Properties) flags() uint16 {
	flags := p.Present &^ flagsUnknown
	mark := func(flag uint16, there bool) {
		if there {
			flags |= flag
		}
	}
	mark(FlagContentType, p.ContentType != "")
	mark(FlagContentEncoding, p.ContentEncoding != "")
	mark(FlagHeaders, len(p.Headers) > 0)
	mark(FlagDeliveryMode, p.DeliveryMode != 0)
	mark(FlagPriority, p.Priority != 0)
	mark(FlagCorrelationID, p.CorrelationID != "")
	mark(FlagReplyTo, p.ReplyTo != "")
	mark(FlagExpiration, p.Expiration != "")
	mark(FlagMessageID, p.MessageID != "")
	mark(FlagTimestamp, !p.Timestamp.IsZero())
	mark(FlagType, p.Type != "")
	mark(FlagUserID, p.UserID != "")
	mark(FlagAppID, p.AppID != "")
	mark(FlagClusterID, p.ClusterID != "")
	return flags
}

// walk reads or writes the properties in flags, in the order of the list.
func (p *Properties) walk(c codec, flags uint16) codec {
	has := func(flag uint16) bool { return flags&flag != 0 }
	if has(FlagContentType) {
		c.short(&p.ContentType)
	}
	if has(FlagContentEncoding) {
		c.short(&p.ContentEncoding)
	}
	if has(FlagHeaders) {
		c.table(&p.Headers)
	}
	if has(FlagDeliveryMode) {
		c.uint8(&p.DeliveryMode)
	}
	if has(FlagPriority) {
		c.uint8(&p.Priority)
	}
	if has(FlagCorrelationID) {
		c.short(&p.CorrelationID)
	}
	if has(FlagReplyTo) {
		c.short(&p.ReplyTo)
	}
	if has(FlagExpiration) {
		c.short(&p.Expiration)
	}
	if has(FlagMessageID) {
		c.short(&p.MessageID)
	}
	if has(FlagTimestamp) {
		c.time(&p.Timestamp)
	}
	if has(FlagType) {
		c.short(&p.Type)
	}
	if has(FlagUserID) {
		c.short(&p.UserID)
	}
	if has(FlagAppID) {
		c.short(&p.AppID)
	}
	if has(FlagClusterID) {
		c.short(&p.ClusterID)
	}
	return c
}

// Peek looks at what is asked of each publish, building nothing else: the
// delivery mode, the expiration and the user id (0 and "" where there is none),
// and whether there is a headers table. It checks the whole list all the same,
// and fails on what ParseProperties fails on, with the same error.
func Peek(encoded []byte) (mode uint8, expiration string, userID string, hasHeaders bool, err error) {
	var flags uint16
	c := codec{buf: encoded, reading: true}
	c.uint16(&flags)
	for flag := uint16(FlagContentType); flag >= FlagClusterID; flag >>= 1 {
		if flags&flag == 0 {
			continue
		}
		switch flag {
		case FlagHeaders:
			c.checkedTable()
			hasHeaders = true
		case FlagDeliveryMode:
			c.uint8(&mode)
		case FlagPriority:
			c.take(1)
		case FlagTimestamp:
			c.take(8)
		case FlagExpiration:
			c.short(&expiration)
		case FlagUserID:
			c.short(&userID)
		default:
			c.reservedShort()
		}
	}
	if err := c.endOfProperties(flags); err != nil {
		return 0, "", "", false, err
	}
	return mode, expiration, userID, hasHeaders, nil
}
