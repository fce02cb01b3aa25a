package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

const (
	// groupMost is how many queues share a channel: a connection has about 2,000
	// channels, and one queue's trouble costs its channel.
	groupMost = 64
	// livePrefetch bounds what the lock queue has out. It is generous, because
	// what is in it is worthless soon.
	livePrefetch = 256
)

// consumeLoop connects and reconnects the consuming side until ctx ends.
func (b *Bus) consumeLoop(ctx context.Context) {
	retry := b.newRetry()
	for ctx.Err() == nil {
		began := time.Now()
		err := b.consumeOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := retry.after(err, time.Since(began))
		reason, state := b.explain(err)
		b.board.consumeDown(reason, state)
		b.log.Warn("the consuming connection is down", "err", reason, "retry_in_seconds", wait.Seconds())
		pause(ctx, wait)
	}
}

// consumeOnce runs one connection until it or ctx ends.
func (b *Bus) consumeOnce(ctx context.Context) error {
	l, err := b.dial(ctx, "consume")
	if err != nil {
		return err
	}
	defer l.doom(ctx)()
	b.board.dialect(l.dialect)
	inner, cancel := context.WithCancel(ctx)
	s := &consumer{
		Bus: b, link: l, desk: &desk{conn: l.conn}, ctx: inner,
		wake: make(chan struct{}, 1), passed: newSignal(),
	}
	err = s.run()
	cancel()
	if ctx.Err() == nil {
		l.abandon() // before the wait: it frees whoever stands in a call
	}
	s.groups.Wait()
	if s.lock != nil {
		s.lock.flush()
		s.lock.die()
	}
	b.wants.adopt(nil, nil)
	if ctx.Err() != nil {
		l.close()
	}
	return err
}

// consumer is the session of one consuming connection. Its goroutine owns the
// lock queue's channel and the desk; each group of queues has its own owner.
type consumer struct {
	*Bus
	link   *link
	desk   *desk
	ctx    context.Context // ends with the session
	lock   *line
	wake   chan struct{} // cap 1: look at the registry
	groups sync.WaitGroup
	all    []*group
	retry  time.Time // of live bindings
	tags   atomic.Uint64
	passed *signal // each queue has been tried once

	unpassed int // groups that have not tried theirs; under the registry's lock
}

func (s *consumer) run() error {
	if _, err := declareShared(s.desk, s.cfg.Layout, s.link.dialect); err != nil {
		return err
	}
	deliveries, err := s.takeLock()
	if err != nil {
		return err
	}
	s.readers.Go(func() { s.lock.read(deliveries, s.cfg.Layout.Lock().Name, s.wants.handOverLive) })
	s.board.consumeLocked()
	s.wants.adopt(s.nudge, s.link.conn)
	s.assign()
	if err := s.bindLive(); err != nil {
		return err
	}
	return s.serve()
}

// pass notes that a group has tried each of its queues once.
func (s *consumer) pass(groups int) {
	s.unpassed -= groups
	if s.unpassed == 0 {
		s.passed.set()
	}
}

func (s *consumer) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// serve keeps the session until it ends.
func (s *consumer) serve() error {
	passed := s.passed.c
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case e := <-s.link.closed:
			return why(e)
		case e := <-s.lock.closed:
			// With its last consumer the lock queue is gone: another gateway may have
			// it by now. Begin at the beginning.
			return fmt.Errorf("the lock queue's channel was closed: %w", why(e))
		case <-passed:
			passed = nil
			if !s.link.conn.IsClosed() { // the groups of a lost connection end their pass too
				s.board.consumeReady()
			}
		case <-s.lock.acks:
			s.lock.flush()
		case <-s.wake:
			s.assign()
			if err := s.bindLive(); err != nil {
				return err
			}
		case <-tick.C:
			if !s.retry.IsZero() && time.Now().After(s.retry) {
				s.nudge()
			}
		}
	}
}

// takeLock declares the lock queue and consumes it. While another connection
// has it, it asks again; that may be this host's own last connection, which a
// broker keeps for three heartbeats after its network is gone.
func (s *consumer) takeLock() (<-chan amqp.Delivery, error) {
	q := s.cfg.Layout.Lock()
	for {
		err := active(s.desk, q)
		var deliveries <-chan amqp.Delivery
		if err == nil {
			deliveries, err = s.consumeLock(q)
		}
		if err == nil {
			return deliveries, nil
		}
		code := codeOf(err)
		if code != amqp.ResourceLocked && (code != amqp.AccessRefused || s.link.conn.IsClosed()) {
			return nil, fmt.Errorf("take the host's lock %s: %w", q.Name, err)
		}
		reason := fmt.Sprintf("another gateway serves host %s (%s)", s.cfg.Layout.Host, s.broker.redact(err.Error()))
		s.board.consumeHeld(reason, fault.New(fault.HostHeld, "%s", reason).
			WithHint("two machines with one host name, or a gateway of this host that died a moment ago"))
		select {
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		case e := <-s.link.closed:
			return nil, why(e)
		case <-time.After(between(s.lockRetry())):
		}
	}
}

