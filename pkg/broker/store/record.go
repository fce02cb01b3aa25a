package store

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A record, all numbers little-endian, padded with zeros to a multiple of 8:
//
//	0   4  bytes of the payload
//	4   1  kind
//	5   3  zero
//	8   4  CRC-32C of the payload
//	12  4  CRC-32C of the segment's salt, the record's offset (4) and the 12 bytes before
//
// A header stands for itself, so that a record with a damaged payload can be
// stepped over; and only where it was written, so that nothing inside of a
// payload passes for a record. Payloads (uvarints but for the first two fields
// named):
//
//	message, moved  4 bytes of the head; the head: seq, places, and for each of
//	                them queue and expires, then exchange and key, both after
//	                their length, and the properties; then the body
//	mark            8 bytes: everything before this offset of the segment is durable
//	tombstone       queue, seq
//	drop            queue, last seq
//	put             length of the key, the key, the value
//	delete          the key
type kind uint8

const (
	message   kind = iota + 1
	moved          // a copy of an older message, which this one replaces
	mark           // see reader.walk
	tombstone      // the message is not in the queue any more
	drop           // no message up to the seq is in the queue any more
	put
	remove
	kinds
)

const recordHeader = 16

// recordSize is what a record with so many bytes of payload occupies.
func recordSize(payload int64) int64 { return (recordHeader + payload + 7) &^ 7 }

// recordHead is a record's header.
type recordHead struct {
	kind   kind
	length uint32 // of the payload
	sum    uint32 // of the payload
}

func (h recordHead) size() int64 { return recordSize(int64(h.length)) }

// appendRecord adds the record to b that begins at offset of its segment. Its
// payload comes in two pieces.
func appendRecord(b []byte, salt uint64, offset uint32, k kind, head, body []byte) []byte {
	from, length := len(b), len(head)+len(body)
	b = append(b, make([]byte, recordHeader)...)
	b = append(append(b, head...), body...)
	h := b[from:]
	binary.LittleEndian.PutUint32(h, uint32(length))
	h[4] = byte(k)
	binary.LittleEndian.PutUint32(h[8:], crc32.Checksum(h[recordHeader:], castagnoli))
	binary.LittleEndian.PutUint32(h[12:], headSum(h, salt, offset))
	return append(b, make([]byte, recordSize(int64(length))-recordHeader-int64(length))...)
}

// headSum is the checksum of a record's header.
func headSum(h []byte, salt uint64, offset uint32) uint32 {
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:], salt)
	binary.LittleEndian.PutUint32(b[8:], offset)
	copy(b[12:], h[:12])
	return crc32.Checksum(b[:], castagnoli)
}

// parseHead reads the header that b begins with; ok is false if it is none.
func parseHead(b []byte, salt uint64, offset uint32) (h recordHead, ok bool) {
	if b[4] == 0 || kind(b[4]) >= kinds || headSum(b, salt, offset) != binary.LittleEndian.Uint32(b[12:]) {
		return h, false
	}
	return recordHead{kind(b[4]), binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[8:])}, true
}

// errPayload is a payload that is not what its kind says, though its checksum is
// right.
var errPayload = errors.New("payload of another form")

// appendHead adds to b what stands before a message's body.
func appendHead(b []byte, seq uint64, m *Message, places []Place) []byte {
	from := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.AppendUvarint(b, seq)
	durable := 0
	for _, p := range places {
		if p.Durable {
			durable++
		}
	}
	b = binary.AppendUvarint(b, uint64(durable))
	for _, p := range places {
		if p.Durable { // the others are gone when this is read
			b = binary.AppendUvarint(b, p.Queue)
			b = binary.AppendUvarint(b, uint64(p.Expires))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(m.Exchange)))
	b = append(b, m.Exchange...)
	b = binary.AppendUvarint(b, uint64(len(m.Key)))
	b = append(b, m.Key...)
	b = append(b, m.Properties...)
	binary.LittleEndian.PutUint32(b[from:], uint32(len(b)-from-4))
	return b
}

// fields takes a payload apart. After the first field that is not there, all
// others are zero and bad is set.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) number() uint64 {
	n, size := binary.Uvarint(f.rest)
	if size <= 0 {
		f.rest, f.bad = nil, true
		return 0
	}
	f.rest = f.rest[size:]
	return n
}

func (f *fields) bytes() []byte {
	n := f.number()
	if n > uint64(len(f.rest)) {
		f.rest, f.bad = nil, true
		return nil
	}
	b := f.rest[:n:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) err() error {
	if f.bad {
		return errPayload
	}
	return nil
}

// headBytes is how many bytes of a message's payload stand before its body. It
// needs the first four of them.
func headBytes(payload []byte, length uint32) (int, error) {
	if length < 4 || len(payload) < 4 {
		return 0, errPayload
	}
	n := binary.LittleEndian.Uint32(payload)
	if n > length-4 {
		return 0, errPayload
	}
	return int(n) + 4, nil
}

// parsePlaces reads seq and places of a message from its head. The places are
// appended to into.
func parsePlaces(head []byte, into []Place) (seq uint64, places []Place, rest *fields, err error) {
	f := &fields{rest: head[4:]}
	seq = f.number()
	n := f.number()
	if n > uint64(len(f.rest))/2 { // a place is at least two bytes
		return 0, nil, nil, errPayload
	}
	for range n {
		queue, expires := f.number(), f.number()
		into = append(into, Place{Queue: queue, Expires: int64(expires), Durable: true})
	}
	return seq, into, f, f.err()
}

// parseMessage reads a message. Properties and body are parts of payload.
func parseMessage(payload []byte) (m Message, err error) {
	n, err := headBytes(payload, uint32(len(payload)))
	if err != nil {
		return m, err
	}
	_, _, f, err := parsePlaces(payload[:n:n], nil)
	if err != nil {
		return m, err
	}
	m.Exchange, m.Key = string(f.bytes()), string(f.bytes())
	m.Properties, m.Body = f.rest, payload[n:]
	return m, f.err()
}

func appendPair(b []byte, first, second uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, first), second)
}
