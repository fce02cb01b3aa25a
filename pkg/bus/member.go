package bus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fleet/pkg/topology"
)

// declare makes the queue and its bindings, once for a connection; not those of
// a queue that is being emptied.
func (g *group) declare(m *member, draining bool) error {
	if m.declared {
		return nil
	}
	m.queue = m.make(g.link.dialect)
	if !draining {
		if err := declareOwn(g.desk, m.queue, g.warn); err != nil {
			return err
		}
	}
	m.declared = true
	m.touchAt = time.Now().Add(touchEvery(m.queue))
	return nil
}

// warn tells once of a queue that stands with other arguments.
func (g *group) warn(queue string, cause error) {
	if g.wants.firstWarning(queue) {
		g.log.Warn("the queue stands with other arguments, or this login may not declare it; it is used as it stands",
			"queue", queue, "broker", g.broker.redact(cause.Error()),
			"hint", "to change it, stop its agent, empty and delete the queue, and start again")
	}
}

// consume starts the queue's consumer. A refusal closes the channel, so the
// queue then gets one for itself.
func (g *group) consume(m *member) time.Duration {
	if wait := g.open(); wait > 0 {
		return wait
	}
	l := g.line
	tag := fmt.Sprintf("%s-%d", g.cfg.Layout.Host, g.tags.Add(1))
	g.setReading(m, true)
	deliveries, err := l.ch.Consume(m.queue.Name, tag, false, m.queue.LoneConsumer, false, false, nil)
	if err != nil {
		return g.notConsumed(m, err)
	}
	m.tag, m.fails = tag, 0
	g.wants.mu.Lock()
	m.served, g.solo, m.alone = true, false, false
	g.wants.show(m.attachment, "")
	g.wants.mu.Unlock()
	name := m.queue.Name
	g.readers.Go(func() { // ended by the consumer's cancel, by the broker's, or by the channel's end
		l.read(deliveries, name, func(d Delivery) { g.wants.handOver(m.attachment, d) })
		g.setReading(m, false)
	})
	return touchMost
}

// notConsumed deals with a consumer that did not come to stand.
func (g *group) notConsumed(m *member, err error) time.Duration {
	g.setReading(m, false)
	guilty := refused(err) && !g.link.conn.IsClosed()
	g.lineDied(err)
	if !guilty {
		return time.Until(g.openAt) // the channel had died before
	}
	wait := g.fail(m, fmt.Errorf("consume queue %s: %w", m.queue.Name, err))
	g.isolate(m)
	return wait
}

// open makes sure of the group's channel. It returns how long to wait if there
// is none yet.
func (g *group) open() time.Duration {
	if g.line != nil {
		return 0
	}
	if wait := time.Until(g.openAt); wait > 0 {
		return wait
	}
	l, err := openLine(g.link.conn, g.prefetch)
	if err != nil {
		g.openAt = time.Now().Add(g.tries.next())
		return time.Until(g.openAt)
	}
	g.line, g.openedAt = l, time.Now()
	return 0
}

// setReading notes a reader's begin and end; at the end the queue's owner of the
// moment looks what is to be done.
func (g *group) setReading(m *member, reading bool) {
	g.wants.mu.Lock()
	defer g.wants.mu.Unlock()
	m.reading = reading
	if !reading {
		m.served = false
		g.wants.show(m.attachment, "")
		g.wants.settle(m.attachment)
	}
}

// cancel stops the member's consumer, if it has one; its reader hands over what
// was prefetched and ends.
func (g *group) cancel(m *member) {
	if m.tag == "" || g.line == nil {
		return
	}
	tag := m.tag
	m.tag = ""
	m.declared = m.declared && !m.queue.AutoDelete
	if err := g.line.ch.Cancel(tag, false); err != nil {
		g.log.Debug("cancel a consumer", "queue", m.name, "err", g.broker.redact(err.Error()))
	}
}

// lineDied forgets the channel; its queues are consumed again on another.
func (g *group) lineDied(err error) {
	if g.line == nil {
		return
	}
	g.line.die()
	g.line = nil
	if time.Since(g.openedAt) > stable {
		g.tries.reset()
	}
	g.openAt = time.Now().Add(settleTime + g.tries.next())
	g.wants.mu.Lock()
	members := slices.Clone(g.members)
	g.wants.mu.Unlock()
	for _, m := range members {
		m.tag, m.declared = "", false
	}
	if g.ctx.Err() == nil && !g.link.conn.IsClosed() {
		g.log.Warn("a consuming channel was closed", "err", g.broker.redact(err.Error()), "queues", len(members))
	}
}

