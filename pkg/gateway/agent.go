package gateway

import (
	"context"
	"sync/atomic"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/turn"
)

// agent is one addressable on this host. Its goroutine (run) alone touches the
// fields below the line; everybody else posts to it, and what it starts (disk,
// pane, broker) reports back by posting, so it never waits itself.
type agent struct {
	g       *Gateway
	gid     identity.GID
	name    string
	role    api.Role
	groups  []string
	profile string
	rules   config.Profile // of a worker
	since   time.Time
	pane    pane.Pane // nil for who pulls
	pid     int       // of the pane's program

	in      *queue[func()]
	ended   chan struct{} // closed when run has returned
	changed signal        // fired when its mailbox gained something

	// ---- owned by run

	ctx      context.Context // ends with the agent; what it started ends with it
	cancel   context.CancelFunc
	line     []waiting // a worker's messages that wait to be claimed, in order
	held     []waiting // a puller's messages that expire
	turns    turn.Set
	proving  map[envelope.ID]context.CancelFunc // briefs whose injection is not certain yet
	farewell failure                            // how what still arrives is ended, while closing
	claiming bool                               // an arrival is being written that is claimed at once
	finish   func()                             // runs once nothing is on its way to the disk, while closing
	leases   map[envelope.ID]*lease
	parked   map[identity.GID][]arrival // by senders that the roster does not know yet
	overflow []arrival                  // taken from the broker, not yet on disk; in order
	retrying bool                       // a retry of overflow is planned
	writes   int                        // arrivals and claims on their way to the disk
	remote   int                        // of the writes, arrivals from the broker
	stats    mailbox.Stats
	paused   bool
	closing  bool
	gone     bool           // no longer one of the host's agents, while closing
	stops    []chan stopped // of who waits for its end, each with room for one
	expiry   *time.Timer

	// behind is set by the writer when an arrival from the broker could not be
	// written, until it is tried again: the ones after it must not overtake it (R8).
	behind atomic.Bool
}

// waiting is a message in a worker's line, or one of a puller's that expires.
type waiting struct {
	seq  uint64
	id   envelope.ID
	from identity.GID
	host identity.Host
	exp  time.Time
}

// arrival is a message on its way into a mailbox.
type arrival struct {
	env    envelope.Envelope
	sealed envelope.Sealed
	ack    func()      // tells the broker; nil for a local message
	result func(error) // tells the local sender; nil for a remote message
}

func (r arrival) local() bool { return r.ack == nil }

// done tells whoever handed the message over that it is safe here.
func (r arrival) done() {
	if r.ack != nil {
		r.ack()
	}
	if r.result != nil {
		r.result(nil)
	}
}

// room is how much of a mailbox local senders leave to what the broker has handed
// over already, and so that prefetch of an inbox.
func (g *Gateway) room() int { return max(1, min(prefetch, g.cfg.Mailbox.Messages/2)) }

// prefetch bounds what the broker hands over unacknowledged for one inbox. A
// mailbox keeps this much room when it pauses its consumer (R11).
const prefetch = 32

// post runs f in the agent's goroutine. It never blocks.
func (a *agent) post(f func()) { a.in.put(f) }

// ask runs f in the agent's goroutine and waits for it. It fails where the agent
// has ended or ctx ends first.
func (a *agent) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	a.post(func() { f(); close(done) })
	select {
	case <-done:
		return nil
	case <-a.ended:
		return fault.New(fault.NotFound, "agent %s has just been stopped", a.name)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is the agent's goroutine. It ends when teardown cancels a.ctx, or with the
// gateway.
func (a *agent) run() {
	defer close(a.ended)
	for a.ctx.Err() == nil {
		for _, f := range a.in.take(a.ctx) {
			f()
		}
	}
}

// full says whether the mailbox takes no more local messages.
func (a *agent) full() bool {
	most := a.g.cfg.Mailbox
	return a.stats.Count+a.writes >= most.Messages-a.g.room() || a.stats.Bytes >= most.Bytes
}

// counted takes over the mailbox's counts after a write.
func (a *agent) counted(s mailbox.Stats) {
	if a.gone {
		return
	}
	a.stats = s
	a.gauge()
	a.announce()
}

// gauge stops the consumer while the mailbox is full, so that the backlog meets
// the inbox's cap on the broker (R11).
func (a *agent) gauge() {
	stop := a.full() || len(a.overflow) > 0
	if a.g.bus == nil || stop == a.paused {
		return
	}
	a.paused = stop
	if stop {
		a.g.bus.Pause(a.queueName())
	} else {
		a.g.bus.Resume(a.queueName())
	}
}

// after posts f once d has passed, unless the agent ends first.
func (a *agent) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() { a.post(f) })
}

// view is the agent's row in the roster.
func (a *agent) view() api.Agent {
	state := "idle"
	switch {
	case a.closing:
		state = "stopping"
	case !a.role.Pulls() && a.turns.Len() > 0:
		state = "busy"
	}
	v := api.Agent{GID: a.gid, Name: a.name, Role: a.role, Host: a.g.cfg.Host, State: state, Groups: a.groups,
		Profile: a.profile, Since: a.since, Undrained: a.stats.Count}
	if a.stats.Count > 0 && !a.stats.Oldest.IsZero() {
		v.OldestSeconds = a.g.now().Sub(a.stats.Oldest).Seconds()
	}
	return v
}
