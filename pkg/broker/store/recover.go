package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"fleet/pkg/fault"
)

// recovery reads the log.
type recovery struct {
	*Store
	reader
	queues  map[uint64]*contents
	places  []Place // to be reused
	damaged int
	marked  int64 // up to where the segment was durable, as its last mark says
}

// found is a segment file, opened to be read.
type found struct {
	header
	condition
	path string
	file *os.File
	size int64
}

// read reads the log and brings the store to where it stood. The flusher does not
// run yet.
func (s *Store) read() (*Recovered, error) {
	began := time.Now()
	r := &recovery{Store: s, queues: make(map[uint64]*contents)}
	err := r.log()
	if err != nil {
		var f *fault.Fault
		if errors.As(err, &f) {
			return nil, err
		}
		return nil, fault.New(fault.Failed, "can't read the broker's store %s: %s", s.o.Dir, err).WithHint("look after the disk")
	}
	result := r.result()
	result.Elapsed = time.Since(began)
	s.o.Log.Info("the broker's store is open", "dir", s.o.Dir, "messages", result.Messages, "bytes", result.Bytes,
		"segments", result.Segments, "damaged", result.Damaged, "elapsed_seconds", result.Elapsed.Seconds())
	return result, nil
}

// log reads all segments. First it looks at what they are: where one is not the
// store's to read, none is touched.
func (r *recovery) log() error {
	numbers, err := r.numbers()
	if err != nil {
		return err
	}
	for _, n := range numbers {
		f, err := r.look(n)
		if err != nil {
			return err
		}
		_ = f.file.Close() // only read
	}
	for i, n := range numbers {
		f, err := r.look(n)
		if err != nil {
			return err
		}
		if i > 0 && numbers[i-1]+1 != n {
			r.lost(f.path, "segments before this one are missing", 0, 0)
		}
		err = r.segment(f, i == len(numbers)-1)
		if r.active == nil || r.active.file != f.file {
			_ = f.file.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(f.path), err)
		}
	}
	return nil
}

// look opens a segment file and reads its header.
func (r *recovery) look(number uint32) (found, error) {
	path := filepath.Join(r.o.Dir, fileName(number))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return found{}, err
	}
	f, v, err := identify(path, file)
	if err == nil && (f.condition == newer || f.condition == foreign || f.condition == sound && f.number != number) {
		err = refuse(path, f.condition, v)
	}
	if err != nil {
		_ = file.Close()
		return found{}, err
	}
	f.number = number
	return f, nil
}

func identify(path string, file *os.File) (f found, v uint32, err error) {
	info, err := file.Stat()
	if err != nil {
		return f, 0, err
	}
	f = found{path: path, file: file, size: info.Size(), condition: foreign}
	if info.Mode().IsRegular() && info.Size() <= math.MaxUint32 {
		f.header, f.condition, v, err = readHeader(file, info.Size())
	}
	return f, v, err
}

// lost logs a damaged place.
func (r *recovery) lost(path, how string, from, to int64) {
	r.damaged++
	r.o.Log.Error("the broker's store is damaged: "+how, "file", path, "from", from, "to", to)
}

// segment reads one segment. The last one is continued.
func (r *recovery) segment(f found, last bool) error {
	switch {
	case f.condition == unborn && last:
		// A power cut leaves one so, and so does whoever cuts a file that held
		// messages; nobody can tell them apart, so it is said aloud.
		r.o.Log.Warn("removed a segment with nothing in it: it was not yet in use, or somebody has cut it", "file", f.path, "bytes", f.size)
		r.next = f.number // nothing has ever named it
		return errors.Join(os.Remove(f.path), r.dir.Sync())
	case f.condition != sound:
		// Put aside: it may be worth something to somebody, but not to the log.
		r.lost(f.path, "a segment has no header any more", 0, f.size)
		r.next = f.number + 1
		return errors.Join(os.Rename(f.path, f.path+".damaged"), r.dir.Sync())
	}
	g := r.newSegment(f.header, max(r.o.SegmentBytes, f.size))
	r.reader = reader{file: f.file, size: f.size, salt: f.salt, buf: r.buf}
	r.lastSeq = max(r.lastSeq, f.lastSeq)
	r.adopt(g)
	r.marked = recordsAt
	end, err := r.walk(!last,
		func(off int64, h recordHead) error { return r.apply(g, off, h) },
		func(from, to int64) { r.lost(f.path, "records are lost", from, to) })
	if err != nil {
		return err
	}
	r.logBytes += end - g.used
	g.used = end
	if !last {
		return nil
	}
	return r.resumeAt(g, f.file, f.size)
}

