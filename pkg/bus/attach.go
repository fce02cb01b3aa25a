package bus

import (
	"context"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

// Attach declares and consumes the queue that make gives for the broker's
// dialect, now and after every reconnect. Name is the queue's name. The broker
// has at most prefetch deliveries of it out unacknowledged. handle is called in
// the order of delivery, one at a time for the queue; it must not block, and
// has each Delivery acknowledged sooner or later. Attach itself does not block;
// Served waits until the consumer stands. A second Attach of a name takes the
// place of the first and declares again.
func (b *Bus) Attach(name string, make func(topology.Dialect) topology.Queue, prefetch int, handle func(Delivery)) {
	b.wants.attach(&attachment{name: name, make: make, prefetch: max(prefetch, 1), handle: handle, gone: newSignal()})
}

// Detach stops consuming a queue, which stays on the broker. It returns when
// handle will not be called any more; if ctx ends before, it returns its error,
// and the queue is detached soon after all the same. What was delivered can
// still be acknowledged. A name that is not attached is no error.
func (b *Bus) Detach(ctx context.Context, name string) error {
	gone := b.wants.detach(name)
	return waitGone(ctx, gone, name)
}

// DetachAndDelete ends a queue (R6): it unbinds it, hands everything that is
// still in it to leftover instead of the queue's handle, waits until all of that
// is acknowledged, and deletes the queue. leftover may block; the queue waits
// for it. It fails with NotFound if the name is not attached, and with NoBroker
// at once while the link is not there. If ctx ends before the queue is deleted,
// it returns its error, and the work goes on, over reconnects too; call again
// to wait for it.
func (b *Bus) DetachAndDelete(ctx context.Context, name string, leftover func(Delivery)) error {
	if state := b.State(); state.Link == Down || state.Link == Held {
		return state.Err
	}
	gone := b.wants.drain(name, leftover)
	if gone == nil {
		return fault.New(fault.NotFound, "no queue %s is attached", name)
	}
	return waitGone(ctx, gone, name)
}

func waitGone(ctx context.Context, gone <-chan struct{}, name string) error {
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("detach queue %s: %w", name, ctx.Err())
	}
}

// Pause stops consuming a queue until Resume. What was prefetched is still
// handed over and can be acknowledged. The broker does not count the queue as
// unused meanwhile. A name that is not attached is ignored.
func (b *Bus) Pause(name string) { b.wants.change(name, func(a *attachment) { a.paused = true }) }

// Resume goes on consuming a paused queue.
func (b *Bus) Resume(name string) { b.wants.change(name, func(a *attachment) { a.paused = false }) }

// BindLive binds keys of the messages' exchange to the host's lock queue, now
// and after every reconnect. It does not block; Served waits until they stand.
func (b *Bus) BindLive(keys ...string) {
	b.wants.bindLive(true, keys)
}

// UnbindLive takes back BindLive.
func (b *Bus) UnbindLive(keys ...string) {
	b.wants.bindLive(false, keys)
}

// OnLive sets who gets what comes into the lock queue, under the rules of
// Attach's handle. Without one, it is acknowledged and dropped.
func (b *Bus) OnLive(handle func(Delivery)) { b.wants.onLive(handle) }

// Served waits until each name, an attached queue or a live key, stands on the
// broker: the queue declared, bound and consumed, the key bound. A name that is
// neither is waited for too. If ctx ends first it fails with NoBroker and says
// what is missing.
func (b *Bus) Served(ctx context.Context, names ...string) error {
	for {
		changed := b.Changed()
		missing := b.wants.missing(names)
		if missing == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			state := b.State()
			reason := orText(orText(state.Unserved[missing], state.Reason), "it is being declared")
			return fault.New(fault.NoBroker, "%s does not stand on the broker: %s", missing, reason)
		}
	}
}

// attachment is what is wanted of one queue. The registry's lock guards it, but
// for the fields that never change.
type attachment struct {
	name     string
	make     func(topology.Dialect) topology.Queue
	prefetch int
	handle   func(Delivery)
	after    <-chan struct{} // the same name's attachment before this one is gone
	gone     *signal         // nothing is handed over any more, and none will be

	paused   bool
	detached bool
	leftover func(Delivery) // not nil: the queue is being read out and deleted

	group   *group // who serves it
	alone   bool   // its consume was refused: it must not bring down others again
	reading bool   // a reader may be handing over, of whatever line
	served  bool   // its consumer stands
	rebind  bool   // its bindings may be lost
}

