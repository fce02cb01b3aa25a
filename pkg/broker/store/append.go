package store

import (
	"encoding/binary"

	"fleet/pkg/fault"
)

// batch is what was appended and is written together. The flusher takes it as a
// whole, and nobody changes it from then on.
type batch struct {
	buf   []byte
	parts []part
	from  Position // of buf's first byte
}

// part is a run of records in one segment.
type part struct {
	*segment
	at   int64 // offset in the segment
	from int   // offset in buf
}

// end is where the part i ends in buf.
func (b *batch) end(i int) int {
	if i+1 < len(b.parts) {
		return b.parts[i+1].from
	}
	return len(b.buf)
}

// find returns what the batch holds of a segment from off on, nil if nothing.
func (b *batch) find(g *segment, off int64) []byte {
	if b == nil {
		return nil
	}
	for i, p := range b.parts {
		length := int64(b.end(i) - p.from)
		if p.segment == g && off >= p.at && off < p.at+length {
			return b.buf[p.from+int(off-p.at) : b.end(i)]
		}
	}
	return nil
}

// spareMost is the capacity above which a batch is not kept to be reused: what
// one large message needed is no reason to hold on to it.
const spareMost = 4 << 20

// refuses says why nothing can be appended; mu is held.
func (s *Store) refuses() error {
	if s.failed != nil {
		return s.failed
	}
	if s.closed {
		return s.isClosed()
	}
	return nil
}

// add appends a record; mu is held. The payload comes in two pieces.
func (s *Store) add(k kind, head, body []byte) (g *segment, off int64) {
	need := recordSize(int64(len(head)) + int64(len(body)))
	if s.active == nil || s.active.used+recordSize(8)+need > s.active.limit && s.active.used > recordsAt {
		s.roll(need)
	}
	g = s.active
	s.begin(g)
	off = g.used
	s.put(g, k, head, body)
	return g, off
}

// begin makes the pending batch go on in segment g; mu is held. A batch's first
// record in a segment says how much of it is durable (see reader.walk).
func (s *Store) begin(g *segment) {
	b := s.pending
	if len(b.parts) == 0 {
		b.from = s.appended
	} else if b.parts[len(b.parts)-1].segment == g {
		return
	}
	b.parts = append(b.parts, part{g, g.used, len(b.buf)})
	if g.durable > g.marked {
		g.marked = g.durable
		s.put(g, mark, binary.LittleEndian.AppendUint64(nil, uint64(g.durable)), nil)
	}
}

// roll begins a segment that has room for a record of need bytes; mu is held.
// The flusher makes the file.
func (s *Store) roll(need int64) {
	h := header{number: s.next, salt: newSalt(), lastSeq: s.lastSeq}
	g := s.newSegment(h, max(s.o.SegmentBytes, recordsAt+need))
	s.adopt(g)
	s.active = g
	s.preallocated = 0
	s.settle() // what was active before may be empty already
}

// put encodes a record into the pending batch; mu is held.
func (s *Store) put(g *segment, k kind, head, body []byte) {
	b := s.pending
	before := len(b.buf)
	b.buf = appendRecord(b.buf, g.salt, uint32(g.used), k, head, body)
	size := int64(len(b.buf) - before)
	g.used += size
	s.logBytes += size
	s.appended += Position(size)
	s.signal()
}

