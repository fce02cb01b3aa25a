package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

const (
	// readAhead is the size in bytes that a Reader's buffer starts with: many
	// small frames for one call of the system.
	readAhead = 32 << 10
	// maxEmptyReads is how often in a row a reader may return nothing.
	maxEmptyReads = 100
)

// Frame is one frame. Payload is valid until the next call of Next.
type Frame struct {
	Type    byte
	Channel uint16
	Payload []byte
}

// Reader takes a stream of bytes apart into frames. It is for one goroutine.
//
// An error of the underlying reader loses nothing that was read before it, so
// that one that passes (a deadline) can be followed by another call.
type Reader struct {
	from       io.Reader
	max        uint64 // frame-max, in bytes with the frame's head and end
	buf        []byte // its length is its size; it grows to one frame at most
	start, end int    // of what was read and not yet returned
	err        error  // of from, which came together with data
}

// NewReader makes a Reader that reads ahead. Until SetMax it takes frames of at
// most FrameMin bytes.
func NewReader(r io.Reader) *Reader {
	return &Reader{from: r, max: FrameMin, buf: make([]byte, readAhead)}
}

// SetMax sets frame-max, in bytes with the eight around the payload. A smaller
// value than FrameMin, 0 included, means FrameMin: no Reader is without a bound.
func (r *Reader) SetMax(bytes uint32) {
	r.max = uint64(min(max(bytes, FrameMin), math.MaxInt32)) // an int, whatever its size
}

// Buffered is how many bytes can be read without blocking.
func (r *Reader) Buffered() int { return r.end - r.start }

// Protocol blocks for the eight bytes with which a client opens a connection and
// returns them as they came, for the caller to judge. Its error is io.EOF if not
// one byte came, io.ErrUnexpectedEOF if too few did.
func (r *Reader) Protocol() ([8]byte, error) {
	if err := r.fill(8); err != nil {
		return [8]byte{}, err
	}
	r.start += 8
	return [8]byte(r.buf[r.start-8:]), nil
}

// Next blocks for the next frame. A frame that is too large, of an unknown type,
// without its end, or a heartbeat that says something, is an *Error with code
// 501, found as soon as it can be; no later call gets past it. Other errors are
// the underlying reader's: io.EOF between two frames, io.ErrUnexpectedEOF inside
// one.
func (r *Reader) Next() (Frame, error) {
	if err := r.fill(frameHead); err != nil {
		return Frame{}, err
	}
	size, wrong := r.head()
	if wrong != nil {
		return Frame{}, wrong
	}
	if err := r.fill(size); err != nil {
		return Frame{}, err
	}
	whole := r.buf[r.start : r.start+size]
	if end := whole[len(whole)-1]; end != FrameEnd {
		return Frame{}, &Error{Code: frameError, Text: fmt.Sprintf("frame ends with byte %d", end)}
	}
	r.start += len(whole)
	payload := whole[frameHead : len(whole)-1 : len(whole)-1]
	return Frame{Type: whole[0], Channel: binary.BigEndian.Uint16(whole[1:]), Payload: payload}, nil
}

// Ready says whether Next would return at once: a whole frame is buffered, or
// enough of a bad one.
func (r *Reader) Ready() bool {
	if r.Buffered() < frameHead {
		return false
	}
	size, wrong := r.head()
	return wrong != nil || r.Buffered() >= size
}

// head is the size in bytes of the frame whose head is buffered, or what is wrong
// with it.
func (r *Reader) head() (int, *Error) {
	head := r.buf[r.start:]
	kind, size := head[0], uint64(binary.BigEndian.Uint32(head[3:]))+frameOver
	switch {
	case kind != FrameMethod && kind != FrameHeader && kind != FrameBody && kind != FrameHeartbeat:
		return 0, &Error{Code: frameError, Text: fmt.Sprintf("unknown frame type %d", kind)}
	case size > r.max:
		return 0, &Error{Code: frameError, Text: fmt.Sprintf("frame of %d bytes, at most %d are allowed", size, r.max)}
	case kind == FrameHeartbeat && size > frameOver:
		return 0, &Error{Code: frameError, Text: "heartbeat with a payload"}
	}
	return int(size), nil
}

// fill reads until n bytes are buffered in one piece.
func (r *Reader) fill(n int) error {
	if r.start == r.end {
		r.start, r.end = 0, 0
	}
	for empty := 0; r.end-r.start < n; {
		if err := r.err; err != nil {
			r.err = nil
			if err == io.EOF && r.end > r.start {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		r.room(n)
		var got int
		got, r.err = r.from.Read(r.buf[r.end:])
		r.end += got
		if got > 0 {
			empty = 0
		} else if empty++; empty > maxEmptyReads && r.err == nil {
			return io.ErrNoProgress
		}
	}
	return nil
}

// room makes place for at least one byte more on the way to n. The buffer only
// doubles, and only when it is full of what has arrived: a length by itself gets
// no memory.
func (r *Reader) room(n int) {
	if r.start > 0 && r.start+n > len(r.buf) {
		copy(r.buf, r.buf[r.start:r.end])
		r.start, r.end = 0, r.end-r.start
	}
	if r.end == len(r.buf) {
		r.buf = append(r.buf, make([]byte, min(n, 2*len(r.buf))-len(r.buf))...)
	}
}