func (s *consumer) consumeLock(q topology.Queue) (<-chan amqp.Delivery, error) {
	l, err := openLine(s.link.conn, livePrefetch)
	if err != nil {
		return nil, err
	}
	deliveries, err := l.ch.Consume(q.Name, "live", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	s.lock = l
	return deliveries, nil
}

// bindLive makes the lock queue's bindings what is wanted. A refusal is tried
// again later; only a lost connection is an error.
func (s *consumer) bindLive() error {
	s.retry = time.Time{}
	bind, unbind := s.wants.liveChanges()
	name := s.cfg.Layout.Lock().Name
	for _, key := range bind {
		err := s.desk.ask(func(ch *amqp.Channel) error { return ch.QueueBind(name, key, topology.Messages, false, nil) })
		if err == nil {
			s.wants.liveBound(key)
			continue
		}
		if s.link.conn.IsClosed() {
			return fmt.Errorf("bind the lock queue: %w", err)
		}
		s.log.Error("a live key can't be bound", "key", key, "err", s.broker.redact(err.Error()))
		if codeOf(err) == amqp.NotFound {
			if made, _ := declareShared(s.desk, s.cfg.Layout, s.link.dialect); made {
				s.wants.rebind()
			}
		}
		_, high := s.lockRetry()
		s.retry = time.Now().Add(high)
	}
	for _, key := range unbind {
		err := s.desk.ask(func(ch *amqp.Channel) error { return ch.QueueUnbind(name, key, topology.Messages, nil) })
		if err != nil && s.link.conn.IsClosed() {
			return fmt.Errorf("unbind the lock queue: %w", err)
		}
		s.wants.liveUnbound(key)
	}
	return nil
}

// assign gives every attachment that has no group to one with room.
func (s *consumer) assign() {
	s.wants.mu.Lock()
	defer s.wants.mu.Unlock()
	for _, a := range s.wants.queues {
		if a.group != nil {
			continue
		}
		g := s.room(a)
		g.members = append(g.members, &member{attachment: a})
		a.group = g
		g.nudge()
	}
	s.pass(0)
}

// room is called with the registry's lock held.
func (s *consumer) room(a *attachment) *group {
	if !a.alone {
		for _, g := range s.all {
			if !g.over && !g.solo && g.prefetch == a.prefetch && len(g.members) < groupMost {
				return g
			}
		}
	}
	g := newGroup(s, a.prefetch, a.alone)
	live := s.all[:0]
	for _, old := range s.all {
		if !old.over {
			live = append(live, old)
		}
	}
	s.all = append(live, g)
	s.unpassed++
	s.groups.Go(g.run) // ended by the session's context, or by its last member's leaving
	return g
}

// adopt makes wake the way to wake the session on conn. Bindings of the lock queue are
// to be made for a new one.
func (r *registry) adopt(wake func(), conn *amqp.Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wake, r.conn, r.lost = wake, conn, false
	clear(r.unlive)
	for key := range r.live {
		r.live[key] = false
	}
	r.board.update(func() {})
}

// liveChanges lists the keys to bind and to unbind.
func (r *registry) liveChanges() (bind, unbind []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, stands := range r.live {
		if !stands || r.lost {
			bind = append(bind, key)
		}
	}
	r.lost = false
	for key := range r.unlive {
		unbind = append(unbind, key)
	}
	return bind, unbind
}

func (r *registry) liveBound(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, wanted := r.live[key]; wanted {
		r.live[key] = true
	} else {
		r.unlive[key] = true
		r.rouse()
	}
	r.board.update(func() {})
}

// liveUnbound notes an unbinding, unless the key has been wanted again since.
func (r *registry) liveUnbound(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unlive, key)
	if _, wanted := r.live[key]; wanted {
		r.live[key] = false
		r.rouse()
	}
}

// transient says whether a refusal of one queue passes by itself: another
// connection has it, or it vanished.
func transient(err error) bool {
	switch codeOf(err) {
	case amqp.ResourceLocked, amqp.NotFound:
		return true
	case amqp.AccessRefused:
		return inUse(err.Error())
	}
	return !refused(err)
}

// refused says whether err is the broker's word, rather than the end of a
// channel or connection in between.
func refused(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Server
}
