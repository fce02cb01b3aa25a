package roster

import (
	"encoding/json"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// answer gathers the parts of one STATE.
type answer struct {
	re   envelope.ID
	head state // of the first part heard
	rows []row
	have map[int]bool
	// profiles come with one of the parts.
	profiles []string
}

// HearState takes the body of a verified STATE about the roster that names re.
// Unless re is this host's open query to from, or one that it gave up a moment
// ago, it is ignored without a word: that is what a recorded answer looks like.
// The error is Warnings.
func (r *Roster) HearState(now time.Time, from identity.Host, re envelope.ID, body json.RawMessage) ([]Do, error) {
	if len(body) > takesState {
		return nil, malformed(from, "a STATE of %d bytes", len(body))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.records[from]
	if rec == nil || rec == r.here || !rec.ask.asked(re, now) {
		return nil, nil
	}
	var st state
	if err := json.Unmarshal(body, &st); err != nil || !st.valid() {
		return nil, malformed(from, "not a STATE about the roster that this gateway reads")
	}
	rec.noticed = now
	if st.Same {
		r.settle(now, rec, st, nil, nil)
		return nil, nil
	}
	whole, err := rec.ask.gather(from, re, st, r.opt.MaxAgents)
	if err != nil || whole == nil {
		// Parts that come in are a reason to wait for the others.
		if err == nil {
			rec.ask.deadline = now.Add(r.patience(rec.ask.tries))
		}
		return nil, err
	}
	var w Warnings
	r.settle(now, rec, whole.head, whole, &w)
	return nil, w.err()
}

func (st state) valid() bool {
	if st.About != About || !hashForm.MatchString(st.Hash) || st.EveryMS <= 0 {
		return false
	}
	return st.Same || st.Parts > 0 && st.Parts <= mostParts && st.Part >= 0 && st.Part < st.Parts
}

// gather adds one part and returns the answer once it is whole.
func (q *question) gather(from identity.Host, re envelope.ID, st state, most int) (*answer, error) {
	if q.answer == nil || q.answer.re != re {
		q.answer = &answer{re: re, head: st, have: map[int]bool{}}
		q.answer.head.Rows = nil
	}
	a := q.answer
	if st.Inc != a.head.Inc || st.RV != a.head.RV || st.Hash != a.head.Hash || st.Parts != a.head.Parts {
		q.answer = nil
		return nil, malformed(from, "the parts of a STATE do not belong together")
	}
	if a.have[st.Part] {
		return nil, nil
	}
	a.have[st.Part] = true
	if st.Profiles != nil {
		a.profiles = st.Profiles
	}
	// One more than fits, so that the bound is seen and said.
	a.rows = append(a.rows, st.Rows[:min(len(st.Rows), max(0, most+1-len(a.rows)))]...)
	if len(a.have) < a.head.Parts {
		return nil, nil
	}
	return a, nil
}

// settle takes an answer to our open question: from here on the life that gave
// it counts. whole is nil where it says that we have its version.
func (r *Roster) settle(now time.Time, rec *record, st state, whole *answer, w *Warnings) {
	if rec.known && st.Inc < rec.inc {
		return
	}
	sameLife := rec.known && st.Inc == rec.inc
	// A delta may overtake the answer; what it brought is newer.
	older := sameLife && !rec.behind && st.RV < rec.rv
	switch {
	case whole != nil && !older:
		r.replace(now, rec, whole, w)
	case whole == nil && !sameLife:
		return // we have no version that could be the same
	case whole == nil && st.RV >= rec.rv:
		rec.behind = st.RV != rec.rv || st.Hash != rec.hash
	}
	if !sameLife {
		rec.known, rec.inc, rec.seq = true, st.Inc, st.Seq
		rec.clock, rec.sentAt = clock{}, 0
	}
	rec.seq = max(rec.seq, st.Seq)
	rec.heard, rec.every = now, every(st.EveryMS)
	if v := cleanVersion(st.Version); v != rec.version || !sameLife {
		rec.version = v
		r.rev++
		rec.rev = r.rev
	}
	r.answered(now, rec)
	if !sameLife || rec.verdict != alive {
		r.tell(HostLive, rec.host, now)
	}
	r.judge(rec, alive, now)
	r.wake(rec.silentAt())
}

// answered closes a question that was answered. A rumour of a higher
// incarnation that it did not confirm is followed ever more slowly: it may be a
// recording from before a boot counter was lost.
func (r *Roster) answered(now time.Time, rec *record) {
	tries := rec.ask.tries + 1
	rec.ask = question{notBefore: now.Add(time.Second)}
	if rec.rumour > rec.inc {
		rec.ask.tries = tries
		rec.ask.notBefore = now.Add(r.patience(tries))
	}
	rec.rumour = 0
}

// replace puts the rows of a whole answer in the place of what was known.
func (r *Roster) replace(now time.Time, rec *record, whole *answer, w *Warnings) {
	stay := make(map[identity.GID]bool, len(whole.rows))
	for _, one := range whole.rows {
		stay[one.GID] = true
	}
	for gid := range rec.agents {
		if !stay[gid] {
			r.drop(rec, gid, now)
		}
	}
	changed := whole.rows[:0]
	for _, one := range whole.rows {
		e := rec.agents[one.GID]
		if e == nil || !e.equal(one.agent(rec.host).tidy()) {
			changed = append(changed, one)
		}
	}
	r.merge(rec, changed, w)
	rec.rv, rec.hash, rec.behind = whole.head.RV, whole.head.Hash, false
	r.setProfiles(rec, &whole.profiles)
}

// HearUnroutable says that the broker returned our query id to host: nobody
// reads its control queue. It is asked again later, if it is heard.
func (r *Roster) HearUnroutable(now time.Time, host identity.Host, id envelope.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.records[host]
	if rec == nil || id == "" || rec.ask.id != id {
		return
	}
	r.unanswered(rec, now)
	rec.ask.due = now.Add(r.patience(rec.ask.tries))
	r.wake(rec.ask.due)
}
