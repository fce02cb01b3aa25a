package roster

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"fleet/pkg/identity"
)

// The states of hosts.
const (
	Here = "here" // this host
	Live = "live"
	// Unknown is the third.
)

// Why a host is unknown.
const (
	WhySilent = "silent"   // three heartbeats missed
	WhyLeft   = "left"     // it said that it stops
	WhyLink   = "own_link" // our own link is down or in doubt, or was and the host was not heard since
)

// shown is what a view says of a host.
type shown struct{ state, why string }

// Seconds is a time span that JSON has as seconds with three decimals.
type Seconds time.Duration

// MarshalJSON writes the number.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', 3, 64), nil
}

// UnmarshalJSON reads the number.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return err
	}
	*s = Seconds(f * float64(time.Second))
	return nil
}

// HostView is one host as the roster has it.
type HostView struct {
	Host        identity.Host `json:"host"`
	State       string        `json:"state"`            // here, live or unknown
	Why         string        `json:"why,omitempty"`    // it is unknown: silent, left or own_link
	Since       time.Time     `json:"since"`            // in this state, by our clock
	Incarnation uint64        `json:"incarnation"`      // the boot counter
	Version     string        `json:"version"`          // of its program
	Profiles    []string      `json:"profiles"`         // names it offers
	Agents      int           `json:"agents"`           // rows, its operator included if announced
	Skew        Seconds       `json:"skew_seconds"`     // how far its clock is ahead of ours, less the delay
	Heard       Seconds       `json:"heard_seconds"`    // since its last message
	Interval    Seconds       `json:"interval_seconds"` // of its heartbeats
}

// look is what a view says of rec at now. It reads and never writes, so that
// looking can't keep a dead host fresh.
func (r *Roster) look(rec *record, now time.Time) shown {
	silent := rec != r.here && !now.Before(rec.silentAt())
	switch {
	case rec == r.here:
		return shown{Here, ""}
	case rec.verdict == left:
		return shown{Unknown, WhyLeft}
	case rec.verdict == aged:
		return shown{Unknown, WhySilent}
	case !r.link.up || rec.heard.Before(r.link.since) || silent && r.link.doubt:
		return shown{Unknown, WhyLink}
	case silent:
		return shown{Unknown, WhySilent}
	}
	return shown{Live, ""}
}

// since is when rec came into the state s that a view shows at now.
func (r *Roster) since(rec *record, s shown, now time.Time) time.Time {
	switch {
	case s.state == rec.shown.state:
		return rec.shownAt
	case s.why == WhyLink && !r.link.up:
		return r.link.since
	case s.state == Unknown && s.why != WhyLeft && !rec.silentAt().After(now):
		return rec.silentAt()
	}
	return now
}

// show notes a change of what views say of rec.
func (r *Roster) show(rec *record, now time.Time) {
	if !rec.known {
		return
	}
	s := r.look(rec, now)
	if s == rec.shown {
		return
	}
	r.rev++
	rec.shownAt = r.since(rec, s, now).UTC()
	rec.shown, rec.rev = s, r.rev
}

func (r *Roster) viewHost(rec *record, now time.Time) HostView {
	s := r.look(rec, now)
	v := HostView{
		Host: rec.host, State: s.state, Why: s.why, Since: fromMS(toMS(r.since(rec, s, now))),
		Incarnation: rec.inc, Version: rec.version, Profiles: slices.Clone(rec.profiles), Agents: len(rec.agents),
		Skew: Seconds(rec.clock.skew()), Interval: Seconds(rec.every),
	}
	if rec == r.here {
		v.Interval = Seconds(r.interval())
	} else {
		v.Heard = Seconds(now.Sub(rec.heard))
	}
	return v
}

func (r *Roster) viewAgent(rec *record, e *entry, now time.Time) Agent {
	a := e.Agent
	a.Groups = slices.Clone(a.Groups)
	if s := r.look(rec, now); s.state == Unknown {
		a.State, a.Since = Unknown, fromMS(toMS(r.since(rec, s, now)))
	}
	return a
}

