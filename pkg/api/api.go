// Package api is what crosses the gateway's socket: requests, answers and
// events. `--json` prints these values, so fields are added and never renamed,
// and every number carries its unit in its name.
//
// It holds no behaviour: localapi serves it, client calls it.
package api

import (
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// VersionHeader is the HTTP header in which every answer names the gateway's
// version; TokenHeader carries the caller's agent token, where it has one.
const (
	VersionHeader = "Fleet-Version"
	TokenHeader   = "Fleet-Token"
)

// Role says how an agent gets its messages.
type Role string

// The roles. Into a worker messages are injected; the others pull.
const (
	Worker       Role = "worker"
	Main         Role = "main"
	Orchestrator Role = "orchestrator"
	Operator     Role = "operator"
)

// Pulls says whether the role takes its messages itself.
func (r Role) Pulls() bool { return r != Worker }

// Agent is a row of the roster.
type Agent struct {
	GID     identity.GID  `json:"gid"`
	Name    string        `json:"name"`
	Role    Role          `json:"role"`
	Host    identity.Host `json:"host"`
	Address string        `json:"address"` // name@host, which `fleet send` takes
	State   string        `json:"state"`
	Groups  []string      `json:"groups,omitempty"`
	Profile string        `json:"profile,omitempty"`
	Since   time.Time     `json:"since"`
	// Undrained counts what waits in the agent's mailbox; OldestSeconds is how
	// long the oldest of it has waited.
	Undrained     int     `json:"undrained_messages"`
	OldestSeconds float64 `json:"undrained_oldest_seconds"`
}

// Host is a gateway as this one sees it.
type Host struct {
	Host             identity.Host `json:"host"`
	State            string        `json:"state"`
	Since            time.Time     `json:"since,omitzero"`
	Version          string        `json:"version,omitempty"`
	Profiles         []string      `json:"profiles,omitempty"`
	Agents           int           `json:"agents_count"`
	HeartbeatSeconds float64       `json:"heartbeat_age_seconds"`
	SkewSeconds      float64       `json:"clock_skew_seconds"`
}

// Roster is the union view of all hosts.
type Roster struct {
	Revision uint64  `json:"revision"`
	Hosts    []Host  `json:"hosts"`
	Agents   []Agent `json:"agents"`
}

// SendRequest asks for one message. Text is the message; To an address.
type SendRequest struct {
	// ID makes a retry idempotent: a UUID, or any word, from which one is derived.
	ID   string `json:"id,omitempty"`
	To   string `json:"to"`
	Text string `json:"text"`
	// Wait keeps the stream open until the terminal outcome.
	Wait           bool    `json:"wait,omitempty"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"` // of Wait; 0: no bound of the gateway's
	ExpiresSeconds float64 `json:"expires_seconds,omitempty"`
	RequireLive    bool    `json:"require_live,omitempty"`
}

// The steps of a send, in Event.Step.
const (
	StepAccepted  = "accepted"       // it has its id and is on its way
	StepPublished = "published"      // the broker has it and has routed it
	StepInjected  = "injected"       // the agent has taken it
	StepDeferred  = "deferred"       // it waits for the agent
	StepHeld      = "held"           // it lies in a puller's mailbox
	StepOffline   = "queued_offline" // it rests on the broker; the recipient's gateway is away
	StepUnknown   = "unknown"        // no proof in time; the gateway goes on asking
	StepReply     = "reply"          // the terminal outcome: an answer
	StepFailed    = "failed"         // the terminal outcome: none
)

// Event is one line of a send's stream.
type Event struct {
	Step     string         `json:"step"`
	ID       envelope.ID    `json:"id"`
	Trace    envelope.Trace `json:"trace"`
	To       identity.GID   `json:"to"`
	ToName   string         `json:"to_name,omitempty"`
	ToHost   identity.Host  `json:"to_host"`
	At       time.Time      `json:"at"`
	Evidence string         `json:"evidence,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	Detail   string         `json:"detail,omitempty"`
	Position int            `json:"position,omitempty"`
	// Warning is for people: the send goes on, and this is worth knowing.
	Warning string `json:"warning,omitempty"`
	// Text is the reply. Mark says how it came about, where not from the agent.
	Text string `json:"text,omitempty"`
	Mark string `json:"mark,omitempty"`
	// Message is the reply's own id, to acknowledge with Ack once it is printed.
	Message envelope.ID `json:"message,omitempty"`
	// Fault says why the send did not end well. It is the last event's.
	Fault *fault.Fault `json:"fault,omitempty"`
	// Last marks the event after which the stream ends.
	Last bool `json:"last,omitempty"`
}

// ReplyRequest is an agent's terminal answer. ID is the message's id as the
// header names it; empty when the agent has exactly one open turn.
type ReplyRequest struct {
	ID   string `json:"id,omitempty"`
	Text string `json:"text"`
}

// ReplyResult says where the reply is: "held" in a mailbox of this host,
// "sent" to the broker and routed, or "stored" here until the broker takes it.
type ReplyResult struct {
	ID    envelope.ID    `json:"id"`
	Re    envelope.ID    `json:"re"`
	Trace envelope.Trace `json:"trace"`
	State string         `json:"state"`
}

// InboxRequest asks for the caller's waiting messages, oldest first. Taking is
// two steps: what is listed with Lease stays in the mailbox, hidden from others
// for a bounded time, until Ack names it.
type InboxRequest struct {
	Lease  bool    `json:"lease,omitempty"`
	All    bool    `json:"all,omitempty"` // the operator's whole mailbox
	Re     string  `json:"re,omitempty"`
	Trace  string  `json:"trace,omitempty"`
	From   string  `json:"from,omitempty"`
	Wait   bool    `json:"wait,omitempty"` // for at least one message
	Follow bool    `json:"follow,omitempty"`
	Most   int     `json:"most_messages,omitempty"`
	Within float64 `json:"timeout_seconds,omitempty"` // of Wait; 0: no bound
}

// Message is one line of an inbox stream.
type Message struct {
	ID       envelope.ID    `json:"id"`
	Kind     envelope.Kind  `json:"kind"`
	From     identity.GID   `json:"from"`
	FromName string         `json:"from_name,omitempty"`
	FromHost identity.Host  `json:"from_host"`
	Trace    envelope.Trace `json:"trace"`
	Re       envelope.ID    `json:"re,omitempty"`
	Sent     time.Time      `json:"sent"`
	Arrived  time.Time      `json:"arrived"`
	Text     string         `json:"text,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	Detail   string         `json:"detail,omitempty"`
}

// AckRequest says that the caller has these messages.
type AckRequest struct {
	IDs []envelope.ID `json:"ids"`
}

// AckResult counts what left the mailbox.
type AckResult struct {
	Acked int `json:"acked_count"`
}

// RegisterRequest makes an agent without a pane of ours, or resumes the one of
// that name.
type RegisterRequest struct {
	Name   string   `json:"name"`
	Role   Role     `json:"role,omitempty"`
	Groups []string `json:"groups,omitempty"`
}

// RegisterResult is the agent, and the token by which it speaks. The token is a
// secret: `--json` never prints it.
type RegisterResult struct {
	Agent Agent  `json:"agent"`
	Token string `json:"token"`
}

// SpawnRequest starts a worker on this host.
type SpawnRequest struct {
	GID     identity.GID `json:"gid"` // minted by the requester: the spawn id
	Name    string       `json:"name"`
	Profile string       `json:"profile"`
	Dir     string       `json:"dir,omitempty"`
	Groups  []string     `json:"groups,omitempty"`
}

// SpawnResult is the started agent.
type SpawnResult struct {
	Agent Agent `json:"agent"`
	PID   int   `json:"pid"`
}

// StopRequest ends an agent.
type StopRequest struct {
	Agent string `json:"agent"`
}

// StopResult says what the end met.
type StopResult struct {
	GID       identity.GID `json:"gid,omitempty"`
	Name      string       `json:"name"`
	Stopped   bool         `json:"stopped"` // false: there was nothing to stop
	Abandoned int          `json:"abandoned_turns_count"`
}

// WaitRequest blocks until all that it names is so.
type WaitRequest struct {
	Broker bool    `json:"broker,omitempty"`
	Peer   string  `json:"peer,omitempty"`
	Agent  string  `json:"agent,omitempty"`
	Within float64 `json:"timeout_seconds,omitempty"`
}

// Status is the gateway at a glance.
type Status struct {
	Host        identity.Host `json:"host"`
	Version     string        `json:"version"`
	PID         int           `json:"pid"`
	Started     time.Time     `json:"started"`
	Incarnation uint64        `json:"incarnation"`
	Broker      Link          `json:"broker"`
	Agents      int           `json:"agents_count"`
	Peers       int           `json:"peers_count"`
	OpenTurns   int           `json:"open_turns_count"`
	// Outcomes counts terminal outcomes and dead letters that their recipients do
	// not have yet.
	Outcomes int `json:"stored_outcomes_count"`
}

// Link is the connection to the broker.
type Link struct {
	State      string    `json:"state"` // none, down, held, blocked, up
	Since      time.Time `json:"since,omitzero"`
	Reason     string    `json:"reason,omitempty"`
	Product    string    `json:"product,omitempty"`
	Version    string    `json:"version,omitempty"`
	Reconnects int64     `json:"reconnects_count"`
	Embedded   bool      `json:"embedded,omitempty"` // the gateway runs the broker itself
}

// Failure is the body of an answer that is an error, and the last line of a
// stream that ends in one.
type Failure struct {
	Fault *fault.Fault `json:"fault"`
}
