package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// reader reads the records of one segment, front to back, through one buffer
// that it reuses from segment to segment.
type reader struct {
	file io.ReaderAt
	size int64 // of the file
	salt uint64

	buf  []byte
	from int64 // offset of what buf holds
	n    int   // bytes of it
}

// windowBytes is how much is read at once.
const windowBytes = 1 << 20

// bytes returns n bytes at off, which must lie in the file. They are valid until
// the next call.
func (r *reader) bytes(off int64, n int) ([]byte, error) {
	if off >= r.from && off+int64(n) <= r.from+int64(r.n) {
		return r.buf[off-r.from:][:n], nil
	}
	if len(r.buf) < n {
		r.buf = make([]byte, max(n, windowBytes))
	}
	r.from, r.n = off, 0
	got, err := r.file.ReadAt(r.buf[:min(int64(len(r.buf)), r.size-off)], off)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if r.n = got; got < n {
		return nil, io.ErrUnexpectedEOF
	}
	return r.buf[:n], nil
}

// head reads the header of a record at off; ok is false if there is none whose
// record fits into the file.
func (r *reader) head(off int64) (h recordHead, ok bool, err error) {
	if off+recordHeader > r.size {
		return h, false, nil
	}
	b, err := r.bytes(off, recordHeader)
	if err != nil {
		return h, false, err
	}
	h, ok = parseHead(b, r.salt, uint32(off))
	return h, ok && off+recordHeader+int64(h.length) <= r.size, nil
}

// intact says whether the payload of the record at off is as it was written. A
// large one is not brought into memory as a whole.
func (r *reader) intact(off int64, h recordHead) (bool, error) {
	sum := uint32(0)
	for at, end := off+recordHeader, off+recordHeader+int64(h.length); at < end; {
		n := min(end-at, windowBytes)
		b, err := r.bytes(at, int(n))
		if err != nil {
			return false, err
		}
		sum = crc32.Update(sum, castagnoli, b)
		at += n
	}
	return sum == h.sum, nil
}

// record finds out whether an intact record begins at off.
func (r *reader) record(off int64) (h recordHead, ok bool, err error) {
	if h, ok, err = r.head(off); err != nil || !ok {
		return h, false, err
	}
	ok, err = r.intact(off, h)
	return h, ok, err
}

// blank says whether there is nothing but zeros from off to end.
func (r *reader) blank(off, end int64) (bool, error) {
	for off < end {
		n := min(end-off, windowBytes)
		b, err := r.bytes(off, int(n))
		if err != nil || !isZero(b) {
			return false, err
		}
		off += n
	}
	return true, nil
}

// walk calls visit for each intact record, and lost for each place where there
// was one; it returns the offset where the log ends in this segment.
//
// In a segment that is followed by another one (sealed) everything was durable,
// so whatever is not a record is damage and stepped over. In the last one it may
// also be what a crash has left of the writes after the last fsync; the log then
// ends there, and what follows must not count though it may look whole. Marks
// tell the two apart: each batch of records begins with one that says up to where
// the segment was durable when it was made. Before the highest mark it is damage,
// after it the end.
func (r *reader) walk(sealed bool, visit func(off int64, h recordHead) error, lost func(off, end int64)) (end int64, err error) {
	off, certain, searched := int64(recordsAt), r.size, false
	if !sealed {
		certain = 0
	}
	for off+recordHeader <= r.size {
		h, ok, err := r.record(off)
		if err != nil {
			return 0, err
		}
		if ok {
			if err := visit(off, h); err != nil {
				return 0, fmt.Errorf("record at %d: %w", off, err)
			}
			off += h.size()
			continue
		}
		if blank, err := r.blank(off, r.size); err != nil || blank {
			return off, err
		}
		if off >= certain && !searched {
			searched = true
			if certain, err = r.lastMark(off); err != nil {
				return 0, err
			}
		}
		if off >= certain {
			return off, nil
		}
		next, err := r.resume(off, certain)
		if err != nil {
			return 0, err
		}
		lost(off, next)
		off = next
	}
	return off, nil // beyond the file's end when that cut off the padding
}

// resume finds the next record after damage at off, but not after end.
func (r *reader) resume(off, end int64) (int64, error) {
	if h, ok, err := r.head(off); err != nil || ok {
		return min(off+h.size(), end), err
	}
	for off += 8; off+recordHeader <= end; off += 8 {
		if _, ok, err := r.head(off); err != nil || ok {
			return off, err
		}
	}
	return end, nil
}

// lastMark returns the highest offset that a mark after off calls durable, or 0.
func (r *reader) lastMark(off int64) (certain int64, err error) {
	for ; off+recordHeader+8 <= r.size; off += 8 {
		h, ok, err := r.head(off)
		if err != nil {
			return 0, err
		}
		if !ok || h.kind != mark || h.length != 8 {
			continue
		}
		b, err := r.bytes(off+recordHeader, 8)
		if err != nil {
			return 0, err
		}
		if crc32.Checksum(b, castagnoli) == h.sum {
			certain = max(certain, min(int64(binary.LittleEndian.Uint64(b)), off))
		}
	}
	return certain, nil
}
