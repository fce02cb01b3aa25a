package broker

import (
	"container/heap"
	"time"

	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
)

// queue is one queue: its waiting entries, its consumers and its rules.
type queue struct {
	id         uint64 // never used for another while the log has anything of it
	name       string
	durable    bool
	autoDelete bool
	owner      *conn // of an exclusive queue
	args       wire.Table
	rules      rules
	bindings   map[*binding]struct{}

	ready     ready
	bytes     int64 // of the bodies in ready
	held      int   // delivered and not settled
	heldBytes int64
	consumers []*consumer
	next      int       // whose turn it is
	exclusive *consumer // the only one, by its own wish
	active    *consumer // the one that gets messages, of a queue with a single active consumer
	used      bool      // it had a consumer
	gone      bool

	idleSince int64 // unix ms: the last use, for rules.expires
	dirty     bool  // it is in core.dirty
	wake      int64 // unix ms: when it wants to be looked at; 0: never
	wakeIndex int   // in core.sleeping; -1: it is not there
	stamp     uint64
}

// rules are the arguments that a queue lives by.
type rules struct {
	ttl        int64 // ms; -1: none
	expires    int64 // ms; 0: none
	maxLength  int64 // -1: none
	maxBytes   int64 // -1: none
	overflow   string
	deadLetter *string // exchange
	deadKey    *string
	single     bool
	tries      int // deliveries before a message is a dead letter; 0: any number
}

const (
	dropHead          = "drop-head"
	rejectPublish     = "reject-publish"
	rejectPublishDead = "reject-publish-dlx"
)

// kept says whether the queue outlives a restart. One that belongs to a
// connection can't.
func (q *queue) kept() bool { return q.durable && q.owner == nil }

// full says whether one more message is to be refused.
func (q *queue) full(body int) bool {
	if q.rules.overflow != rejectPublish && q.rules.overflow != rejectPublishDead {
		return false
	}
	return q.rules.maxLength >= 0 && int64(q.ready.len()) >= q.rules.maxLength ||
		q.rules.maxBytes >= 0 && q.bytes+int64(body) > q.rules.maxBytes
}

// over says whether the head is to go. What was refused at the limit when it was
// published is not dropped when it comes back.
func (q *queue) over() bool {
	if q.ready.len() == 0 || q.rules.overflow != dropHead {
		return false
	}
	return q.rules.maxLength >= 0 && int64(q.ready.len()) > q.rules.maxLength ||
		q.rules.maxBytes >= 0 && q.bytes > q.rules.maxBytes
}

// mark has the queue looked at, at the end of the step.
func (c *core) mark(q *queue) {
	if !q.dirty && !q.gone {
		q.dirty = true
		c.dirty = append(c.dirty, q)
	}
}

// push puts a new entry at the end.
func (c *core) push(q *queue, e entry) {
	q.ready.push(e)
	q.bytes += int64(e.body)
	c.bytes += e.weight()
	c.messages++
	c.mark(q)
}

// pop takes the head out; the entry is the caller's to settle.
func (c *core) pop(q *queue) entry {
	e := q.ready.pop()
	q.bytes -= int64(e.body)
	q.held++
	q.heldBytes += int64(e.body)
	return e
}

// putBack returns a popped entry to its old place.
func (c *core) putBack(q *queue, e entry) {
	q.held--
	q.heldBytes -= int64(e.body)
	if q.gone {
		return
	}
	e.flags |= flagRedelivered
	q.ready.putBack(e)
	q.bytes += int64(e.body)
	c.mark(q)
}

// drop ends a popped entry's life in q.
func (c *core) drop(q *queue, e entry) {
	q.held--
	q.heldBytes -= int64(e.body)
	if q.gone {
		return // its messages were forgotten with it
	}
	c.bytes -= e.weight()
	c.messages--
	if e.flags&flagLost == 0 {
		c.store.Remove(e.ref, q.id, e.seq, e.durable())
	}
	c.mark(q)
}

// forget drops all that q holds or has given out, without a record for each.
func (c *core) forget(q *queue) {
	q.ready.each(func(e *entry) {
		c.bytes -= e.weight()
		if e.flags&flagLost == 0 {
			c.store.Forget(e.ref)
		}
	})
	c.messages -= int64(q.ready.len())
	q.ready, q.bytes = ready{}, 0
}

