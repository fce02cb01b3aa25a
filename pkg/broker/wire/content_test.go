package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"fleet/pkg/broker/wire"
)

// knownContent is a header and a body frame on channel 3 as RabbitMQ's client for
// Go writes them (v1.16.0): every property it knows, and each of its field tags.
const knownContent = "020003000000a7003c00000000000000000005fff80a746578742f706c61696e057574662d3800000068016b41000000617401740062ff42c873fed475fde849fffeee9069ee6b28006cfffffffed5fa0e00663fc0000064c0020000000000004402ffffcfc7530000000474657874780000000200ff54000000006553f1004600000003016e564100000000460000000056020701630172053630303030016d000000006553f101017401750161ce0300030000000568656c6c6fce"

var allProperties = wire.Properties{
	ContentType: "text/plain", ContentEncoding: "utf-8",
	Headers: wire.Table{"k": []any{true, false, int8(-1), uint8(200), int16(-300), uint16(65000), int32(-70000),
		uint32(4000000000), int64(-5000000000), float32(1.5), -2.25, wire.Decimal{Scale: 2, Value: -12345}, "text",
		[]byte{0, 255}, time.Unix(1700000000, 0).UTC(), wire.Table{"n": nil}, []any{}, wire.Table{}, nil}},
	DeliveryMode: 2, Priority: 7, CorrelationID: "c", ReplyTo: "r", Expiration: "60000", MessageID: "m",
	Timestamp: time.Unix(1700000001, 0).UTC(), Type: "t", UserID: "u", AppID: "a",
}

const allFlags = 0xfffc

func TestContentIsThatOfAnotherImplementation(t *testing.T) {
	want, err := hex.DecodeString(knownContent)
	if err != nil {
		t.Fatal(err)
	}
	got := wire.AppendContent(nil, 3, allProperties.Append(nil), []byte("hello"), 0)
	if !bytes.Equal(got, want) {
		t.Errorf("\ngot  %x\nwant %x", got, want)
	}
	frame, err := wire.NewReader(bytes.NewReader(want)).Next()
	if err != nil {
		t.Fatal(err)
	}
	class, size, encoded, err := wire.ParseHeader(frame.Payload)
	if err != nil || class != 60 || size != 5 {
		t.Fatalf("class %d, %d bytes, %v", class, size, err)
	}
	p, err := wire.ParseProperties(encoded)
	if p.Present != allFlags&^wire.FlagClusterID {
		t.Errorf("flags %x", p.Present)
	}
	p.Present = 0
	if err != nil || !reflect.DeepEqual(p, allProperties) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, p, allProperties)
	}
}

// eachProperty has one property set, by its flag.
var eachProperty = map[uint16]wire.Properties{
	wire.FlagContentType:     {ContentType: "x"},
	wire.FlagContentEncoding: {ContentEncoding: "x"},
	wire.FlagHeaders:         {Headers: wire.Table{"x": "x"}},
	wire.FlagDeliveryMode:    {DeliveryMode: 1},
	wire.FlagPriority:        {Priority: 1},
	wire.FlagCorrelationID:   {CorrelationID: "x"},
	wire.FlagReplyTo:         {ReplyTo: "x"},
	wire.FlagExpiration:      {Expiration: "x"},
	wire.FlagMessageID:       {MessageID: "x"},
	wire.FlagTimestamp:       {Timestamp: time.Unix(0, 0).UTC()},
	wire.FlagType:            {Type: "x"},
	wire.FlagUserID:          {UserID: "x"},
	wire.FlagAppID:           {AppID: "x"},
	wire.FlagClusterID:       {ClusterID: "x"},
}

func TestEachPropertyAlone(t *testing.T) {
	if len(eachProperty) != 14 {
		t.Fatalf("%d properties", len(eachProperty))
	}
	for flag, p := range eachProperty {
		encoded := p.Append(nil)
		if got := binary.BigEndian.Uint16(encoded); got != flag || !p.Has(flag) || p.Has(allFlags&^flag) {
			t.Errorf("%+v has flags %x, want %x", p, got, flag)
		}
		parsed, err := wire.ParseProperties(encoded)
		want := p
		want.Present = flag
		if err != nil || !reflect.DeepEqual(parsed, want) {
			t.Errorf("flag %x: %v, %+v", flag, err, parsed)
		}
		parsed.Drop(flag)
		if !reflect.DeepEqual(parsed, wire.Properties{}) {
			t.Errorf("flag %x was dropped, left is %+v", flag, parsed)
		}
	}
	if p := (&wire.Properties{}); !bytes.Equal(p.Append(nil), []byte{0, 0}) || p.Has(allFlags) {
		t.Errorf("no properties are %x", p.Append(nil))
	}
}

func TestDropLeavesTheOthers(t *testing.T) {
	p := allProperties
	p.Present = allFlags
	p.Drop(wire.FlagExpiration | wire.FlagUserID)
	want := allProperties
	want.Expiration, want.UserID, want.Present = "", "", allFlags&^(wire.FlagExpiration|wire.FlagUserID)
	if !reflect.DeepEqual(p, want) || p.Has(wire.FlagExpiration) || !p.Has(wire.FlagUserID|wire.FlagAppID) {
		t.Errorf("%+v", p)
	}
}

