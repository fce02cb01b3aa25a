package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"fleet/pkg/broker/store"
	"fleet/pkg/fault"
)

// opened is a store that the test closes.
func opened(t testing.TB, o store.Options) (*store.Store, *store.Recovered) {
	t.Helper()
	s, r, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, r
}

func synced(t testing.TB, s *store.Store) {
	t.Helper()
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// written waits until everything appended is in the files. Nothing tells of it.
func written(s *store.Store) {
	for s.Backlog() > 0 {
		runtime.Gosched()
	}
}

// buried waits until the segments that nobody needs are deleted.
func buried(s *store.Store) {
	for s.Dying() > 0 {
		runtime.Gosched()
	}
}

func closed(t testing.TB, s *store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

var inOne = []store.Place{{Queue: 1, Durable: true}}

// reads says whether the message at ref is want.
func reads(t testing.TB, s *store.Store, ref store.Ref, want store.Message) {
	t.Helper()
	b := s.Load(ref)
	defer b.Release()
	if m, err := b.Read(); err != nil || !same(m, want) {
		t.Errorf("message at %+v: %v; %d bytes, want %d", ref, err, len(m.Body), len(want.Body))
	}
}

func TestR53_RoundTrip(t *testing.T) {
	var many []store.Place
	for q := range uint64(5000) {
		many = append(many, store.Place{Queue: q + 10, Expires: int64(q), Durable: q%2 == 0})
	}
	large := store.Message{Exchange: "e", Key: "k", Properties: []byte("p"), Body: bytes.Repeat([]byte("large"), 1<<20)}
	cases := []struct {
		m      store.Message
		places []store.Place
	}{
		{store.Message{}, inOne},
		{store.Message{Exchange: "ä", Key: "a.b", Properties: []byte{0}, Body: []byte("body")}, []store.Place{{Queue: 1, Expires: 5, Durable: true}, {Queue: 2}}},
		{large, inOne},
		{store.Message{Body: []byte("for many")}, many},
		{store.Message{Body: []byte("transient")}, []store.Place{{Queue: 1}}},
		{store.Message{Body: []byte("for nobody")}, nil},
		{store.Message{Body: []byte("last")}, []store.Place{{Queue: 1, Expires: -1, Durable: true}}},
	}
	o := store.Options{Dir: filepath.Join(t.TempDir(), "a", "b")}
	s, r := opened(t, o)
	if len(r.Queues)+len(r.Definitions) != 0 || r.LastSeq != 0 {
		t.Errorf("a new store holds %+v", r)
	}
	var refs []store.Ref
	for i, c := range cases {
		ref, _ := s.Append(uint64(i+1), c.m, c.places, false)
		reads(t, s, ref, c.m) // from memory, most likely
		refs = append(refs, ref)
	}
	s.Put("key", []byte("old"))
	s.Put("key", []byte("value"))
	s.Put("gone", nil)
	s.Delete("gone")
	s.Delete("never there")
	synced(t, s)
	for i, c := range cases {
		reads(t, s, refs[i], c.m) // from the disk
	}
	if u := s.Usage(); u.LivePlaces != 5006 || u.Definitions != 1 || s.Backlog() != 0 {
		t.Errorf("usage %+v", u)
	}
	closed(t, s)

	s, r = opened(t, o)
	if len(r.Definitions) != 1 || string(r.Definitions["key"]) != "value" {
		t.Errorf("definitions %q", r.Definitions)
	}
	if r.LastSeq != uint64(len(cases)) || r.Messages != 2504 || r.Damaged != 0 || len(r.Queues) != 2501 {
		t.Errorf("%d messages in %d queues, last seq %d", r.Messages, len(r.Queues), r.LastSeq)
	}
	var seqs []uint64
	for _, it := range r.Queues[1] {
		seqs = append(seqs, it.Seq)
		c := cases[it.Seq-1]
		reads(t, s, it.Ref, c.m)
		if it.Expires != c.places[0].Expires || int(it.BodyBytes) != len(c.m.Body) {
			t.Errorf("item %+v", it)
		}
	}
	if !slices.Equal(seqs, []uint64{1, 2, 3, 7}) {
		t.Errorf("queue 1 holds %v", seqs)
	}
	if items := r.Queues[4010]; len(items) != 1 || items[0].Expires != 4000 {
		t.Errorf("queue 4010 holds %+v", items)
	}
}

// Many appends share an fsync, and each is announced after it.
func TestR53_GroupCommit(t *testing.T) {
	var durable atomic.Uint64
	var mu sync.Mutex // guards backwards
	backwards := false
	s, _ := opened(t, store.Options{Dir: t.TempDir(), Durable: func(upTo store.Position) {
		mu.Lock()
		defer mu.Unlock()
		backwards = backwards || uint64(upTo) <= durable.Swap(uint64(upTo))
	}})
	const appends = 20_000
	var last store.Position
	for i := range uint64(appends) {
		_, at := s.Append(i+1, store.Message{Body: []byte("body")}, inOne, true)
		if at <= last {
			t.Fatalf("position %d after %d", at, last)
		}
		last = at
	}
	synced(t, s)
	u := s.Usage()
	if u.Fsyncs == 0 || u.Fsyncs > appends/4 {
		t.Errorf("%d fsyncs for %d appends", u.Fsyncs, appends)
	}
	closed(t, s) // and so the callback of the last fsync has returned
	if store.Position(durable.Load()) < last || backwards {
		t.Errorf("durable up to %d of %d, backwards %t", durable.Load(), last, backwards)
	}
	t.Logf("%d appends in %d writes with %d fsyncs", appends, u.Writes, u.Fsyncs)
}

// What need not be durable costs no fsync; it is written nevertheless, and becomes
// durable with the next that must.
func TestR53_UnsyncedAppends(t *testing.T) {
	dir := t.TempDir()
	announced := make(chan store.Position, 10)
	s, _ := opened(t, store.Options{Dir: dir, Durable: func(upTo store.Position) { announced <- upTo }})
	first, at := s.Append(1, content(1), inOne, false)
	written(s)
	s.Remove(first, 1, 1, true)
	written(s)
	if u := s.Usage(); u.Fsyncs != 0 || len(announced) != 0 {
		t.Errorf("%d fsyncs, %d announced", u.Fsyncs, len(announced))
	}
	_, next := s.Append(2, content(2), inOne, true)
	if upTo := <-announced; upTo < next || next <= at {
		t.Errorf("announced %d, want %d", upTo, next)
	}
	if u := s.Usage(); u.Fsyncs != 1 {
		t.Errorf("%d fsyncs", u.Fsyncs)
	}
	s.Crash()
	_, r := opened(t, store.Options{Dir: dir})
	if len(r.Queues[1]) != 1 || r.Queues[1][0].Seq != 2 {
		t.Errorf("recovered %+v", r.Queues)
	}
}

func TestR53_Drop(t *testing.T) {
	o := store.Options{Dir: t.TempDir()}
	s, _ := opened(t, o)
	two := []store.Place{{Queue: 1, Durable: true}, {Queue: 2, Durable: true}}
	var refs []store.Ref
	for seq := range uint64(10) {
		ref, _ := s.Append(seq+1, content(seq+1), two, false)
		refs = append(refs, ref)
	}
	s.Drop(1)
	for _, ref := range refs {
		s.Forget(ref)
	}
	s.Append(11, content(11), two, true)
	synced(t, s)
	if u := s.Usage(); u.LivePlaces != 12 {
		t.Errorf("%d places are alive", u.LivePlaces)
	}
	closed(t, s)
	_, r := opened(t, o)
	if len(r.Queues[1]) != 1 || len(r.Queues[2]) != 11 {
		t.Errorf("%d and %d messages", len(r.Queues[1]), len(r.Queues[2]))
	}
}

// A message that was removed, and its segment deleted, can still be read by those
// who have it.
func TestR53_BodyOutlivesItsSegment(t *testing.T) {
	s, _ := opened(t, small(t.TempDir()))
	ref, _ := s.Append(1, content(1), inOne, true)
	b, twice := s.Load(ref), s.Load(ref)
	s.Remove(ref, 1, 1, true)
	var last store.Ref
	for seq := uint64(2); seq < 400; seq++ {
		last, _ = s.Append(seq, content(seq), nil, false)
	}
	buried(s)
	names, err := filepath.Glob(filepath.Join(s.Dir(), "*.log"))
	if err != nil || len(names) != 1 || last.Segment < 4 {
		t.Fatalf("segments %v, want the last of %d", names, last.Segment)
	}
	twice.Release()
	twice.Release()
	if m, err := b.Read(); err != nil || !same(m, content(1)) {
		t.Errorf("message 1: %v", err)
	}
	b.Release()
	if n := s.OpenFiles(); n != 1 {
		t.Errorf("%d files are open, want the one that is written", n)
	}
	for _, b := range []*store.Body{b, s.Load(ref), s.Load(store.Ref{})} {
		if _, err := b.Read(); !errors.Is(err, fault.Failed) {
			t.Errorf("read what is not there: %v", err)
		}
		b.Release()
	}
}

// That holds too where the segment's file had been closed meanwhile, because many
// others were in use.
func TestR53_BodyOfAClosedFile(t *testing.T) {
	s, _ := opened(t, store.Options{Dir: t.TempDir(), SegmentBytes: 1})
	m := store.Message{Body: make([]byte, 9000)} // a segment each
	first, _ := s.Append(1, m, inOne, true)
	b := s.Load(first)
	defer b.Release()
	for seq := range uint64(2 * store.OpenMost) {
		s.Append(seq+2, m, inOne, false)
	}
	synced(t, s)
	s.Remove(first, 1, 1, true)
	buried(s)
	if got, err := b.Read(); err != nil || !same(got, m) {
		t.Errorf("read: %v", err)
	}
}

// However many segments there are, few files are open.
func TestR53_FewFilesAreOpen(t *testing.T) {
	s, _ := opened(t, store.Options{Dir: t.TempDir(), SegmentBytes: 1})
	refs := map[uint64]store.Ref{}
	body := make([]byte, 9000) // a segment each
	for seq := range uint64(3 * store.OpenMost) {
		refs[seq], _ = s.Append(seq+1, store.Message{Body: body}, inOne, false)
	}
	synced(t, s)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for _, ref := range refs { // in no order
				reads(t, s, ref, store.Message{Body: body})
			}
		})
	}
	all.Wait()
	if n := s.OpenFiles(); n > store.OpenMost {
		t.Errorf("%d files are open", n)
	}
}