// Hosts are this host and all that have proven that they lived, sorted.
func (r *Roster) Hosts(now time.Time) []HostView {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.hosts(0, now)
}

func (r *Roster) hosts(after uint64, now time.Time) []HostView {
	var hosts []HostView
	for _, rec := range r.records {
		if rec.known && (after == 0 || rec.rev > after) {
			hosts = append(hosts, r.viewHost(rec, now))
		}
	}
	slices.SortFunc(hosts, func(a, b HostView) int { return cmp.Compare(a.Host, b.Host) })
	return hosts
}

// Host is one host; ok is false for one that has not proven that it lived, or
// was removed.
func (r *Roster) Host(host identity.Host, now time.Time) (v HostView, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	rec := r.records[host]
	if rec == nil || !rec.known {
		return HostView{}, false
	}
	return r.viewHost(rec, now), true
}

// Agents are all agents of all hosts, sorted by host, name and gid. Those of an
// unknown host are in state unknown since their host is.
func (r *Roster) Agents(now time.Time) []Agent {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.agents(0, now)
}

func (r *Roster) agents(after uint64, now time.Time) []Agent {
	var agents []Agent
	for _, rec := range r.records {
		for _, e := range rec.agents {
			if after == 0 || e.rev > after || rec.rev > after {
				agents = append(agents, r.viewAgent(rec, e, now))
			}
		}
	}
	sortAgents(agents)
	return agents
}

func sortAgents(agents []Agent) {
	slices.SortFunc(agents, func(a, b Agent) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Name, b.Name), cmp.Compare(a.GID, b.GID))
	})
}

// Changes is what views say otherwise than at an earlier version. What is gone
// goes first: an agent may stand in both lists, having come back.
type Changes struct {
	Version uint64 `json:"version"` // to ask from next
	// Whole: too much has changed since, and the lists hold everything; what is
	// not in them is gone.
	Whole     bool            `json:"whole,omitempty"`
	GoneHosts []identity.Host `json:"gone_hosts,omitempty"`
	Gone      []identity.GID  `json:"gone,omitempty"`
	Hosts     []HostView      `json:"hosts,omitempty"`
	Agents    []Agent         `json:"agents,omitempty"`
}

// mostGone bounds the memory of what has left the views.
const mostGone = 4096

// goneAgent is an agent that left the views, or with an empty gid a host.
type goneAgent struct {
	rev  uint64
	gid  identity.GID
	host identity.Host
}

func (r *Roster) tellGone(gid identity.GID) { r.leaves(goneAgent{r.rev, gid, ""}) }

func (r *Roster) tellGoneHost(host identity.Host) { r.leaves(goneAgent{r.rev, "", host}) }

func (r *Roster) leaves(g goneAgent) {
	if len(r.gone) >= mostGone {
		r.goneFloor = r.gone[mostGone/2-1].rev
		r.gone = append(r.gone[:0], r.gone[mostGone/2:]...)
	}
	r.gone = append(r.gone, g)
}

// Changes is what has changed since an earlier version; 0 asks for everything,
// and so does a version of an earlier process. Ages grow without being a change.
func (r *Roster) Changes(since uint64, now time.Time) Changes {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c := Changes{Version: r.rev}
	if since == 0 || since < r.goneFloor || since > r.rev {
		c.Whole = true
		c.Hosts, c.Agents = r.hosts(0, now), r.agents(0, now)
		return c
	}
	if since == r.rev {
		return c
	}
	for _, g := range r.gone {
		switch {
		case g.rev <= since:
		case g.gid == "":
			c.GoneHosts = append(c.GoneHosts, g.host)
		default:
			c.Gone = append(c.Gone, g.gid)
		}
	}
	c.Hosts, c.Agents = r.hosts(since, now), r.agents(since, now)
	return c
}
