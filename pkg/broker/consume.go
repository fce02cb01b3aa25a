package broker

import (
	"slices"

	"fleet/pkg/broker/wire"
)

// consumer is one subscription.
type consumer struct {
	channel *channel
	queue   *queue
	tag     string
	noAck   bool
	limit   int // unsettled deliveries it may have; 0: any number
	held    int
}

// held is a delivery that its client has not settled.
type held struct {
	queue    *queue
	consumer *consumer // nil: basic.get
	entry    entry
}

// may says whether k can take one more delivery.
func (k *consumer) may() bool {
	ch := k.channel
	return (k.limit == 0 || k.held < k.limit || k.noAck) &&
		(ch.globalLimit == 0 || ch.delivered < ch.globalLimit || k.noAck) && !ch.conn.closing
}

// taker is the consumer whose turn it is, nil if none can take a delivery.
func (c *core) taker(q *queue) *consumer {
	for i := range q.consumers {
		at := (q.next + i) % len(q.consumers)
		k := q.consumers[at]
		if q.rules.single && k != q.active || !k.may() {
			continue
		}
		if cn := k.channel.conn; cn.stalled || cn.out.full() {
			c.stall(cn)
			continue
		}
		q.next = at + 1
		return k
	}
	return nil
}

// stall leaves cn out until its socket has taken what waits.
func (c *core) stall(cn *conn) {
	if cn.stalled {
		return
	}
	cn.stalled = true
	cn.out.asked.Store(true)
	if !cn.out.full() && cn.out.asked.CompareAndSwap(true, false) {
		c.unstall(cn) // it was taken just now, and the writer did not see the wish
	}
}

func (c *core) unstall(cn *conn) {
	cn.stalled = false
	for _, ch := range cn.channels {
		ch.resume()
	}
}

// serve delivers what q has to whoever can take it.
func (c *core) serve(q *queue) {
	for q.ready.len() > 0 && !q.gone {
		if !q.ready.head().alive(c.now) {
			return // sweep takes it; schedule sees to that
		}
		k := c.taker(q)
		if k == nil {
			return
		}
		c.deliver(k, c.pop(q))
	}
}

// deliver hands a popped entry to k.
func (c *core) deliver(k *consumer, e entry) {
	q, ch := k.queue, k.channel
	if q.rules.tries > 0 && int(e.tries) >= q.rules.tries {
		c.deadLetter(q, e, "delivery_limit")
		return
	}
	ch.deliveryTag++
	method := &wire.BasicDeliver{ConsumerTag: k.tag, DeliveryTag: ch.deliveryTag, Redelivered: e.flags&flagRedelivered != 0}
	c.handOut(ch, method, e, q)
	if k.noAck {
		c.drop(q, e)
		return
	}
	if e.tries < 255 {
		e.tries++
	}
	ch.hold(&held{q, k, e})
}

// handOut puts a message into its connection's outbox. The body is pinned there,
// so it stays readable however soon it is settled.
func (c *core) handOut(ch *channel, method wire.Method, e entry, q *queue) {
	ch.conn.out.deliveries.Add(1)
	ch.conn.out.bytes.Add(int64(e.body))
	c.counts.delivered++
	it := item{channel: ch.id, method: method, body: c.store.Load(e.ref), size: int64(e.body), seq: e.seq}
	if q.rules.tries > 0 && e.tries > 0 {
		it.tries = int32(e.tries)
	}
	c.send(ch.conn, it)
}

func (ch *channel) consume(m *wire.BasicConsume) *violation {
	c := ch.core
	q, v := ch.queue(m.Queue)
	if v != nil {
		return v
	}
	tag := m.ConsumerTag
	if tag == "" {
		tag = "amq.ctag-" + randomName()
	} else if ch.consumers[tag] != nil {
		if c.server.opts.Answers != LavinMQ {
			return forbid(530, "attempt to reuse consumer tag '%s'", tag)
		}
	}
	if p, there := m.Arguments["x-priority"]; there { // ignored, but not if it is nonsense
		if _, ok := wholeNumber(p); !ok {
			return refuse(406, "invalid arg 'x-priority' for queue '%s' in vhost '/': %s", q.name, noInteger(p))
		}
	}
	if v := c.mayConsume(q, m.Exclusive); v != nil {
		return v
	}
	k := &consumer{channel: ch, queue: q, tag: tag, noAck: m.NoAck, limit: ch.prefetch}
	ch.consumers[tag] = k
	q.consumers = append(q.consumers, k)
	q.used = true
	if m.Exclusive {
		q.exclusive = k
	}
	if q.active == nil {
		q.active = k
	}
	if !m.NoWait {
		c.send(ch.conn, item{channel: ch.id, method: &wire.BasicConsumeOK{ConsumerTag: tag}})
	}
	c.mark(q)
	return nil
}

func (c *core) mayConsume(q *queue, exclusive bool) *violation {
	lavin := c.server.opts.Answers == LavinMQ
	switch {
	case q.exclusive != nil, exclusive && (len(q.consumers) > 0 || q.rules.single) && !lavin:
		if lavin {
			return refuse(403, "Queue '%s' in vhost '/' in exclusive use", q.name)
		}
		return refuse(403, "queue '%s' in vhost '/' in exclusive use", q.name)
	}
	return nil
}

// cancel ends k; what it holds stays held until it is settled.
func (c *core) cancel(k *consumer) {
	q := k.queue
	delete(k.channel.consumers, k.tag)
	if q.gone {
		return
	}
	q.consumers = slices.DeleteFunc(q.consumers, func(o *consumer) bool { return o == k })
	if q.exclusive == k {
		q.exclusive = nil
	}
	if q.active == k {
		q.active = nil
		if len(q.consumers) > 0 {
			q.active = q.consumers[0]
		}
	}
	q.idleSince = c.now
	if len(q.consumers) == 0 && q.autoDelete && q.used {
		c.deleteQueue(q)
		return
	}
	c.mark(q)
}

func (ch *channel) get(m *wire.BasicGet) *violation {
	c := ch.core
	q, v := ch.queue(m.Queue)
	if v != nil {
		return v
	}
	if q.exclusive != nil && c.server.opts.Answers == LavinMQ {
		return refuse(403, "Queue '%s' in vhost '/' in exclusive use", q.name)
	}
	if q.rules.single {
		return refuse(405, "cannot obtain access to queue '%s' in vhost '/' with single active consumer", q.name)
	}
	q.idleSince = c.now
	c.sweep(q)
	c.mark(q)
	head := q.ready.head()
	if head == nil || !head.alive(c.now) {
		c.send(ch.conn, item{channel: ch.id, method: &wire.BasicGetEmpty{}})
		return nil
	}
	e := c.pop(q)
	c.sweep(q) // what is behind it may have expired, and is not to be counted
	ch.deliveryTag++
	method := &wire.BasicGetOK{DeliveryTag: ch.deliveryTag, Redelivered: e.flags&flagRedelivered != 0,
		MessageCount: uint32(q.ready.len())}
	c.handOut(ch, method, e, q)
	if m.NoAck {
		c.drop(q, e)
		return nil
	}
	if e.tries < 255 {
		e.tries++
	}
	ch.hold(&held{q, nil, e})
	return nil
}
