package roster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// SetLocal adds an agent of this host or brings its row up to date; a.Host is
// filled in, and a.Since too where it is zero. It fails with fault.Usage for a
// row that peers would leave out, with fault.Refused where the name is taken on
// this host, and with fault.Conflict where another host owns the gid; nothing
// changes then.
func (r *Roster) SetLocal(now time.Time, a Agent) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.Host = r.self.Host
	old := r.here.agents[a.GID]
	if a.Since.IsZero() {
		a.Since = now
		if old != nil && old.State == a.State {
			a.Since = old.Since
		}
	}
	if old != nil && a.Undrained == old.Undrained && a.UndrainedOldest.Sub(old.UndrainedOldest).Abs() < time.Second {
		// Who reckons it from an age never gets the same moment twice, and each
		// would be news to all hosts.
		a.UndrainedOldest = old.UndrainedOldest
	}
	a = a.tidy()
	if f := a.fields(); f != nil {
		return f
	}
	if gid, taken := r.here.names[a.Name]; taken && gid != a.GID {
		return fault.New(fault.Refused, "the name %s is taken on this host", a.Name).
			WithHint("it belongs to agent %s; choose another", gid)
	}
	if host, ok := r.mayOwn(a.GID, r.here); !ok {
		return fault.New(fault.Conflict, "agent %s belongs to host %s", a.GID, host).
			WithHint("an id stays with the host that first announced it")
	}
	if old != nil && old.equal(a) {
		return nil
	}
	slow := old != nil && old.sameMembership(a)
	r.put(r.here, a)
	r.change(a.GID, slow, now)
	return nil
}

// RemoveLocal takes an agent of this host out. Removing what is not there is
// no error.
func (r *Roster) RemoveLocal(now time.Time, gid identity.GID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.here.agents[gid] == nil {
		return
	}
	r.drop(r.here, gid, now)
	r.change(gid, false, now)
}

// SetProfiles replaces the names of the profiles that this host offers.
func (r *Roster) SetProfiles(now time.Time, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names = sortedNames(names)
	if slices.Equal(names, r.here.profiles) {
		return
	}
	r.here.profiles = names
	r.rev++
	r.here.rev = r.rev
	r.profiles = true
	r.schedule(false, now)
}

// change notes that the row of gid must be announced.
func (r *Roster) change(gid identity.GID, slow bool, now time.Time) {
	r.pending[gid] = true
	r.parts = nil
	r.schedule(slow, now)
}

// schedule plans the next round of deltas. Who is there travels within a
// second; what they do, in a large fleet, only as often as heartbeats, because
// each delta goes to everybody too.
func (r *Roster) schedule(slow bool, now time.Time) {
	apart := r.opt.Coalesce
	if slow {
		apart = max(apart, pace(r.liveHosts()))
	}
	// A moment's wait gathers what one deed changes in several rows.
	due := now.Add(r.opt.Coalesce / 10)
	if earliest := r.lastDelta.Add(apart); due.Before(earliest) {
		due = earliest
	}
	if r.deltaDue.IsZero() || due.Before(r.deltaDue) {
		r.deltaDue = due
	}
	r.wake(r.deltaDue)
}

// dirty says whether something waits for a delta.
func (r *Roster) dirty() bool { return len(r.pending) > 0 || r.profiles }

// deltas makes the messages that bring others from rv to what is so now, each
// below 64 KiB and each a version of its own.
func (r *Roster) deltas(now time.Time) []Do {
	gids := make([]identity.GID, 0, len(r.pending))
	for gid := range r.pending {
		gids = append(gids, gid)
	}
	slices.Sort(gids)
	r.deltaDue, r.lastDelta = time.Time{}, now
	var do []Do
	var p presence
	size := 0
	flush := func() {
		do = append(do, r.delta(p))
		p, size = presence{}, 0
	}
	if r.profiles {
		names := r.here.profiles
		p.Profiles = &names
		size = profileBytes(names)
	}
	for _, gid := range gids {
		need := len(gid) + 3
		e := r.here.agents[gid]
		if e != nil {
			need = len(encode(rowOf(e.Agent))) + 1
		}
		if size > 0 && size+need > mostChange {
			flush()
		}
		size += need
		if e != nil {
			p.Up = append(p.Up, rowOf(e.Agent))
		} else {
			p.Gone = append(p.Gone, gid)
		}
	}
	flush()
	clear(r.pending)
	r.profiles = false
	return do
}

