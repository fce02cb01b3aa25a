package gateway

import (
	"context"
	"errors"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/trace"
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
	turns    turn.Set
	proving  map[envelope.ID]context.CancelFunc // briefs whose injection is not certain yet
	farewell failure                            // how what still arrives is ended, while closing
	claiming bool                               // an arrival is being written that is claimed at once
	finish   func()                             // runs once nothing is on its way to the disk, while closing
	leases   map[envelope.ID]*lease
	parked   map[identity.GID][]arrival // by senders that the roster does not know yet
	overflow []arrival                  // taken from the broker, not yet on disk
	writes   int                        // arrivals and claims on their way to the disk
	stats    mailbox.Stats
	paused   bool
	closing  bool
	gone     bool           // no longer one of the host's agents, while closing
	stops    []chan stopped // of who waits for its end, each with room for one
	expiry   *time.Timer
}

// waiting is a message in a worker's line.
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

// arrive takes a verified message in. A remote brief whose sender the roster does
// not know yet waits for it without holding up others (R19).
func (a *agent) arrive(r arrival) {
	if !r.local() && r.env.Kind == envelope.Send {
		if a.park(r) {
			return
		}
	}
	a.put(r)
}

// put writes the message into the mailbox.
func (a *agent) put(r arrival) {
	if a.closing {
		a.turnAway(r)
		return
	}
	if r.local() && a.full() {
		r.result(fault.New(fault.Full, "the mailbox of %s is full (%d messages)", a.name, a.stats.Count).
			WithHint("it takes messages again once some of what waits there is taken"))
		return
	}
	a.writes++
	var s kept
	claim := r.env.Kind == envelope.Send && a.mayClaim()
	a.claiming = a.claiming || claim
	a.g.store.Go(func(tx *mailbox.Tx) (err error) {
		s, err = a.g.keep(tx, a.gid, a.role, r, claim)
		return err
	}, func(err error) {
		a.post(func() {
			if claim {
				a.claiming = false
			}
			a.stored(r, s, err)
			if claim {
				a.advance() // what came meanwhile, where this one was not new
			}
		})
	})
}

// kept is what one transaction found and did when it took a message in.
type kept struct {
	seen   mailbox.Seen
	seq    uint64     // of a new message
	opened *turn.Turn // of a new message that is held for its puller, or claimed for its worker
	stats  mailbox.Stats
}

// keep writes a message into gid's mailbox, with everything that follows from it
// in the same transaction: a puller's turn opens when its message is held, and a
// terminal outcome is noted with the send that it ends. With claim, a worker that
// is free claims its brief at once, which saves it a second write.
func (g *Gateway) keep(tx *mailbox.Tx, gid identity.GID, role api.Role, r arrival, claim bool) (k kept, err error) {
	e := r.env
	k.seen, err = tx.Put(gid, row(r, g.now()))
	if err != nil || !k.seen.New {
		return k, err
	}
	k.seq = k.seen.Seq
	switch {
	case e.Kind.Terminal():
		err = noteOutcome(tx, gid, e, k.seq)
	case role.Pulls():
		t := turn.Open(gid, k.seq, e, g.now())
		t.Proof, t.Evidence = turn.Confirmed, string(envelope.Held)
		k.opened = &t
		err = mailbox.Set(tx, turnsTable, t.Key(), t)
	case claim:
		t := turn.Open(gid, k.seq, e, g.now())
		k.opened = &t
		err = g.claim(tx, t)
	}
	if err == nil {
		k.stats, err = tx.Stats(gid)
	}
	return k, err
}

// wrote counts a write that is over. It goes before what the write leads to, so
// that teardown's last step, which is posted, comes after that.
func (a *agent) wrote() {
	a.writes--
	if a.writes == 0 && a.finish != nil {
		a.post(a.finish)
		a.finish = nil
	}
}

// row is the message's row in the mailbox.
func row(r arrival, now time.Time) mailbox.Message {
	e := r.env
	return mailbox.Message{ID: e.ID, Kind: e.Kind, From: e.From, FromHost: e.FromHost, Trace: e.Trace, Re: e.Re,
		Digest: e.Digest(), Arrived: now, Exp: e.Exp.Time, Sealed: r.sealed}
}

// stored goes on once the write is on disk or has failed.
func (a *agent) stored(r arrival, k kept, err error) {
	a.wrote()
	switch {
	case errors.Is(err, fault.Conflict):
		a.conflict(r)
	case err != nil && r.local():
		r.result(err)
	case err != nil:
		// Unacknowledged it stays the broker's; more of it would only fail too (R10).
		a.g.log.Error("can't write to the mailbox; its consumer pauses", "agent", a.name, "trace", r.env.Trace, "err", err)
		a.overflow = append(a.overflow, r)
		a.gauge()
		a.after(2*time.Second, a.retryOverflow)
	case !k.seen.New:
		r.done()
		a.tellKnown(r.env, k.seen)
	default:
		r.done()
		a.g.audit.Write(trace.Of(trace.Received, r.env))
		a.took(r.env, k)
	}
}

// took goes on with a message that is new and safe.
func (a *agent) took(e envelope.Envelope, k kept) {
	if k.opened != nil && a.role.Pulls() {
		a.turns.Put(*k.opened)
	}
	a.counted(k.stats)
	switch {
	case e.Kind.Terminal():
		a.offer(e, k.seq)
	case k.opened != nil && !a.role.Pulls():
		ctx, cancel := context.WithCancel(a.ctx)
		a.proving[e.ID] = cancel
		a.startProving(ctx, *k.opened, e)
	case a.role.Pulls():
		a.g.audit.Write(trace.Of(trace.Held, e))
		a.setStatus(e, status{State: held})
		a.tell(e, envelope.Held, envelope.Receipt{})
	default:
		a.line = append(a.line, waiting{seq: k.seq, id: e.ID, from: e.From, host: e.FromHost, exp: e.Exp.Time})
		a.advance()
		a.tellPosition(e)
		a.setExpiry()
	}
	if a.role.Pulls() && a.full() {
		a.g.sends.filled(a.gid)
	}
	a.changed.fire()
}

// conflict refuses a message whose id came with another body before (R21).
func (a *agent) conflict(r arrival) {
	f := fault.New(fault.Conflict, "message %s was sent to %s before with another text", r.env.ID, a.name)
	if r.local() {
		r.result(f)
		return
	}
	a.tell(r.env, envelope.Refused, envelope.Receipt{Reason: string(fault.Conflict), Detail: f.Message})
	a.g.refuse(r.sealed, envelope.Refuse(envelope.ReasonConflict, "its id came before with another body"), r.env, a.queueName(), r.ack)
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

// retryOverflow tries again what could not be written.
func (a *agent) retryOverflow() {
	again := a.overflow
	a.overflow = nil
	for _, r := range again {
		a.put(r)
	}
	a.gauge()
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
