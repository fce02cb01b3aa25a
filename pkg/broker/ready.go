package broker

import (
	"container/heap"

	"fleet/pkg/broker/store"
)

// entry is one message in one queue: 40 bytes and no pointer, so that a million
// of them cost the collector nothing. The message itself is in the store.
type entry struct {
	seq     uint64 // its place: the order of publishing, over all queues
	expires int64  // unix ms; 0: never
	ref     store.Ref
	body    uint32 // bytes
	flags   uint8
	tries   uint8 // deliveries, up to 255 (LavinMQ counts them)
}

const (
	flagDurable     = 1 << iota // it survives a restart in this queue
	flagRedelivered             // it may have been delivered before
	flagLost                    // the disk has damaged it; the store has it no more
)

func (e *entry) durable() bool { return e.flags&flagDurable != 0 }

// weight is what e takes of the limit on stored bytes: its share of the record in
// the log, and the memory of the entry itself.
func (e *entry) weight() int64 { return int64(e.ref.Length) + 64 }

// alive says whether e may be delivered; now is in unix ms.
func (e *entry) alive(now int64) bool {
	return e.flags&flagLost == 0 && (e.expires == 0 || e.expires > now)
}

// ready holds a queue's waiting entries in order of seq. New ones come at the
// end; those that come back go to their old place. Removal is at the head only.
type ready struct {
	line chunks // those that were never away
	back backs  // those that came back; few, and mostly older than line's
}

func (r *ready) len() int { return r.line.len() + len(r.back) }

func (r *ready) push(e entry) { r.line.push(e) }

func (r *ready) putBack(e entry) { heap.Push(&r.back, e) }

// head is the entry that is next, valid until the next change; nil if there is none.
func (r *ready) head() *entry {
	first := r.line.front()
	if len(r.back) > 0 && (first == nil || r.back[0].seq < first.seq) {
		return &r.back[0]
	}
	return first
}

func (r *ready) pop() entry {
	first := r.line.front()
	if len(r.back) > 0 && (first == nil || r.back[0].seq < first.seq) {
		return heap.Pop(&r.back).(entry)
	}
	return r.line.pop()
}

// each visits all entries, in no order; visit may change the ref.
func (r *ready) each(visit func(*entry)) {
	for i := range r.back {
		visit(&r.back[i])
	}
	r.line.each(visit)
}

// backs is a heap by seq.
type backs []entry

func (b backs) Len() int           { return len(b) }
func (b backs) Less(i, j int) bool { return b[i].seq < b[j].seq }
func (b backs) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *backs) Push(x any)        { *b = append(*b, x.(entry)) }
func (b *backs) Pop() any {
	old := *b
	e := old[len(old)-1]
	*b = old[:len(old)-1]
	if cap(old) > 1024 && len(*b) < cap(old)/4 {
		*b = append(make(backs, 0, cap(old)/2), *b...)
	}
	return e
}

// chunkEntries is how many entries a chunk of a full queue has. A queue's first
// chunk grows from a few, because most queues are short.
const chunkEntries = 1024

// chunks is a first-in first-out line that gives memory back as it gets shorter
// and never copies more than one chunk.
type chunks struct {
	list [][]entry // all but the last are full
	off  int       // of the first entry in list[0]
	n    int
}

func (c *chunks) len() int { return c.n }

func (c *chunks) push(e entry) {
	last := len(c.list) - 1
	if last < 0 || len(c.list[last]) == chunkEntries {
		var chunk []entry
		if last >= 0 {
			chunk = make([]entry, 0, chunkEntries)
		}
		c.list = append(c.list, chunk)
		last++
	}
	c.list[last] = append(c.list[last], e)
	c.n++
}

func (c *chunks) front() *entry {
	if c.n == 0 {
		return nil
	}
	return &c.list[0][c.off]
}

func (c *chunks) pop() entry {
	e := c.list[0][c.off]
	c.off++
	c.n--
	switch {
	case c.n == 0:
		if len(c.list) > 1 || cap(c.list[0]) > 64 {
			*c = chunks{}
		} else {
			c.list[0], c.off = c.list[0][:0], 0
		}
	case c.off == len(c.list[0]):
		c.list[0] = nil
		c.list, c.off = c.list[1:], 0
	}
	return e
}

func (c *chunks) each(visit func(*entry)) {
	for i, chunk := range c.list {
		for j := range chunk {
			if i > 0 || j >= c.off {
				visit(&chunk[j])
			}
		}
	}
}
