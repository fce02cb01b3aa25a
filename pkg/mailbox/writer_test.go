package mailbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"fleet/pkg/mailbox"
)

const facts = mailbox.Table("facts")

func set(key string) func(*mailbox.Tx) error {
	return func(tx *mailbox.Tx) error { return mailbox.Set(tx, facts, key, true) }
}

func keys(t testing.TB, s *mailbox.Store) (found []string) {
	t.Helper()
	read(t, s, func(tx *mailbox.Tx) error {
		return mailbox.Each(tx, facts, "", func(key string, _ bool) error {
			found = append(found, key)
			return nil
		})
	})
	return found
}

// together hands the functions to one group, and returns their errors.
func together(s *mailbox.Store, fns ...func(*mailbox.Tx) error) []error {
	errs := make([]error, len(fns))
	ready, begun := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var done sync.WaitGroup
	done.Add(1 + len(fns))
	s.Go(func(*mailbox.Tx) error {
		once.Do(func() { close(begun) })
		<-ready
		return nil
	}, func(error) { done.Done() })
	<-begun
	for i, fn := range fns {
		s.Go(fn, func(err error) { errs[i] = err; done.Done() })
	}
	close(ready)
	done.Wait()
	return errs
}

func TestR10_GroupCommit(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	var fns []func(*mailbox.Tx) error
	for i := range 500 {
		fns = append(fns, set(fmt.Sprintf("%03d", i)))
	}
	for _, err := range together(s, fns...) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if c := s.Counts(); c.Commits != 1 || c.Writes != 501 || c.Failures != 0 || c.Bytes == 0 {
		t.Errorf("500 writes at once: %+v, want 1 commit", c)
	}
	if n := len(keys(t, s)); n != 500 {
		t.Errorf("%d rows", n)
	}
	t.Run("bounded", func(t *testing.T) {
		before := s.Counts().Commits
		big := message(string(make([]byte, 3<<20)))
		fns = nil
		for range 6 {
			m := big
			m.ID = message("").ID
			fns = append(fns, func(tx *mailbox.Tx) error { _, err := tx.Put(alice, m); return err })
		}
		together(s, fns...)
		if n := s.Counts().Commits - before; n != 2 {
			t.Errorf("18 MiB in %d commits", n)
		}
	})
	t.Run("nothing written, nothing committed", func(t *testing.T) {
		before := s.Counts().Commits
		write(t, s, func(tx *mailbox.Tx) error { _, err := tx.Agents(); return err })
		if s.Counts().Commits != before {
			t.Error("an fsync for nothing")
		}
	})
}

// Of a function that fails nothing stays, and the others of its group do.
func TestR10_FailingFunctionLeavesNothing(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	bad := errors.New("changed my mind")
	failing := func(key string) func(*mailbox.Tx) error {
		return func(tx *mailbox.Tx) error {
			if err := set(key)(tx); err != nil {
				return err
			}
			return bad
		}
	}
	onlyWith := func(other string) func(*mailbox.Tx) error {
		return func(tx *mailbox.Tx) error {
			if _, ok, err := mailbox.Get[bool](tx, facts, other); !ok {
				return errors.Join(bad, err)
			}
			return set("saw " + other)(tx)
		}
	}
	errs := together(s, set("1"), failing("2"), onlyWith("2"), set("3"), failing("4"), set("5"), onlyWith("5"))
	want := []error{nil, bad, bad, nil, bad, nil, nil}
	for i := range want {
		if !errors.Is(errs[i], want[i]) {
			t.Errorf("function %d: %v, want %v", i, errs[i], want[i])
		}
	}
	if got := keys(t, s); !slices.Equal(got, []string{"1", "3", "5", "saw 5"}) {
		t.Errorf("rows %v", got)
	}
}

func TestR10_WriteHeedsContext(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		// Begun before its context ends: the answer is what became of it.
		err := s.Write(ctx, func(tx *mailbox.Tx) error {
			once.Do(func() { close(held) })
			<-release
			return set("begun")(tx)
		})
		if err != nil {
			t.Errorf("begun: %v", err)
		}
	})
	<-held
	handedIn := &watched{Context: ctx, looked: make(chan struct{})}
	running.Go(func() {
		if err := s.Write(handedIn, set("waiting")); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting: %v", err)
		}
		close(release)
	})
	<-handedIn.looked
	cancel()
	running.Wait()
	if err := s.Write(ctx, set("late")); !errors.Is(err, context.Canceled) {
		t.Errorf("late: %v", err)
	}
	if got := keys(t, s); !slices.Equal(got, []string{"begun"}) {
		t.Errorf("rows %v", got)
	}
}

// watched is a context that says when somebody begins to wait for it.
type watched struct {
	context.Context
	once   sync.Once
	looked chan struct{}
}

func (w *watched) Done() <-chan struct{} {
	w.once.Do(func() { close(w.looked) })
	return w.Context.Done()
}

func TestR10_CloseKeepsWhatWasHandedIn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	s := openAt(t, path, mailbox.Options{})
	var order []int
	for i := range 100 {
		s.Go(set(fmt.Sprintf("%03d", i)), func(err error) {
			if err != nil {
				t.Errorf("write %d: %v", i, err)
			}
			order = append(order, i)
		})
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if len(order) != 100 || !slices.IsSorted(order) {
		t.Errorf("done in the order %v", order)
	}
	var late error
	s.Go(set("late"), func(err error) { late = err })
	if late == nil || s.Write(t.Context(), set("late")) == nil || s.Read(func(*mailbox.Tx) error { return nil }) == nil {
		t.Error("a closed mailbox answers")
	}
	if n := len(keys(t, openAt(t, path, mailbox.Options{}))); n != 100 {
		t.Errorf("%d rows of 100", n)
	}
}

// Readers and writers at once; what was written is read by those who ask later.
func TestR10_ReadersBesideWriters(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 20 {
				key := fmt.Sprintf("%d/%d", w, i)
				if err := s.Write(t.Context(), set(key)); err != nil {
					t.Error(err)
				}
				err := s.Read(func(tx *mailbox.Tx) error {
					if _, ok, _ := mailbox.Get[bool](tx, facts, key); !ok {
						t.Errorf("%s is not there", key)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkGroupCommit compares writes of 512 bytes with what the disk allows
// without any of this: one append and one fsync each. ratio is writes per second
// by appends per second, both in the same run.
func BenchmarkGroupCommit(b *testing.B) {
	perAppend := appendSpeed(b)
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			s := openStore(b, mailbox.Options{MessagesMost: 1 << 30, BytesMost: 1 << 40})
			text := string(make([]byte, 512))
			var next sync.Mutex // guards left
			left := b.N
			b.ResetTimer()
			var all sync.WaitGroup
			for range writers {
				all.Go(func() {
					for {
						next.Lock()
						left--
						over := left < 0
						next.Unlock()
						if over {
							return
						}
						m := message(text)
						err := s.Write(context.Background(), func(tx *mailbox.Tx) error { _, err := tx.Put(alice, m); return err })
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			perWrite := b.Elapsed() / time.Duration(b.N)
			b.ReportMetric(float64(perAppend)/float64(perWrite), "ratio")
			b.ReportMetric(float64(b.N)/float64(s.Counts().Commits), "writes/commit")
		})
	}
}

// appendSpeed is the time of one append of 512 bytes with its fsync.
func appendSpeed(b *testing.B) time.Duration {
	f, err := os.Create(filepath.Join(b.TempDir(), "append"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	const rounds = 1000
	start := time.Now()
	for range rounds {
		_, err := f.Write(make([]byte, 512))
		if err = errors.Join(err, f.Sync()); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start) / rounds
}
