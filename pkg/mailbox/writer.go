package mailbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"fleet/pkg/fault"
)

// Bounds of one group, so that its memory stays bounded and the first of it
// does not wait for ever for the last.
const (
	groupMost  = 1024
	groupBytes = 8 << 20
)

// job is one function to run in a group.
type job struct {
	fn    func(*Tx) error
	done  func(error)
	err   error       // what fn returned
	apart bool        // fn failed after it had written, and is not run again
	taken atomic.Bool // by the writer, or by the caller who gave up
}

// Write runs fn in the next group commit and returns nil once everything fn has
// written is on the disk (fsync). Functions run one after another, in the order
// in which they were handed in; as many as are waiting share one commit.
//
// An error of fn is returned as it is, and then nothing of what fn wrote stays.
// fn should nevertheless check first and write then: a function that fails after
// writing makes the others of its group run a second time, so that no fn may add
// up anything outside of tx. fn must not block, nor call Write, Read or Close. A
// panic in it ends the process.
//
// If the commit fails, every function of the group gets the error, none has
// taken effect, and the next group is tried afresh. If ctx ends before fn has
// begun, fn is not run and the error is ctx's; after that Write waits for the
// disk, so that its answer is true.
func (s *Store) Write(ctx context.Context, fn func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	result := make(chan error, 1)
	j := &job{fn: fn, done: func(err error) { result <- err }}
	if !s.queue.push(j) {
		return s.closed()
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		if j.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		return <-result
	}
}

// Go is Write without waiting. done gets what Write would have returned; it is
// called by the writer goroutine, in the order of the calls of Go, and must not
// block. On a closed Store it is called before Go returns.
func (s *Store) Go(fn func(*Tx) error, done func(error)) {
	if !s.queue.push(&job{fn: fn, done: done}) {
		done(s.closed())
	}
}

// Later is Go for what nobody waits for: it shares the next group's commit, or
// has one of its own if none comes within lateBound. It costs no commit where
// there is traffic, and is ordered with Go and Write as it was called.
func (s *Store) Later(fn func(*Tx) error, done func(error)) {
	if !s.queue.pushLater(&job{fn: fn, done: done}) {
		done(s.closed())
	}
}

// lateBound is how long a Later may wait for company.
const lateBound = 25 * time.Millisecond

// queue holds the jobs that wait for the writer. It is not a channel, because Go
// must not block on a slow disk; what bounds it is that every caller has only
// so many messages in hand.
type queue struct {
	mu     sync.Mutex // guards jobs and shut
	filled sync.Cond  // on mu: jobs has grown, or shut is set
	jobs   []*job
	later  []*job // go before the next job, or when their timer fires
	shut   bool
}

func (q *queue) init() { q.filled.L = &q.mu }

// push appends j, and says whether the queue is open.
func (q *queue) push(j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return false
	}
	q.jobs = append(append(q.jobs, q.later...), j)
	q.later = nil
	q.filled.Signal()
	return true
}

// pushLater appends j behind what is there, without waking the writer yet.
func (q *queue) pushLater(j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return false
	}
	q.later = append(q.later, j)
	if len(q.later) == 1 {
		time.AfterFunc(lateBound, q.flush)
	}
	return true
}

// flush hands what is late to the writer.
func (q *queue) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = append(q.jobs, q.later...)
	q.later = nil
	q.filled.Signal()
}

// pop takes the first job whose caller still waits. With wait it blocks until
// there is one; it returns nil when there is none, or none will come.
func (q *queue) pop(wait bool) *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.jobs) > 0 {
			j := q.jobs[0]
			q.jobs[0] = nil // the array lives on; the job need not
			q.jobs = q.jobs[1:]
			if j.taken.CompareAndSwap(false, true) {
				return j
			}
		}
		if q.shut || !wait {
			return nil
		}
		q.filled.Wait()
	}
}

