package gateway

import (
	"context"
	"errors"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
	"fleet/pkg/trace"
	"fleet/pkg/turn"
)

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
	if !r.local() {
		if len(a.overflow) > 0 && a.remote == 0 { // else behind those that are about to come back
			a.overflow = append(a.overflow, r)
			return
		}
		a.remote++
	}
	a.writes++
	var s kept
	claim := r.env.Kind == envelope.Send && !passed(r.env.Exp.Time, a.g.now()) && a.mayClaim()
	a.claiming = a.claiming || claim
	a.g.store.Go(func(tx *mailbox.Tx) (err error) {
		s, err = a.write(tx, r, claim)
		return err
	}, func(err error) {
		if err != nil && !r.local() && !itsOwn(err) {
			a.behind.Store(true)
		}
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

// errBehind says that a message may not be written before an earlier one.
var errBehind = errors.New("an earlier message could not be written yet")

// itsOwn says whether a write failed for the message's own sake, so that it says
// nothing of those after it.
func itsOwn(err error) bool {
	var quota mailbox.QuotaError
	return errors.Is(err, fault.Conflict) || errors.As(err, &quota)
}

// write is put's transaction. Whether there is room is asked after whether the
// message is there already: a repeat takes none.
func (a *agent) write(tx *mailbox.Tx, r arrival, claim bool) (k kept, err error) {
	e := r.env
	if !r.local() {
		if a.behind.Load() {
			return k, errBehind
		}
		if k, err = a.g.keep(tx, a.gid, a.role, r, claim); err != nil && !itsOwn(err) {
			a.behind.Store(true) // also for those of the same group
		}
		return k, err
	}
	if _, known := tx.Seen(a.gid, e.FromHost, e.From, e.ID); !known {
		messages, size, err := tx.Room(a.gid)
		if err != nil {
			return k, err
		}
		if messages <= a.g.room() || size <= 0 {
			return k, fault.New(fault.Full, "the mailbox of %s is full (%d messages)", a.name, a.g.cfg.Mailbox.Messages-messages).
				WithHint("it takes messages again once some of what waits there is taken")
		}
	}
	return a.g.keep(tx, a.gid, a.role, r, claim)
}

// passed says whether a time, where there is one, is over.
func passed(t, now time.Time) bool { return !t.IsZero() && now.After(t) }

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
	if e.Kind == envelope.Send {
		if err := taken(tx, gid, e); err != nil {
			return k, err
		}
	}
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

// taken refuses a message whose id an open turn of another sender has: replies
// name messages by id.
func taken(tx *mailbox.Tx, gid identity.GID, e envelope.Envelope) error {
	t := turn.Open(gid, 0, e, time.Time{})
	open, ok, err := mailbox.Get[turn.Turn](tx, turnsTable, t.Key())
	if err != nil || !ok || open.From == e.From && open.FromHost == e.FromHost {
		return err
	}
	if _, known := tx.Seen(gid, e.FromHost, e.From, e.ID); known {
		return nil // it is answered with its state
	}
	return fault.New(fault.Conflict, "message id %s is in use by another sender", e.ID).
		WithHint("choose another --id")
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
	if !r.local() {
		a.remote--
	}
	var quota mailbox.QuotaError
	switch {
	case errors.Is(err, fault.Conflict):
		a.conflict(r, k, err)
	case err != nil && r.local():
		r.result(err)
	case errors.As(err, &quota):
		a.overQuota(r, quota)
	case err != nil:
		a.postpone(r, err)
	case !k.seen.New:
		r.done()
		a.tellKnown(r.env, k.seen)
	default:
		r.done()
		a.g.audit.Write(trace.Of(trace.Received, r.env))
		a.took(r.env, k)
		return
	}
	a.gauge() // it counted as a message
}

// postpone keeps what could not be written for another try. Unacknowledged it
// stays the broker's; more of it would only fail too (R10).
func (a *agent) postpone(r arrival, err error) {
	if !errors.Is(err, errBehind) {
		a.g.log.Error("can't write to the mailbox; its consumer pauses", "agent", a.name, "trace", r.env.Trace, "err", err)
	}
	a.overflow = append(a.overflow, r)
	if !a.retrying {
		a.retrying = true
		a.after(2*time.Second, a.retryOverflow)
	}
}

// overQuota refuses a message of a host that has sent more than is remembered of
// one. It is that host's affair: the inbox goes on for the others (R21).
func (a *agent) overQuota(r arrival, why mailbox.QuotaError) {
	if r.env.Kind == envelope.Send {
		a.tell(r.env, envelope.Refused, envelope.Receipt{Reason: string(fault.Full), Detail: why.Error()})
	}
	a.g.refuse(r.sealed, envelope.Refuse(envelope.ReasonInboxFull, "%s", why.Error()), r.env, a.queueName(), r.ack)
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
		a.watchHeld(waiting{seq: k.seq, id: e.ID, from: e.From, host: e.FromHost, exp: e.Exp.Time})
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

// conflict refuses a message whose id came with another body before (R21), or is
// another sender's.
func (a *agent) conflict(r arrival, k kept, err error) {
	f := fault.From(err)
	if k.seen.Digest != "" {
		f = fault.New(fault.Conflict, "message %s was sent to %s before with another text", r.env.ID, a.name)
	}
	if r.local() {
		r.result(f)
		return
	}
	a.tell(r.env, envelope.Refused, envelope.Receipt{Reason: string(fault.Conflict), Detail: f.Message})
	a.g.refuse(r.sealed, envelope.Refuse(envelope.ReasonConflict, "%s", f.Message), r.env, a.queueName(), r.ack)
}

// retryOverflow tries again what could not be written, once nothing is under way
// that could overtake it.
func (a *agent) retryOverflow() {
	if a.remote > 0 {
		a.after(100*time.Millisecond, a.retryOverflow)
		return
	}
	a.retrying = false
	a.behind.Store(false)
	again := a.overflow
	a.overflow = nil
	for _, r := range again {
		a.put(r)
	}
	a.gauge()
}
