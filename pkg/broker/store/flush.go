package store

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// writer is the segment that the flusher writes to. Only the flusher knows it.
type writer struct {
	*segment
	end      int64    // offset after what was written
	position Position // after what was written
	dirty    bool     // something is not synced
}

// run is the flusher. It ends when Close closes wake, or earlier if the disk
// fails; in any case it has told Failed before.
func (s *Store) run() {
	defer close(s.done)
	for range s.wake {
		for s.flush() {
		}
		if s.tell() {
			return
		}
	}
	s.farewell()
}

// tell tells Failed when the store has failed, and says whether it has.
func (s *Store) tell() bool {
	s.mu.Lock()
	err := s.failed
	s.answer()
	s.mu.Unlock()
	if err == nil {
		return false
	}
	s.o.Log.Error("the broker's store has failed", "dir", s.o.Dir, "err", err)
	s.o.Failed(err)
	return true
}

// farewell writes what is pending after Close, and a last mark, so that damage to
// a log that was closed is never taken for its end.
func (s *Store) farewell() {
	s.mu.Lock()
	s.syncTo = s.appended
	s.mu.Unlock()
	for s.flush() {
	}
	s.mu.Lock()
	if g := s.active; g != nil && s.failed == nil && g.durable > g.marked && g.used+recordSize(8) <= g.limit {
		s.begin(g)
		s.syncTo = s.appended
	}
	s.mu.Unlock()
	for s.flush() {
	}
	s.tell()
}

// flush writes what is pending, syncs if somebody waits for it, and deletes
// segments that are superfluous then. It returns false when there was nothing to
// do, or the store has failed.
func (s *Store) flush() bool {
	s.mu.Lock()
	b := s.pending
	if s.failed != nil || len(b.parts) == 0 && s.syncTo <= s.durable && !s.overdue() {
		s.mu.Unlock()
		return false
	}
	s.flight, s.pending = b, s.spare
	s.spare = nil
	s.mu.Unlock()

	err := s.write(b)
	s.mu.Lock()
	if err == nil {
		s.flight = nil
		if len(b.parts) > 0 {
			s.written = b.from + Position(len(b.buf))
		}
		s.spare = b.recycle()
	}
	sync := s.syncTo > s.durable
	s.mu.Unlock()
	if err == nil && sync {
		err = s.sync()
	}
	if err == nil {
		err = s.bury()
	}
	if err != nil {
		s.mu.Lock()
		s.failed = s.failure(err)
		s.mu.Unlock()
	}
	return err == nil
}

// recycle empties the batch to be used again.
func (b *batch) recycle() *batch {
	if cap(b.buf) > spareMost {
		b.buf = nil
	}
	clear(b.parts)
	b.buf, b.parts = b.buf[:0], b.parts[:0]
	return b
}

// write brings a batch to the files, one write for each segment.
func (s *Store) write(b *batch) error {
	for i, p := range b.parts {
		if s.at == nil || s.at.segment != p.segment {
			if err := s.advance(p.segment); err != nil {
				return err
			}
		}
		w, data := s.at, b.buf[p.from:b.end(i)]
		if _, err := w.file.WriteAt(data, p.at); err != nil {
			return err
		}
		w.end, w.position, w.dirty = p.at+int64(len(data)), b.from+Position(b.end(i)), true
		s.mu.Lock()
		s.writes++
		s.mu.Unlock()
	}
	return nil
}

// advance goes on to the next segment. The one before is synced first, so that
// everything in a segment which is not the last is durable.
func (s *Store) advance(g *segment) error {
	if w := s.at; w != nil {
		// What was preallocated and not used. Where this fails, it is zeros at the end.
		_ = w.file.Truncate(w.end)
		if err := s.sync(); err != nil {
			return err
		}
		s.at = nil
		s.leave(w.segment)
	}
	f, err := os.OpenFile(g.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	s.enter(g, f)
	size := s.prepare(f, 0, g.limit)
	if _, err := f.WriteAt(g.image(), 0); err != nil {
		return err
	}
	// Before there is a record: a segment without a good header then never had one.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := s.dir.Sync(); err != nil {
		return err
	}
	s.mu.Lock()
	position := s.durable
	if s.active == g {
		s.preallocated = size
	}
	s.mu.Unlock()
	s.at = &writer{segment: g, end: recordsAt, position: position}
	return nil
}

// prepare preallocates a segment from its present size, and returns the size that
// it has then. Where there is no room for a whole one, there may be for what will
// be written.
func (s *Store) prepare(f *os.File, from, to int64) int64 {
	err := preallocate(f, to)
	if err == nil {
		return to
	}
	s.o.Log.Debug("can't preallocate a segment of the broker's store", "file", f.Name(), "bytes", to, "err", err)
	_ = f.Truncate(from) // gives back what it has got of it; it is no harm if that fails too
	return from
}

// sync makes durable what was written.
func (s *Store) sync() error {
	w := s.at
	if w == nil {
		return nil
	}
	if w.dirty {
		began := time.Now()
		if err := datasync(w.file); err != nil {
			return err
		}
		w.dirty = false
		s.mu.Lock()
		s.fsyncs++
		s.lastFsync = time.Since(began)
		s.mu.Unlock()
	}
	s.mu.Lock()
	w.segment.durable = w.end
	more := w.position > s.durable
	s.durable = max(s.durable, w.position)
	s.answer()
	s.mu.Unlock()
	if more {
		s.o.Durable(w.position)
	}
	return nil
}

// overdue says whether there are segments to delete; mu is held. One that is still
// written to waits for its successor, which keeps the last seq.
func (s *Store) overdue() bool {
	return len(s.dying) > 0 && s.dying[0].upTo <= s.durable && s.at != nil && s.at.number > s.dying[0].number
}

// bury deletes the segments that nothing needs any more, one after another: were
// a later one gone and an earlier one there again after a power cut, deleted
// definitions would be back.
func (s *Store) bury() error {
	for {
		s.mu.Lock()
		if !s.overdue() {
			s.mu.Unlock()
			return nil
		}
		g := s.dying[0].segment
		pinned := g.pins > 0
		s.mu.Unlock()
		if pinned { // those who have a body can still read it
			if _, err := s.acquire(g); err != nil {
				return err
			}
		}
		if err := os.Remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.dir.Sync(); err != nil {
			return err
		}
		s.mu.Lock()
		g.gone = true
		s.dying = append(s.dying[:0], s.dying[1:]...)
		s.dyingBytes -= g.used
		if pinned {
			g.users--
		}
		s.shut(g)
		s.mu.Unlock()
	}
}