func TestR53_AfterClose(t *testing.T) {
	dir := t.TempDir()
	s, _ := opened(t, store.Options{Dir: dir})
	ref, _ := s.Append(1, content(1), inOne, true)
	b := s.Load(ref)
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if late, at := s.Append(2, content(2), inOne, true); late != (store.Ref{}) || at <= s.Appended() {
		t.Errorf("a closed store appends: %+v at %d", late, at)
	}
	s.Put("key", nil)
	s.Remove(ref, 1, 1, true)
	s.Drop(1)
	_, moveErr := s.Move(1, ref, inOne)
	_, readErr := b.Read()
	for _, err := range []error{s.Sync(t.Context()), moveErr, readErr} {
		if f := fault.From(err); f == nil || f.Kind != fault.Failed || f.Hint == "" {
			t.Errorf("a closed store says %v", err)
		}
	}
	b.Release()
	if _, r := opened(t, store.Options{Dir: dir}); r.Messages != 1 || len(r.Definitions) != 0 {
		t.Errorf("recovered %+v", r)
	}
}

func TestR53_SyncHeedsContext(t *testing.T) {
	block, blocked := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s, _ := opened(t, store.Options{Dir: t.TempDir(), Durable: func(store.Position) {
		once.Do(func() { close(blocked) })
		<-block
	}})
	s.Append(1, content(1), inOne, true)
	<-blocked
	s.Append(2, content(2), inOne, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Sync(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("sync: %v", err)
	}
	close(block)
	synced(t, s)
}

// A message that can't be represented is no message that is lost unnoticed.
func TestR53_TooLarge(t *testing.T) {
	failed := make(chan error, 1)
	s, _ := opened(t, store.Options{Dir: t.TempDir(), Failed: func(err error) { failed <- err }})
	s.Append(1, store.Message{Body: make([]byte, store.MessageMost+1)}, inOne, true)
	if f := fault.From(<-failed); f.Kind != fault.Failed || f.Hint == "" {
		t.Errorf("failed with %#v", f)
	}
	if err := s.Close(); !errors.Is(err, fault.Failed) {
		t.Errorf("close: %v", err)
	}
}

// Others on the machine can't read what clients have sent.
func TestR53_FilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, _ := opened(t, store.Options{Dir: dir})
	s.Append(1, content(1), inOne, true)
	synced(t, s)
	for _, name := range []string{dir, filepath.Join(dir, "00000001.log")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}
