package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"fleet/pkg/broker/wire"
)

// frame is a frame as it goes over the line.
func frame(kind byte, channel uint16, payload string) []byte {
	b := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(append(b, payload...), wire.FrameEnd)
}

func TestReaderReadsFrames(t *testing.T) {
	payloads := []string{"method", "", strings.Repeat("x", wire.FrameMin-8), strings.Repeat("y", 100_000), strings.Repeat("z", 131072-8), "last"}
	stream := []byte("AMQP\x00\x00\x09\x01")
	for i, p := range payloads {
		stream = append(stream, frame(wire.FrameBody, uint16(i*1000), p)...)
	}
	stream = wire.AppendHeartbeat(stream)
	for name, from := range map[string]io.Reader{
		"at once":       bytes.NewReader(stream),
		"byte by byte":  iotest.OneByteReader(bytes.NewReader(stream)),
		"in halves":     iotest.HalfReader(bytes.NewReader(stream)),
		"end with data": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := wire.NewReader(from)
		if opening, err := r.Protocol(); err != nil || string(opening[:]) != "AMQP\x00\x00\x09\x01" {
			t.Errorf("%s: %q, %v", name, opening, err)
		}
		r.SetMax(131072)
		for i, p := range payloads {
			f, err := r.Next()
			if err != nil || f.Type != wire.FrameBody || f.Channel != uint16(i*1000) || string(f.Payload) != p {
				t.Fatalf("%s: frame %d is %d bytes of type %d on channel %d, %v", name, i, len(f.Payload), f.Type, f.Channel, err)
			}
		}
		if f, err := r.Next(); err != nil || f.Type != wire.FrameHeartbeat || f.Channel != 0 || len(f.Payload) > 0 {
			t.Errorf("%s: heartbeat is %v, %v", name, f, err)
		}
		for range 2 {
			if f, err := r.Next(); err != io.EOF {
				t.Errorf("%s: at the end %v, %v", name, f, err)
			}
		}
	}
}

// Frames meet the end of what is read ahead in each way they can.
func TestReaderFramesAcrossItsBuffer(t *testing.T) {
	for short := range 40 {
		first := strings.Repeat("x", 32<<10-8-short)
		stream := frame(wire.FrameBody, 1, first)
		for range 3 {
			stream = append(stream, frame(wire.FrameMethod, 2, "eleven more")...)
		}
		r := wire.NewReader(bytes.NewReader(stream))
		r.SetMax(1 << 20)
		if f, err := r.Next(); err != nil || string(f.Payload) != first {
			t.Fatal(err)
		}
		for range 3 {
			if f, err := r.Next(); err != nil || f.Channel != 2 || string(f.Payload) != "eleven more" {
				t.Fatalf("%d bytes before the end: %q, %v", short, f.Payload, err)
			}
		}
	}
}

func TestReaderKnowsWhatItHas(t *testing.T) {
	one, two := frame(wire.FrameMethod, 1, "one"), frame(wire.FrameMethod, 1, "two")
	r := wire.NewReader(bytes.NewReader(append(append(one, two...), two[:4]...)))
	for _, want := range []int{len(two) + 4, 4} {
		if _, err := r.Next(); err != nil || r.Buffered() != want {
			t.Errorf("%v, %d bytes are buffered, want %d", err, r.Buffered(), want)
		}
	}
}

func TestReaderIsReadyWhenNextWouldNotBlock(t *testing.T) {
	one, two := frame(wire.FrameMethod, 1, "one"), frame(wire.FrameMethod, 1, "two")
	for n := range len(two) + 1 {
		r := wire.NewReader(bytes.NewReader(append(bytes.Clone(one), two[:n]...)))
		if r.Ready() {
			t.Error("ready with nothing read")
		}
		if _, err := r.Next(); err != nil || r.Ready() != (n == len(two)) {
			t.Errorf("%v; with %d of %d bytes ready is %v", err, n, len(two), r.Ready())
		}
	}
	for _, bad := range []string{"\x04\x00\x01\x00\x00\x00\x05", "\x03\x00\x01\xff\xff\xff\xff", "\x08\x00\x00\x00\x00\x00\x01"} {
		r := wire.NewReader(strings.NewReader(string(one) + bad))
		if _, err := r.Next(); err != nil || !r.Ready() {
			t.Errorf("%v; not ready with the head of a bad frame %q", err, bad)
		}
	}
}

func TestReaderPayloadCanNotGrowIntoTheNextFrame(t *testing.T) {
	r := wire.NewReader(bytes.NewReader(append(frame(wire.FrameMethod, 1, "one"), frame(wire.FrameMethod, 1, "two")...)))
	f, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	_ = append(f.Payload, "overwrites the stream"...)
	if f, err = r.Next(); err != nil || string(f.Payload) != "two" {
		t.Errorf("%q, %v", f.Payload, err)
	}
}

// deadlines is a reader that fails between any two bytes, as a connection with a
// deadline does.
type deadlines struct {
	from   io.Reader
	failed bool
}

func (d *deadlines) Read(b []byte) (int, error) {
	if d.failed = !d.failed; d.failed {
		return 0, os.ErrDeadlineExceeded
	}
	return d.from.Read(b[:1])
}

