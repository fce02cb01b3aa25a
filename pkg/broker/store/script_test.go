package store_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"fleet/pkg/broker/store"
)

// A script is an endless list of operations that depends on nothing but its seed
// and what the store holds at its beginning. So whoever knows both knows what the
// store holds after any number of operations; and after a crash it must hold
// exactly that, for some number that is not less than what was durable.

// spot is one place of a message.
type spot struct{ queue, seq uint64 }

// state is what a store holds and keeps: the durable places with their expiry,
// and the definitions.
type state struct {
	spots map[spot]int64
	defs  map[string]string
	sum   uint64 // of both, in no order
}

func newState() *state { return &state{spots: map[spot]int64{}, defs: map[string]string{}} }

func hash(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, parts...)
	return h.Sum64()
}

func (st *state) set(sp spot, expires int64) {
	st.clear(sp)
	st.spots[sp] = expires
	st.sum += hash(sp, expires)
}

func (st *state) clear(sp spot) {
	if expires, ok := st.spots[sp]; ok {
		st.sum -= hash(sp, expires)
		delete(st.spots, sp)
	}
}

func (st *state) define(key, value string) {
	st.undefine(key)
	st.defs[key] = value
	st.sum += hash(key, value)
}

func (st *state) undefine(key string) {
	if value, ok := st.defs[key]; ok {
		st.sum -= hash(key, value)
		delete(st.defs, key)
	}
}

// differs says how st is not other.
func (st *state) differs(other *state) error {
	for sp, expires := range st.spots {
		if got, ok := other.spots[sp]; !ok {
			return fmt.Errorf("message %d is not in queue %d", sp.seq, sp.queue)
		} else if got != expires {
			return fmt.Errorf("message %d expires at %d, want %d", sp.seq, got, expires)
		}
	}
	for sp := range other.spots {
		if _, ok := st.spots[sp]; !ok {
			return fmt.Errorf("message %d is in queue %d still or again", sp.seq, sp.queue)
		}
	}
	if !maps.Equal(st.defs, other.defs) {
		return fmt.Errorf("definitions %d, want %d, or other values", len(other.defs), len(st.defs))
	}
	return nil
}

// op is one operation.
type op struct {
	what       string // append, remove, put, delete, drop
	seq        uint64
	places     []store.Place // of append, remove (one) and drop (all)
	queue      uint64
	key, value string
	sync       bool
}

func (st *state) apply(o op) {
	switch o.what {
	case "append":
		for _, p := range o.places {
			if p.Durable {
				st.set(spot{p.Queue, o.seq}, p.Expires)
			}
		}
	case "remove":
		st.clear(spot{o.queue, o.seq})
	case "drop":
		maps.DeleteFunc(st.spots, func(sp spot, expires int64) bool {
			if sp.queue == o.queue {
				st.sum -= hash(sp, expires)
			}
			return sp.queue == o.queue
		})
	case "put":
		st.define(o.key, o.value)
	case "delete":
		st.undefine(o.key)
	}
}

// script makes the operations. live and seqs are what there is after the last.
type script struct {
	random *rand.Rand
	live   map[uint64][]store.Place // by seq
	seqs   []uint64                 // of live, ascending
	defs   []string                 // keys
	last   uint64
}

const scriptQueues = 7

func newScript(seed uint64, r *store.Recovered) *script {
	sc := &script{random: rand.New(rand.NewPCG(seed, 3)), live: map[uint64][]store.Place{}, last: r.LastSeq}
	for _, queue := range slices.Sorted(maps.Keys(r.Queues)) {
		for _, it := range r.Queues[queue] {
			sc.live[it.Seq] = append(sc.live[it.Seq], store.Place{Queue: queue, Expires: it.Expires, Durable: true})
		}
	}
	sc.seqs = slices.Sorted(maps.Keys(sc.live))
	sc.defs = slices.Sorted(maps.Keys(r.Definitions))
	return sc
}

