package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"fleet/pkg/broker/wire"
)

// everyTag has each type of value once.
var everyTag = wire.Table{
	"bool": true, "bool2": false,
	"int8": int8(-1), "uint8": uint8(200), "int16": int16(-300), "uint16": uint16(65000),
	"int32": int32(-70000), "uint32": uint32(4000000000), "int64": int64(-5000000000),
	"float32": float32(1.5), "float64": -2.25, "decimal": wire.Decimal{Scale: 2, Value: -12345},
	"string": "text", "empty": "", "bytes": []byte{0, 255}, "time": time.Unix(1700000000, 0).UTC(),
	"array": []any{int32(1), "two", nil, []any{}, wire.Table{"deep": int64(3)}},
	"table": wire.Table{"n": nil, "t": wire.Table{}}, "nil": nil, "": "no key",
}

func TestTableOfEveryTag(t *testing.T) {
	encoded := everyTag.Append(nil)
	got, rest, err := wire.ParseTable(append(encoded, "rest"...))
	if err != nil || string(rest) != "rest" || !reflect.DeepEqual(got, everyTag) {
		t.Errorf("%v, rest %q\ngot  %#v\nwant %#v", err, rest, got, everyTag)
	}
	if again := got.Append([]byte("x")); string(again) != "x"+string(encoded) {
		t.Errorf("written again\ngot  %x\nwant 78%x", again, encoded)
	}
	clear(encoded)
	if !reflect.DeepEqual(got, everyTag) {
		t.Error("the table changed with the bytes it was parsed from")
	}
	for _, none := range []wire.Table{nil, {}} {
		if b := none.Append(nil); !bytes.Equal(b, make([]byte, 4)) {
			t.Errorf("an empty table is %x", b)
		}
	}
}

func TestTableIsSorted(t *testing.T) {
	want := "\x00\x00\x00\x0c\x01aV\x01bV\x01cV\x01dV"[:4] + "\x01aV\x01bV\x01cV\x01dV"
	for range 20 { // the order of a map is another one each time
		if got := (wire.Table{"d": nil, "b": nil, "a": nil, "c": nil}).Append(nil); string(got) != want {
			t.Fatalf("got %q", got)
		}
	}
}

func TestTableReadsWhatItWouldNotWrite(t *testing.T) {
	content := "\x01kL\xff\xff\xff\xff\xff\xff\xff\xfe" + "\x01kI\x00\x00\x00\x01" + "\x01bt\x07" + "\x01lL\xff\xff\xff\xff\xff\xff\xff\xfe"
	got, _, err := wire.ParseTable(append([]byte{0, 0, 0, byte(len(content))}, content...))
	if want := (wire.Table{"k": int32(1), "b": true, "l": int64(-2)}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %#v", err, got)
	}
	got, _, err = wire.ParseTable(wire.Table{"int": -3, "map": map[string]any{"a": 1}}.Append(nil))
	if want := (wire.Table{"int": int64(-3), "map": wire.Table{"a": int64(1)}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %#v", err, got)
	}
}

func TestTableValueWithoutATagIsNil(t *testing.T) {
	got, _, err := wire.ParseTable(wire.Table{"chan": make(chan int), "uint64": uint64(1), "struct": struct{}{}, "ok": "ok"}.Append(nil))
	if want := (wire.Table{"chan": nil, "uint64": nil, "struct": nil, "ok": "ok"}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %#v", err, got)
	}
	itself := wire.Table{}
	itself["me"] = []any{itself}
	if _, _, err := wire.ParseTable(itself.Append(nil)); err != nil {
		t.Errorf("a table that contains itself: %v", err)
	}
}

// nested is the encoding of n containers with the tag, one inside the other, in a
// table.
func nested(tag byte, n int) []byte {
	var content []byte
	for range n {
		inner := binary.BigEndian.AppendUint32([]byte{tag}, uint32(len(content)))
		content = append(inner, content...)
		if tag == 'F' {
			content = append([]byte{1, 'k'}, content...)
		}
	}
	if tag == 'A' && n > 0 {
		content = append([]byte{1, 'k'}, content...)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(content))), content...)
}

