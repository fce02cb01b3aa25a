// Package fault is the error that a person or a script sees: a kind, one
// sentence that says what is so, and a hint that says what to do.
//
// A fault crosses the gateway's socket as JSON and arrives equal, so a command
// never knows where the work ran. It does not know how errors are printed or
// which process ends: output prints, main exits.
package fault

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Kind classifies a fault. Its value is part of the JSON that scripts read, so
// kinds are added and never renamed.
type Kind string

// The kinds, grouped by the exit status that each leads to (see Exit).
const (
	Failed       Kind = "failed"        // 1: it did not work, and no better kind fits
	Usage        Kind = "usage"         // 2: the command line or a request is malformed
	Config       Kind = "config"        // 2: the configuration is wrong
	NotFound     Kind = "not_found"     // 3: no such agent, host, message or turn
	Ambiguous    Kind = "ambiguous"     // 3: several agents fit
	NoGateway    Kind = "no_gateway"    // 4: this host's gateway does not answer
	NoBroker     Kind = "no_broker"     // 5: the broker is out of reach
	TimedOut     Kind = "timed_out"     // 6: the caller's own bound passed
	Expired      Kind = "expired"       // 6: the message's bound passed before it was taken
	Refused      Kind = "refused"       // 7: not authorised, to oneself, name taken, not live
	Conflict     Kind = "conflict"      // 7: same id, other content
	Stale        Kind = "stale_turn"    // 7: the turn already has its outcome
	TooLate      Kind = "too_late"      // 7: what this answers is gone
	Full         Kind = "full"          // 7: an inbox or mailbox is full
	HostHeld     Kind = "host_held"     // 7: another gateway serves this host
	AgentFailed  Kind = "agent_failed"  // 8: the agent died or its turn failed
	Abandoned    Kind = "abandoned"     // 8: the agent was stopped with the turn open
	Partial      Kind = "partial"       // 9: some recipients were reached, some not
	Unknown      Kind = "unknown"       // 10: nobody can tell yet; go on with the same id
	Interrupted  Kind = "interrupted"   // 130: Ctrl-C
	NotSubmitted Kind = "not_submitted" // 1: typed, but the agent did not take it
)

// exits maps every kind to its exit status. A kind that is not here exits 1,
// never 0.
var exits = map[Kind]int{
	Failed: 1, NotSubmitted: 1,
	Usage: 2, Config: 2,
	NotFound: 3, Ambiguous: 3,
	NoGateway: 4,
	NoBroker:  5,
	TimedOut:  6, Expired: 6,
	Refused: 7, Conflict: 7, Stale: 7, TooLate: 7, Full: 7, HostHeld: 7,
	AgentFailed: 8, Abandoned: 8,
	Partial:     9,
	Unknown:     10,
	Interrupted: 130,
}

// Fault is an error for people. The zero Kind means Failed.
type Fault struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// ID is the id to go on with (`fleet send --id`), where there is one.
	ID string `json:"id,omitempty"`
	// Also lists further facts, one a line, such as the candidates of an
	// ambiguous name.
	Also []string `json:"also,omitempty"`
}

// New makes a fault of one kind. The message is a lower-case clause without a
// full stop.
func New(kind Kind, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// WithHint returns a copy of f that says what to do.
func (f *Fault) WithHint(format string, args ...any) *Fault {
	c := *f
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithID returns a copy of f that names the id to go on with.
func (f *Fault) WithID(id string) *Fault {
	c := *f
	c.ID = id
	return &c
}

// WithAlso returns a copy of f that lists further facts.
func (f *Fault) WithAlso(lines ...string) *Fault {
	c := *f
	c.Also = append(append([]string(nil), f.Also...), lines...)
	return &c
}

// Error returns the message alone; output prints the hint on a line of its own.
func (f *Fault) Error() string { return f.Message }

// Is makes errors.Is(err, fault.Kind) work: two faults are the same when their
// kinds are.
func (f *Fault) Is(target error) bool {
	if k, ok := target.(Kind); ok {
		return f.Kind == k
	}
	other, ok := target.(*Fault)
	return ok && f.Kind == other.Kind
}

// Error lets a Kind stand as the target of errors.Is.
func (k Kind) Error() string { return string(k) }

// From returns the fault in err's chain, or wraps err as Failed. It returns nil
// for nil.
func From(err error) *Fault {
	if err == nil {
		return nil
	}
	var f *Fault
	if errors.As(err, &f) {
		if f.Error() == err.Error() {
			return f
		}
		c := *f
		c.Message = err.Error()
		return &c
	}
	return &Fault{Kind: Failed, Message: err.Error()}
}

// Exit is the process's exit status for err: 0 for nil, 1 for what is not a
// fault or has a kind this build does not know.
func Exit(err error) int {
	if err == nil {
		return 0
	}
	if code, ok := exits[From(err).Kind]; ok {
		return code
	}
	return 1
}

// Kinds lists every kind with its exit status, for the manual and for tests.
func Kinds() map[Kind]int {
	c := make(map[Kind]int, len(exits))
	for k, v := range exits {
		c[k] = v
	}
	return c
}

// UnmarshalJSON refuses a fault without a message, which no gateway sends.
func (f *Fault) UnmarshalJSON(b []byte) error {
	type plain Fault
	var p plain
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	if p.Kind == "" || p.Message == "" {
		return errors.New("a fault needs kind and message")
	}
	*f = Fault(p)
	return nil
}