// next is the next operation. The more there is, the more is removed.
func (sc *script) next() op {
	sync := sc.random.IntN(3) == 0
	switch pick := sc.random.IntN(100); {
	case pick < 3:
		key := fmt.Sprintf("definition %d", sc.random.IntN(20))
		if i := slices.Index(sc.defs, key); i < 0 {
			sc.defs = append(sc.defs, key)
		}
		return op{what: "put", key: key, value: strings.Repeat("v", sc.random.IntN(300)), sync: sync}
	case pick < 5 && len(sc.defs) > 0:
		i := sc.random.IntN(len(sc.defs))
		key := sc.defs[i]
		sc.defs = slices.Delete(sc.defs, i, i+1)
		return op{what: "delete", key: key}
	case pick < 6 && len(sc.seqs) > 100:
		return sc.drop(uint64(1 + sc.random.IntN(scriptQueues)))
	case pick < 20+min(70, len(sc.seqs)/2) && len(sc.seqs) > 0:
		i := sc.random.IntN(len(sc.seqs))
		if sc.random.IntN(3) > 0 {
			i = sc.random.IntN(1 + len(sc.seqs)/10) // mostly the old ones
		}
		return sc.remove(i)
	}
	sc.last++
	var places []store.Place
	for _, q := range sc.random.Perm(scriptQueues)[:1+sc.random.IntN(2)*sc.random.IntN(scriptQueues)] {
		p := store.Place{Queue: uint64(1 + q), Durable: q > 1}
		if sc.random.IntN(2) == 0 {
			p.Expires = int64(sc.random.IntN(1 << 40))
		}
		places = append(places, p)
	}
	sc.live[sc.last] = slices.Clone(places)
	sc.seqs = append(sc.seqs, sc.last)
	return op{what: "append", seq: sc.last, places: places, sync: sync}
}

func (sc *script) remove(i int) op {
	seq := sc.seqs[i]
	places := sc.live[seq]
	k := sc.random.IntN(len(places))
	o := op{what: "remove", seq: seq, queue: places[k].Queue, places: places[k : k+1 : k+1]}
	o.places = slices.Clone(o.places)
	sc.forget(seq, k)
	return o
}

// forget takes the place k of a message away.
func (sc *script) forget(seq uint64, k int) {
	sc.live[seq] = slices.Delete(sc.live[seq], k, k+1)
	if len(sc.live[seq]) == 0 {
		delete(sc.live, seq)
		i, _ := slices.BinarySearch(sc.seqs, seq)
		sc.seqs = slices.Delete(sc.seqs, i, i+1)
	}
}

func (sc *script) drop(queue uint64) op {
	o := op{what: "drop", queue: queue}
	for _, seq := range slices.Clone(sc.seqs) {
		if k := slices.IndexFunc(sc.live[seq], func(p store.Place) bool { return p.Queue == queue }); k >= 0 {
			// Queue stands for the message here.
			o.places = append(o.places, store.Place{Queue: seq})
			sc.forget(seq, k)
		}
	}
	return o
}

// content is the message with a seq, in all scripts.
func content(seq uint64) store.Message {
	random := rand.New(rand.NewPCG(seq, 9))
	size := random.IntN(600)
	switch random.IntN(100) {
	case 0:
		size = 50_000
	case 1, 2, 3:
		size = random.IntN(15_000)
	}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	return store.Message{
		Exchange: fmt.Sprintf("exchange %d", seq%5), Key: strings.Repeat("k", int(seq%7)),
		Properties: body[:len(body)/10], Body: body,
	}
}

func same(a, b store.Message) bool {
	return a.Exchange == b.Exchange && a.Key == b.Key && bytes.Equal(a.Properties, b.Properties) && bytes.Equal(a.Body, b.Body)
}

// actor carries a script out.
type actor struct {
	s    *store.Store
	refs map[uint64]store.Ref
	*script

	mu        sync.Mutex // guards the following
	positions []store.Position
	durable   int // operations
}

// act opens the store and returns who does the script on it. said hears how many
// operations are durable; it is called by the store's goroutine.
func act(o store.Options, seed uint64, said func(int)) (*actor, *store.Recovered, error) {
	a := &actor{refs: map[uint64]store.Ref{}}
	o.Durable = func(upTo store.Position) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for a.durable < len(a.positions) && a.positions[a.durable] <= upTo {
			a.durable++
		}
		said(a.durable)
	}
	s, r, err := store.Open(o)
	if err != nil {
		return nil, nil, err
	}
	a.s, a.script = s, newScript(seed, r)
	for _, items := range r.Queues {
		for _, it := range items {
			a.refs[it.Seq] = it.Ref
		}
	}
	return a, r, nil
}

