package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"fleet/pkg/broker/wire"
)

// known is a method as RabbitMQ's client for Go writes it (v1.16.0), on channel
// 0x0a0b, with what was put in.
type known struct {
	name, fields string
	frame        []byte
}

// knownMethods are all methods of the protocol; one with several bits is there
// once for each of them.
func knownMethods(t testing.TB) []known {
	t.Helper()
	text, err := os.ReadFile("testdata/methods.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []known
	for line := range strings.Lines(string(text)) {
		part := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		frame, err := hex.DecodeString(part[1])
		if err != nil || len(part) != 3 {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, known{part[0], part[2], frame})
	}
	if len(all) != 80 {
		t.Fatalf("%d known frames, there were 80", len(all))
	}
	return all
}

func (k known) payload() []byte { return k.frame[7 : len(k.frame)-1] }

// fieldsOf is a method's fields as testdata has them.
func fieldsOf(m wire.Method) string {
	v := reflect.ValueOf(m).Elem()
	var fields []string
	for i := range v.NumField() {
		fields = append(fields, fmt.Sprintf("%s=%v", strings.ToLower(v.Type().Field(i).Name), v.Field(i).Interface()))
	}
	return strings.Join(fields, " ")
}

func TestMethodsAreThoseOfAnotherImplementation(t *testing.T) {
	for _, k := range knownMethods(t) {
		m, err := wire.ParseMethod(k.payload())
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		if name := strings.NewReplacer(".", "", "-", "").Replace(m.Name()); name != k.name {
			t.Errorf("%s is called %s", k.name, m.Name())
		}
		if typ := strings.ToLower(reflect.TypeOf(m).Elem().Name()); typ != k.name {
			t.Errorf("%s is a %s", k.name, typ)
		}
		if got := fieldsOf(m); got != k.fields {
			t.Errorf("%s\ngot  %s\nwant %s", k.name, got, k.fields)
		}
		if got := wire.AppendMethod([]byte("before"), 0x0a0b, m); !bytes.Equal(got, append([]byte("before"), k.frame...)) {
			t.Errorf("%s\ngot  %x\nwant %x", k.name, got, k.frame)
		}
	}
}

func TestMethodsThatDoNotExistAreNotImplemented(t *testing.T) {
	exists := map[[2]uint16]bool{}
	for _, k := range knownMethods(t) {
		m, err := wire.ParseMethod(k.payload())
		if err != nil {
			t.Fatal(err)
		}
		exists[[2]uint16{m.Class(), m.ID()}] = true
	}
	if len(exists) != 64 {
		t.Errorf("%d methods, the protocol has 64", len(exists))
	}
	for class := range uint16(120) {
		for id := range uint16(130) {
			_, err := wire.ParseMethod([]byte{0, byte(class), 0, byte(id)})
			var refused *wire.Error
			missing := errors.As(err, &refused) && refused.Code == 540
			if missing == exists[[2]uint16{class, id}] {
				t.Errorf("method %d.%d: %v", class, id, err)
			}
			if refused != nil && (refused.Class != class || refused.Method != id) {
				t.Errorf("method %d.%d: refused as %d.%d", class, id, refused.Class, refused.Method)
			}
		}
	}
	if _, err := wire.ParseMethod([]byte{60, 0, 40, 0}); code(err) != 540 {
		t.Errorf("numbers in the wrong byte order: %v", err)
	}
}

// code is the reply code of an error, 0 if it has none.
func code(err error) uint16 {
	var violation *wire.Error
	if errors.As(err, &violation) {
		return violation.Code
	}
	return 0
}

func TestR61_MethodCutShortOrTooLong(t *testing.T) {
	for _, k := range knownMethods(t) {
		whole := k.payload()
		for n := range len(whole) {
			if m, err := wire.ParseMethod(whole[:n:n]); code(err) != 501 {
				t.Errorf("%s cut after %d of %d bytes: %v, %v", k.name, n, len(whole), m, err)
			}
		}
		if m, err := wire.ParseMethod(append(whole[:len(whole):len(whole)], 0)); code(err) != 501 {
			t.Errorf("%s with one byte more: %v, %v", k.name, m, err)
		}
	}
}

func TestR61_MethodWithABadTable(t *testing.T) {
	declare := func(table string) []byte {
		return append([]byte{0, 50, 0, 10, 0, 0, 1, 'q', 0, 0, 0, 0, byte(len(table))}, table...)
	}
	if _, err := wire.ParseMethod(declare("\x01kV")); err != nil {
		t.Errorf("a good table: %v", err)
	}
	for _, table := range []string{"\x01k?", "\x01kI\x00\x00\x00", "\x05k", "\x01k", "\x00", "\x01kS\xff\xff\xff\xffx", "\x01kA\x00\x00\x00\x01I"} {
		_, err := wire.ParseMethod(declare(table))
		var refused *wire.Error
		if !errors.As(err, &refused) || refused.Code != 502 || refused.Class != 50 || refused.Method != 10 {
			t.Errorf("table %q: %v", table, err)
		}
	}
}

func TestLongShortStringIsCutWhereACharacterEnds(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
	}{
		{strings.Repeat("a", 255), 255},
		{strings.Repeat("a", 256), 255},
		{strings.Repeat("a", 254) + "é", 254},
		{strings.Repeat("a", 253) + "é" + "b", 255},
		{strings.Repeat("a", 253) + "😀", 253},
		{strings.Repeat("a", 252) + "😀", 252},
		{strings.Repeat("a", 251) + "😀" + "b", 255},
		{strings.Repeat("😀", 100), 252},
		{strings.Repeat("\x80", 300), 251}, // not UTF-8 at all
	} {
		frame := wire.AppendMethod(nil, 0, &wire.ConnectionClose{ReplyCode: 320, ReplyText: c.text, ClassID: 1, MethodID: 2})
		m, err := wire.ParseMethod(frame[7 : len(frame)-1])
		if err != nil {
			t.Fatal(err)
		}
		got := m.(*wire.ConnectionClose)
		if len(got.ReplyText) != c.want || !strings.HasPrefix(c.text, got.ReplyText) || got.MethodID != 2 {
			t.Errorf("%d bytes became %d, want %d", len(c.text), len(got.ReplyText), c.want)
		}
		if utf8.ValidString(c.text) && !utf8.ValidString(got.ReplyText) {
			t.Errorf("%q is cut inside a character", got.ReplyText)
		}
	}
}

func TestMethodKeepsNothingOfThePayload(t *testing.T) {
	for _, k := range knownMethods(t) {
		payload := bytes.Clone(k.payload())
		m, err := wire.ParseMethod(payload)
		if err != nil {
			t.Fatal(err)
		}
		clear(payload)
		if got := fieldsOf(m); got != k.fields {
			t.Errorf("%s changed with its payload: %s", k.name, got)
		}
	}
}
