// Package mailbox is the host's one durable file: the messages that wait for
// every agent, the ids that were seen, and the rows of other rooms (turns,
// outcomes, registrations) that must survive a crash.
//
// It promises one thing: what Write has returned nil for is on the disk, whole,
// and stays there through kill -9 and a power cut. It does not know what a
// message says, who may send it, when it expires or what a turn is.
//
// # The file
//
// A bbolt file, mode 0600, locked by the process that has it open. Its buckets:
//
//	fleet     "version" → the format's version, decimal
//	messages  recipient (16 bytes), seq (8) → head of a message, JSON
//	bodies    same key → the sealed bytes
//	stats     recipient (16) → number (8) and bytes (8) of its messages
//	seen      recipient (16), sender (16), id (16), sending host → what is known of it, JSON
//	ages      time of arrival in ms (8), key in seen → nothing; the order in which to forget
//	peers     sending host → number of its rows in seen (8)
//	counters  name → count (8)
//	rows.NAME key → JSON of another room
//
// UUIDs are binary, numbers big-endian. Head and body are apart so that a claim
// rewrites the head alone.
//
// History of the version: 1 (2026-11-30) the first.
package mailbox

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
)

// Options bound a Store. Zero fields take the default.
type Options struct {
	// Memory is how long the id of a message stays known; default
	// envelope.DefaultMemory.
	Memory time.Duration
	// MessagesMost and BytesMost cap the mailbox of one agent; defaults 10,000
	// and 256 MiB of sealed bytes.
	MessagesMost int
	BytesMost    int64
	// SeenMost caps the ids remembered of one sending host, so that no peer can
	// fill the disk or push out what others sent; default 1,000,000.
	SeenMost int
	// Log gets what no caller is told: a mode that was mended, a row that can't
	// be read. Default: nowhere.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Memory == 0 {
		o.Memory = envelope.DefaultMemory
	}
	if o.MessagesMost == 0 {
		o.MessagesMost = 10_000
	}
	if o.BytesMost == 0 {
		o.BytesMost = 256 << 20
	}
	if o.SeenMost == 0 {
		o.SeenMost = 1_000_000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Store is an open mailbox file. Its methods may be called from any goroutine.
type Store struct {
	path    string
	options Options

	// dbLock guards db and file against being exchanged (see heal) while a
	// reader uses them. The writer goroutine alone exchanges them.
	dbLock sync.RWMutex
	db     *bbolt.DB
	file   *os.File // db's own handle, closed by db
	// headBytes is the size of bbolt's two meta pages.
	headBytes int
	// before is the file's head as it was before a commit that failed and has
	// not been undone yet; writer goroutine only.
	before []byte

	queue queue
	ended chan struct{} // closed when the writer goroutine has ended

	commits, writes, failures atomic.Uint64
}

// Open opens the mailbox file at path and makes it where it is missing; its
// directory must stand. It walks the whole file once to find damage, and keeps
// nothing of it in memory.
//
// It fails with fault.HostHeld if another process has the file open (after a
// second of waiting), and with fault.Config if the file is damaged, is no
// mailbox, or was written by a newer fleet.
func Open(path string, o Options) (*Store, error) {
	s := &Store{path: path, options: o.withDefaults(), ended: make(chan struct{})}
	s.queue.init()
	if err := prepare(path, s.options.Log); err != nil {
		return nil, err
	}
	db, file, err := open(path)
	if err != nil {
		return nil, err
	}
	s.db, s.file, s.headBytes = db, file, 2*db.Info().PageSize
	go s.run() // ends when Close has closed the queue and it is empty
	return s, nil
}

// Close commits what was handed in before it, ends the writer and releases the
// file. Later calls of Write and Read fail; a second Close does nothing.
func (s *Store) Close() error {
	if !s.queue.close() {
		<-s.ended
		return nil
	}
	<-s.ended
	s.dbLock.Lock()
	defer s.dbLock.Unlock()
	if s.db == nil {
		return nil
	}
	err := s.db.Close()
	s.db, s.file = nil, nil
	return err
}

// Read runs fn in a read transaction: it sees the state after some commit, and
// no change of it. It does not wait for writers. fn must be short, because the
// file can't grow meanwhile; it must not call Read or Write, and must not keep
// tx. Writes through tx fail.
func (s *Store) Read(fn func(*Tx) error) error {
	s.dbLock.RLock()
	defer s.dbLock.RUnlock()
	if s.db == nil {
		return s.closed()
	}
	return s.db.View(func(b *bbolt.Tx) error {
		return fn(&Tx{b: b, store: s})
	})
}

func (s *Store) closed() error {
	return fault.New(fault.Failed, "the mailbox file %s is closed", s.path)
}

// Tx is a transaction, valid until the function that got it returns.
type Tx struct {
	b     *bbolt.Tx
	store *Store
	// dirty says that the running function has written, wrote that any function
	// of the group has, bytes how much.
	dirty, wrote bool
	bytes        int
}

// Counts is what metrics show of a Store.
type Counts struct {
	Writes   uint64 // functions run for Write and Go
	Commits  uint64 // transactions brought to the disk
	Failures uint64 // transactions that could not be
	Bytes    int64  // size of the file
}

// Counts returns the counts since Open.
func (s *Store) Counts() Counts {
	c := Counts{Writes: s.writes.Load(), Commits: s.commits.Load(), Failures: s.failures.Load()}
	if info, err := os.Stat(s.path); err == nil {
		c.Bytes = info.Size()
	}
	return c
}

// Prune forgets the ids that arrived longer than Memory before now, a bounded
// number in each transaction, and returns how many. It blocks until done or a
// write fails.
func (s *Store) Prune(now time.Time) (removed int, err error) {
	limit := now.Add(-s.options.Memory)
	for {
		n := 0
		err := s.Write(context.Background(), func(tx *Tx) (err error) {
			n, err = tx.forget(limit, pruneBatch)
			return err
		})
		if err != nil {
			return removed, err
		}
		removed += n
		if n < pruneBatch {
			return removed, nil
		}
	}
}

// pruneBatch keeps one transaction of Prune in the order of milliseconds, so
// that messages do not wait behind it.
const pruneBatch = 500

// unreadable says that a row is not what this package wrote.
func unreadable(bucket string, err error) error {
	if err == nil {
		err = errors.New("wrong length")
	}
	return fault.New(fault.Config, "a row of %s in the mailbox file can't be read: %s", bucket, err)
}
