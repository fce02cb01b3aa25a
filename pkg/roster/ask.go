package roster

import (
	"cmp"
	"slices"
	"time"

	"fleet/pkg/envelope"
)

// The bounds of asking.
const (
	slots    = 20              // questions under way at once, in all
	slotHold = 2 * time.Second // then it is likelier lost than slow, and others go on
	// firstWait is for an answer, and doubles with each try. When a whole fleet
	// starts at once the broker is slow, and what is asked again makes it slower.
	firstWait  = 5 * time.Second
	longestAsk = 30 * time.Second
	lateBound  = time.Minute // how long the answer to a question that was given up still counts
	lateMost   = 4           // such questions to one host
	mostTries  = 4           // until the host is heard again
)

// patience is how long the answer to the given try is awaited, and how long the
// next question waits where the answer did not settle it.
func (r *Roster) patience(tries int) time.Duration {
	d := min(firstWait<<min(tries, 8), longestAsk)
	return d + r.jitter(d/2)
}

// want plans a question to rec after a wait, unless one is planned or under way.
func (r *Roster) want(rec *record, wait time.Duration, now time.Time) {
	if rec.ask.wanted {
		return
	}
	rec.ask.wanted = true
	rec.ask.due = now.Add(wait)
	if rec.ask.due.Before(rec.ask.notBefore) {
		rec.ask.due = rec.ask.notBefore
	}
	r.wake(rec.ask.due)
}

// asked says whether id is a question of ours that still may be answered: the
// open one, or one given up a moment ago. On a slow broker every answer is later
// than the patience for it; were those ignored, none would ever count.
func (q *question) asked(id envelope.ID, now time.Time) bool {
	if id == "" {
		return false
	}
	late := func(o outdated) bool { return o.id == id && now.Sub(o.sent) < lateBound }
	return id == q.id || slices.ContainsFunc(q.late, late)
}

// outdated is a question that was given up.
type outdated struct {
	id   envelope.ID
	sent time.Time
}

// close ends the open question without an answer. It stays wanted.
func (q *question) close() {
	if q.id != "" {
		q.late = append(q.late[max(0, len(q.late)-lateMost+1):], outdated{q.id, q.sent})
	}
	q.id, q.answer = "", nil
	q.sent, q.deadline = time.Time{}, time.Time{}
}

// questions sends the queries that are due, those first that were tried least.
func (r *Roster) questions(now time.Time) []Do {
	var wanted []*record
	for _, rec := range r.records {
		if rec.ask.wanted {
			wanted = append(wanted, rec)
		}
	}
	slices.SortFunc(wanted, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.ask.tries, b.ask.tries), a.ask.due.Compare(b.ask.due), byHost(a, b))
	})
	free := slots
	var due []*record
	for _, rec := range wanted {
		q := &rec.ask
		if q.id != "" && !now.Before(q.deadline) {
			r.unanswered(rec, now)
		}
		switch {
		case q.id != "" && now.Sub(q.sent) < slotHold:
			free--
		case q.wanted && q.id == "" && !now.Before(q.due):
			due = append(due, rec)
		}
	}
	due = due[:min(len(due), max(0, free))]
	do := make([]Do, 0, len(due))
	for _, rec := range due {
		do = append(do, r.question(rec, now))
	}
	return do
}

// question opens one question to rec.
func (r *Roster) question(rec *record, now time.Time) Do {
	q := &rec.ask
	q.id, q.answer = envelope.NewID(), nil
	q.sent, q.deadline = now, now.Add(r.patience(q.tries))
	body := query{About: About}
	if rec.known {
		body.Inc, body.RV, body.Hash = rec.inc, rec.rv, rec.hash
	}
	return Do{Kind: envelope.Query, To: rec.host, ID: q.id, Body: encode(body)}
}

// unanswered closes a question whose time is up and plans the next, or gives up
// until the host is heard again.
func (r *Roster) unanswered(rec *record, now time.Time) {
	q := &rec.ask
	q.close()
	q.tries++
	q.due = now
	if q.tries >= mostTries {
		q.wanted = false
		q.notBefore = now.Add(r.patience(q.tries))
	}
}
