package wire_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"fleet/pkg/broker/wire"
)

// What comes out of a stream is what was in it, however it arrives.
func FuzzFrames(f *testing.F) {
	for _, k := range knownMethods(f) {
		f.Add(append(bytes.Clone(k.frame), k.frame...))
	}
	f.Add(wire.AppendContent(nil, 3, allProperties.Append(nil), make([]byte, 9000), wire.FrameMin))
	f.Add([]byte{wire.FrameBody, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for _, from := range []io.Reader{bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream))} {
			r := wire.NewReader(from)
			rest := stream
			for {
				got, err := r.Next()
				if err != nil {
					atEnd := err == io.EOF && len(rest) == 0 || err == io.ErrUnexpectedEOF && len(rest) > 0
					if !atEnd && code(err) != 501 {
						t.Fatalf("%v with %d bytes left", err, len(rest))
					}
					break
				}
				whole := frame(got.Type, got.Channel, string(got.Payload))
				if !bytes.HasPrefix(rest, whole) || len(whole) > wire.FrameMin {
					t.Fatalf("frame %x from %x", whole, rest)
				}
				rest = rest[len(whole):]
			}
		}
	})
}

// What can be parsed can be written, and is then the same.
func FuzzMethod(f *testing.F) {
	for _, k := range knownMethods(f) {
		f.Add(k.payload())
	}
	declare := wire.AppendMethod(nil, 1, &wire.QueueDeclare{Queue: "q", Arguments: everyTag})
	f.Add(declare[7 : len(declare)-1])
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, err := wire.ParseMethod(payload)
		if err != nil {
			if c := code(err); c != 501 && c != 502 && c != 540 {
				t.Fatal(err)
			}
			return
		}
		written := wire.AppendMethod(nil, 1, m)
		again, err := wire.ParseMethod(written[7 : len(written)-1])
		if err != nil {
			t.Fatalf("%s can't be read back: %v", m.Name(), err)
		}
		if twice := wire.AppendMethod(nil, 1, again); !bytes.Equal(written, twice) || again.Name() != m.Name() {
			t.Fatalf("%s\nonce  %x\ntwice %x", m.Name(), written, twice)
		}
	})
}

// A look sees what parsing finds, and fails where it fails.
func FuzzProperties(f *testing.F) {
	f.Add(allProperties.Append(nil))
	for _, p := range eachProperty {
		f.Add(p.Append(nil))
	}
	f.Add((&wire.Properties{Headers: everyTag}).Append(nil))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		p, err := wire.ParseProperties(encoded)
		mode, expiration, user, headers, peekErr := wire.Peek(encoded)
		if err != nil {
			if code(err) != 502 || !errors.As(peekErr, new(*wire.Error)) || err.Error() != peekErr.Error() {
				t.Fatalf("%v, and peek %v", err, peekErr)
			}
			return
		}
		if peekErr != nil || mode != p.DeliveryMode || expiration != p.Expiration || user != p.UserID || headers != p.Has(wire.FlagHeaders) {
			t.Fatalf("%d %q %q %v %v, parsed %+v", mode, expiration, user, headers, peekErr, p)
		}
		written := p.Append(nil)
		if !headers && !bytes.Equal(written, encoded) { // a table may be sorted another way
			t.Fatalf("\ngot  %x\nwant %x", written, encoded)
		}
		again, err := wire.ParseProperties(written)
		if err != nil || !bytes.Equal(again.Append(nil), written) {
			t.Fatalf("%v\nonce  %x\ntwice %x", err, written, again.Append(nil))
		}
	})
}

func FuzzTable(f *testing.F) {
	f.Add(everyTag.Append(nil))
	f.Add(allProperties.Headers.Append(nil))
	f.Add(nested('A', 32))
	f.Add(nested('F', 33))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		table, rest, err := wire.ParseTable(encoded)
		if err != nil {
			if code(err) != 502 {
				t.Fatal(err)
			}
			return
		}
		if !bytes.HasSuffix(encoded, rest) {
			t.Fatalf("rest %x of %x", rest, encoded)
		}
		written := table.Append(nil)
		again, rest, err := wire.ParseTable(written)
		if err != nil || len(rest) > 0 || !bytes.Equal(again.Append(nil), written) || len(written) > len(encoded) {
			t.Fatalf("%v, rest %x\nonce  %x\ntwice %x", err, rest, written, again.Append(nil))
		}
	})
}
