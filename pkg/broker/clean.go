package broker

import "fleet/pkg/broker/store"

// clean moves what is alive out of the log's oldest segment when the log holds
// much more than what is alive, so that the segment can go. All queues are
// walked for it: 48 bytes a message, once for many megabytes of garbage.
func (c *core) clean() {
	for range 8 { // a second, so that it keeps up with any disk and holds up nobody
		segment, due := c.store.Oldest()
		if !due {
			return
		}
		c.vacate(segment)
	}
}

// vacate moves what is alive out of a segment.
func (c *core) vacate(segment uint32) {
	type live struct {
		entries []*entry
		places  []store.Place
	}
	records := map[store.Ref]*live{}
	c.eachEntry(func(q *queue, e *entry) {
		if e.ref.Segment != segment {
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
	for ref, r := range records {
		moved, err := c.store.Move(r.entries[0].seq, ref, r.places)
		if err != nil {
			c.server.opts.Log.Error("can't move a message out of the log's oldest segment", "segment", segment, "err", err)
			continue
		}
		for _, e := range r.entries {
			e.ref = moved
		}
	}
}

// eachEntry visits all that waits in queues or is held by clients; visit may
// change the ref.
func (c *core) eachEntry(visit func(*queue, *entry)) {
	for _, q := range c.queues {
		q.ready.each(func(e *entry) { visit(q, e) })
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
