package roster

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// HearPresence takes the body of a verified PRESENCE that from signed, also one
// of this host itself. The error is Warnings.
func (r *Roster) HearPresence(now time.Time, from identity.Host, body json.RawMessage) ([]Do, error) {
	var p presence
	if len(body) > takesPresence {
		return nil, malformed(from, "a PRESENCE of %d bytes", len(body))
	}
	if err := json.Unmarshal(body, &p); err != nil || !p.valid() {
		return nil, malformed(from, "not a PRESENCE that this gateway reads")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if from == r.self.Host {
		return nil, r.hearSelf(now, p)
	}
	rec, w := r.meet(now, from)
	if rec == nil {
		return nil, w.err()
	}
	switch {
	case rec.known && p.Inc == rec.inc && p.Seq > rec.seq:
		rec.seq = p.Seq
		r.hearLife(now, rec, p, &w)
	case rec.known && p.Inc == rec.inc:
		// A copy or a recording, unless its clock is ahead of the last one's.
		if p.TS > rec.sentAt {
			r.contest(now, rec, p, &w)
		}
	case rec.known && p.Inc < rec.inc:
		r.contest(now, rec, p, &w)
	case p.Is != isLeave:
		if rec.known {
			r.contest(now, rec, p, &w)
			rec.rumour = max(rec.rumour, p.Inc)
		}
		r.want(rec, r.spread(), now)
	}
	return nil, w.err()
}

// valid says whether the fields that p's form needs have their shape.
func (p presence) valid() bool {
	switch p.Is {
	case isBeat:
		return hashForm.MatchString(p.Hash) && p.EveryMS > 0
	case isChange:
		return hashForm.MatchString(p.Hash) && p.RV == p.From+1
	case isLeave:
		return true
	}
	return false
}

// meet finds the record of a host that was heard and notes that it was.
func (r *Roster) meet(now time.Time, host identity.Host) (*record, Warnings) {
	_, met := r.records[host]
	rec := r.record(host)
	if rec == nil {
		return nil, Warnings{{Kind: OverLimit, Host: host,
			Detail: fmt.Sprintf("not taken in: the roster has its %d hosts", r.opt.MaxHosts)}}
	}
	rec.noticed = now
	if met {
		return rec, nil
	}
	if thief := r.ownOperator(rec, now); thief != "" {
		return rec, Warnings{{Kind: GIDClaimed, Host: thief, GID: rec.operator,
			Detail: fmt.Sprintf("had claimed the id of the operator of %s, which is given back", host)}}
	}
	return rec, nil
}

// hearSelf looks for the echo that ends a doubt, and for a second gateway that
// speaks as this host.
func (r *Roster) hearSelf(now time.Time, p presence) error {
	if p.Inc > r.self.Incarnation || p.Inc == r.self.Incarnation && p.Seq > r.seq {
		told := &r.here.rival.told
		if !told.IsZero() && now.Sub(*told) < time.Minute {
			return nil
		}
		*told = now
		return Warnings{{Kind: TwoIncarnations, Host: r.self.Host,
			Detail: fmt.Sprintf("another gateway speaks as this host (incarnation %d, ours %d), or the boot counter was lost",
				p.Inc, r.self.Incarnation)}}
	}
	if r.link.doubt && p.Inc == r.self.Incarnation && p.Seq >= r.link.doubtSeq {
		r.trust(now)
	}
	return nil
}

// hearLife takes a message of the accepted life.
func (r *Roster) hearLife(now time.Time, rec *record, p presence, w *Warnings) {
	if p.Is == isLeave {
		if rec.verdict != left {
			r.judge(rec, left, now)
			r.tell(HostLeft, rec.host, now)
			r.wake(r.removeAt(rec))
		}
		return
	}
	if rec.verdict != alive {
		// It may be a recording of what never came through. The answer will tell.
		r.want(rec, r.spread(), now)
		return
	}
	rec.heard, rec.cleared = now, false
	switch p.Is {
	case isBeat:
		rec.every = every(p.EveryMS)
		if ms := min(max(p.TS, 0), latest); ms > 0 {
			rec.clock.read(ms, now)
			rec.sentAt = max(rec.sentAt, ms)
		}
		if p.RV == rec.rv && p.Hash == rec.hash {
			rec.behind = false
			r.setProfiles(rec, p.Profiles)
		} else {
			rec.behind = true
		}
	case isChange:
		if p.From != rec.rv || rec.behind {
			rec.behind = true
			break
		}
		rec.rv, rec.hash = p.RV, p.Hash
		r.setProfiles(rec, p.Profiles)
		for _, gid := range p.Gone {
			r.drop(rec, gid, now)
		}
		r.merge(rec, p.Up, w)
	}
	if rec.behind {
		r.want(rec, r.spread(), now)
	}
	r.show(rec, now)
	r.wake(rec.silentAt())
}

func (r *Roster) setProfiles(rec *record, names *[]string) {
	if names == nil {
		return
	}
	clean := cleanProfiles(*names)
	if slices.Equal(clean, rec.profiles) {
		return
	}
	rec.profiles = clean
	r.rev++
	rec.rev = r.rev
}

// merge takes rows of rec's host. What is wrong with one leaves out that one.
func (r *Roster) merge(rec *record, rows []row, w *Warnings) {
	// Names that change hands inside one message must not collide.
	for _, one := range rows {
		if e := rec.agents[one.GID]; e != nil {
			rec.unname(e)
		}
	}
	for _, one := range rows {
		a := one.agent(rec.host)
		warning, ok := r.admit(rec, a)
		if ok {
			r.put(rec, a.tidy())
			continue
		}
		w.add(warning)
		if e := rec.agents[one.GID]; e != nil && e.Name != "" {
			if _, taken := rec.names[e.Name]; !taken {
				rec.names[e.Name] = e.GID
			}
		}
	}
}

// admit says whether a may stand in the roster.
func (r *Roster) admit(rec *record, a Agent) (Warning, bool) {
	refuse := func(kind WarningKind, gid identity.GID, format string, args ...any) (Warning, bool) {
		return Warning{Kind: kind, Host: rec.host, GID: gid, Detail: fmt.Sprintf(format, args...)}, false
	}
	if f := a.fields(); f != nil {
		return refuse(BadEntry, "", "an agent is left out: %s", f.Message)
	}
	if host, ok := r.mayOwn(a.GID, rec); !ok {
		return refuse(GIDClaimed, a.GID, "claims agent %s, which belongs to %s", a.GID, host)
	}
	if gid, taken := rec.names[a.Name]; taken && gid != a.GID {
		return refuse(BadEntry, a.GID, "agent %s is left out: its name is that of %s", a.GID, gid)
	}
	if rec.agents[a.GID] == nil && (len(rec.agents) >= r.opt.MaxAgents || r.remote >= r.opt.MaxTotal) {
		return refuse(OverLimit, a.GID, "agent %s is left out: the host has %d agents, all others together %d",
			a.GID, len(rec.agents), r.remote)
	}
	return Warning{}, true
}

// contest notes a message of a life other than the accepted one, while that one
// speaks too. Three of them, each later than the last, are no stragglers.
func (r *Roster) contest(now time.Time, rec *record, p presence, w *Warnings) {
	window := max(time.Minute, 6*rec.every)
	v := &rec.rival
	if v.inc != p.Inc || now.Sub(v.since) > window {
		*v = rival{inc: p.Inc, since: now, told: v.told}
	}
	if p.Seq <= v.seq && v.count > 0 {
		return
	}
	v.seq = p.Seq
	v.count++
	if v.count < 3 || !rec.heard.After(v.since) || (!v.told.IsZero() && now.Sub(v.told) < window) {
		return
	}
	v.told = now
	w.add(Warning{Kind: TwoIncarnations, Host: rec.host,
		Detail: fmt.Sprintf("incarnations %d and %d speak as this host at once", rec.inc, p.Inc)})
}

// HearQuery takes the body of a verified QUERY about the roster and returns its
// answer. The error is Warnings.
func (r *Roster) HearQuery(now time.Time, from identity.Host, id envelope.ID, body json.RawMessage) ([]Do, error) {
	var q query
	if len(body) > takesQuery {
		return nil, malformed(from, "a QUERY of %d bytes", len(body))
	}
	if err := json.Unmarshal(body, &q); err != nil || q.About != About || id == "" {
		return nil, malformed(from, "not a QUERY about the roster")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if from == r.self.Host {
		return nil, nil
	}
	rec, w := r.meet(now, from)
	if rec == nil {
		return nil, w.err()
	}
	if !rec.known || rec.verdict != alive {
		// Who asks is there. So two newcomers know each other within a round trip,
		// and need not wait for each other's next heartbeat. Its question came
		// spread out already.
		r.want(rec, 0, now)
	}
	if !rec.budget.take(now) {
		w.add(Warning{Kind: OverLimit, Host: from, Detail: "asks more often than once a second, and gets no answer"})
		return nil, w.err()
	}
	return r.answers(from, id, q), w.err()
}