// resumeAt makes the last segment ready to be continued where the log ends. What
// a crash left behind that place is made zeros, or a later recovery could take it
// for records that follow on new ones.
func (r *recovery) resumeAt(g *segment, f *os.File, size int64) error {
	clean, err := r.blank(g.used, size)
	if err != nil {
		return err
	}
	if !clean {
		r.o.Log.Info("cut off what was not durable at the end of the log", "file", g.path, "from", g.used, "bytes", size-g.used)
		if err := f.Truncate(g.used); err != nil {
			return err
		}
		size = g.used
	}
	if size < g.limit {
		size = r.prepare(f, size, g.limit)
	}
	// What was read may be in the system's cache alone, and from now on it counts.
	if err := r.rewrite(g, f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	r.enter(g, f)
	r.active = g
	r.preallocated = size
	g.durable, g.marked = g.used, recordsAt
	r.at = &writer{segment: g, end: g.used}
	return nil
}

// rewrite writes what may not be durable again. An fsync alone is not enough:
// after one that failed the system takes what it could not write for written.
func (r *recovery) rewrite(g *segment, f *os.File) error {
	for off := min(max(r.marked, recordsAt), g.used); off < min(g.used, r.size); {
		n := min(g.used-off, r.size-off, windowBytes)
		b, err := r.bytes(off, int(n))
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(b, off); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// apply does what a record says. A payload of another form is damage too, though
// its checksum is right.
func (r *recovery) apply(g *segment, off int64, h recordHead) error {
	n := int(h.length)
	var payload []byte
	var err error
	if h.kind == message || h.kind == moved {
		// The head is enough.
		if payload, err = r.bytes(off+recordHeader, min(4, n)); err != nil {
			return err
		}
		if n, err = headBytes(payload, h.length); err != nil {
			r.lost(g.path, err.Error(), off, off+h.size())
			return nil
		}
	}
	if payload, err = r.bytes(off+recordHeader, n); err != nil {
		return err
	}
	if h.kind == message || h.kind == moved {
		err = r.message(g, off, h, payload)
	} else {
		err = r.change(g, h, payload)
	}
	if err != nil {
		r.lost(g.path, err.Error(), off, off+h.size())
	}
	return nil
}

// message puts a message into its queues.
func (r *recovery) message(g *segment, off int64, h recordHead, head []byte) error {
	seq, places, _, err := parsePlaces(head, r.places[:0])
	if err != nil {
		return err
	}
	r.places = places
	r.lastSeq = max(r.lastSeq, seq)
	it := Item{
		Seq: seq, BodyBytes: h.length - uint32(len(head)),
		Ref: Ref{g.number, uint32(off), share(h.size(), len(places))},
	}
	for _, p := range places {
		q := r.queues[p.Queue]
		if q == nil {
			q = new(contents)
			r.queues[p.Queue] = q
		}
		it.Expires = p.Expires
		q.put(it)
	}
	return nil
}

// change does what any other record says.
func (r *recovery) change(g *segment, h recordHead, payload []byte) error {
	f := &fields{rest: payload}
	switch h.kind {
	case mark:
		if len(payload) != 8 {
			return errPayload
		}
		r.marked = int64(binary.LittleEndian.Uint64(payload))
	case tombstone, drop:
		queue, seq := f.number(), f.number()
		if f.bad {
			return errPayload
		}
		r.lastSeq = max(r.lastSeq, seq)
		if q := r.queues[queue]; q != nil && h.kind == tombstone {
			q.remove(seq)
		} else if q != nil {
			q.drop(seq)
		}
	case put:
		key := string(f.bytes())
		if f.bad {
			return errPayload
		}
		r.undefine(key)
		r.defined(key, definition{append([]byte(nil), f.rest...), g, h.size()})
	case remove:
		r.undefine(string(payload))
	}
	return nil
}

// result counts what is alive and hands it over.
func (r *recovery) result() *Recovered {
	all := &Recovered{
		Definitions: make(map[string][]byte, len(r.defs)), Queues: make(map[uint64][]Item, len(r.queues)),
		LastSeq: r.lastSeq, Segments: len(r.segments), Damaged: r.damaged,
	}
	for key, d := range r.defs {
		all.Definitions[key] = append([]byte(nil), d.value...)
	}
	for id, q := range r.queues {
		items := q.items()
		delete(r.queues, id)
		if len(items) == 0 {
			continue
		}
		all.Queues[id] = items
		for _, it := range items {
			g := r.byNumber[it.Ref.Segment]
			g.places++
			g.bytes += int64(it.Ref.Length)
			r.livePlaces++
			r.liveBytes += int64(it.Ref.Length)
			all.Messages++
			all.Bytes += int64(it.BodyBytes)
		}
	}
	return all
}
