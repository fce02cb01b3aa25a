package store

import (
	"errors"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"fleet/pkg/fault"
)

// Body is a message that somebody is about to read. It stays readable until
// Release, though the message may have been removed or moved meanwhile.
type Body struct {
	store   *Store
	segment *segment // nil: there is no such record
	ref     Ref
	done    bool // store.mu
}

// Load prepares to read a message, and does not read it: the broker's goroutine
// calls it, and the goroutine that writes to the consumer reads. The caller calls
// Release.
func (s *Store) Load(ref Ref) *Body {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.byNumber[ref.Segment]
	if g != nil {
		g.pins++
	}
	return &Body{store: s, segment: g, ref: ref}
}

// Release lets go of the message. It may be called more than once.
func (b *Body) Release() {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.done || b.segment == nil {
		return
	}
	b.done = true
	b.segment.pins--
	s.shut(b.segment)
}

func (b *Body) released() bool {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return b.done
}

// Read reads the message, from memory if it is not written yet, else from the
// disk. The slices are the caller's. It fails with fault.Failed when the record
// is damaged or can't be read, or after Release.
func (b *Body) Read() (Message, error) {
	s, g, off := b.store, b.segment, int64(b.ref.Offset)
	if g == nil || b.released() {
		return Message{}, &damage{fault.New(fault.Failed, "the broker's store %s has no message at %d of segment %d", s.o.Dir, off, b.ref.Segment).
			WithHint("the message is lost; the others are not")}
	}
	raw, h, err := s.raw(g, off, int64(b.ref.Length))
	if err != nil {
		return Message{}, err
	}
	if len(raw) == 0 || h.kind != message && h.kind != moved {
		return Message{}, b.damaged()
	}
	m, err := parseMessage(raw)
	if err != nil {
		return Message{}, b.damaged()
	}
	return m, nil
}

func (b *Body) damaged() error {
	return &damage{fault.New(fault.Failed, "the message at %d of %s is damaged", b.ref.Offset, b.segment.path).
		WithHint("the message is lost; the others are not. Look after the disk")}
}

// damage is the fault of a message that will never be readable again.
type damage struct{ *fault.Fault }

func (d *damage) Unwrap() error { return d.Fault }

// Damaged says whether err, of Body.Read or Move, means that the message is lost;
// other errors may pass.
func Damaged(err error) bool {
	var d *damage
	return errors.As(err, &d)
}

// raw returns the payload of the record at off, and nil if it is damaged. The
// record is likely to have so many bytes.
func (s *Store) raw(g *segment, off, likely int64) (payload []byte, h recordHead, err error) {
	s.mu.Lock()
	if s.closed {
		defer s.mu.Unlock()
		return nil, h, s.isClosed()
	}
	held := s.pending.find(g, off)
	if held == nil {
		held = s.flight.find(g, off)
	}
	if held != nil {
		if h, ok := parseHead(held, g.salt, uint32(off)); ok {
			payload = slices.Clone(held[recordHeader:][:h.length])
			s.mu.Unlock()
			return payload, h, nil
		}
	}
	s.mu.Unlock()
	if held != nil {
		return nil, h, nil
	}
	f, err := s.acquire(g)
	if err != nil {
		return nil, h, s.unreadable(g, err)
	}
	defer s.leave(g)
	payload, h, err = readRecord(f, g.salt, off, likely)
	if err != nil {
		return nil, h, s.unreadable(g, err)
	}
	return payload, h, nil
}

func (s *Store) unreadable(g *segment, err error) error {
	return fault.New(fault.Failed, "can't read %s: %s", g.path, reason(err)).WithHint("look after the disk")
}

// readRecord reads one record, in one read if it has no more than likely bytes.
// The payload is nil if it is damaged.
func readRecord(f io.ReaderAt, salt uint64, off, likely int64) (payload []byte, h recordHead, err error) {
	b := make([]byte, max(likely, 64))
	n, err := f.ReadAt(b, off)
	if err != nil && err != io.EOF {
		return nil, h, err
	}
	if n < recordHeader {
		return nil, h, nil
	}
	h, ok := parseHead(b, salt, uint32(off))
	if !ok {
		return nil, h, nil
	}
	end := recordHeader + int(h.length)
	if end > n {
		b = append(b[:n], make([]byte, end-n)...)
		if got, err := f.ReadAt(b[n:], off+int64(n)); got < end-n {
			if err == io.EOF {
				err = nil
			}
			return nil, h, err
		}
	}
	payload = b[recordHeader:end:end]
	if crc32.Checksum(payload, castagnoli) != h.sum {
		return nil, h, nil
	}
	return payload, h, nil
}

// openMost bounds the segments whose file is open without being used.
const openMost = 64

// acquire returns the segment's file, open until leave.
func (s *Store) acquire(g *segment) (*os.File, error) {
	s.mu.Lock()
	if g.file == nil {
		s.mu.Unlock()
		f, err := os.Open(g.path)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		switch {
		case s.ended:
			defer s.mu.Unlock()
			_ = f.Close()
			return nil, os.ErrClosed
		case g.file == nil:
			s.opened(g, f)
		default:
			defer f.Close() // somebody was faster
		}
	}
	defer s.mu.Unlock()
	g.users++
	if i := slices.Index(s.open, g); i >= 0 { // last used, last closed
		s.open = append(slices.Delete(s.open, i, i+1), g)
	}
	return g.file, nil
}

// enter is acquire for a file that the flusher has opened to write.
func (s *Store) enter(g *segment, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened(g, f)
	g.users++
}

// opened notes an open file, and closes another that nobody uses if there are
// many; mu is held.
func (s *Store) opened(g *segment, f *os.File) {
	g.file = f
	s.open = append(s.open, g)
	for i := 0; len(s.open) > openMost && i < len(s.open)-1; {
		if o := s.open[i]; o.users > 0 || o.gone {
			i++
			continue
		}
		_ = s.open[i].file.Close()
		s.open[i].file = nil
		s.open = slices.Delete(s.open, i, i+1)
	}
}

// leave ends an acquire.
func (s *Store) leave(g *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.users--
	s.shut(g)
}

// shut closes the file of a deleted segment that nobody needs; mu is held.
func (s *Store) shut(g *segment) {
	if !g.gone || g.pins > 0 || g.users > 0 || g.file == nil {
		return
	}
	_ = g.file.Close()
	g.file = nil
	if i := slices.Index(s.open, g); i >= 0 {
		s.open = slices.Delete(s.open, i, i+1)
	}
}