func TestR61_TableNestedTooDeep(t *testing.T) {
	for _, tag := range []byte("AF") {
		for n, want := range map[int]uint16{0: 0, 1: 0, 32: 0, 33: 502, 4000: 502} {
			table, _, err := wire.ParseTable(nested(tag, n))
			if code(err) != want {
				t.Errorf("%d containers with tag %c: %v", n, tag, err)
			}
			if err == nil && !bytes.Equal(table.Append(nil), nested(tag, n)) {
				t.Errorf("%d containers with tag %c are not written as they were read", n, tag)
			}
		}
	}
}

func TestR61_TableCutShort(t *testing.T) {
	whole := everyTag.Append(nil)
	for n := range len(whole) {
		if table, _, err := wire.ParseTable(whole[:n:n]); code(err) != 502 {
			t.Errorf("cut after %d bytes: %v, %v", n, table, err)
		}
		if n < 4 {
			continue
		}
		// The length is right and the content is cut: it may end between two entries.
		shorter := append(binary.BigEndian.AppendUint32(nil, uint32(n-4)), whole[4:n]...)
		if table, _, err := wire.ParseTable(shorter); err == nil && len(table) >= len(everyTag) || err != nil && code(err) != 502 {
			t.Errorf("content cut after %d bytes: %v, %v", n-4, table, err)
		}
	}
}

func TestR61_TableOfUnknownTags(t *testing.T) {
	good := 0
	for tag := range 256 {
		content := append([]byte{1, 'k', byte(tag)}, make([]byte, 8)...)
		switch _, _, err := wire.ParseTable(append([]byte{0, 0, 0, byte(len(content))}, content...)); {
		case err == nil:
			good++
		case code(err) != 502:
			t.Errorf("tag %#x: %v", tag, err)
		}
	}
	// l, L, d and T are eight bytes long; others leave a rest of zeros that is an
	// entry with an empty key and an unknown tag, or too short for one.
	if good != 4 {
		t.Errorf("%d tags took eight bytes", good)
	}
}

func TestR61_TableLengthsGetNoMemory(t *testing.T) {
	for _, content := range []string{"\x01kS\xff\xff\xff\xff", "\x01kx\x7f\xff\xff\xff", "\x01kF\xff\xff\xff\xf0", "\x01kA\xff\xff\xff\xff"} {
		encoded := append([]byte{0, 0, 0, byte(len(content))}, content...)
		if got := allocated(func() {
			if _, _, err := wire.ParseTable(encoded); code(err) != 502 {
				t.Errorf("%q: %v", content, err)
			}
			if _, _, err := wire.ParseTable([]byte("\xff\xff\xff\xff\x01kV")); code(err) != 502 {
				t.Error(err)
			}
		}); got > 1<<20 {
			t.Errorf("%q made it allocate %d bytes", content, got)
		}
	}
}

// allocated is how many bytes f makes the program allocate.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestTableFloatsKeepTheirBits(t *testing.T) {
	for _, f := range []float64{math.NaN(), math.Inf(-1), math.Copysign(0, -1), math.MaxFloat64} {
		encoded := wire.Table{"d": f, "f": float32(f)}.Append(nil)
		got, _, err := wire.ParseTable(encoded)
		if err != nil || !bytes.Equal(got.Append(nil), encoded) {
			t.Errorf("%v: %v, %s", f, err, hex.EncodeToString(encoded))
		}
	}
}

func TestTableKeyIsCut(t *testing.T) {
	got, _, err := wire.ParseTable(wire.Table{strings.Repeat("k", 300): "v"}.Append(nil))
	if err != nil || got[strings.Repeat("k", 255)] != "v" {
		t.Errorf("%v, %v", err, got)
	}
}
