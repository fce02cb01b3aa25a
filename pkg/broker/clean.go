package broker

import (
	"cmp"
	"maps"
	"slices"

	"fleet/pkg/broker/store"
)

// clean moves what is alive out of the log's oldest segment when the log holds
// much more than what is alive, so that the segment can go. All queues are
// walked for it: 40 bytes a message, once for many megabytes of garbage.
func (c *core) clean() {
	for range 8 { // a second, so that it keeps up with any disk and holds up nobody
		segment, due := c.store.Oldest()
		if !due {
			return
		}
		if err := c.vacate(segment); err != nil {
			c.server.opts.Log.Error("can't clean the broker's log; it is tried again", "segment", segment, "err", err)
			return
		}
	}
}

// vacate moves what is alive out of a segment, in order. What is damaged is lost
// with its segment.
func (c *core) vacate(segment uint32) error {
	type live struct {
		entries []*entry
		places  []store.Place
	}
	records := map[store.Ref]*live{}
	c.eachEntry(func(q *queue, e *entry) {
		if e.ref.Segment != segment || e.flags&flagLost != 0 {
			return
		}
		r := records[e.ref]
		if r == nil {
			r = &live{}
			records[e.ref] = r
		}
		r.entries = append(r.entries, e)
		r.places = append(r.places, store.Place{Queue: q.id, Expires: e.expires, Durable: e.durable()})
	})
	list := slices.SortedFunc(maps.Values(records), func(a, b *live) int { return cmp.Compare(a.entries[0].seq, b.entries[0].seq) })
	for _, r := range list {
		moved, err := c.store.Move(r.entries[0].seq, r.entries[0].ref, r.places)
		if err != nil && !store.Damaged(err) {
			return err
		}
		for i, e := range r.entries {
			if err != nil {
				c.lost(r.places[i].Queue, e, err)
			} else {
				c.bytes -= e.weight()
				e.ref = moved
				c.bytes += e.weight()
			}
		}
	}
	return nil
}

// lost takes a damaged message out of the store. Its entry is dropped when its
// turn comes.
func (c *core) lost(queue uint64, e *entry, err error) {
	c.server.opts.Log.Error("a stored message is lost", "queue_id", queue, "err", err)
	c.store.Remove(e.ref, queue, e.seq, e.durable())
	e.flags |= flagLost
}

// eachEntry visits all that waits in queues or is held by clients; visit may
// change the ref.
func (c *core) eachEntry(visit func(*queue, *entry)) {
	for _, q := range c.queues {
		q.ready.each(func(e *entry) { visit(q, e) })
	}
	for i := range c.dying {
		if d := &c.dying[i]; !d.queue.gone {
			visit(d.queue, &d.entry)
		}
	}
	for cn := range c.conns {
		for _, ch := range cn.channels {
			for _, h := range ch.held {
				if !h.queue.gone {
					visit(h.queue, &h.entry)
				}
			}
		}
	}
}
