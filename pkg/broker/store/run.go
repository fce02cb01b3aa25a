package store

import (
	"cmp"
	"maps"
	"slices"
	"sort"
)

// run is an ascending list of items, in chunks so that it grows without copying:
// a million items would otherwise need twice their memory.
type run struct {
	chunks [][]Item
	n      int
}

// chunkItems is the length of a chunk, of which all but the last are full.
const chunkItems = 1024

func (r *run) at(i int) *Item { return &r.chunks[i/chunkItems][i%chunkItems] }

func (r *run) last() uint64 { return r.at(r.n - 1).Seq }

func (r *run) push(it Item) {
	if r.n%chunkItems == 0 {
		var chunk []Item // the first one grows, since most queues hold little
		if r.n > 0 {
			chunk = make([]Item, 0, chunkItems)
		}
		r.chunks = append(r.chunks, chunk)
	}
	end := len(r.chunks) - 1
	r.chunks[end] = append(r.chunks[end], it)
	r.n++
}

// contents is what a queue holds while the log is read. Messages come in the
// order of their seqs; those that were moved most often do so too, among
// themselves. So a few runs hold nearly all, and a map what fits into none.
type contents struct {
	runs  []*run
	hint  int // where in the first run the next tombstone is likely to point
	stray map[uint64]Item
}

const (
	runsMost  = 8
	strayMost = 4096 // or as many as a fourth of all: then all is sorted into one run
)

// find returns the item with a seq, nil if there is none that is alive in a run.
func (c *contents) find(seq uint64) *Item {
	for i, r := range c.runs {
		if seq > r.last() {
			continue
		}
		if i == 0 && c.hint < r.n && r.at(c.hint).Seq == seq { // most queues are emptied in order
			c.hint++
			if it := r.at(c.hint - 1); it.alive() {
				return it
			}
			continue
		}
		at := sort.Search(r.n, func(k int) bool { return r.at(k).Seq >= seq })
		if it := r.at(at); it.Seq == seq && it.alive() {
			if i == 0 {
				c.hint = at + 1
			}
			return it
		}
	}
	return nil
}

// alive is false for an item whose place was removed: it has no record.
func (it *Item) alive() bool { return it.Ref.Segment != 0 }

// put adds an item, in place of the one that had its seq.
func (c *contents) put(it Item) {
	var best *run // the one with the highest end below
	newest := true
	for _, r := range c.runs {
		if r.last() >= it.Seq {
			newest = false
		} else if best == nil || r.last() > best.last() {
			best = r
		}
	}
	if !newest || len(c.stray) > 0 {
		if old := c.find(it.Seq); old != nil {
			*old = it
			return
		}
		delete(c.stray, it.Seq)
	}
	if best == nil && len(c.runs) < runsMost {
		best = new(run)
		c.runs = append(c.runs, best)
	}
	if best != nil {
		best.push(it)
		return
	}
	if c.stray == nil {
		c.stray = make(map[uint64]Item)
	}
	c.stray[it.Seq] = it
	if n := len(c.stray); n > strayMost && n > c.length()/4 {
		c.merge()
	}
}

// length counts the items, dead ones too.
func (c *contents) length() int {
	n := len(c.stray)
	for _, r := range c.runs {
		n += r.n
	}
	return n
}

// merge makes one run of all.
func (c *contents) merge() {
	all := new(run)
	for _, it := range c.items() {
		all.push(it)
	}
	*c = contents{runs: []*run{all}}
}

// remove makes the item with a seq dead.
func (c *contents) remove(seq uint64) {
	if it := c.find(seq); it != nil {
		it.Ref = Ref{}
		return
	}
	delete(c.stray, seq)
}

// drop makes all items up to a seq dead.
func (c *contents) drop(upTo uint64) {
	c.hint = 0
	c.runs = slices.DeleteFunc(c.runs, func(r *run) bool { return r.last() <= upTo })
	for _, r := range c.runs {
		for i := 0; r.at(i).Seq <= upTo; i++ {
			r.at(i).Ref = Ref{}
		}
	}
	maps.DeleteFunc(c.stray, func(seq uint64, _ Item) bool { return seq <= upTo })
}

// items returns what is alive, ascending. The contents are used up.
func (c *contents) items() []Item {
	n := len(c.stray)
	for _, r := range c.runs {
		for i := range r.n {
			if r.at(i).alive() {
				n++
			}
		}
	}
	all := make([]Item, 0, n)
	for _, r := range c.runs {
		for k, chunk := range r.chunks {
			for i := range chunk {
				if chunk[i].alive() {
					all = append(all, chunk[i])
				}
			}
			r.chunks[k] = nil
		}
	}
	for _, it := range c.stray {
		all = append(all, it)
	}
	if len(c.runs) > 1 || len(c.stray) > 0 {
		slices.SortFunc(all, func(a, b Item) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return all
}
