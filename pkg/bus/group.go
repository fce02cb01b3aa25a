package bus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/topology"
)

const (
	// touchMost and touchShare: a paused queue is looked at this often, so that
	// the broker never counts it as unused.
	touchMost  = time.Hour
	touchShare = 3
	// drainLook is how often an emptying queue is looked at.
	drainLook = 100 * time.Millisecond
	// settleTime is how long a broker may take to notice that a consumer of a
	// dead channel is gone.
	settleTime = 50 * time.Millisecond
)

// group owns one consuming channel and the queues on it. Its goroutine alone
// uses the channel; a queue's reader hands over what the channel brings.
type group struct {
	*consumer
	prefetch int
	desk     *desk
	line     *line // nil: to be opened
	wake     chan struct{}
	tried    bool
	tries    backoff
	openedAt time.Time
	openAt   time.Time // not before

	// Guarded by the registry's lock.
	members []*member
	solo    bool // for one queue whose consume was refused, until it succeeds
	over    bool // takes nobody any more
}

// member is one queue in a group. Only the attachment is shared.
type member struct {
	*attachment
	queue    topology.Queue
	declared bool
	unbound  bool
	tag      string // of the consumer on the group's line; "": none
	retryAt  time.Time
	fails    int
	touchAt  time.Time
}

func newGroup(s *consumer, prefetch int, solo bool) *group {
	most := s.cfg.Bounds.BackoffMost
	return &group{
		consumer: s, prefetch: prefetch, solo: solo,
		desk:  &desk{conn: s.link.conn},
		wake:  make(chan struct{}, 1),
		tries: backoff{first: min(250*time.Millisecond, most), most: most},
	}
}

func (g *group) nudge() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run compares what is wanted with what stands, whenever something changes.
func (g *group) run() {
	defer g.leave()
	for {
		wait, on := g.step()
		if !on {
			return
		}
		g.pass()
		var acks <-chan struct{}
		var closed <-chan *amqp.Error
		if g.line != nil {
			acks, closed = g.line.acks, g.line.closed
		}
		timer := time.NewTimer(wait)
		select {
		case <-g.ctx.Done():
			timer.Stop()
			return
		case <-g.wake:
		case <-timer.C:
		case <-acks:
			g.line.flush()
		case e := <-closed:
			g.lineDied(why(e))
		}
		timer.Stop()
	}
}

// pass tells the session, once, that every member has been tried.
func (g *group) pass() {
	if !g.tried {
		g.tried = true
		g.wants.mu.Lock()
		defer g.wants.mu.Unlock()
		g.consumer.pass(1)
	}
}

// leave ends the group: what it served is free for another.
func (g *group) leave() {
	if g.line != nil {
		g.line.flush() // on a closing gateway; on a lost connection it fails at once
		g.line.die()
	}
	if g.ctx.Err() == nil {
		g.desk.close()
		if g.line != nil {
			_ = g.line.ch.Close()
		}
	}
	g.pass()
	g.wants.mu.Lock()
	defer g.wants.mu.Unlock()
	g.over = true
	for _, m := range g.members {
		g.release(m)
	}
	g.members = nil
}

// release is called with the registry's lock held.
func (g *group) release(m *member) {
	m.group, m.served = nil, false
	g.wants.show(m.attachment, "")
	g.wants.settle(m.attachment)
}

// step sees to each member once and says how long nothing more is to be done.
// It says false when the group has no members left.
func (g *group) step() (time.Duration, bool) {
	g.wants.mu.Lock()
	members := slices.Clone(g.members)
	// What a detached queue has out can still be acknowledged.
	idle := len(members) == 0 && (g.line == nil || !g.line.busy())
	g.over = g.over || idle
	g.wants.mu.Unlock()
	if idle {
		return 0, false
	}
	wait := touchMost
	for _, m := range members {
		if g.ctx.Err() != nil || g.link.conn.IsClosed() {
			return time.Second, true // the session ends in a moment
		}
		wait = min(wait, g.see(m))
		if g.line != nil {
			g.line.flush()
		}
	}
	return max(wait, time.Millisecond), true
}

// wish is what is wanted of a member at the moment.
type wish struct {
	detached, paused, drain, rebind, reading, waits bool
}

func (g *group) wish(m *member) wish {
	g.wants.mu.Lock()
	defer g.wants.mu.Unlock()
	w := wish{detached: m.detached, paused: m.paused, drain: m.leftover != nil, rebind: m.rebind, reading: m.reading}
	m.rebind = false
	if m.after != nil {
		select {
		case <-m.after:
		default:
			w.waits = true
		}
	}
	return w
}

// see brings one queue nearer to what is wanted of it, and says when to look
// again.
func (g *group) see(m *member) time.Duration {
	w := g.wish(m)
	if w.rebind {
		m.declared = false
	}
	if m.tag != "" && !w.reading {
		g.vanished(m)
	}
	switch {
	case w.detached:
		g.cancel(m)
		if !w.reading {
			g.forget(m)
		}
		return touchMost
	case w.waits:
		return touchMost // the end of the one before wakes us
	case time.Now().Before(m.retryAt):
		return time.Until(m.retryAt)
	case w.drain:
		return g.drain(m, w)
	case w.paused:
		g.cancel(m)
		return g.touch(m)
	}
	if err := g.declare(m, false); err != nil {
		return g.fail(m, err)
	}
	if m.tag == "" && !w.reading {
		return g.consume(m)
	}
	return touchMost
}

// vanished notes that the broker has ended the member's consumer: its queue was
// deleted or has expired.
func (g *group) vanished(m *member) {
	m.tag, m.declared = "", false
	m.retryAt = time.Now().Add(between(settleTime, 5*settleTime))
	g.log.Warn("the broker ended a consumer; the queue is declared anew", "queue", m.name)
}

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
		g.log.Error("a queue is not served", "queue", m.name, "err", text, "retry_in", wait)
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

// touch keeps a paused queue from expiring: a passive declare counts as use.
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
	if err := passive(g.desk, m.queue); err != nil {
		m.declared = false // vanished: declared anew on the next look
		return g.fail(m, err)
	}
	m.touchAt = time.Now().Add(touchEvery(m.queue))
	return touchEvery(m.queue)
}

// inUse knows the brokers' text for a queue with an exclusive consumer.
func inUse(reason string) bool { return strings.Contains(strings.ToLower(reason), "exclusive") }
