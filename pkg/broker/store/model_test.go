package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleet/pkg/broker/store"
	"fleet/pkg/fault"
)

// seedOf is the test's seed: FLEET_TEST_SEED, or the time.
func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("FLEET_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FLEET_TEST_SEED=%d", seed)
	return seed
}

// small makes everything happen soon: segments of 32 KiB, cleaned early.
func small(dir string) store.Options {
	return store.Options{Dir: dir, SegmentBytes: 32 << 10}.WithGarbage(2, 64<<10)
}

// Random operations, and after every few hundred of them a crash or a close: what
// is recovered is what the operations have left.
func TestR53_Model(t *testing.T) {
	seed := seedOf(t)
	random := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	st := newState()
	moves, rounds := 0, 40
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		a, r, err := act(small(dir), seed+uint64(round), func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		got, err := found(a.s, r)
		if err == nil {
			err = st.differs(got)
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		steps := random.IntN(1000)
		for range steps {
			before := a.s.Usage()
			if _, err := a.step(); err != nil {
				t.Fatal(err)
			}
			if after := a.s.Usage(); after.Segments < before.Segments {
				moves++
			}
			if random.IntN(20) == 0 && len(a.seqs) > 0 {
				readOne(t, a, a.seqs[random.IntN(len(a.seqs))])
			}
		}
		places := 0
		for _, p := range a.live {
			places += len(p)
		}
		if u := a.s.Usage(); u.LivePlaces != int64(places) || u.LiveBytes > u.LogBytes+int64(places) {
			t.Fatalf("round %d: usage %+v, want %d places", round, u, places)
		}
		leave(t, dir, a, random)
		if st, err = after(dir, st, seed+uint64(round), r, a.durable, steps); err != nil {
			t.Fatalf("round %d, %d of %d steps are durable: %v", round, a.durable, steps, err)
		}
	}
	if moves == 0 {
		t.Error("no segment was ever deleted")
	}
	t.Logf("%d rounds, %d deletions of segments", rounds, moves)
}

func readOne(t *testing.T, a *actor, seq uint64) {
	t.Helper()
	b := a.s.Load(a.refs[seq])
	defer b.Release()
	if m, err := b.Read(); err != nil || !same(m, content(seq)) {
		t.Fatalf("message %d: %v", seq, err)
	}
}

// leave closes the store or lets it crash; and of what was written since the last
// fsync a crash may tear something out.
func leave(t *testing.T, dir string, a *actor, random *rand.Rand) {
	t.Helper()
	if random.IntN(3) == 0 {
		if err := a.s.Close(); err != nil {
			t.Fatal(err)
		}
		return
	}
	a.s.Crash()
	safe := a.s.DurableOffset()
	if safe == 0 || random.IntN(2) == 0 {
		return
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	slices.Sort(names)
	tear(t, names[len(names)-1], safe, random)
}

// tear overwrites some blocks after an offset of a file.
func tear(t *testing.T, path string, from int64, random *rand.Rand) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := from; at < int64(len(b)); at += 512 {
		if random.IntN(3) == 0 {
			clear(b[at:min(at+512, int64(len(b)))])
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// after opens the store after a crash and finds out after how many operations of
// the script it stands, from st and r on.
func after(dir string, st *state, seed uint64, r *store.Recovered, durable, steps int) (*state, error) {
	s, now, err := store.Open(small(dir))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	got, err := found(s, now)
	if err != nil {
		return nil, err
	}
	if _, err := match(st, newScript(seed, r), got, durable, steps); err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, fmt.Errorf("close: %w", err)
	}
	return st, nil
}

// Bodies are read by others while the broker's goroutine appends, removes, moves
// and in the end closes; whoever has one gets its message, or a fault after Close.
func TestR53_ReadersBesideTheBroker(t *testing.T) {
	a, _, err := act(small(t.TempDir()), seedOf(t), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	type loaded struct {
		seq  uint64
		body *store.Body
	}
	work := make(chan loaded, 100)
	var closing atomic.Bool
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for l := range work {
				m, err := l.body.Read()
				if late := closing.Load(); err == nil && !same(m, content(l.seq)) || err != nil && (!late || !errors.Is(err, fault.Failed)) {
					t.Errorf("message %d: %v", l.seq, err)
				}
				l.body.Release()
				a.s.Usage()
			}
		})
	}
	for range 3000 {
		if len(a.seqs) > 0 {
			seq := a.seqs[a.random.IntN(len(a.seqs))]
			work <- loaded{seq, a.s.Load(a.refs[seq])}
		}
		if _, err := a.step(); err != nil {
			t.Fatal(err)
		}
	}
	closing.Store(true)
	closed(t, a.s)
	close(work)
	readers.Wait()
	if n := a.s.OpenFiles(); n != 0 {
		t.Errorf("%d files are open after Close", n)
	}
}