// registry is what is wanted of the broker, across connections. Owners of
// channels compare it with what stands, whenever they are woken.
type registry struct {
	board *board

	mu     sync.Mutex // guards all below and the attachments
	queues map[string]*attachment
	live   map[string]bool // wanted keys; the value says that the binding stands
	unlive map[string]bool // keys to unbind
	onlive func(Delivery)
	wake   func()           // wakes the session; nil between sessions
	conn   *amqp.Connection // the session's; nil between sessions
	warned map[string]bool  // queues already warned of
	lost   bool             // bindings of the lock queue may be lost
}

func newRegistry(b *board) *registry {
	return &registry{
		board: b, queues: map[string]*attachment{}, live: map[string]bool{},
		unlive: map[string]bool{}, warned: map[string]bool{},
	}
}

// rouse is called with mu held.
func (r *registry) rouse() {
	if r.wake != nil {
		r.wake()
	}
}

func (r *registry) attach(a *attachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.queues[a.name]; old != nil {
		a.after = old.gone.c
		r.retire(old)
	}
	r.queues[a.name] = a
	r.board.serve(a.name, false, "")
	r.rouse()
}

// retire is called with mu held. It takes an attachment out of the registry and
// leaves it to its group to stop handing over.
func (r *registry) retire(a *attachment) {
	a.detached = true
	delete(r.queues, a.name)
	r.board.serve(a.name, true, "")
	r.settle(a)
}

// settle is called with mu held. It notes that an attachment is gone, once
// nobody has it any more.
func (r *registry) settle(a *attachment) {
	if a.detached && a.group == nil && !a.reading {
		a.gone.set()
		if next := r.queues[a.name]; next != nil && next.group != nil {
			next.group.nudge()
		}
	} else if a.group != nil {
		a.group.nudge()
	}
}

func (r *registry) detach(name string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.queues[name]
	if a == nil {
		done := newSignal()
		done.set()
		return done.c
	}
	r.retire(a)
	return a.gone.c
}

func (r *registry) drain(name string, leftover func(Delivery)) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.queues[name]
	if a == nil {
		return nil
	}
	a.leftover = leftover
	r.board.serve(name, true, "")
	r.settle(a)
	return a.gone.c
}

func (r *registry) change(name string, set func(*attachment)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.queues[name]
	if a == nil {
		return
	}
	set(a)
	r.board.serve(name, a.served || a.paused, "")
	r.settle(a)
}

func (r *registry) bindLive(want bool, keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		_, is := r.live[key]
		if want && !is {
			r.live[key] = false
			delete(r.unlive, key)
		}
		if !want && is {
			delete(r.live, key)
			r.unlive[key] = true
		}
	}
	r.rouse()
}

func (r *registry) onLive(handle func(Delivery)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onlive = handle
}

// handOverLive gives a delivery of the lock queue to its handler of the moment.
func (r *registry) handOverLive(d Delivery) {
	r.mu.Lock()
	handle := r.onlive
	r.mu.Unlock()
	if handle == nil {
		d.Ack()
		return
	}
	handle(d)
}

// handOver gives a delivery to the queue's handler of the moment.
func (r *registry) handOver(a *attachment, d Delivery) {
	r.mu.Lock()
	handle := a.handle
	if a.leftover != nil {
		handle = a.leftover
	}
	r.mu.Unlock()
	handle(d)
}

// missing is the first of names that does not stand, or "".
func (r *registry) missing(names []string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if a := r.queues[name]; (a == nil || !a.served) && !r.live[name] {
			return name
		}
	}
	return ""
}

// rebind has every binding made anew: an exchange was gone.
func (r *registry) rebind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
	for _, a := range r.queues {
		a.rebind = true
		r.settle(a)
	}
	r.rouse()
}

// firstWarning says true once for each queue.
func (r *registry) firstWarning(queue string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.warned[queue] {
		return false
	}
	r.warned[queue] = true
	return true
}

// signal is a channel that is closed once, however often it is set.
type signal struct {
	once sync.Once
	c    chan struct{}
}

func newSignal() *signal { return &signal{c: make(chan struct{})} }

func (s *signal) set() { s.once.Do(func() { close(s.c) }) }
