package roster

import (
	"slices"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// The roles of agents.
const (
	Worker       = "worker"
	Main         = "main"
	Orchestrator = "orchestrator"
	Operator     = "operator"
)

// The states of agents. Others may be announced by a newer release; they have
// the form of a name.
const (
	Idle    = "idle"
	Busy    = "busy"
	Dead    = "dead"
	Unknown = "unknown" // also every agent of a host that is unknown
)

// Agent is one row of the roster. Times are UTC, by the clock of the agent's
// host.
type Agent struct {
	GID     identity.GID  `json:"gid"`
	Name    string        `json:"name,omitempty"` // unique on its host
	Role    string        `json:"role"`
	Host    identity.Host `json:"host"`
	State   string        `json:"state"`
	Groups  []string      `json:"groups,omitempty"` // sorted
	Profile string        `json:"profile,omitempty"`
	Since   time.Time     `json:"since"` // in this state
	// Undrained counts the messages that wait in a puller's mailbox;
	// UndrainedOldest is when the oldest came, zero without any.
	Undrained       int       `json:"undrained,omitempty"`
	UndrainedOldest time.Time `json:"undrained_oldest,omitzero"`
}

// Address is what a person types to reach a: name@host, or the gid of an agent
// without a name.
func (a Agent) Address() string {
	if a.Name == "" {
		return string(a.GID)
	}
	return a.Name + "@" + string(a.Host)
}

// MostGroups bounds the groups of one agent.
const MostGroups = 64

// fields says what is wrong with a's own fields; nil if nothing is.
func (a Agent) fields() *fault.Fault {
	bad := func(format string, args ...any) *fault.Fault { return fault.New(fault.Usage, format, args...) }
	if gid, err := identity.ParseGID(string(a.GID)); err != nil || gid != a.GID {
		return bad("an agent id is not a UUID in lower case")
	}
	for _, n := range append([]string{a.Name, a.Profile}, a.Groups...) {
		if n == "" {
			continue
		}
		if err := identity.CheckName(n); err != nil {
			return fault.From(err)
		}
	}
	if a.State == "" || identity.CheckName(a.State) != nil {
		return bad("the state is not a word")
	}
	switch a.Role {
	case Worker, Main, Orchestrator, Operator:
	default:
		return bad("the role is none of worker, main, orchestrator and operator")
	}
	if operator := identity.OperatorGID(a.Host); (a.Role == Operator) != (a.GID == operator) {
		return bad("the role operator and the id that derives from the host belong together")
	}
	if (a.Name == Operator) != (a.Role == Operator) {
		return bad("the name operator belongs to the host's operator")
	}
	if len(a.Groups) > MostGroups || slices.Contains(a.Groups, "") {
		return bad("more than %d groups, or one without a name", MostGroups)
	}
	if a.Undrained < 0 {
		return bad("the count of undrained messages is negative")
	}
	return nil
}

// tidy brings a into the form in which it is stored and compared.
func (a Agent) tidy() Agent {
	a.Groups = slices.Clone(a.Groups)
	slices.Sort(a.Groups)
	a.Groups = slices.Compact(a.Groups)
	if len(a.Groups) == 0 {
		a.Groups = nil
	}
	a.Since = fromMS(toMS(a.Since))
	a.UndrainedOldest = fromMS(toMS(a.UndrainedOldest))
	return a
}

// sameMembership says whether a and b differ at most in what an agent does from
// one minute to the next.
func (a Agent) sameMembership(b Agent) bool {
	return a.Name == b.Name && a.Role == b.Role && a.Profile == b.Profile && slices.Equal(a.Groups, b.Groups) &&
		(a.State == Dead) == (b.State == Dead)
}

func (a Agent) equal(b Agent) bool {
	return a.sameMembership(b) && a.State == b.State && a.Since.Equal(b.Since) &&
		a.Undrained == b.Undrained && a.UndrainedOldest.Equal(b.UndrainedOldest)
}

// latest is the last moment that a time in JSON can have, year 9999.
const latest = 253402300799999

// toMS is t as the wire has it: Unix milliseconds, 0 for the zero time.
func toMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// fromMS reads the wire's form; a value out of range is the zero time.
func fromMS(ms int64) time.Time {
	if ms <= 0 || ms > latest {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