// signal wakes the flusher; mu is held, since nobody may signal after Close.
func (s *Store) signal() {
	if s.closed {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// askSync asks that everything appended so far becomes durable soon.
func (s *Store) askSync() {
	s.syncTo = s.appended
	s.signal()
}

// Append puts one record into the log for all places, which share its bytes. seq
// is the caller's and ascends. It copies m, and never waits for the disk: the
// record is written soon. With sync it becomes durable soon, which Durable tells;
// else with the next that is synced. A message without a durable place is not
// there any more after a restart.
//
// A store that has failed or is closed drops the record: the Ref is then no
// record's, and the position never becomes durable. A message larger than
// MessageMost makes the store fail, rather than that it is lost unnoticed.
func (s *Store) Append(seq uint64, m Message, places []Place, sync bool) (Ref, Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses() != nil {
		return Ref{}, s.appended + 1
	}
	if int64(len(m.Exchange))+int64(len(m.Key))+int64(len(m.Properties))+int64(len(m.Body)) > MessageMost {
		s.failed = fault.New(fault.Failed, "a message is larger than the %d bytes that the broker's store takes", MessageMost).
			WithHint("set the broker's limit for messages lower")
		s.signal() // the flusher tells
		return Ref{}, s.appended + 1
	}
	ref := s.message(message, seq, &m, places)
	if sync {
		s.askSync()
	}
	return ref, s.appended
}

// message appends a message under seq and counts its places; mu is held.
func (s *Store) message(k kind, seq uint64, m *Message, places []Place) Ref {
	s.lastSeq = max(s.lastSeq, seq)
	s.scratch = appendHead(s.scratch[:0], seq, m, places)
	g, off := s.add(k, s.scratch, m.Body)
	if cap(s.scratch) > spareMost {
		s.scratch = nil
	}
	ref := Ref{g.number, uint32(off), share(g.used-off, len(places))}
	g.places += int64(len(places))
	s.livePlaces += int64(len(places))
	g.bytes += int64(len(places)) * int64(ref.Length)
	s.liveBytes += int64(len(places)) * int64(ref.Length)
	return ref
}

// share is one place's part of a record's bytes. That the parts of the places
// which are gone do not count, though the record is there as long as any is, errs
// to the good side: Move makes the last ones count in full.
func share(size int64, places int) uint32 {
	n := int64(max(places, 1))
	return uint32((size + n - 1) / n)
}

// release counts one place less; mu is held.
func (s *Store) release(ref Ref) {
	g := s.byNumber[ref.Segment]
	if g == nil || g.places == 0 {
		return
	}
	g.places--
	s.livePlaces--
	g.bytes -= int64(ref.Length)
	s.liveBytes -= int64(ref.Length)
}

// Remove says that one place of a message is done with: acknowledged, expired,
// purged. A durable one is written down, with no fsync of its own, so that a
// crash may bring it back.
func (s *Store) Remove(ref Ref, queue, seq uint64, durable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses() != nil {
		return
	}
	if durable {
		var b [20]byte
		s.add(tombstone, appendPair(b[:0], queue, seq), nil)
	}
	s.release(ref)
	s.settle()
}

// Forget is Remove for a place that Drop has removed, or will before the next
// crash matters: it writes nothing.
func (s *Store) Forget(ref Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(ref)
	s.settle()
}

// Drop removes every place of a queue, up to the last seq appended, in one
// record; it becomes durable with the next that is synced. The caller calls
// Forget for each place, after Drop. To keep some of the places (a purge keeps
// what is not yet acknowledged), the others are to be removed one by one.
func (s *Store) Drop(queue uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses() != nil {
		return
	}
	var b [20]byte
	s.add(drop, appendPair(b[:0], queue, s.lastSeq), nil)
}

// definition is the newest value of a key and where it lies. It is in memory so
// that it can be written again without reading.
type definition struct {
	value []byte
	*segment
	size int64 // of the record
}

// Put stores a definition, in place of the one that key had. It becomes durable
// soon.
func (s *Store) Put(key string, value []byte) Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses() != nil {
		return s.appended + 1
	}
	s.define(key, append([]byte(nil), value...))
	s.settle()
	s.askSync()
	return s.appended
}

// define appends a definition; mu is held.
func (s *Store) define(key string, value []byte) {
	head := append(binary.AppendUvarint(nil, uint64(len(key))), key...)
	g, off := s.add(put, head, value)
	s.undefine(key)
	s.defined(key, definition{value, g, g.used - off})
}

// defined notes a definition's newest version.
func (s *Store) defined(key string, d definition) {
	s.defs[key] = d
	d.segment.defs++
	d.segment.bytes += d.size
	s.liveBytes += d.size
}

// undefine forgets a definition; mu is held.
func (s *Store) undefine(key string) {
	d, ok := s.defs[key]
	if !ok {
		return
	}
	delete(s.defs, key)
	d.segment.defs--
	d.segment.bytes -= d.size
	s.liveBytes -= d.size
}

// Delete removes a definition. It becomes durable soon.
func (s *Store) Delete(key string) Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses() != nil {
		return s.appended + 1
	}
	if _, ok := s.defs[key]; ok {
		s.add(remove, []byte(key), nil)
		s.undefine(key)
		s.settle()
	}
	s.askSync()
	return s.appended
}
