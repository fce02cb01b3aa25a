// Package roster is who is where and since when: this host's agents, the other
// hosts and theirs, and which of them can be believed to be alive.
//
// It is state driven by values. It has no goroutine, no clock and no broker: the
// caller hands in what was heard and when, and publishes what it is told to. It
// does not know signatures (what it hears is verified), queues, or what a
// message to an agent says.
//
// # The protocol (R29)
//
// Each host sends one heartbeat per interval, whose size does not depend on its
// agents: incarnation, sequence, and the version and digest of its roster.
// Changes travel as deltas from one version to the next. Who is behind, or hears
// a host or an incarnation for the first time, or hears one again that had gone
// silent, asks that host with a QUERY; the STATE that names the query in `re`
// carries everything and proves that the answerer lives now. Recorded presence
// can therefore cause a question, and never a life.
//
// A host hears its own heartbeats too, because its queue is bound to all of
// them. That echo tells a dead peer from a dead link of one's own: the caller
// must hand its own PRESENCE back in.
package roster

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// Self is this host as others see it.
type Self struct {
	Host identity.Host
	// Incarnation is the boot counter: it grows with every start of the gateway.
	// Peers ignore a lower one than they have accepted until they have removed
	// the host, so a counter that was lost should start again from a clock.
	Incarnation uint64
	Version     string   // of the program
	Profiles    []string // names only
}

// Options are the roster's times and bounds. A zero value takes the default.
type Options struct {
	Heartbeat   time.Duration // shortest interval between heartbeats (5 s)
	Coalesce    time.Duration // shortest interval between two rounds of deltas (1 s)
	RemoveAfter time.Duration // how long a silent host is kept (10 min)
	Remember    time.Duration // how long a removed agent's owner is remembered (15 days)
	MaxHosts    int           // hosts that are remembered at all (10,000)
	MaxAgents   int           // agents of one host (100,000)
	MaxTotal    int           // agents of all other hosts together (500,000)
	MaxRemember int           // removed agents remembered for one host (50,000)
	// Rand spreads questions and heartbeats. Nil: randomly seeded.
	Rand *rand.Rand
}

func (o Options) withDefaults() Options {
	pick := func(v *time.Duration, def time.Duration) {
		if *v <= 0 {
			*v = def
		}
	}
	bound := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	pick(&o.Heartbeat, 5*time.Second)
	pick(&o.Coalesce, time.Second)
	pick(&o.RemoveAfter, 10*time.Minute)
	// Longer than a message may rest and be replayed, so that a gid can't change
	// hands while something is still under way to it (R19).
	pick(&o.Remember, envelope.DefaultMemory+24*time.Hour)
	bound(&o.MaxHosts, 10_000)
	bound(&o.MaxAgents, 100_000)
	bound(&o.MaxTotal, 500_000)
	bound(&o.MaxRemember, 50_000)
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return o
}

// Do is one envelope that the caller must seal and publish. A failed publish
// needs no report: what was lost is asked for again.
type Do struct {
	Kind envelope.Kind // Presence, Query or State
	To   identity.Host // empty: all hosts
	ID   envelope.ID   // of a Query, whose answer names it; else empty
	Re   envelope.ID   // of a State: the query that it answers
	Body json.RawMessage
}

// Roster is the state of one host's roster. Its methods may be called from any
// goroutine and never block on anything but each other.
type Roster struct {
	mu   sync.RWMutex // guards everything below
	self Self
	opt  Options

	here    *record // this host; also in records
	records map[identity.Host]*record
	owners  map[gidKey]owner
	remote  int // agents of other hosts

	// What this host has announced.
	seq       uint64 // of the last PRESENCE
	rv        uint64 // of the last delta
	hash      string // digest of the deltas up to rv
	pending   map[identity.GID]bool
	profiles  bool // the profile names have changed since the last delta
	deltaDue  time.Time
	lastDelta time.Time
	beatDue   time.Time
	announced bool                // a heartbeat has told others of rv
	parts     [][]json.RawMessage // this host's rows as a STATE carries them; nil: to be made

	link link

	rev       uint64 // counts changes of any view
	gone      []goneAgent
	goneFloor uint64
	events    []Event
	next      time.Time
	pruneDue  time.Time
}

// New makes the roster of self with no agents and no link to the broker.
func New(self Self, o Options) *Roster {
	self.Profiles = sortedNames(self.Profiles)
	r := &Roster{
		self:    self,
		opt:     o.withDefaults(),
		records: map[identity.Host]*record{},
		owners:  map[gidKey]owner{},
		pending: map[identity.GID]bool{},
	}
	r.hash = fmt.Sprintf("%016x", r.opt.Rand.Uint64())
	r.here = newRecord(self.Host)
	r.here.known = true
	r.here.inc, r.here.version, r.here.profiles = self.Incarnation, self.Version, self.Profiles
	r.records[self.Host] = r.here
	r.own(r.here.operator, r.here)
	return r
}

// sortedNames is names without those that CheckName refuses, sorted, each once.
func sortedNames(names []string) []string {
	kept := make([]string, 0, len(names))
	for _, n := range names {
		if identity.CheckName(n) == nil {
			kept = append(kept, strings.Clone(n))
		}
	}
	slices.Sort(kept)
	return slices.Compact(kept)
}

// Version counts the changes of what the views show. It only grows, and starts
// anew with the process.
func (r *Roster) Version() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.rev
}

// Next is when Tick has something to do; zero before the first Tick. Every other
// method may bring it forward, so ask after each.
func (r *Roster) Next() time.Time {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.next
}

// wake brings the next Tick forward to t.
func (r *Roster) wake(t time.Time) {
	if t.Before(r.next) {
		r.next = t
	}
}

// jitter is a random time below d.
func (r *Roster) jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(r.opt.Rand.Int64N(int64(d)))
}

// spread is a random wait that grows with the fleet: 20 ms a host, at most 2 s,
// so that a hundred hosts do not speak in the same instant and two do not wait.
func (r *Roster) spread() time.Duration {
	return r.jitter(min(time.Duration(len(r.records))*20*time.Millisecond, 2*time.Second))
}

// pace is the interval at which a message to all may be sent by each of n hosts
// while all deliveries stay below 1,000 a second: n²/1000 s.
func pace(n int) time.Duration { return time.Duration(n) * time.Duration(n) * time.Millisecond }

// interval is this host's heartbeat interval now.
func (r *Roster) interval() time.Duration { return max(r.opt.Heartbeat, pace(r.liveHosts())) }

// liveHosts counts this host and those not given up.
func (r *Roster) liveHosts() int {
	n := 0
	for _, rec := range r.records {
		if rec.known && rec.verdict == alive {
			n++
		}
	}
	return n
}
