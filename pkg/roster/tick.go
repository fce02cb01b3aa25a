package roster

import (
	"cmp"
	"slices"
	"time"
)

// pruneEvery is how often old tombstones are looked for, and so also the
// longest time between two Ticks that do something.
const pruneEvery = 10 * time.Minute

// link is what is known of this host's own connection.
type link struct {
	up    bool
	since time.Time // up or down
	// settle is when the link was last found good after a doubt: nobody is given
	// up for one interval of theirs after it.
	settle   time.Time
	doubt    bool
	doubtSeq uint64 // an echo of this heartbeat or a later one ends the doubt
}

// LinkUp says that this host's queues are consumed and it can publish. The
// next Tick announces it.
func (r *Roster) LinkUp(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link.up {
		return
	}
	r.link = link{up: true, since: now, settle: now}
	if !r.announced && r.dirty() {
		// Nobody has a version of ours, so nobody needs a delta: all will ask.
		clear(r.pending)
		r.profiles = false
		r.rv++
		r.deltaDue = time.Time{}
	}
	r.beatDue = now.Add(r.spread())
	r.next = now
}

// LinkDown says that the link is lost. Remote hosts read unknown, and none is
// given up while this lasts (R14).
func (r *Roster) LinkDown(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link.up {
		r.down(now)
	}
}

func (r *Roster) down(now time.Time) {
	r.link = link{since: now}
	for _, rec := range r.records {
		rec.ask.close()
	}
	r.next = now
}

// Tick does what is due at now and says when to call it next; see Next. It costs
// next to nothing when nothing is due.
func (r *Roster) Tick(now time.Time) (do []Do, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.next) {
		return nil, r.next
	}
	if r.link.up {
		r.age(now)
		if r.dirty() && !now.Before(r.deltaDue) {
			do = append(do, r.deltas(now)...)
		}
		if !now.Before(r.beatDue) {
			do = append(do, r.beat(now))
		}
		do = append(do, r.questions(now)...)
	}
	if !now.Before(r.pruneDue) {
		r.prune(now)
		r.pruneDue = now.Add(pruneEvery)
	}
	for _, rec := range r.records {
		r.show(rec, now)
	}
	r.plan(now)
	return do, r.next
}

// plan sets r.next to the first moment after now at which something is due.
// What is past already waits for something heard, so it can't make Tick spin.
func (r *Roster) plan(now time.Time) {
	r.next = r.pruneDue
	at := func(t time.Time) {
		if t.After(now) && t.Before(r.next) {
			r.next = t
		}
	}
	if !r.link.up {
		return
	}
	at(r.beatDue)
	if r.dirty() {
		at(r.deltaDue)
	}
	for _, rec := range r.records {
		if rec == r.here {
			continue
		}
		if rec.known {
			at(r.verdictDue(rec))
			at(rec.silentAt())
		}
		if rec.ask.wanted {
			at(rec.ask.due)
			at(rec.ask.sent.Add(slotHold))
			at(rec.ask.deadline)
		}
	}
}

// silentAt is when the host has missed three heartbeats.
func (rec *record) silentAt() time.Time { return rec.heard.Add(3 * rec.every) }

// giveUpAt is when a silent host is given up if our link stays good.
func (r *Roster) giveUpAt(rec *record) time.Time {
	t := rec.silentAt()
	if settled := r.link.settle.Add(rec.every); t.Before(settled) {
		t = settled
	}
	return t
}

// verdictDue is when rec's verdict changes unless something is heard.
func (r *Roster) verdictDue(rec *record) time.Time {
	if rec.verdict == alive {
		return r.giveUpAt(rec)
	}
	return r.removeAt(rec)
}

// removeAt is when a host that was given up, or left, is removed.
func (r *Roster) removeAt(rec *record) time.Time {
	t := rec.verdictAt.Add(r.opt.RemoveAfter)
	if settled := r.link.settle.Add(rec.every); t.Before(settled) {
		t = settled
	}
	return t
}

// age gives up hosts that are silent, unless most fell silent together: then
// our own link is the likelier cause, and an echo of our own heartbeat has to
// come back first.
//
// The first of those that died in one instant is overdue up to one interval
// before the last, so all that have missed two heartbeats count as silent.
func (r *Roster) age(now time.Time) {
	living, silent := 0, 0
	var overdue []*record
	for _, rec := range r.records {
		switch {
		case rec == r.here || !rec.known:
		case rec.verdict != alive:
			if !r.link.doubt && !now.Before(r.removeAt(rec)) {
				r.remove(rec, now)
			}
		default:
			living++
			if !rec.cleared && now.Sub(rec.heard) > 2*rec.every {
				silent++
			}
			if !now.Before(r.giveUpAt(rec)) {
				overdue = append(overdue, rec)
			}
		}
	}
	most := 2*silent > living
	switch {
	case r.link.doubt && !most:
		r.trust(now)
	case r.link.doubt || len(overdue) == 0:
	case most:
		r.link.doubt, r.link.doubtSeq = true, r.seq+1
		r.beatDue = now
		r.tell(LinkDoubted, "", now)
	default:
		slices.SortFunc(overdue, byHost)
		for _, rec := range overdue {
			r.judge(rec, aged, now)
			r.tell(HostUnknown, rec.host, now)
		}
	}
}

func byHost(a, b *record) int { return cmp.Compare(a.host, b.host) }

// trust ends a doubt. Who is silent although the link is good gets one more
// interval, and counts no more as a sign that it is not.
func (r *Roster) trust(now time.Time) {
	r.link.doubt, r.link.settle = false, now
	for _, rec := range r.records {
		rec.cleared = now.Sub(rec.heard) > 2*rec.every
	}
	r.tell(LinkProven, "", now)
	r.next = now
}

// judge sets what is held true of rec.
func (r *Roster) judge(rec *record, v verdict, now time.Time) {
	rec.verdict, rec.verdictAt, rec.cleared = v, now, false
	r.show(rec, now)
}

// remove forgets a host's life. Who owned its agents stays known, and its
// incarnation does not: a host whose boot counter was lost may come back.
func (r *Roster) remove(rec *record, now time.Time) {
	for gid := range rec.agents {
		r.drop(rec, gid, now)
	}
	r.rev++
	r.tellGoneHost(rec.host)
	*rec = record{host: rec.host, operator: rec.operator, agents: rec.agents, names: rec.names,
		noticed: rec.noticed, ask: question{notBefore: rec.ask.notBefore, tries: rec.ask.tries},
		budget: rec.budget, tombs: rec.tombs}
	r.tell(HostRemoved, rec.host, now)
}
