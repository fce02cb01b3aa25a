package wire

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// maxNesting is how many tables and arrays may stand inside one another, the
// outermost not counted. RabbitMQ has no such bound; its client for Go has the
// same one, and nobody needs half of it.
const maxNesting = 32

// Table is a field table. These are its values, with the tags they have on the
// line:
//
//	t bool     b int8    s int16   I int32   l int64
//	           B uint8   u uint16  i uint32
//	f float32  d float64 D Decimal
//	S string   x []byte  T time.Time (UTC, whole seconds)
//	A []any    F Table   V nil
//
// One more tag is read, L for an int64, and never written, because clients don't
// know it. Two Go types are written and never read: int, as an int64, and
// map[string]any, as a Table.
type Table map[string]any

// Decimal is Value divided by ten to the power of Scale.
type Decimal struct {
	Scale uint8
	Value int32
}

// Append appends t with its length, keys sorted, so that equal tables have equal
// bytes. A key over 255 bytes is cut like any short string. A value of a type
// that has no tag, or deeper than a table may nest, is written as nil: it can
// only come from this program, and a header less is better than a connection
// less.
func (t Table) Append(b []byte) []byte { return t.append(b, 0) }

func (t Table) append(b []byte, depth int) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	for _, key := range slices.Sorted(maps.Keys(t)) {
		b = appendValue(appendShort(b, key), t[key], depth)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// appendValue appends a value's tag and the value, which stands in a container
// with depth others around it.
func appendValue(b []byte, value any, depth int) []byte {
	order := binary.BigEndian
	switch v := value.(type) {
	case bool:
		if v {
			return append(b, 't', 1)
		}
		return append(b, 't', 0)
	case int8:
		return append(b, 'b', byte(v))
	case uint8:
		return append(b, 'B', v)
	case int16:
		return order.AppendUint16(append(b, 's'), uint16(v))
	case uint16:
		return order.AppendUint16(append(b, 'u'), v)
	case int32:
		return order.AppendUint32(append(b, 'I'), uint32(v))
	case uint32:
		return order.AppendUint32(append(b, 'i'), v)
	case int64:
		return order.AppendUint64(append(b, 'l'), uint64(v))
	case int:
		return order.AppendUint64(append(b, 'l'), uint64(v))
	case float32:
		return order.AppendUint32(append(b, 'f'), math.Float32bits(v))
	case float64:
		return order.AppendUint64(append(b, 'd'), math.Float64bits(v))
	case Decimal:
		return order.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value))
	case string:
		return append(order.AppendUint32(append(b, 'S'), uint32(len(v))), v...)
	case []byte:
		return append(order.AppendUint32(append(b, 'x'), uint32(len(v))), v...)
	case time.Time:
		return order.AppendUint64(append(b, 'T'), uint64(v.Unix()))
	}
	if depth >= maxNesting {
		return append(b, 'V')
	}
	switch v := value.(type) {
	case []any:
		b = append(b, 'A', 0, 0, 0, 0)
		start := len(b)
		for _, element := range v {
			b = appendValue(b, element, depth+1)
		}
		order.PutUint32(b[start-4:], uint32(len(b)-start))
		return b
	case Table:
		return v.append(append(b, 'F'), depth+1)
	case map[string]any:
		return Table(v).append(append(b, 'F'), depth+1)
	}
	return append(b, 'V')
}

// ParseTable reads a table with its length from the start of b and returns what
// follows it; nothing of the table refers to b. Of two entries with one key the
// later stands. What is no table is an *Error with code 502.
func ParseTable(b []byte) (t Table, rest []byte, err error) {
	c := codec{buf: b, reading: true}
	c.table(&t)
	if c.err != nil {
		return nil, nil, &Error{Code: syntaxError, Text: c.err.Text}
	}
	return t, c.buf, nil
}

// checkTable goes through a table's content without building anything, so that
// what is built afterwards is known to be good. depth is how many containers are
// around it.
func checkTable(content []byte, depth int) *Error {
	c := codec{buf: content, reading: true}
	for len(c.buf) > 0 {
		c.reservedShort()
		if err := c.checkValue(depth); err != nil {
			return err
		}
	}
	return nil
}

func checkArray(content []byte, depth int) *Error {
	c := codec{buf: content, reading: true}
	for len(c.buf) > 0 {
		if err := c.checkValue(depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *codec) checkValue(depth int) *Error {
	var tag uint8
	c.uint8(&tag)
	switch tag {
	case 't', 'b', 'B':
		c.take(1)
	case 's', 'u':
		c.take(2)
	case 'I', 'i', 'f':
		c.take(4)
	case 'D':
		c.take(5)
	case 'l', 'L', 'd', 'T':
		c.take(8)
	case 'S', 'x':
		c.longBytes()
	case 'A', 'F':
		content := c.longBytes()
		switch {
		case c.err != nil:
		case depth >= maxNesting:
			c.err = &Error{Code: syntaxError, Text: fmt.Sprintf("table nested more than %d deep", maxNesting)}
		case tag == 'A':
			c.err = checkArray(content, depth+1)
		default:
			c.err = checkTable(content, depth+1)
		}
	case 'V':
	default:
		if c.err == nil {
			c.err = &Error{Code: syntaxError, Text: fmt.Sprintf("field of unknown type %d in a table", tag)}
		}
	}
	if c.err == errShort {
		c.err = &Error{Code: syntaxError, Text: "table ends inside a field"}
	}
	return c.err
}

// buildTable and buildArray take what checkTable found good.
func buildTable(content []byte) Table {
	t := Table{}
	for c := (codec{buf: content, reading: true}); len(c.buf) > 0; {
		var key string
		c.short(&key)
		t[key] = c.buildValue()
	}
	return t
}

func buildArray(content []byte) []any {
	array := []any{}
	for c := (codec{buf: content, reading: true}); len(c.buf) > 0; {
		array = append(array, c.buildValue())
	}
	return array
}

func (c *codec) buildValue() any {
	order := binary.BigEndian
	switch tag := c.take(1)[0]; tag {
	case 't':
		return c.take(1)[0] != 0
	case 'b':
		return int8(c.take(1)[0])
	case 'B':
		return c.take(1)[0]
	case 's':
		return int16(order.Uint16(c.take(2)))
	case 'u':
		return order.Uint16(c.take(2))
	case 'I':
		return int32(order.Uint32(c.take(4)))
	case 'i':
		return order.Uint32(c.take(4))
	case 'f':
		return math.Float32frombits(order.Uint32(c.take(4)))
	case 'D':
		return Decimal{c.take(1)[0], int32(order.Uint32(c.take(4)))}
	case 'l', 'L':
		return int64(order.Uint64(c.take(8)))
	case 'd':
		return math.Float64frombits(order.Uint64(c.take(8)))
	case 'T':
		return time.Unix(int64(order.Uint64(c.take(8))), 0).UTC()
	case 'S':
		return string(c.longBytes())
	case 'x':
		return slices.Clone(c.longBytes())
	case 'A':
		return buildArray(c.longBytes())
	case 'F':
		return buildTable(c.longBytes())
	}
	return nil
}
