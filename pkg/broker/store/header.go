package store

import (
	"crypto/rand"
	"encoding/binary"
	"hash/crc32"
	"io"
	"path/filepath"

	"fleet/pkg/fault"
)

// A segment file, all numbers little-endian:
//
//	0     header, 48 bytes
//	4096  the same header again, so that one bad block does not cost the segment
//	8192  records, each at a multiple of 8; zeros after the last one
//
// The header:
//
//	0   8  "fleetlog"
//	8   4  version of the format
//	12  4  number of the segment, as in the file's name
//	16  8  salt of the records' checksums
//	24  8  last seq appended before this segment began
//	32  12 zero
//	44  4  CRC-32C of the 44 bytes before
const (
	magic       = "fleetlog"
	version     = 1
	headerBytes = 48
	copyAt      = 4096
	recordsAt   = 8192
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is a segment's header.
type header struct {
	number  uint32
	salt    uint64 // makes a record that a client has sent as a message's body worthless
	lastSeq uint64
}

func newSalt() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// append adds the encoded header to b.
func (h header) append(b []byte) []byte {
	from := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, h.number)
	b = binary.LittleEndian.AppendUint64(b, h.salt)
	b = binary.LittleEndian.AppendUint64(b, h.lastSeq)
	b = append(b, make([]byte, 12)...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

// image is what a segment file begins with, up to its first record.
func (h header) image() []byte {
	b := make([]byte, 0, recordsAt)
	b = h.append(b)[:copyAt]
	return h.append(b)[:recordsAt]
}

// condition is what the beginning of a segment file says about it.
type condition int

const (
	sound   condition = iota
	unborn            // the file was being made: it has no header and never had a record
	ruined            // both headers are damaged
	newer             // of a later format
	foreign           // not a segment at all
)

// readHeader reads a segment's header, in either copy. v is the version that a
// newer file has.
func readHeader(f io.ReaderAt, size int64) (h header, c condition, v uint32, err error) {
	b := make([]byte, recordsAt)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return h, 0, 0, err
	}
	first, second := b[:headerBytes], b[copyAt:][:headerBytes]
	ours := string(first[:8]) == magic || string(second[:8]) == magic
	if size < recordsAt {
		if ours || isZero(b) {
			return h, unborn, 0, nil
		}
		return h, foreign, 0, nil
	}
	for _, c := range [][]byte{first, second} {
		if h, ok := parseHeader(c); ok {
			return h, sound, 0, nil
		}
	}
	v = binary.LittleEndian.Uint32(first[8:])
	switch {
	case string(first[:8]) == magic && string(second[:8]) == magic && v > version && v == binary.LittleEndian.Uint32(second[8:]):
		return h, newer, v, nil
	case !ours && !isZero(first) && !isZero(second):
		return h, foreign, 0, nil
	}
	// The header is synced before there is a record, so one that is not whole may
	// mean that there was none.
	empty, err := (&reader{file: f, size: size}).blank(recordsAt, size)
	if empty {
		return h, unborn, 0, err
	}
	return h, ruined, 0, err
}

func parseHeader(b []byte) (h header, ok bool) {
	if string(b[:8]) != magic || crc32.Checksum(b[:44], castagnoli) != binary.LittleEndian.Uint32(b[44:]) ||
		binary.LittleEndian.Uint32(b[8:]) != version {
		return h, false
	}
	return header{
		number:  binary.LittleEndian.Uint32(b[12:]),
		salt:    binary.LittleEndian.Uint64(b[16:]),
		lastSeq: binary.LittleEndian.Uint64(b[24:]),
	}, true
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// refuse is what a person is told of a file that the store must not touch.
func refuse(path string, c condition, v uint32) error {
	if c == newer {
		return fault.New(fault.Config, "the broker's store %s has format %d, this fleet reads %d", filepath.Dir(path), v, version).
			WithHint("use the fleet that wrote it, or a newer one")
	}
	return fault.New(fault.Config, "%s is not a part of a broker's store", path).
		WithHint("move it away, or give the broker a directory of its own")
}