// isolate gives a queue back to the session, which finds it a channel of its
// own.
func (g *group) isolate(m *member) {
	g.wants.mu.Lock()
	defer g.wants.mu.Unlock()
	if g.solo {
		return
	}
	m.alone = true
	g.members = slices.DeleteFunc(g.members, func(o *member) bool { return o == m })
	m.group = nil
	g.wants.rouse()
}

// forget takes a member out for good.
func (g *group) forget(m *member) {
	g.wants.mu.Lock()
	defer g.wants.mu.Unlock()
	g.members = slices.DeleteFunc(g.members, func(o *member) bool { return o == m })
	g.release(m)
	g.nudge()
}

// fail puts a member off after a refusal: soon if it passes by itself, later if
// an operator has to act.
func (g *group) fail(m *member, err error) time.Duration {
	if g.link.conn.IsClosed() {
		return time.Second
	}
	m.fails++
	low, high := g.lockRetry()
	wait := between(low, high)
	switch {
	case transient(err) && m.fails == 1:
		wait = between(settleTime, 5*settleTime) // most likely our own last consumer
	case !transient(err):
		wait = between(g.cfg.Bounds.BackoffMost, 2*g.cfg.Bounds.BackoffMost)
	}
	m.retryAt = time.Now().Add(wait)
	text := g.broker.redact(err.Error())
	g.wants.mu.Lock()
	g.wants.show(m.attachment, text)
	g.wants.mu.Unlock()
	if m.fails == 2 || !transient(err) {
		g.log.Error("a queue is not served", "queue", m.name, "err", text, "retry_in_seconds", wait.Seconds())
	}
	return wait
}

// show tells the board how the queue stands. It is called with mu held.
func (r *registry) show(a *attachment, why string) {
	if a.detached {
		return
	}
	r.board.serve(a.name, a.served || a.paused || a.leftover != nil, why)
}

// touchEvery is how often the broker must hear of a paused queue.
func touchEvery(q topology.Queue) time.Duration {
	if ms, ok := q.Args["x-expires"].(int64); ok && ms > 0 {
		return min(touchMost, time.Duration(ms)*time.Millisecond/touchShare)
	}
	return touchMost // a policy may expire it
}

// touch keeps a paused queue from expiring: a passive declare counts as use, of
// a quorum queue only a consumer does.
func (g *group) touch(m *member) time.Duration {
	if err := g.declare(m, false); err != nil {
		return g.fail(m, err)
	}
	if m.queue.AutoDelete {
		return touchMost // gone with its consumer
	}
	if wait := time.Until(m.touchAt); wait > 0 {
		return wait
	}
	err := passive(g.desk, m.queue)
	if err == nil && m.queue.Args["x-queue-type"] == string(topology.Quorum) {
		err = g.glance(m)
	}
	if err != nil {
		m.declared = false // vanished: declared anew on the next look
		return g.fail(m, err)
	}
	m.touchAt = time.Now().Add(touchEvery(m.queue))
	return touchEvery(m.queue)
}

// glance consumes a paused queue for a moment, on a channel of its own, so that
// no more than one message comes with it. That is handed over like any other.
func (g *group) glance(m *member) error {
	g.wants.mu.Lock()
	reading := m.reading
	g.wants.mu.Unlock()
	if reading {
		return nil // what was prefetched is still on its way
	}
	l, err := openLine(g.link.conn, 1)
	if err != nil {
		return err
	}
	tag := fmt.Sprintf("%s-%d", g.cfg.Layout.Host, g.tags.Add(1))
	deliveries, err := l.ch.Consume(m.queue.Name, tag, false, m.queue.LoneConsumer, false, false, nil)
	if err == nil {
		err = l.ch.Cancel(tag, false)
	}
	if err != nil {
		l.die()
		_ = l.ch.Close() // closed already where it was refused
		return err
	}
	g.setReading(m, true)
	read := newSignal()
	g.readers.Go(func() { // ended by the cancel, or by the channel's end
		l.read(deliveries, m.name, func(d Delivery) { g.wants.handOver(m.attachment, d) })
		read.set()
		g.setReading(m, false)
	})
	g.groups.Go(func() { g.await(l, read.c) }) // ended by the acknowledgement, the channel's end or the session's
	return nil
}

// await keeps a line until all that came on it has been read and acknowledged.
func (g *group) await(l *line, read <-chan struct{}) {
	defer l.die()
	for read != nil || l.busy() {
		select {
		case <-read:
			read = nil
		case <-l.acks:
			l.flush()
		case <-l.closed:
			return
		case <-g.ctx.Done():
			l.flush()
			return
		}
	}
	_ = l.ch.Close() // it may have died by now
}

// inUse knows the brokers' text for a queue with an exclusive consumer.
func inUse(reason string) bool { return strings.Contains(strings.ToLower(reason), "exclusive") }
