package store_test

import (
	"math/rand/v2"
	"testing"

	"fleet/pkg/broker/store"
)

// Under a load that leaves some messages behind for ever, the log stays within
// its bound: twice what is alive, the slack, and the segment that is written.
func TestR53_LogIsBounded(t *testing.T) {
	const segment, slack = 64 << 10, 256 << 10
	o := store.Options{Dir: t.TempDir(), SegmentBytes: segment}.WithGarbage(2, slack)
	s, _ := opened(t, o)
	random := rand.New(rand.NewPCG(seedOf(t), 1))
	type held struct {
		ref    store.Ref
		places []store.Place
		bytes  int64
	}
	s.Put("never changed", make([]byte, 1000))
	live := map[uint64]*held{}
	var order []uint64
	var real, appended, moved, most int64 // bytes
	clean := func() {
		for range 100 {
			number, due := s.Oldest()
			if !due {
				return
			}
			for seq, h := range live {
				if h.ref.Segment != number {
					continue
				}
				ref, err := s.Move(seq, h.ref, h.places)
				if err != nil {
					t.Fatal(err)
				}
				h.ref, moved = ref, moved+h.bytes
			}
		}
		t.Fatal("cleaning does not end")
	}
	steps := 30_000
	if testing.Short() {
		steps = 8000
	}
	for seq := uint64(1); seq <= uint64(steps); seq++ {
		m := store.Message{Body: make([]byte, 200+random.IntN(600))}
		if seq%100 == 0 {
			m.Body = make([]byte, 100_000) // larger than a segment
		}
		h := &held{bytes: int64(len(m.Body)) + 100}
		for q := range uint64(1 + random.IntN(2)*random.IntN(20)) {
			h.places = append(h.places, store.Place{Queue: q, Durable: q%3 != 0})
		}
		h.ref, _ = s.Append(seq, m, h.places, random.IntN(10) == 0)
		live[seq] = h
		order = append(order, seq)
		real, appended = real+h.bytes, appended+h.bytes
		if seq%50 == 0 {
			s.Put("definition", m.Body[:100])
		}
		// Queues of a few hundred are worked off, but for one place of every fiftieth
		// message, which stays.
		for len(order) > 300 {
			old := live[order[0]]
			keep := 0
			if order[0]%50 == 0 && random.IntN(4) > 0 {
				keep = 1
			}
			for len(old.places) > keep {
				p := old.places[len(old.places)-1]
				s.Remove(old.ref, p.Queue, order[0], p.Durable)
				old.places = old.places[:len(old.places)-1]
			}
			if keep == 0 {
				delete(live, order[0])
				real -= old.bytes
			}
			order = order[1:]
		}
		clean()
		if seq%500 == 0 {
			synced(t, s)
			buried(s)
			u := s.Usage()
			bound := 2*real + slack + 2*segment + 200_000
			if u.LogBytes > bound {
				t.Fatalf("after %d messages the log has %d bytes, the bound is %d; alive are %d, it says %d", seq, u.LogBytes, bound, real, u.LiveBytes)
			}
			most = max(most, u.LogBytes)
		}
	}
	for _, h := range live {
		reads(t, s, h.ref, store.Message{Body: make([]byte, h.bytes-100)})
	}
	t.Logf("%d bytes appended, %d moved, at most %d in the log, %d alive at the end", appended, moved, most, real)
	if moved == 0 || moved > 3*appended {
		t.Errorf("%d bytes were moved for %d appended", moved, appended)
	}
}

// What lies in many queues and is left in one counts in full once it has been
// moved, so that cleaning comes to an end.
func TestR53_CleaningEnds(t *testing.T) {
	o := store.Options{Dir: t.TempDir(), SegmentBytes: 64 << 10}.WithGarbage(2, 32<<10)
	s, _ := opened(t, o)
	var ten []store.Place
	for q := range uint64(10) {
		ten = append(ten, store.Place{Queue: q, Durable: true})
	}
	refs := map[uint64]store.Ref{}
	for seq := range uint64(500) {
		refs[seq], _ = s.Append(seq+1, store.Message{Body: make([]byte, 500)}, ten, false)
		for q := range uint64(9) {
			s.Remove(refs[seq], q, seq+1, true)
		}
	}
	moves := 0
	for number, due := s.Oldest(); due; number, due = s.Oldest() {
		for seq, ref := range refs {
			if ref.Segment == number {
				moves++
				var err error
				if refs[seq], err = s.Move(seq+1, ref, ten[9:]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if moves > 2*len(refs) {
			t.Fatalf("%d moves of %d messages", moves, len(refs))
		}
	}
	if moves == 0 {
		t.Error("nothing was to be cleaned")
	}
}
