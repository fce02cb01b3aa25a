// Package store keeps a broker's messages and definitions on disk: one log that
// is only ever appended to, in checksummed segments, so that many publishers
// share an fsync and the bodies stay out of memory.
//
// It knows no exchange, no consumer and no AMQP: a queue is a number, a message
// is bytes, a definition is a value under a key. Nor does it remember where a
// message lies; that is the caller's, who hands the Ref back.
//
// What the log promises:
//   - What Durable has announced survives a power cut. Of what came after it, a
//     crash leaves what was appended first: never a later record without the
//     earlier ones.
//   - A removed message may come back after a crash (a tombstone asks for no
//     fsync of its own): at least once.
//   - A segment is deleted when it is the oldest and nothing in it is alive, and
//     only once everything that was appended before its death is durable. So a
//     tombstone outlives what it refers to.
//   - Damage costs the records it hits and no others. An incomplete end of the
//     log is not damage: it was never durable, and is cut off.
//
// The format is in header.go (a file) and record.go (what lies in it). Version 1
// is of 2026-12-01.
package store

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"fleet/pkg/fault"
)

// Options say where a store is and whom it tells. Durable and Failed may be nil.
type Options struct {
	Dir          string // made if it is missing
	SegmentBytes int64  // size of a segment file; 0: 16 MiB. A larger record gets a segment of its own size
	// Durable is called from the store's own goroutine each time more of the log
	// has become durable: everything appended with a position <= upTo is. It must
	// not block for long and must not call the store.
	Durable func(upTo Position)
	// Failed is called once, from the same goroutine, when a write or an fsync
	// failed. From then on nothing becomes durable any more and every append is
	// dropped: what the system's cache holds after a failed fsync nobody can know.
	Failed func(error)
	Log    *slog.Logger // nil: nothing is logged

	garbage garbage // zero: the usual bound
}

// Position counts the bytes appended since Open. It only grows.
type Position uint64

// Ref says where a message's record lies. Only the process that got it can use
// it: it changes with Move, and with every Open.
type Ref struct {
	Segment uint32 // number of the segment, 0 for no record
	Offset  uint32
	// Length is one place's share of the record's bytes: all of them when the
	// message lies in one queue.
	Length uint32
}

// Place is one queue that a message lies in.
type Place struct {
	Queue   uint64
	Expires int64 // unix milliseconds, 0 never
	Durable bool  // is there again after a restart
}

// Message is what the log holds of a message. Properties and Body are opaque.
type Message struct {
	Exchange, Key    string
	Properties, Body []byte
}

// MessageMost bounds the bytes of a Message, all four fields together.
const MessageMost = 1 << 30

// Item is a message in a queue as recovered.
type Item struct {
	Seq       uint64
	Expires   int64 // unix milliseconds, 0 never
	Ref       Ref
	BodyBytes uint32
}

// Recovered is what Open found. It is the caller's; the store keeps none of it.
type Recovered struct {
	Definitions map[string][]byte // what Put stored and Delete did not remove
	// Queues holds the durable places by queue id, ascending by Seq. Queues that
	// no definition names are for the broker to Drop.
	Queues  map[uint64][]Item
	LastSeq uint64 // no seq above it was ever durable

	Messages int64 // places: a message in two queues counts twice
	Bytes    int64 // of their bodies
	Segments int
	Damaged  int // places in the log where records were lost; the log line names them
	Elapsed  time.Duration
}

// Usage is what a store occupies, for limits and metrics.
type Usage struct {
	LogBytes    int64 // on disk, with what is preallocated
	LiveBytes   int64 // of the log, what is needed still
	LivePlaces  int64
	Definitions int
	Segments    int
	Writes      uint64 // since Open
	Fsyncs      uint64 // of segments, since Open
	LastFsync   time.Duration
}

// Store is an open store. Append, Remove, Forget, Drop, Put, Delete, Load, Oldest
// and Move are for one goroutine, the broker's, whose order is the log's order;
// everything else may be called from any. No method but Open, Move, Sync, Close
// and Body.Read waits for the disk.
type Store struct {
	o   Options
	dir *os.File // holds the lock, and syncs names

	wake chan struct{} // of one; closed by Close, which ends the flusher
	done chan struct{} // closed when the flusher has ended

	mu       sync.Mutex // guards all below, and the segments' fields that say so
	segments []*segment // ascending by number; the last may be active
	byNumber map[uint32]*segment
	active   *segment // takes the next record; nil: it begins a new segment
	next     uint32   // number of the next segment
	dying    []grave  // out of segments, for the flusher to delete
	defs     map[string]definition
	lastSeq  uint64

	pending  *batch // appended, not yet taken by the flusher
	flight   *batch // being written
	spare    *batch // to be reused
	appended Position
	written  Position
	durable  Position
	syncTo   Position // somebody waits for this to become durable
	waiters  []waiter
	failed   error // a fault; nothing is accepted any more
	closed   bool  // nothing is accepted any more, and the flusher is about to end
	ended    bool  // and has; no file is opened any more

	logBytes, liveBytes, livePlaces int64 // of segments, without the dying
	dyingBytes                      int64
	preallocated                    int64 // of the active segment's file
	writes, fsyncs                  uint64
	lastFsync                       time.Duration
	open                            []*segment // whose file is open, the longest unused first

	scratch []byte  // the broker's goroutine: head of the record being made
	at      *writer // the flusher's: what it writes to
}