// window bounds how many operations are under way.
const window = 150

// step carries out one operation.
func (a *actor) step() (op, error) {
	o := a.next()
	switch o.what {
	case "append":
		a.refs[o.seq], _ = a.s.Append(o.seq, content(o.seq), o.places, o.sync)
	case "remove":
		a.s.Remove(a.refs[o.seq], o.queue, o.seq, o.places[0].Durable)
	case "drop":
		a.s.Drop(o.queue)
		for _, p := range o.places {
			a.s.Forget(a.refs[p.Queue])
		}
	case "put":
		a.s.Put(o.key, []byte(o.value))
	case "delete":
		a.s.Delete(o.key)
	}
	a.mu.Lock()
	a.positions = append(a.positions, a.s.Appended())
	under := len(a.positions) - a.durable
	a.mu.Unlock()
	if err := a.clean(); err != nil {
		return o, err
	}
	if under > window {
		return o, a.s.Sync(context.Background())
	}
	return o, nil
}

// clean moves what is alive out of segments that are to go.
func (a *actor) clean() error {
	for {
		segment, due := a.s.Oldest()
		if !due {
			return nil
		}
		for _, seq := range a.seqs {
			if a.refs[seq].Segment != segment {
				continue
			}
			ref, err := a.s.Move(seq, a.refs[seq], a.live[seq])
			if err != nil {
				return err
			}
			a.refs[seq] = ref
		}
	}
}

// found is the state that was recovered. It reads every message.
func found(s *store.Store, r *store.Recovered) (*state, error) {
	st := newState()
	n, size := 0, int64(0)
	for queue, items := range r.Queues {
		if !slices.IsSortedFunc(items, func(a, b store.Item) int { return int(int64(a.Seq) - int64(b.Seq)) }) {
			return nil, fmt.Errorf("queue %d is not in order", queue)
		}
		for _, it := range items {
			b := s.Load(it.Ref)
			m, err := b.Read()
			b.Release()
			if err != nil {
				return nil, fmt.Errorf("message %d: %w", it.Seq, err)
			}
			if !same(m, content(it.Seq)) || int(it.BodyBytes) != len(m.Body) {
				return nil, fmt.Errorf("message %d has other content", it.Seq)
			}
			if it.Seq > r.LastSeq {
				return nil, fmt.Errorf("message %d is above the last seq, %d", it.Seq, r.LastSeq)
			}
			st.set(spot{queue, it.Seq}, it.Expires)
			n++
			size += int64(it.BodyBytes)
		}
	}
	for key, value := range r.Definitions {
		st.define(key, string(value))
	}
	if n != len(st.spots) || int64(n) != r.Messages || size != r.Bytes {
		return nil, fmt.Errorf("%d items in %d places, counted are %d", n, len(st.spots), r.Messages)
	}
	if u := s.Usage(); u.LivePlaces != r.Messages || u.Definitions != len(r.Definitions) {
		return nil, fmt.Errorf("usage %+v, want %d places, %d definitions", u, r.Messages, len(r.Definitions))
	}
	if r.Damaged != 0 {
		return nil, fmt.Errorf("%d places are damaged", r.Damaged)
	}
	return st, nil
}

// match finds after how many operations, at least so many, the script leads from
// st to the state that was found. st is then that state.
func match(st *state, sc *script, got *state, atLeast, atMost int) (int, error) {
	var first error
	for n := 0; n <= atMost; n++ {
		if n >= atLeast {
			if st.sum == got.sum {
				return n, st.differs(got)
			}
			if n == atLeast {
				first = st.differs(got)
			}
		}
		st.apply(sc.next())
	}
	return 0, fmt.Errorf("it holds what no number of operations from %d to %d leads to; after %d: %w", atLeast, atMost, atLeast, first)
}
