package bus

import (
	"slices"
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
