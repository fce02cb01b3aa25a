package roster

import (
	"fmt"
	"strings"
	"time"

	"fleet/pkg/identity"
)

// WarningKind says what is wrong with something heard.
type WarningKind string

// The warnings. They stand in logs and metrics, so they are added and never
// renamed.
const (
	Malformed       WarningKind = "malformed"        // the body was not taken at all
	BadEntry        WarningKind = "bad_entry"        // one agent was left out
	OverLimit       WarningKind = "over_limit"       // a bound of ours was reached
	GIDClaimed      WarningKind = "gid_claimed"      // alarm: another host owns the agent's id
	TwoIncarnations WarningKind = "two_incarnations" // alarm: two gateways speak as one host
)

// Warning is one thing for the log. Its text is safe to print.
type Warning struct {
	Kind   WarningKind
	Host   identity.Host // who said it
	GID    identity.GID  // empty, or checked
	Detail string
}

// Alarm says whether a person must look.
func (w Warning) Alarm() bool { return w.Kind == GIDClaimed || w.Kind == TwoIncarnations }

// Warnings is the error of the Hear methods: what was left out of a message
// that was taken otherwise, or Malformed.
type Warnings []Warning

// mostWarnings bounds what one message can write into a log.
const mostWarnings = 8

func (w Warnings) Error() string {
	lines := make([]string, len(w))
	for i, one := range w {
		lines[i] = fmt.Sprintf("%s from %s: %s", one.Kind, one.Host, one.Detail)
	}
	return strings.Join(lines, "; ")
}

// Alarm says whether one of them is an alarm.
func (w Warnings) Alarm() bool {
	for _, one := range w {
		if one.Alarm() {
			return true
		}
	}
	return false
}

// err is w as an error, nil without any.
func (w Warnings) err() error {
	if len(w) == 0 {
		return nil
	}
	return w
}

// add appends one warning; alarms displace others when there are too many.
func (w *Warnings) add(one Warning) {
	if len(*w) < mostWarnings {
		*w = append(*w, one)
		return
	}
	for i := range *w {
		if one.Alarm() && !(*w)[i].Alarm() {
			(*w)[i] = one
			return
		}
	}
}

func malformed(host identity.Host, format string, args ...any) error {
	return Warnings{{Kind: Malformed, Host: host, Detail: fmt.Sprintf(format, args...)}}
}

// EventKind says what became of a host or of the link.
type EventKind string

// The events.
const (
	HostLive    EventKind = "host_live"    // a life was accepted, or one came back
	HostUnknown EventKind = "host_unknown" // given up: silent while our link was good
	HostLeft    EventKind = "host_left"    // it said that it stops
	HostRemoved EventKind = "host_removed" // unknown for too long; its agents are gone from the views
	LinkDoubted EventKind = "link_doubted" // most peers fell silent at once: nobody is given up
	LinkProven  EventKind = "link_proven"  // our own heartbeat came back, or the peers did
)

// Event is a change that the caller may have to act on: a waiter ends when its
// agent's host is removed.
type Event struct {
	Kind EventKind
	Host identity.Host // empty for the link's
	At   time.Time
}

// mostEvents bounds what waits for a caller that does not collect.
const mostEvents = 4096

// Events returns what has happened since the last call, oldest first.
func (r *Roster) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.events
	r.events = nil
	return e
}

func (r *Roster) tell(kind EventKind, host identity.Host, now time.Time) {
	if len(r.events) >= mostEvents {
		r.events = r.events[mostEvents/2:]
	}
	r.events = append(r.events, Event{kind, host, now})
}
