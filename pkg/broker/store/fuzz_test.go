package store_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fleet/pkg/broker/store"
)

// FuzzR61_Log reads segments whose records hold anything, under right checksums,
// and have anything behind them: no panic, no memory beyond the file's size, and a
// second reading finds the same.
func FuzzR61_Log(f *testing.F) {
	head := []byte{5, 0, 0, 0, 1, 1, 1, 0, 0}
	f.Add([]byte{1, 9, 0, 0, 0, 8, 1, 1, 0, 1, 'e', 1, 'k', 'p', 'b'}, []byte{4, 1, 8}, []byte("rest"), byte(1))
	f.Add(append([]byte{2}, head...), []byte{6, 1, 'k', 'v'}, []byte{}, byte(2))
	f.Add([]byte{1, 255, 255, 255, 255, 1, 255, 255, 255, 255, 255, 255, 255, 255, 127}, []byte{3, 255, 255, 0, 0, 0, 0, 0, 0}, make([]byte, 64), byte(3))
	f.Add([]byte{5, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, []byte{7, 'k'}, store.Segment(1, nil)[:48], byte(0))
	dir := filepath.Join(scratch(f), "fuzz")
	f.Fuzz(func(t *testing.T, one, two, rest []byte, order byte) {
		for _, r := range [][]byte{one, two} {
			if len(r) > 0 && r[0] > byte(store.Kinds) {
				r[0] %= byte(store.Kinds + 1)
			}
		}
		records := [][]byte{one, two, one}
		if order%2 == 0 {
			slices.Reverse(records[:2])
		}
		files := map[string][]byte{"00000001.log": store.Segment(1, rest, records...)}
		if order > 1 {
			files["00000002.log"] = store.Segment(2, rest, records...)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		restore(t, dir, files)
		first := reopen(t, dir)
		second := reopen(t, dir)
		// The first may have been deleted, and the second one's header knows nothing of it.
		if first.LastSeq != second.LastSeq && order <= 1 || first.Messages != second.Messages || len(first.Definitions) != len(second.Definitions) {
			t.Errorf("first %+v, then %+v", first, second)
		}
	})
}

// reopen opens the store, reads all messages, and closes it.
func reopen(t *testing.T, dir string) *store.Recovered {
	t.Helper()
	s, r, err := store.Open(store.Options{Dir: dir, SegmentBytes: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	for queue, items := range r.Queues {
		for i, it := range items {
			if i > 0 && items[i-1].Seq >= it.Seq {
				t.Errorf("queue %d: %d after %d", queue, it.Seq, items[i-1].Seq)
			}
			b := s.Load(it.Ref)
			_, _ = b.Read() // a message of another form is an error
			b.Release()
		}
	}
	return r
}