// serveQueues looks at every queue that something happened to. What it does may
// concern further ones.
func (c *core) serveQueues() {
	for len(c.dirty) > 0 {
		list := c.dirty
		c.dirty = nil
		for _, q := range list {
			q.dirty = false
			if q.gone {
				continue
			}
			c.sweep(q)
			c.serve(q)
			c.schedule(q)
		}
	}
}

// sweep takes out what has expired at the head and what is over the limit.
func (c *core) sweep(q *queue) {
	for range sweepAtOnce {
		switch head := q.ready.head(); {
		case head == nil:
			return
		case head.flags&flagLost != 0:
			c.drop(q, c.pop(q))
		case head.expires != 0 && head.expires <= c.now:
			c.deadLetter(q, c.pop(q), "expired")
			c.counts.expired++
		case q.over():
			reason := "maxlen"
			if c.server.opts.Answers == LavinMQ && !(q.rules.maxLength >= 0 && int64(q.ready.len()) > q.rules.maxLength) {
				reason = "maxlenbytes"
			}
			c.deadLetter(q, c.pop(q), reason)
			c.counts.overflowed++
		default:
			return
		}
	}
	// The rest comes soon (schedule), so that a long queue holds up nobody.
}

// schedule sets when q wants to be looked at next.
func (c *core) schedule(q *queue) {
	var at int64
	if head := q.ready.head(); head != nil {
		at = head.expires
		if !head.alive(c.now) || q.over() {
			at = c.now + 1
		}
	}
	if q.rules.expires > 0 && len(q.consumers) == 0 {
		if end := q.idleSince + q.rules.expires; at == 0 || end < at {
			at = end
		}
	}
	c.wakeAt(q, at)
}

func (c *core) wakeAt(q *queue, at int64) {
	q.wake = at
	switch {
	case at == 0 && q.wakeIndex >= 0:
		heap.Remove(&c.sleeping, q.wakeIndex)
	case at == 0:
	case q.wakeIndex >= 0:
		heap.Fix(&c.sleeping, q.wakeIndex)
	default:
		heap.Push(&c.sleeping, q)
	}
}

// wakeQueues looks at the queues whose time has come.
func (c *core) wakeQueues() {
	for len(c.sleeping) > 0 && c.sleeping[0].wake <= c.now {
		q := heap.Pop(&c.sleeping).(*queue)
		q.wake = 0
		if q.rules.expires > 0 && len(q.consumers) == 0 && q.idleSince+q.rules.expires <= c.now {
			c.deleteQueue(q)
			continue
		}
		c.mark(q)
	}
}

// rearm sets the core's alarm for the first of the sleeping queues.
func (c *core) rearm() {
	if len(c.sleeping) == 0 {
		return
	}
	if at := c.sleeping[0].wake; at != c.armed {
		c.armed = at
		c.alarm.Reset(max(time.Until(time.UnixMilli(at)), 0))
	}
}

// wakers is a heap of queues by their time.
type wakers []*queue

func (w wakers) Len() int           { return len(w) }
func (w wakers) Less(i, j int) bool { return w[i].wake < w[j].wake }
func (w wakers) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].wakeIndex, w[j].wakeIndex = i, j
}
func (w *wakers) Push(x any) {
	q := x.(*queue)
	q.wakeIndex = len(*w)
	*w = append(*w, q)
}
func (w *wakers) Pop() any {
	old := *w
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	q.wakeIndex = -1
	return q
}

// deleteQueue ends q; what it holds is lost, as it is on every broker. The
// position is the one at which that is durable; 0 if nothing was written.
func (c *core) deleteQueue(q *queue) store.Position {
	q.gone = true
	c.wakeAt(q, 0)
	var at store.Position
	if q.kept() { // before the first message is forgotten, or a crash could leave some
		c.store.Drop(q.id)
		at = c.store.Delete(queueKey(q.name))
	}
	for _, k := range q.consumers {
		delete(k.channel.consumers, k.tag)
		if k.channel.conn.who.cancelNotify {
			c.send(k.channel.conn, item{channel: k.channel.id, method: &wire.BasicCancel{ConsumerTag: k.tag, NoWait: true}})
		}
	}
	q.consumers, q.exclusive, q.active = nil, nil, nil
	if q.held > 0 {
		for cn := range c.conns {
			for _, ch := range cn.channels {
				ch.abandon(q)
			}
		}
	}
	c.forget(q)
	for b := range q.bindings {
		c.unbind(b)
	}
	delete(c.queues, q.name)
	if q.owner != nil {
		delete(q.owner.queues, q)
	}
	return at
}