// Every combination of flags, all properties empty: what is there stays there.
func TestEmptyPropertiesStayPresent(t *testing.T) {
	width := map[uint16]int{wire.FlagHeaders: 4, wire.FlagDeliveryMode: 1, wire.FlagPriority: 1, wire.FlagTimestamp: 8}
	for flags := 0; flags <= allFlags; flags += 4 {
		encoded := []byte{byte(flags >> 8), byte(flags)}
		for flag := uint16(1 << 15); flag >= 4; flag >>= 1 {
			if uint16(flags)&flag != 0 {
				encoded = append(encoded, make([]byte, max(1, width[flag]))...)
			}
		}
		p, err := wire.ParseProperties(encoded)
		if err != nil || !bytes.Equal(p.Append(nil), encoded) {
			t.Fatalf("flags %x: %v\ngot  %x\nwant %x", flags, err, p.Append(nil), encoded)
		}
		if _, _, _, _, err := wire.Peek(encoded); err != nil {
			t.Fatalf("peek at flags %x: %v", flags, err)
		}
	}
}

func TestPeek(t *testing.T) {
	mode, expiration, user, headers, err := wire.Peek(allProperties.Append(nil))
	if mode != 2 || expiration != "60000" || user != "u" || !headers || err != nil {
		t.Error(mode, expiration, user, headers, err)
	}
	mode, expiration, user, headers, err = wire.Peek([]byte{0, 0})
	if mode != 0 || expiration != "" || user != "" || headers || err != nil {
		t.Error(mode, expiration, user, headers, err)
	}
	plain := wire.Properties{Headers: allProperties.Headers, DeliveryMode: 2, MessageID: "m"}
	encoded := plain.Append(nil)
	if n := testing.AllocsPerRun(100, func() { _, _, _, _, _ = wire.Peek(encoded) }); n > 0 {
		t.Errorf("%v allocations for a look", n)
	}
}

func TestR61_PropertiesCutShortOrTooLong(t *testing.T) {
	p := allProperties
	p.ClusterID = "cluster"
	whole := p.Append(nil)
	refused := func(what string, encoded []byte) {
		t.Helper()
		_, err := wire.ParseProperties(encoded)
		_, _, _, _, peekErr := wire.Peek(encoded)
		if code(err) != 502 || !reflect.DeepEqual(err, peekErr) {
			t.Errorf("%s: %v, and peek %v", what, err, peekErr)
		}
	}
	for n := range len(whole) {
		refused("cut short", whole[:n:n])
	}
	refused("one byte more", append(whole[:len(whole):len(whole)], 0))
	refused("more flags to come", []byte{0, 1, 0, 0})
	refused("unused flag", []byte{0, 2})
	refused("bad table", []byte("\x20\x00\x00\x00\x00\x03\x01k?"))
	refused("nested table", append([]byte{0x20, 0}, nested('F', 33)...))
}

func TestParseHeader(t *testing.T) {
	header := []byte{0, 60, 0, 0, 0xff, 2, 3, 4, 5, 6, 7, 8, 0x80, 0, 1, 'x'}
	class, size, properties, err := wire.ParseHeader(header)
	if class != 60 || size != 0xff02030405060708 || !bytes.Equal(properties, header[12:]) || err != nil {
		t.Error(class, size, properties, err)
	}
	for n := range 14 {
		if _, _, _, err := wire.ParseHeader(header[:n:n]); code(err) != 501 {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
	header[3] = 1
	if _, _, _, err := wire.ParseHeader(header); code(err) != 505 {
		t.Errorf("a weight: %v", err)
	}
}

func TestContentIsSplitAtFrameMax(t *testing.T) {
	body := []byte(strings.Repeat("0123456789", 1000))
	for _, c := range []struct {
		frameMax uint32
		size     int
		want     []int
	}{
		{0, 10000, []int{10000}},
		{4096, 0, nil},
		{4096, 1, []int{1}},
		{4096, 4088, []int{4088}},
		{4096, 4089, []int{4088, 1}},
		{4096, 10000, []int{4088, 4088, 1824}},
		{5000, 10000, []int{4992, 4992, 16}},
		{1, 4089, []int{4088, 1}}, // a frame has a smallest size
		{10008, 10000, []int{10000}},
		{1<<32 - 1, 10000, []int{10000}},
	} {
		encoded := wire.AppendContent([]byte("before"), 9, []byte{0, 0}, body[:c.size], c.frameMax)
		r := wire.NewReader(bytes.NewReader(encoded[6:]))
		r.SetMax(1 << 20)
		head, err := r.Next()
		if err != nil || head.Type != wire.FrameHeader || head.Channel != 9 {
			t.Fatal(head, err)
		}
		if _, size, _, err := wire.ParseHeader(head.Payload); size != uint64(c.size) || err != nil {
			t.Errorf("header says %d bytes, %v", size, err)
		}
		var sizes []int
		var got []byte
		for r.Buffered() > 0 {
			f, err := r.Next()
			if err != nil || f.Type != wire.FrameBody || f.Channel != 9 {
				t.Fatal(f, err)
			}
			sizes, got = append(sizes, len(f.Payload)), append(got, f.Payload...)
		}
		if !reflect.DeepEqual(sizes, c.want) || !bytes.Equal(got, body[:c.size]) {
			t.Errorf("frame-max %d: %d bytes became %v, want %v", c.frameMax, c.size, sizes, c.want)
		}
	}
}
