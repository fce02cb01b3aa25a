package wire

import (
	"encoding/binary"
	"time"
	"unicode/utf8"
)

// codec goes through a list of fields, in one direction: reading, it stores what
// it takes from buf; writing, it appends to buf. So each method lists its fields
// once, and what is written can be read.
//
// The first thing that can't be read is err, and everything after it reads as
// zero.
type codec struct {
	buf     []byte
	err     *Error
	reading bool
}

var (
	errShort    = &Error{Code: frameError, Text: "ends before its last field"}
	errTrailing = &Error{Code: frameError, Text: "goes on after its last field"}
)

// maxShort is the length in bytes of the longest short string.
const maxShort = 255

// take is the next n bytes, or nil if there are less.
func (c *codec) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if n < 0 || n > len(c.buf) {
		c.err, c.buf = errShort, nil
		return nil
	}
	b := c.buf[:n]
	c.buf = c.buf[n:]
	return b
}

func (c *codec) uint8(v *uint8) {
	if !c.reading {
		c.buf = append(c.buf, *v)
		return
	}
	*v = 0
	if b := c.take(1); b != nil {
		*v = b[0]
	}
}

func (c *codec) uint16(v *uint16) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint16(c.buf, *v)
		return
	}
	*v = 0
	if b := c.take(2); b != nil {
		*v = binary.BigEndian.Uint16(b)
	}
}

func (c *codec) uint32(v *uint32) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint32(c.buf, *v)
		return
	}
	*v = 0
	if b := c.take(4); b != nil {
		*v = binary.BigEndian.Uint32(b)
	}
}

func (c *codec) uint64(v *uint64) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint64(c.buf, *v)
		return
	}
	*v = 0
	if b := c.take(8); b != nil {
		*v = binary.BigEndian.Uint64(b)
	}
}

// bits are up to eight neighbouring bits: they share an octet, the first one
// being its lowest bit.
func (c *codec) bits(vs ...*bool) {
	var octet uint8
	if !c.reading {
		for i, v := range vs {
			if *v {
				octet |= 1 << i
			}
		}
	}
	c.uint8(&octet)
	if c.reading {
		for i, v := range vs {
			*v = octet&(1<<i) != 0
		}
	}
}

func (c *codec) short(v *string) {
	if !c.reading {
		c.buf = appendShort(c.buf, *v)
		return
	}
	var n uint8
	c.uint8(&n)
	*v = string(c.take(int(n)))
}

func (c *codec) long(v *string) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(len(*v)))
		c.buf = append(c.buf, *v...)
		return
	}
	*v = string(c.longBytes())
}

// longBytes reads a long string, or what else has its length in four bytes.
func (c *codec) longBytes() []byte {
	var n uint32
	c.uint32(&n)
	return c.take(int(n)) // negative where an int is too small for it
}

// time is in seconds since 1970, UTC when read.
func (c *codec) time(v *time.Time) {
	var seconds uint64
	if !c.reading {
		seconds = uint64(v.Unix())
	}
	c.uint64(&seconds)
	switch {
	case c.err != nil:
		*v = time.Time{}
	case c.reading:
		*v = time.Unix(int64(seconds), 0).UTC()
	}
}

func (c *codec) table(v *Table) {
	if !c.reading {
		c.buf = v.Append(c.buf)
		return
	}
	*v = nil
	if content := c.checkedTable(); c.err == nil {
		*v = buildTable(content)
	}
}

// checkedTable reads a table without building it; its content is good.
func (c *codec) checkedTable() []byte {
	content := c.longBytes()
	if c.err == nil {
		c.err = checkTable(content, 0)
	}
	return content
}

// The fields that the protocol keeps for itself are written as zero and dropped
// when read.

func (c *codec) reservedShort() {
	if !c.reading {
		c.buf = append(c.buf, 0)
		return
	}
	var n uint8
	c.uint8(&n)
	c.take(int(n))
}

func (c *codec) reservedLong() {
	if !c.reading {
		c.buf = append(c.buf, 0, 0, 0, 0)
		return
	}
	c.longBytes()
}

func (c *codec) reserved16()  { var v uint16; c.uint16(&v) }
func (c *codec) reservedBit() { var v bool; c.bits(&v) }

// appendShort cuts s where a character ends if it is too long for the protocol.
func appendShort(b []byte, s string) []byte {
	if len(s) > maxShort {
		end := maxShort
		for end > maxShort-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end]
	}
	b = append(b, byte(len(s)))
	return append(b, s...)
}