// Open takes the directory for this process, reads the log and starts the
// flusher. It fails with fault.Refused when another process has the directory,
// and with fault.Config for files of a newer format or of somebody else. Damage
// in the log is no failure: it is logged and counted.
func Open(o Options) (*Store, *Recovered, error) {
	o.normalise()
	dir, err := hold(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	s := &Store{
		o: o, dir: dir,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		byNumber: make(map[uint32]*segment), defs: make(map[string]definition),
		pending: new(batch), spare: new(batch),
		next: 1,
	}
	found, err := s.read()
	if err != nil {
		s.closeFiles()
		return nil, nil, err
	}
	go s.run()
	s.mu.Lock()
	s.settle()
	s.mu.Unlock()
	return s, found, nil
}

func (o *Options) normalise() {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 16 << 20
	}
	o.SegmentBytes = min(max(o.SegmentBytes, 2*recordsAt), 1<<30)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Durable == nil {
		o.Durable = func(Position) {}
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.garbage == (garbage{}) {
		o.garbage = garbage{factor: 2, slack: 64 << 20}
	}
}

// Sync waits until everything appended so far is durable. It fails with ctx's
// error, or with what Failed was told.
func (s *Store) Sync(ctx context.Context) error {
	s.mu.Lock()
	switch {
	case s.failed != nil:
		defer s.mu.Unlock()
		return s.failed
	case s.closed:
		defer s.mu.Unlock()
		return s.isClosed()
	case s.durable >= s.appended:
		defer s.mu.Unlock()
		return nil
	}
	result := make(chan error, 1)
	s.waiters = append(s.waiters, waiter{s.appended, result})
	s.askSync()
	s.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err() // the channel holds the answer that nobody reads
	}
}

// waiter is a call of Sync.
type waiter struct {
	upTo   Position
	result chan error // of one
}

// answer tells the waiters what they waited for; mu is held.
func (s *Store) answer() {
	rest := s.waiters[:0]
	for _, w := range s.waiters {
		switch {
		case s.failed != nil:
			w.result <- s.failed
		case w.upTo <= s.durable:
			w.result <- nil
		default:
			rest = append(rest, w)
		}
	}
	s.waiters = rest
}

// Backlog is how many bytes were appended and are not yet written. They are in
// memory, so who appends without bound must look at it.
func (s *Store) Backlog() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.appended - s.written)
}

// Usage says what the store occupies.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := Usage{
		LogBytes: s.logBytes + s.dyingBytes, LiveBytes: s.liveBytes, LivePlaces: s.livePlaces,
		Definitions: len(s.defs), Segments: len(s.segments) + len(s.dying),
		Writes: s.writes, Fsyncs: s.fsyncs, LastFsync: s.lastFsync,
	}
	if s.active != nil {
		u.LogBytes += max(0, s.preallocated-s.active.used)
	}
	return u
}

// Close writes and syncs what is pending, and lets go of the directory. What is
// appended later is dropped, and bodies not yet read can't be read any more. It
// fails with what Failed was told, if that was called.
func (s *Store) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.wake)
	}
	s.mu.Unlock()
	<-s.done
	s.closeFiles()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// closeFiles lets go of every file and of the directory.
func (s *Store) closeFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.open {
		_ = g.file.Close() // what was to be kept is synced
		g.file = nil
	}
	s.open, s.ended = nil, true
	_ = s.dir.Close()
}

func (s *Store) isClosed() error {
	return fault.New(fault.Failed, "the broker's store %s is closed", s.o.Dir).WithHint("the broker is ending; try again when it runs")
}

// failure is what a person is told of a write or an fsync that failed.
func (s *Store) failure(err error) error {
	f := fault.New(fault.Failed, "the broker's store %s can't be written: %s", s.o.Dir, reason(err))
	return f.WithHint("what was confirmed is safe; look after the disk (`df %s`), then start the broker again", s.o.Dir)
}

// reason leaves out the path, which the sentence has already.
func reason(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
