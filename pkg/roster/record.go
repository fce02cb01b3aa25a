package roster

import (
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// verdict is what is held true of a host, as opposed to what a view shows while
// the question is open.
type verdict int

const (
	alive verdict = iota
	aged          // silent for three heartbeats while our link was good
	left          // said that it stops
)

// record is one host.
type record struct {
	host     identity.Host
	operator identity.GID

	// The accepted life; meaningless unless known.
	known    bool // it has answered a query of ours
	inc      uint64
	seq      uint64 // of the last PRESENCE taken; older ones are recordings
	rv       uint64
	hash     string
	behind   bool // a newer rv exists
	version  string
	profiles []string
	agents   map[identity.GID]*entry
	names    map[string]identity.GID

	noticed time.Time     // any verified message, also of a life not accepted
	heard   time.Time     // a message of the accepted life, by our clock
	every   time.Duration // until its next heartbeat at most, as it announced
	sentAt  int64         // the newest clock reading in a heartbeat, Unix ms
	clock   clock

	verdict   verdict
	verdictAt time.Time
	cleared   bool // silent at a time when our own link was proven good
	shown     shown
	shownAt   time.Time // when shown.state began
	rev       uint64    // when shown or the host's own fields last changed

	ask    question
	rumour uint64 // a higher incarnation that was heard and has not answered
	rival  rival
	budget budget
	tombs  []tomb
}

func newRecord(host identity.Host) *record {
	return &record{
		host:     host,
		operator: identity.OperatorGID(host),
		agents:   map[identity.GID]*entry{},
		names:    map[string]identity.GID{},
	}
}

// entry is an agent and when its row last changed.
type entry struct {
	Agent
	rev uint64
}

// record returns host's record, made if need be; nil when there are too many.
func (r *Roster) record(host identity.Host) *record {
	if rec, ok := r.records[host]; ok {
		return rec
	}
	if len(r.records) >= r.opt.MaxHosts {
		return nil
	}
	rec := newRecord(host)
	r.records[host] = rec
	return rec
}

// put stores an agent of rec and its ownership.
func (r *Roster) put(rec *record, a Agent) {
	e := rec.agents[a.GID]
	if e == nil {
		e = &entry{}
		rec.agents[a.GID] = e
		if rec != r.here {
			r.remote++
		}
	} else if e.Name != a.Name {
		rec.unname(e)
	}
	r.rev++
	e.Agent, e.rev = a, r.rev
	if a.Name != "" {
		rec.names[a.Name] = a.GID
	}
	r.own(a.GID, rec)
}

// drop removes an agent of rec and keeps its tombstone.
func (r *Roster) drop(rec *record, gid identity.GID, now time.Time) {
	e := rec.agents[gid]
	if e == nil {
		return
	}
	rec.unname(e)
	delete(rec.agents, gid)
	if rec != r.here {
		r.remote--
	}
	r.rev++
	r.tellGone(gid)
	r.bury(gid, rec, now)
}

func (rec *record) unname(e *entry) {
	if rec.names[e.Name] == e.GID {
		delete(rec.names, e.Name)
	}
}

// clock filters how far a host's clock is ahead of ours. A heartbeat's delay
// only ever makes it look less, so the most of the last readings is nearest.
type clock struct {
	ahead [8]int64 // ms
	n     int
}

func (c *clock) read(sentMS int64, now time.Time) {
	c.ahead[c.n%len(c.ahead)] = sentMS - now.UnixMilli()
	c.n++
}

func (c *clock) skew() time.Duration {
	n := min(c.n, len(c.ahead))
	if n == 0 {
		return 0
	}
	most := c.ahead[0]
	for _, a := range c.ahead[1:n] {
		most = max(most, a)
	}
	return time.Duration(most) * time.Millisecond
}

// budget bounds the answers given to one host: a burst of 4, then one a second,
// because an answer may be ten thousand times as long as the question.
type budget struct {
	at    time.Time
	spent float64
}

func (b *budget) take(now time.Time) bool {
	const burst = 4
	if !b.at.IsZero() {
		b.spent = max(0, b.spent-max(0, now.Sub(b.at).Seconds()))
	}
	b.at = now
	if b.spent+1 > burst {
		return false
	}
	b.spent++
	return true
}

// rival is a second life that speaks under a host's name.
type rival struct {
	inc, seq uint64
	count    int
	since    time.Time
	told     time.Time
}

// question is the state of our asking one host. Only the answer to id counts.
type question struct {
	wanted    bool
	due       time.Time // when it may be sent
	notBefore time.Time // when the next one may be
	tries     int       // since the last answer that settled it
	id        envelope.ID
	sent      time.Time
	deadline  time.Time
	answer    *answer
	late      []outdated // given up, the newest last
}
