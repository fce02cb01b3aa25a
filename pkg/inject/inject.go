// Package inject is how a text reaches an agent: what is done to the text, what
// stands before it, and how it is typed, with an honest word on the outcome.
//
// It does not know when: that the agent is idle, its composer empty and no
// dialog open is the gateway's business, and so is what an outcome means for
// the message.
//
// # What an agent sees
//
// First one header line, then as many body lines as it says, always:
//
//	[fleet ID from NAME@HOST, 2 lines; answer: fleet reply ID TEXT]
//	first line
//	second line
//
// The count ("0 lines", "1 line", "2 lines") tells where a message ends, so a
// body that imitates a header is counted as what it is. ID is the message's, a
// UUID; NAME and HOST have letters, digits, '.', '_' and '-' only. Of a long
// text the header says so, and the one body line says where it is:
//
//	[fleet ID from NAME@HOST, 1 line; text in a file; answer: fleet reply ID TEXT]
//	Read the whole message, BYTES bytes with sha256 HEX, in the file PATH
//
// The words before the first ';' are stable, and so is the pointer line;
// between it and "answer:" notes may be added. No header starts with a
// character that an agent takes for a command. testdata/reader.sh reads
// messages in a dozen lines of shell.
package inject

import (
	"context"

	"fleet/pkg/fault"
	"fleet/pkg/pane"
)

// State is what is known of a delivery.
type State string

// The states of a Result.
const (
	Confirmed State = "confirmed" // the agent took it, by Evidence
	Refused   State = "refused"   // it was not typed and will not be, for Reason
	Unknown   State = "unknown"   // it may have been typed; it is never typed again
)

// EvidenceNone is the word for "typed whole, and nothing shows that the agent
// took it". It counts only where the agent's profile accepts it (R38).
const EvidenceNone = "none"

// The reasons that are not kinds of fault.
const (
	ReasonPartial = "partial" // typed in part, or the typing goes on
)

// Result is the outcome of a delivery.
type Result struct {
	State    State
	Evidence string // of Confirmed
	Reason   string // of the others: a fault.Kind, or one of the reasons here
	Detail   string // for people; empty where the reason says it all
}

// Type types b into p, unless it was typed before: an id that p knows is
// reported and never typed again. accept is the evidence that the agent's
// profile accepts without a sign of the agent's: EvidenceNone, or anything else
// for none at all.
//
// Confirmed (none) means that text and submit key were typed whole and accept
// takes that; otherwise that is Unknown (not_submitted), for better evidence to
// resolve. Refused means that nothing was typed: the program has ended
// (agent_failed), the brief can't be composed, or the terminal was busy until
// ctx ended (timed_out). All else is Unknown. Type blocks while the program
// does not read, until ctx ends.
func Type(ctx context.Context, p pane.Pane, b Brief, accept string) Result {
	// Write itself reports an id that the pane knows, so it need not be looked up
	// first; only where the terminal does not answer that is all there is.
	t, err := p.Terminal(ctx)
	if err != nil {
		written, lookErr := p.Lookup(ctx, b.key())
		switch {
		case lookErr != nil:
			return failed(ctx, p, lookErr, Unknown)
		case written == pane.Absent:
			return failed(ctx, p, err, Refused)
		}
		return typed(written, nil, accept)
	}
	c, err := Compose(b, t)
	if err != nil {
		return Result{State: Refused, Reason: string(fault.From(err).Kind), Detail: err.Error()}
	}
	written, err := p.Write(ctx, pane.Write{ID: b.key(), Text: c.Text, Submit: c.Submit, Settle: c.Settle})
	if err != nil && written == pane.Absent {
		return failed(ctx, p, err, Refused)
	}
	return typed(written, err, accept)
}

func (b Brief) key() string {
	if b.Key == "" {
		return string(b.ID)
	}
	return b.Key
}

// typed is the result of a write that was begun.
func typed(written pane.Written, err error, accept string) Result {
	switch {
	case err != nil:
		return Result{State: Unknown, Reason: string(fault.From(err).Kind), Detail: err.Error()}
	case written != pane.Done:
		return Result{State: Unknown, Reason: ReasonPartial}
	case accept == EvidenceNone:
		return Result{State: Confirmed, Evidence: EvidenceNone}
	}
	return Result{State: Unknown, Reason: string(fault.NotSubmitted),
		Detail: "typed and submitted, and no sign yet that the agent took it"}
}

// failed is the result of a call that failed: state says whether something may
// have been typed.
func failed(ctx context.Context, p pane.Pane, err error, state State) Result {
	if state == Refused {
		if r, dead := ended(ctx, p); dead {
			return r
		}
	}
	return Result{State: state, Reason: string(fault.From(err).Kind), Detail: err.Error()}
}

// ended is the result for a pane whose program has ended.
func ended(ctx context.Context, p pane.Pane) (Result, bool) {
	info, err := p.Info(ctx)
	if err != nil || !info.Dead {
		return Result{}, false
	}
	return Result{State: Refused, Reason: string(fault.AgentFailed), Detail: "the agent's program has ended"}, true
}
