// Package turn is one brief in a worker, from its claim to its terminal outcome
// (R24, R25): what a turn is, which turns an agent has open, and which outcome a
// turn may still get.
//
// It is pure state. Its facts are rows in the mailbox file, which the gateway
// writes; it knows no clock, disk or broker.
package turn

import (
	"fmt"
	"sort"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// Turn is one brief of one agent. It is stored as JSON under Key.
type Turn struct {
	ID       string         `json:"id"`
	Agent    identity.GID   `json:"agent"`
	Message  envelope.ID    `json:"message"` // the brief
	Seq      uint64         `json:"seq"`     // its place in the agent's mailbox
	From     identity.GID   `json:"from"`
	FromHost identity.Host  `json:"from_host"`
	Trace    envelope.Trace `json:"trace"`
	Opened   time.Time      `json:"opened"`
	// Proof says how far the injection is known.
	Proof    Proof  `json:"proof"`
	Evidence string `json:"evidence,omitempty"`
}

// Proof is what is known of a claimed brief.
type Proof string

// The proofs.
const (
	Claimed   Proof = "claimed"   // it will be injected, or was: nothing is known yet
	Confirmed Proof = "confirmed" // the agent has it
	Unproven  Proof = "unproven"  // it may have it, and nobody can find out
)

// Open makes the turn of a brief. Its id derives from the brief, its sender and
// the agent, so that a restart mints the same one, and two senders that chose the
// same message id have two.
func Open(agent identity.GID, seq uint64, brief envelope.Envelope, now time.Time) Turn {
	return Turn{
		ID:      string(envelope.DeriveID(string(brief.ID), fmt.Sprintf("turn of %s from %s@%s", agent, brief.From, brief.FromHost))),
		Agent:   agent,
		Message: brief.ID,
		Seq:     seq,
		From:    brief.From, FromHost: brief.FromHost,
		Trace:  brief.Trace,
		Opened: now,
		Proof:  Claimed,
	}
}

// Key is the turn's key in the mailbox; Prefix starts all keys of an agent's.
func (t Turn) Key() string { return Prefix(t.Agent) + string(t.Message) }

// Prefix starts the keys of an agent's turns.
func Prefix(agent identity.GID) string { return string(agent) + "/" }

// OutcomeID is the id of the turn's terminal outcome. It derives from the turn,
// so that an outcome published twice is one message (R13).
func (t Turn) OutcomeID() envelope.ID { return envelope.DeriveID(t.ID, "outcome") }

// Set is the open turns of one agent. The zero value is empty.
type Set struct{ open map[envelope.ID]Turn }

// Put adds or replaces an open turn.
func (s *Set) Put(t Turn) {
	if s.open == nil {
		s.open = make(map[envelope.ID]Turn)
	}
	s.open[t.Message] = t
}

// Drop removes the turn of a brief.
func (s *Set) Drop(message envelope.ID) { delete(s.open, message) }

// Len counts the open turns.
func (s *Set) Len() int { return len(s.open) }

// All lists the open turns, oldest first.
func (s *Set) All() []Turn {
	all := make([]Turn, 0, len(s.open))
	for _, t := range s.open {
		all = append(all, t)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Seq < all[j].Seq })
	return all
}

// Find returns the open turn of a brief.
func (s *Set) Find(message envelope.ID) (Turn, bool) {
	t, ok := s.open[message]
	return t, ok
}

// Answerable returns the open turn that a reply to message ends. Without a
// message it is the only open one. It fails with fault.Usage where several are
// open, and with fault.Stale where none is.
func (s *Set) Answerable(message envelope.ID) (Turn, error) {
	if message != "" {
		if t, ok := s.open[message]; ok {
			return t, nil
		}
		return Turn{}, fault.New(fault.Stale, "message %s has no open turn here", message).
			WithHint("it was answered already, perhaps by a reply whose call was cut off, or its turn failed or was abandoned; nothing more was sent")
	}
	switch all := s.All(); len(all) {
	case 0:
		return Turn{}, fault.New(fault.Stale, "no turn is open").
			WithHint("a reply answers a message that was injected and not yet answered")
	case 1:
		return all[0], nil
	default:
		f := fault.New(fault.Usage, "%d turns are open, so the reply must name its message", len(all)).
			WithHint("fleet reply MESSAGE TEXT, with the id from the header line")
		for _, t := range all {
			f = f.WithAlso(string(t.Message))
		}
		return Turn{}, f
	}
}