// delta numbers one delta and chains its digest to those before it. The chain
// starts at random, so that two lives never have the same one by chance.
func (r *Roster) delta(p presence) Do {
	p.Is, p.Inc, p.From = isChange, r.self.Incarnation, r.rv
	sum := sha256.Sum256(append([]byte(r.hash), encode(p)...))
	r.rv++
	r.hash = hex.EncodeToString(sum[:8])
	r.seq++
	p.RV, p.Hash, p.Seq = r.rv, r.hash, r.seq
	return Do{Kind: envelope.Presence, Body: encode(p)}
}

// beat makes one heartbeat and plans the next. Waits differ by a twentieth, so
// that hosts do not fall into step, and the longest is the one announced, so
// that three announced intervals hold three heartbeats.
func (r *Roster) beat(now time.Time) Do {
	interval := r.interval()
	every := interval + interval/20
	r.beatDue = now.Add(every - r.jitter(interval/10))
	r.seq++
	r.announced = true
	p := presence{
		Is: isBeat, Inc: r.self.Incarnation, Seq: r.seq, RV: r.rv, Hash: r.hash,
		Agents: len(r.here.agents), EveryMS: every.Milliseconds(), TS: now.UnixMilli(),
	}
	if names := r.here.profiles; profileBytes(names) <= beatProfiles {
		p.Profiles = &names
	}
	return Do{Kind: envelope.Presence, Body: encode(p)}
}

// profileBytes is the size of names in JSON.
func profileBytes(names []string) int {
	n := 2
	for _, name := range names {
		n += len(name) + 3
	}
	return n
}

// Leave returns the message with which this host says that it stops. The roster
// counts the link as down from then on and says nothing more.
func (r *Roster) Leave(now time.Time) []Do {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.link.up {
		return nil
	}
	r.seq++
	r.down(now)
	return []Do{{Kind: envelope.Presence,
		Body: encode(presence{Is: isLeave, Inc: r.self.Incarnation, Seq: r.seq})}}
}

// answers makes the STATE messages that answer a query of one who has what q
// says.
func (r *Roster) answers(to identity.Host, re envelope.ID, q query) []Do {
	st := state{
		About: About, Inc: r.self.Incarnation, Seq: r.seq, RV: r.rv, Hash: r.hash,
		EveryMS: r.interval().Milliseconds(), Version: r.self.Version,
	}
	if q.Inc == st.Inc && q.RV == st.RV && q.Hash == st.Hash {
		st.Same = true
		return []Do{{Kind: envelope.State, To: to, Re: re, Body: encode(st)}}
	}
	parts := r.encodedParts()
	st.Parts = len(parts)
	do := make([]Do, len(parts))
	for i, rows := range parts {
		st.Part, st.Profiles = i, nil
		if i == 0 {
			st.Profiles = r.here.profiles
		}
		do[i] = Do{Kind: envelope.State, To: to, Re: re, Body: encode(sentState{state: st, Rows: rows})}
	}
	return do
}

// sentState is a state whose rows are encoded already.
type sentState struct {
	state
	Rows []json.RawMessage `json:"rows,omitempty"`
}

// encodedParts are this host's rows in parts that each fit one message. They are
// kept until a row changes, because a starting fleet asks for the same a hundred
// times.
func (r *Roster) encodedParts() [][]json.RawMessage {
	if r.parts != nil {
		return r.parts
	}
	gids := make([]identity.GID, 0, len(r.here.agents))
	for gid := range r.here.agents {
		gids = append(gids, gid)
	}
	slices.Sort(gids)
	parts := [][]json.RawMessage{nil}
	size := 0
	for _, gid := range gids {
		w := encode(rowOf(r.here.agents[gid].Agent))
		need := len(w) + 1
		if size > 0 && size+need > mostPart {
			parts, size = append(parts, nil), 0
		}
		size += need
		last := len(parts) - 1
		parts[last] = append(parts[last], w)
	}
	r.parts = parts
	return parts
}
