package broker

import (
	"context"
	"sync/atomic"
	"syscall"
	"time"

	"fleet/pkg/broker/store"
	"fleet/pkg/fault"
)

// core owns all exchanges, queues and channels. Connections send it batches; it
// puts items into their outboxes and records into the store, and waits for
// neither.
type core struct {
	server   *Server
	store    *store.Store
	in       chan batch
	asks     chan func()   // an operator's questions
	durable  chan struct{} // one place: synced has moved
	synced   atomic.Uint64 // store.Position up to which all is durable
	failed   chan error    // one place: the disk failed
	stopping chan struct{} // closed when the broker is to end
	stopped  atomic.Bool   // stopping is closed
	shut     atomic.Bool   // publishers are blocked
	waiting  atomic.Int64  // readers that wait to go on
	stats    atomic.Pointer[Stats]

	// What follows belongs to the goroutine in run.
	exchanges map[string]*exchange
	queues    map[string]*queue
	conns     map[*conn]struct{}
	seq       uint64 // of the last message
	queueID   uint64 // of the last queue
	now       int64  // unix ms, read once a step
	bytes     int64  // the weight of all entries
	messages  int64
	alarms    alarms
	counts    counts
	alarm     *time.Timer // for the next queue that wants to be looked at
	armed     int64       // unix ms: when it rings; 0: it does not
	sleeping  wakers

	stamp     uint64   // of the last route
	visit     uint64   // of its last key
	found     []*queue // of the last route; the next one overwrites it, as do the next enqueue's:
	taken     []*queue
	places    []store.Place
	dying     []death    // dead letters that wait for their turn
	budget    int64      // bytes that may die yet in this step
	buryLater bool       // one could not be read; the next tick tries again
	again     bool       // the next step is due at once
	dirty     []*queue   // to be looked at, at the end of the step
	touched   []*conn    // with something in outgoing
	confirmed []*channel // with something in acks
	awaiting  []*channel // with confirms or replies that wait for the disk
}

func newCore(s *Server) *core {
	c := &core{
		server: s, in: make(chan batch, 64), asks: make(chan func()), durable: make(chan struct{}, 1), failed: make(chan error, 1),
		stopping: make(chan struct{}), exchanges: map[string]*exchange{}, queues: map[string]*queue{},
		conns: map[*conn]struct{}{}, alarm: time.NewTimer(time.Hour), now: time.Now().UnixMilli(),
	}
	for _, x := range []exchange{{name: "", kind: direct}, {name: "amq.direct", kind: direct}, {name: "amq.fanout", kind: fanout}, {name: "amq.topic", kind: topic}} {
		x.durable, x.predeclared = true, true
		c.exchanges[x.name] = &x
	}
	c.stats.Store(&Stats{})
	return c
}

// nowDurable is the store's word that more has become durable.
func (c *core) nowDurable(upTo store.Position) {
	c.synced.Store(uint64(upTo))
	select {
	case c.durable <- struct{}{}:
	default:
	}
}

// diskFailed is the store's word that nothing becomes durable any more.
func (c *core) diskFailed(err error) {
	select {
	case c.failed <- err:
	default:
	}
}

// submit hands b over; false means that the broker has ended.
func (c *core) submit(b batch) bool {
	select {
	case c.in <- b:
		return true
	case <-c.server.done:
		return false
	}
}

// mayPublish says whether publishers may go on.
func (c *core) mayPublish() bool {
	return !c.shut.Load() && c.store.Backlog() < backlogBytes
}

// stop ends run; err is why, nil where somebody wanted it.
func (c *core) stop(err error) {
	if err != nil {
		c.diskFailed(err)
		return
	}
	if c.stopped.CompareAndSwap(false, true) {
		close(c.stopping)
	}
}

// run is the core's goroutine. It returns when the broker was stopped, with nil,
// or cannot go on.
func (c *core) run() error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		c.step()
		if c.again {
			select {
			case c.durable <- struct{}{}: // wakes the next step, after what else has come
			default:
			}
		}
		select {
		case b := <-c.in:
			c.now = time.Now().UnixMilli()
			c.handle(b)
			c.more()
		case ask := <-c.asks:
			c.now = time.Now().UnixMilli()
			ask()
		case <-c.durable:
			c.now = time.Now().UnixMilli()
			c.settle()
		case <-c.alarm.C:
			c.armed = 0
			c.now = time.Now().UnixMilli()
			c.wakeQueues()
		case <-tick.C:
			c.now = time.Now().UnixMilli()
			c.tick()
		case err := <-c.failed:
			c.stop(nil)
			c.farewell(forbid(541, "the broker's disk failed"))
			return fault.New(fault.Failed, "the broker's disk failed: %v", err).
				WithHint("what was confirmed is on the disk; make room or mend the disk, then start again")
		case <-c.stopping:
			c.farewell(c.shutdown())
			return nil
		}
	}
}