func TestReaderGoesOnAfterADeadline(t *testing.T) {
	stream := append([]byte("AMQP\x00\x00\x09\x01"), frame(wire.FrameBody, 7, strings.Repeat("x", 3000))...)
	r := wire.NewReader(&deadlines{from: bytes.NewReader(stream)})
	times := 0
	retry := func(err error) bool {
		times++
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	for {
		opening, err := r.Protocol()
		if retry(err) {
			continue
		}
		if err != nil || string(opening[:4]) != "AMQP" {
			t.Fatal(opening, err)
		}
		break
	}
	for {
		f, err := r.Next()
		if retry(err) {
			continue
		}
		if err != nil || f.Channel != 7 || string(f.Payload) != strings.Repeat("x", 3000) {
			t.Fatal(f, err)
		}
		break
	}
	if times < len(stream) {
		t.Errorf("%d calls for %d bytes", times, len(stream))
	}
}

func TestR61_StreamCutShort(t *testing.T) {
	stream := append([]byte("AMQP\x00\x00\x09\x01"), frame(wire.FrameMethod, 1, "payload")...)
	for n := range len(stream) {
		r := wire.NewReader(bytes.NewReader(stream[:n]))
		_, err := r.Protocol()
		if n >= 8 && err == nil {
			_, err = r.Next()
		}
		want := io.ErrUnexpectedEOF
		if n == 0 || n == 8 {
			want = io.EOF
		}
		if err != want {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestR61_FramesThatAreNone(t *testing.T) {
	good := frame(wire.FrameMethod, 1, "good")
	wrongEnd := bytes.Clone(good)
	wrongEnd[len(wrongEnd)-1] = 0xCD
	for name, bad := range map[string][]byte{
		"type 0":                   frame(0, 1, "x"),
		"type 4":                   frame(4, 1, "x"),
		"http":                     []byte("GET / HTTP/1.1\r\n\r\n"),
		"wrong end":                wrongEnd,
		"heartbeat with a payload": frame(wire.FrameHeartbeat, 0, "x"),
		"one byte too large":       frame(wire.FrameBody, 1, strings.Repeat("x", wire.FrameMin-7)),
		// The payload never comes, the answer does.
		"head of 4 GiB":     {wire.FrameBody, 0, 1, 0xff, 0xff, 0xff, 0xff},
		"head of a type 99": {99, 0, 1, 0, 0, 0, 5},
	} {
		r := wire.NewReader(io.MultiReader(bytes.NewReader(good), bytes.NewReader(bad), blocked{t}))
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if f, err := r.Next(); code(err) != 501 {
				t.Errorf("%s: %v, %v", name, f, err)
			}
		}
	}
}

// blocked must not be read.
type blocked struct{ t *testing.T }

func (b blocked) Read([]byte) (int, error) {
	b.t.Error("it waits for more than it needs")
	return 0, io.EOF
}

func TestR61_LengthGetsNoMemory(t *testing.T) {
	head := []byte{wire.FrameBody, 0, 1, 0x7f, 0, 0, 0}
	for _, arrives := range []int{0, 1000, 200_000} {
		stream := append(bytes.Clone(head), make([]byte, arrives)...)
		used := allocated(func() {
			r := wire.NewReader(iotest.HalfReader(bytes.NewReader(stream)))
			r.SetMax(math.MaxUint32)
			if _, err := r.Next(); err != io.ErrUnexpectedEOF {
				t.Error(err)
			}
		})
		if used > 100_000+8*uint64(arrives) {
			t.Errorf("%d bytes of a frame of 2 GiB made it allocate %d", arrives, used)
		}
	}
	for _, size := range []uint32{1 << 31, math.MaxUint32} {
		r := wire.NewReader(bytes.NewReader(binary.BigEndian.AppendUint32([]byte{wire.FrameBody, 0, 1}, size)))
		r.SetMax(math.MaxUint32)
		if _, err := r.Next(); code(err) != 501 {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestR61_FrameMaxHasALowerBound(t *testing.T) {
	for _, frameMax := range []uint32{0, 1, 4095, 4096} {
		r := wire.NewReader(bytes.NewReader(append(frame(3, 1, strings.Repeat("x", 4088)), frame(3, 1, strings.Repeat("x", 4089))...)))
		r.SetMax(frameMax)
		if f, err := r.Next(); err != nil || len(f.Payload) != 4088 {
			t.Errorf("frame-max %d: %v", frameMax, err)
		}
		if _, err := r.Next(); code(err) != 501 {
			t.Errorf("frame-max %d: %v", frameMax, err)
		}
	}
}

// idle returns nothing, again and again.
type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

func TestR61_ReaderThatReturnsNothing(t *testing.T) {
	if _, err := wire.NewReader(idle{}).Next(); err != io.ErrNoProgress {
		t.Error(err)
	}
}

func TestErrorSaysItsCode(t *testing.T) {
	err := &wire.Error{Code: 540, Text: "unknown method 60.99", Class: 60, Method: 99}
	if got := err.Error(); got != "amqp 540: unknown method 60.99" {
		t.Error(got)
	}
	if !reflect.DeepEqual(wire.AppendHeartbeat(nil), frame(wire.FrameHeartbeat, 0, "")) {
		t.Error("heartbeat")
	}
}
