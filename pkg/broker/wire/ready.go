package wire

import "encoding/binary"

// Ready says whether Next would return at once: a whole frame is buffered, or
// enough of a bad one.
func (r *Reader) Ready() bool {
	have := r.end - r.start
	if have < frameHead {
		return false
	}
	size := uint64(binary.BigEndian.Uint32(r.buf[r.start+3:])) + frameOver
	return size > r.max || uint64(have) >= size
}