// shutdown is the good-bye of a broker that was told to end.
func (c *core) shutdown() *violation {
	if c.server.opts.Answers == LavinMQ {
		return forbid(320, "Broker shutdown")
	}
	return forbid(320, "broker forced connection closure with reason 'shutdown'")
}

// more takes what else has come, up to a bound, so that one step's work at the
// end serves many commands.
func (c *core) more() {
	for range 32 {
		select {
		case b := <-c.in:
			c.handle(b)
		default:
			return
		}
	}
}

// step does what the handled commands have made necessary: deliveries, confirms,
// timers, and the hand-over to the writers.
func (c *core) step() {
	c.serveQueues()
	c.budget = buryBytes
	for c.again = c.buryDead(); len(c.dirty) > 0; c.again = c.buryDead() {
		c.serveQueues() // those that dead letters came to
	}
	c.weigh()
	for _, ch := range c.confirmed {
		ch.confirmMarked = false
		ch.sendConfirms()
	}
	c.confirmed = c.confirmed[:0]
	for _, cn := range c.touched {
		cn.touched = false
		if len(cn.outgoing) > 0 {
			cn.out.put(cn.outgoing)
			clear(cn.outgoing)
			cn.outgoing = cn.outgoing[:0]
		}
	}
	c.touched = c.touched[:0]
	c.rearm()
}

// send puts an item into the connection's outbox at the end of the step.
func (c *core) send(cn *conn, it item) {
	cn.outgoing = append(cn.outgoing, it)
	if !cn.touched {
		cn.touched = true
		c.touched = append(c.touched, cn)
	}
}

// settle confirms and answers what has become durable.
func (c *core) settle() {
	upTo := store.Position(c.synced.Load())
	waiting := c.awaiting
	c.awaiting = nil
	for _, ch := range waiting {
		ch.awaits = false
		ch.settle(upTo)
	}
	if c.waiting.Load() > 0 {
		c.nudge()
	}
}

// nudge lets every reader look again whether it may go on.
func (c *core) nudge() {
	for cn := range c.conns {
		cn.out.mu.Lock()
		cn.out.room.Broadcast()
		cn.out.mu.Unlock()
	}
}

// tick looks at the limits, cleans the log, and takes the numbers.
func (c *core) tick() {
	c.buryLater = false
	c.checkAlarms()
	c.clean()
	c.takeStats()
	if c.waiting.Load() > 0 {
		c.nudge()
	}
}

// alarms are why publishers are blocked.
type alarms struct{ bytes, disk bool }

func (c *core) checkAlarms() {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(c.server.opts.Dir, &fs); err != nil {
		return
	}
	free := int64(fs.Bavail) * int64(fs.Bsize)
	c.setAlarms(alarms{disk: free < c.server.opts.Limits.DiskFree, bytes: c.alarms.bytes})
}

// weigh looks whether too much is stored. It lets publishers go on only when a
// tenth has gone, so that they are not told at each message.
func (c *core) weigh() {
	most := c.server.opts.Limits.Bytes
	if over := c.bytes > most; over && !c.alarms.bytes || c.alarms.bytes && c.bytes <= most-most/10 {
		c.setAlarms(alarms{disk: c.alarms.disk, bytes: over})
	}
}

func (c *core) setAlarms(now alarms) {
	if now == c.alarms {
		return
	}
	c.alarms = now
	if c.server.opts.Answers == LavinMQ {
		return // it answers each publish, see publish
	}
	shut := now != alarms{}
	c.server.opts.Log.Warn("publishers are blocked or let go on", "blocked", shut,
		"low_disk", now.disk, "too_many_bytes", now.bytes, "stored_bytes", c.bytes)
	c.shut.Store(shut)
	if shut {
		return
	}
	for cn := range c.conns {
		if cn.told {
			cn.told = false
			c.send(cn, item{method: unblocked})
		}
	}
	c.nudge()
}

// farewell closes every connection and waits a moment for the answers.
func (c *core) farewell(v *violation) {
	for cn := range c.conns {
		c.closeConn(cn, v, 0, 0)
	}
	c.step()
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	for len(c.conns) > 0 {
		select {
		case b := <-c.in:
			c.handle(b)
			c.step()
		case <-ctx.Done():
			for cn := range c.conns {
				cn.end()
				delete(c.conns, cn)
			}
		}
	}
}
