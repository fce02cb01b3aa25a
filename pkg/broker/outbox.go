package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
)

// item is one thing to write: a method, and for a message what follows it.
type item struct {
	channel uint16
	method  wire.Method
	body    *store.Body // a message to read from the store; exchange and key go into the method
	message *store.Message
	size    int64 // of its body in bytes
	seq     uint64
	tries   int32 // earlier deliveries, where the client is told (LavinMQ)
	last    bool  // the socket is closed after it
}

// outbox is what waits for a socket. The core puts in, the writer takes out; the
// reader looks whether there is room.
type outbox struct {
	mu     sync.Mutex
	room   *sync.Cond // something changed that a reader may wait for
	items  []item     // guarded by mu, as are closed and held
	closed bool
	held   bool          // a channel waits for the disk, so nothing more is read
	wake   chan struct{} // one place: there are items, or it is closed

	deliveries atomic.Int64 // messages that wait
	bytes      atomic.Int64 // of their bodies
	asked      atomic.Bool  // the core wants to hear when they are written
}

func newOutbox() *outbox {
	o := &outbox{wake: make(chan struct{}, 1)}
	o.room = sync.NewCond(&o.mu)
	return o
}

// put never blocks. What comes after close is released.
func (o *outbox) put(items []item) {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		release(items)
		return
	}
	o.items = append(o.items, items...)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func release(items []item) {
	for _, it := range items {
		if it.body != nil {
			it.body.Release()
		}
	}
}

func (o *outbox) close() {
	o.mu.Lock()
	items := o.items
	o.closed, o.items = true, nil
	o.room.Broadcast()
	o.mu.Unlock()
	release(items)
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// hold stops the connection's reader, or lets it go on.
func (o *outbox) hold(yes bool) {
	o.mu.Lock()
	o.held = yes
	o.room.Broadcast()
	o.mu.Unlock()
}

// awaitRoom blocks until the connection may go on; false means that it is closed.
// may is asked again whenever something changed; waiting counts who waits.
func (o *outbox) awaitRoom(may func() bool, waiting *atomic.Int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && (o.held || o.crowded() || !may()) {
		waiting.Add(1)
		if o.closed || o.held || o.crowded() || !may() { // seen by whoever reads waiting after a change
			o.room.Wait()
		}
		waiting.Add(-1)
	}
	return !o.closed
}

// crowded says whether so much waits that the client is not read any more.
func (o *outbox) crowded() bool { return len(o.items) > outItems || o.bytes.Load() > 2*outBytes }

// full says whether enough deliveries wait for the socket.
func (o *outbox) full() bool {
	return o.deliveries.Load() >= outDeliveries || o.bytes.Load() >= outBytes
}

// relax lets a reader that waits for room look again.
func (o *outbox) relax() {
	o.mu.Lock()
	o.room.Broadcast()
	o.mu.Unlock()
}

// take returns what waits; nil after idle without anything, false at the end.
func (o *outbox) take(idle *time.Timer) ([]item, bool) {
	for {
		o.mu.Lock()
		items, closed := o.items, o.closed
		o.items = nil
		o.mu.Unlock()
		if closed {
			release(items)
			return nil, false
		}
		if len(items) > 0 {
			return items, true
		}
		select {
		case <-o.wake:
		case <-idle.C:
			return nil, true
		}
	}
}

// write makes frames of items until the outbox is closed or the socket fails.
func (c *conn) write() {
	defer c.end()
	beat := 24 * time.Hour
	if c.who.heartbeat > 0 {
		beat = c.who.heartbeat / 2
	}
	idle := time.NewTimer(beat)
	defer idle.Stop()
	var buf []byte
	for {
		items, ok := c.out.take(idle)
		if !ok {
			return
		}
		if items == nil {
			buf = wire.AppendHeartbeat(buf[:0])
		}
		for i := range items {
			var err error
			if buf, err = c.render(buf, &items[i]); err != nil {
				release(items[i:])
				c.server.opts.Log.Error("can't read a stored message; its connection is closed", "err", err)
				c.flush(wire.AppendMethod(buf, 0, &wire.ConnectionClose{ReplyCode: 541, ReplyText: replyText(541, "a stored message can't be read")}))
				return
			}
			if items[i].last {
				release(items[i+1:])
				c.flush(buf)
				return
			}
			if len(buf) >= 64<<10 {
				if !c.flush(buf) {
					release(items[i+1:])
					return
				}
				buf = buf[:0]
			}
		}
		if !c.flush(buf) {
			return
		}
		c.out.relax()
		idle.Reset(beat)
		if buf = buf[:0]; cap(buf) > 1<<20 {
			buf = nil
		}
		if c.out.asked.Load() && c.out.deliveries.Load() < outDeliveries/2 && c.out.bytes.Load() < outBytes/2 &&
			c.out.asked.CompareAndSwap(true, false) {
			if !c.server.core.submit(batch{conn: c, commands: []command{{event: drained}}}) {
				return
			}
		}
	}
}

// render appends it's frames; it lets go of its body.
func (c *conn) render(b []byte, it *item) ([]byte, error) {
	if it.body == nil && it.message == nil {
		return wire.AppendMethod(b, it.channel, it.method), nil
	}
	m := it.message
	if it.body != nil {
		read, err := it.body.Read()
		it.body.Release()
		c.out.deliveries.Add(-1)
		c.out.bytes.Add(-it.size)
		if store.Damaged(err) {
			return c.skip(b, it, err), nil
		}
		if err != nil {
			return b, err
		}
		m = &read
	} else {
		c.out.bytes.Add(-it.size)
	}
	switch to := it.method.(type) {
	case *wire.BasicDeliver:
		to.Exchange, to.RoutingKey = m.Exchange, m.Key
	case *wire.BasicGetOK:
		to.Exchange, to.RoutingKey = m.Exchange, m.Key
	}
	if it.tries > 0 {
		m.Properties = counted(m.Properties, it.tries)
	}
	b = wire.AppendMethod(b, it.channel, it.method)
	return wire.AppendContent(b, it.channel, m.Properties, m.Body, c.who.frameMax), nil
}

// skip leaves out a message that the disk has lost, and tells the core.
func (c *conn) skip(b []byte, it *item, err error) []byte {
	c.server.opts.Log.Error("a stored message is lost", "err", err)
	lost := command{event: damaged, channel: it.channel, seq: it.seq}
	switch m := it.method.(type) {
	case *wire.BasicDeliver:
		lost.tag = m.DeliveryTag
	case *wire.BasicGetOK:
		lost.tag = m.DeliveryTag
		b = wire.AppendMethod(b, it.channel, &wire.BasicGetEmpty{})
	}
	c.server.core.submit(batch{conn: c, commands: []command{lost}})
	return b
}

// counted adds how often the message was delivered before.
func counted(properties []byte, tries int32) []byte {
	p, err := wire.ParseProperties(properties)
	if err != nil {
		return properties
	}
	if p.Headers == nil {
		p.Headers = wire.Table{}
	}
	p.Headers["x-delivery-count"] = tries
	return p.Append(nil)
}

// flush writes b; a socket that takes nothing for long is given up.
func (c *conn) flush(b []byte) bool {
	for len(b) > 0 {
		// In pieces, each with its own time: a slow client is not a dead one, and a
		// timeout is the end of a TLS connection.
		c.raw.SetWriteDeadline(time.Now().Add(writeBound))
		n, err := c.raw.Write(b[:min(len(b), writePiece)])
		if err != nil {
			return false
		}
		b = b[n:]
	}
	return true
}