// close refuses further jobs, and says whether this call was the first.
func (q *queue) close() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := !q.shut
	q.shut = true
	q.jobs = append(q.jobs, q.later...)
	q.later = nil
	q.filled.Signal()
	return first
}

// run is the writer goroutine.
func (s *Store) run() {
	orderly := false
	defer func() {
		// A function that called runtime.Goexit has taken the writer with it, and
		// everybody would wait for ever.
		if !orderly {
			panic("mailbox: a write function ended the writer")
		}
		close(s.ended)
	}()
	for j := s.queue.pop(true); j != nil; j = s.queue.pop(true) {
		s.group(j)
	}
	orderly = true
}

// group runs first and what else waits in one transaction, commits it and tells
// everybody.
func (s *Store) group(first *job) {
	jobs := []*job{first}
	err := s.heal()
	if err == nil {
		jobs, err = s.transact(jobs)
	}
	if err != nil {
		s.failures.Add(1)
		err = s.writeFault(err)
	}
	for _, j := range jobs {
		s.writes.Add(1)
		if err != nil {
			j.done(err)
		} else {
			j.done(j.err)
		}
	}
}

// transact runs jobs and what is waiting, and commits. It returns all jobs that
// share the outcome.
func (s *Store) transact(jobs []*job) ([]*job, error) {
	tx, err := s.begin()
	if err != nil {
		return jobs, err
	}
	clean := tx.do(jobs[0])
	for {
		if !clean {
			if tx, err = s.again(tx, jobs); err != nil {
				return jobs, err
			}
		}
		if len(jobs) == groupMost || tx.bytes >= groupBytes {
			break
		}
		j := s.queue.pop(false)
		if j == nil {
			break
		}
		jobs = append(jobs, j)
		clean = tx.do(j)
	}
	if !tx.wrote {
		return jobs, tx.b.Rollback()
	}
	return jobs, s.commit(tx.b)
}

// do runs j, and says whether the transaction can go on.
func (tx *Tx) do(j *job) (clean bool) {
	tx.dirty = false
	j.err = j.fn(tx)
	j.apart = j.err != nil && tx.dirty
	return !j.apart
}

// again gives up tx and runs the jobs that may stay in a new transaction. Each
// round sets at least one more job apart, so it ends.
func (s *Store) again(tx *Tx, jobs []*job) (*Tx, error) {
	for {
		err := tx.b.Rollback()
		if err != nil {
			return nil, err
		}
		if tx, err = s.begin(); err != nil {
			return nil, err
		}
		clean := true
		for _, j := range jobs {
			if clean && !j.apart {
				clean = tx.do(j)
			}
		}
		if clean {
			return tx, nil
		}
	}
}

func (s *Store) begin() (*Tx, error) {
	b, err := s.db.Begin(true)
	if err != nil {
		// The file is not mapped any more: growing the map has failed. Only
		// opening it anew mends that.
		s.before = []byte{}
		if err = s.heal(); err != nil {
			return nil, err
		}
		if b, err = s.db.Begin(true); err != nil {
			return nil, err
		}
	}
	return &Tx{b: b, store: s}, nil
}

// commit brings b to the disk. If that fails it puts the file's head back.
func (s *Store) commit(b *bbolt.Tx) error {
	before, err := s.head()
	if err != nil {
		_ = b.Rollback()
		return err
	}
	if err := b.Commit(); err != nil {
		s.before = before
		if healErr := s.heal(); healErr != nil {
			s.options.Log.Error("the mailbox file can't be put back after a failed write", "path", s.path, "err", healErr)
		}
		return err
	}
	s.commits.Add(1)
	return nil
}

// writeFault says to a person that the disk did not take a write.
func (s *Store) writeFault(err error) error {
	if errors.Is(err, fault.HostHeld) || errors.Is(err, fault.Config) {
		return err
	}
	f := fault.New(fault.Failed, "can't write the mailbox file %s: %s", s.path, err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return f.WithHint("make room on its disk; nothing that was accepted is lost")
	}
	return f
}
