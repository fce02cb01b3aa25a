package store

import (
	"fmt"
	"os"
	"path/filepath"
)

// segment is one file of the log. Store.mu guards it, but for what is set once.
type segment struct {
	header
	path  string
	limit int64 // no record ends beyond it

	used    int64 // offset of the next record
	durable int64 // everything before it is
	marked  int64 // and before it, as the last mark says

	places, bytes int64 // alive: places, and their share of the records' bytes
	defs          int   // definitions whose newest version lies here

	// Reading. The file is open while somebody reads, while it is written, and when
	// it is deleted but pinned; else it may be closed for another one's sake.
	file  *os.File
	users int // reads that go on, and the writer
	pins  int // bodies
	gone  bool
}

func fileName(number uint32) string { return fmt.Sprintf("%08d.log", number) }

func (s *Store) newSegment(h header, limit int64) *segment {
	return &segment{header: h, path: filepath.Join(s.o.Dir, fileName(h.number)), limit: limit, used: recordsAt, marked: recordsAt}
}

// adopt puts a segment at the end of the log; mu is held.
func (s *Store) adopt(g *segment) {
	s.segments = append(s.segments, g)
	s.byNumber[g.number] = g
	s.next = g.number + 1
	s.logBytes += g.used
}

// grave is a segment that nothing needs once the log is durable up to a position.
type grave struct {
	*segment
	upTo Position
}

// settle takes the oldest segments out of the log as far as nothing in them is
// alive; mu is held. The flusher deletes them when everything that made them
// superfluous (tombstones, copies, newer definitions) is durable.
func (s *Store) settle() {
	n := 0
	for n < len(s.segments) {
		g := s.segments[n]
		if g == s.active || g.places > 0 || g.defs > 0 {
			break
		}
		s.dying = append(s.dying, grave{g, s.appended})
		delete(s.byNumber, g.number)
		s.logBytes -= g.used
		s.dyingBytes += g.used
		n++
	}
	if n > 0 {
		s.segments = append(s.segments[:0], s.segments[n:]...)
		s.askSync()
	}
}

// garbage says how much of the log may be dead: it may grow to factor times what
// is alive, and slack bytes.
type garbage struct{ factor, slack int64 }

// Oldest says whether the log holds much more than what is alive, so that the
// oldest segment is to be cleaned: the caller then calls Move for each message
// whose Ref lies in it, whereupon it dies. Definitions move by themselves.
//
// Since the segment is the oldest and half of the log is dead, cleaning writes
// no more than it frees, seen over the whole log.
func (s *Store) Oldest() (segment uint32, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.failed == nil && !s.closed && len(s.segments) > 0 && s.logBytes > s.o.garbage.factor*s.liveBytes+s.o.garbage.slack {
		g := s.segments[0]
		if g == s.active {
			break
		}
		if g.defs > 0 {
			for key, d := range s.defs {
				if d.segment == g {
					s.define(key, d.value)
				}
			}
		}
		if g.places > 0 {
			return g.number, true
		}
		s.settle()
	}
	return 0, false
}

// Move copies a message to the end of the log under its old seq, with the places
// that it still lies in, all of them. The old Ref is of no use afterwards, except
// for bodies that are loaded already. It reads the record from the disk.
//
// It fails when the record can't be read; nothing has changed then, and all that
// is left to do with the message is to remove it.
func (s *Store) Move(seq uint64, ref Ref, places []Place) (Ref, error) {
	b := s.Load(ref)
	m, err := b.Read()
	b.Release()
	if err != nil {
		return Ref{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuses(); err != nil {
		return Ref{}, err
	}
	moved := s.message(moved, seq, &m, places)
	for range places {
		s.release(ref)
	}
	s.settle()
	return moved, nil
}
