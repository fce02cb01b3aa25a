package gateway

import (
	"encoding/json"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
)

// The gateway's tables in the mailbox file, each a map from a key to a JSON row.
const (
	turnsTable    mailbox.Table = "turns"         // turn.Key() -> turn.Turn, while open
	sendsTable    mailbox.Table = "sends"         // sendKey() -> sendRow
	outcomesTable mailbox.Table = "outcomes"      // [lane of two local agents/]number -> outcomeRow, in order, until its recipient's side has it
	deadTable     mailbox.Table = "dead"          // agent/message -> deadRow, until the DLQ has it
	agentsTable   mailbox.Table = "registrations" // gid -> registration, of agents without a pane
)

// sendRow is what this host remembers of a message that it sent: enough to know
// a retry, to give the first result again, and to tell whether an answer comes
// from who was asked (R19, R23).
type sendRow struct {
	ID      envelope.ID    `json:"id"`
	From    identity.GID   `json:"from"`
	To      identity.GID   `json:"to"`
	ToHost  identity.Host  `json:"to_host"`
	ToName  string         `json:"to_name"`
	Trace   envelope.Trace `json:"trace"`
	Digest  string         `json:"digest"`
	Created time.Time      `json:"created"`
	Exp     time.Time      `json:"exp,omitzero"`
	First   *api.Event     `json:"first,omitempty"`
	Outcome *outcomeNote   `json:"outcome,omitempty"`
}

// outcomeNote says where the terminal outcome of a send is: at Seq in the
// sender's mailbox, or once that was drained, here.
type outcomeNote struct {
	Seq     uint64        `json:"seq"`
	Kind    envelope.Kind `json:"kind"`
	Message *api.Message  `json:"message,omitempty"`
}

func sendKey(from identity.GID, id envelope.ID) string { return string(from) + "/" + string(id) }

// noteOutcome records with a send that its outcome lies in the sender's mailbox.
func noteOutcome(tx *mailbox.Tx, sender identity.GID, e envelope.Envelope, seq uint64) error {
	key := sendKey(sender, e.Re)
	row, ok, err := mailbox.Get[sendRow](tx, sendsTable, key)
	if err != nil || !ok || row.Outcome != nil {
		return err
	}
	row.Outcome = &outcomeNote{Seq: seq, Kind: e.Kind}
	return mailbox.Set(tx, sendsTable, key, row)
}

// outcomeRow is a terminal outcome on its way to another agent (R13).
type outcomeRow struct {
	Sealed envelope.Sealed `json:"sealed"`
	From   identity.GID    `json:"from"`
	To     identity.GID    `json:"to"`
	ToHost identity.Host   `json:"to_host"`
	Stored time.Time       `json:"stored"`
}

// deadRow is a dead letter on its way to the DLQ.
type deadRow struct {
	Sealed envelope.Sealed `json:"sealed"`
	Reason envelope.Reason `json:"reason"`
	Queue  string          `json:"queue"`
	Told   bool            `json:"told"` // the sender knows
	// ID and Kind are the message's, where it verified.
	ID   envelope.ID   `json:"id,omitempty"`
	Kind envelope.Kind `json:"kind,omitempty"`
}

// registration is an agent that has no pane of ours.
type registration struct {
	GID    identity.GID `json:"gid"`
	Name   string       `json:"name"`
	Role   api.Role     `json:"role"`
	Groups []string     `json:"groups,omitempty"`
	Since  time.Time    `json:"since"`
}

// The states with which a message that comes again is answered.
const (
	deferred = "deferred"
	claimed  = "claimed"
	injected = "injected"
	held     = "held"
	unknown  = "unknown"
	answered = "answered"
	failed   = "failed"
)

// status is kept beside a seen id.
type status struct {
	State    string `json:"state"`
	Evidence string `json:"evidence,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

func (s status) encode() string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // three strings
	}
	return string(b)
}

func decodeStatus(text string) status {
	var s status
	if json.Unmarshal([]byte(text), &s) != nil {
		return status{} // a message that was stored and not looked at yet
	}
	return s
}

// setStatus records a state without waiting for the disk: after a crash the
// state is found out again.
func (a *agent) setStatus(e envelope.Envelope, s status) {
	a.g.store.Later(func(tx *mailbox.Tx) error {
		return tx.SetStatus(a.gid, e.FromHost, e.From, e.ID, s.encode())
	}, func(err error) {
		if err != nil {
			a.g.log.Error("can't save a message's state", "agent", a.name, "trace", e.Trace, "id", e.ID, "err", err)
		}
	})
}

// tellKnown answers a message that came before with its state (R10a).
func (a *agent) tellKnown(e envelope.Envelope, seen mailbox.Seen) {
	switch s := decodeStatus(seen.Status); s.State {
	case injected, answered:
		a.tell(e, envelope.Injected, envelope.Receipt{Evidence: s.Evidence})
	case held:
		a.tell(e, envelope.Held, envelope.Receipt{})
	case claimed:
		// The proof, or that there is none, follows.
	case unknown:
		a.tell(e, envelope.Refused, envelope.Receipt{Reason: string(fault.Unknown),
			Detail: "nobody can tell whether " + a.name + " got the message"})
	case failed:
		a.tell(e, envelope.Refused, envelope.Receipt{Reason: s.Reason, Detail: "the message has failed before"})
	default:
		a.tell(e, envelope.Deferred, envelope.Receipt{Reason: "busy", Detail: a.name + " has it in line"})
	}
}
