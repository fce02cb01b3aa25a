package wire_test

import (
	"bytes"
	"testing"

	"fleet/pkg/broker/wire"
)

var (
	publish    = &wire.BasicPublish{RoutingKey: "fleet.host.alpha.inbox", Mandatory: true}
	deliver    = &wire.BasicDeliver{ConsumerTag: "ctag-1.9f3c", DeliveryTag: 123456, RoutingKey: "fleet.host.alpha.inbox"}
	ack        = &wire.BasicAck{DeliveryTag: 123456}
	properties = wire.Properties{
		ContentType: "application/json", DeliveryMode: 2, MessageID: "5f0c2a4e-6f0b-4c57-9a3f-0d6c3c1a2b3d",
		Headers: wire.Table{"key": "AAAAC3NzaC1lZDI1NTE5AAAAI", "signature": string(make([]byte, 86)), "kind": "brief"},
	}
)

func payloadOf(m wire.Method) []byte {
	b := wire.AppendMethod(nil, 1, m)
	return b[7 : len(b)-1]
}

func BenchmarkParse(b *testing.B) {
	for _, m := range []wire.Method{publish, deliver, ack} {
		payload := payloadOf(m)
		b.Run(m.Name(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.ParseMethod(payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, m := range []wire.Method{publish, deliver, ack} {
		b.Run(m.Name(), func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = wire.AppendMethod(buf[:0], 1, m)
			}
		})
	}
}

func BenchmarkProperties(b *testing.B) {
	encoded := properties.Append(nil)
	b.Run("peek", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, _, _, err := wire.Peek(encoded); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := wire.ParseProperties(encoded); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = properties.Append(buf[:0])
		}
	})
}

// BenchmarkPublish is what a broker reads for one publish of 512 bytes: three
// frames, the method and the properties looked at.
func BenchmarkPublish(b *testing.B) {
	one := wire.AppendMethod(nil, 1, publish)
	one = wire.AppendContent(one, 1, properties.Append(nil), make([]byte, 512), 131072)
	stream := bytes.Repeat(one, 1000)
	from := bytes.NewReader(stream)
	r := wire.NewReader(from)
	b.ReportAllocs()
	b.SetBytes(int64(len(one)))
	for b.Loop() {
		if from.Len() == 0 && r.Buffered() == 0 {
			from.Reset(stream)
		}
		for range 3 {
			f, err := r.Next()
			switch {
			case err != nil:
				b.Fatal(err)
			case f.Type == wire.FrameMethod:
				_, err = wire.ParseMethod(f.Payload)
			case f.Type == wire.FrameHeader:
				_, _, encoded, _ := wire.ParseHeader(f.Payload)
				_, _, _, _, err = wire.Peek(encoded)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
