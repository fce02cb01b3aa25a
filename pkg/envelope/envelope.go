// Package envelope is the message: its kinds, its JSON, its signature.
//
// An envelope is encoded once, and what was encoded is what is signed, sent,
// stored, dead-lettered and verified: nothing re-serialises it. The package
// checks what one message can be checked for by itself (signature, version,
// size, shape, age); whether the claimed sender is known, was asked, or was seen
// before is the gateway's business, because that needs memory.
//
// # The wire
//
// The AMQP body is a JSON object with the fields of Envelope. Two headers carry
// the signature (HeaderKey, HeaderSignature): Ed25519 over the DSSE
// pre-authentication encoding of the body (see signedBytes), base64 without
// padding in the URL-safe alphabet. testdata/vectors.json holds examples for
// other implementations.
//
// History of the version, which is "major.minor": 1.0 (2026-11-30) the first.
package envelope

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleet/pkg/identity"
)

// Version is what this build writes. It reads every 1.x: unknown fields are
// ignored within a major version (R20).
const Version = "1.0"

// ID names a message: a UUID in lower-case text form, version 7 when fleet
// minted it.
type ID string

// NewID mints a message id, ordered by time.
func NewID() ID { return ID(uuid.Must(uuid.NewV7()).String()) }

// DeriveID makes the id that name has under parent. The same parent and name
// give the same id, also after a restart: a terminal outcome's id derives from
// its turn's, and `send --id WORD` derives from the sender (R13, R23).
func DeriveID(parent, name string) ID {
	return ID(uuid.NewSHA1(deriveSpace, []byte(parent+"\n"+name)).String())
}

// deriveSpace keeps derived ids apart from other uses of UUID version 5.
var deriveSpace = uuid.MustParse("b7b64c27-2a7b-5f51-8a0b-6c6f5c8e2f10")

// ParseID returns s in canonical form, and whether s is a UUID at all.
func ParseID(s string) (ID, bool) {
	u, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return "", false
	}
	return ID(u.String()), true
}

// Trace names a flow: 32 lower-case hexadecimal digits, not all zero (the W3C
// trace-id).
type Trace string

// NewTrace mints a trace id.
func NewTrace() Trace {
	u := uuid.New()
	return Trace(strings.ReplaceAll(u.String(), "-", ""))
}

// Parent is the W3C traceparent header for a message of this flow.
func (t Trace) Parent(id ID) string {
	span := strings.ReplaceAll(string(id), "-", "")
	return "00-" + string(t) + "-" + span[16:32] + "-01"
}

func (t Trace) valid() bool {
	return len(t) == 32 && strings.Trim(string(t), "0123456789abcdef") == "" && strings.Trim(string(t), "0") != ""
}

// Time is a moment in the wire's form: RFC 3339, UTC, milliseconds.
type Time struct{ time.Time }

// At rounds t to the wire's resolution.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Millisecond)} }

const timeForm = "2006-01-02T15:04:05.000Z"

// MarshalJSON writes the wire's form, and null for the zero time.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + t.UTC().Format(timeForm) + `"`), nil
}

// UnmarshalJSON reads RFC 3339 with any fraction.
func (t *Time) UnmarshalJSON(b []byte) error {
	var p time.Time
	if string(b) == "null" {
		*t = Time{}
		return nil
	}
	if err := p.UnmarshalJSON(b); err != nil {
		return err
	}
	// A zone can push the moment out of the years that the form can write.
	if year := p.UTC().Year(); year < 0 || year > 9999 {
		return errors.New("a time lies between the years 0 and 9999")
	}
	*t = At(p)
	return nil
}

// Envelope is one message, decoded.
type Envelope struct {
	V        string        `json:"v"`
	Kind     Kind          `json:"kind"`
	ID       ID            `json:"id"`
	Trace    Trace         `json:"trace"`
	From     identity.GID  `json:"from"`
	FromHost identity.Host `json:"from_host"`
	// To is a gid, "broadcast.all", "broadcast.<group>", or for control kinds
	// the target host.
	To string `json:"to"`
	// Turn is the turn this belongs to, where it belongs to one.
	Turn string `json:"turn,omitempty"`
	// Re is the id of the message that this one answers.
	Re ID `json:"re,omitempty"`
	// TS is the sender's clock at sealing. Exp, unless zero, is when the message
	// becomes useless.
	TS  Time `json:"ts"`
	Exp Time `json:"exp,omitzero"`
	// Body is the kind's own object, as it was sent.
	Body json.RawMessage `json:"body"`
}

// Text is the body of SEND and REPLY.
type Text struct {
	Text string `json:"text"`
	// Mark says how a reply came about where the agent did not give it itself.
	Mark string `json:"mark,omitempty"`
}

// Outcome is the body of FAILED and ABANDONED.
type Outcome struct {
	// Reason is a fault kind: agent_failed, abandoned, expired, ...
	Reason string `json:"reason"`
	// Detail is one clause for people; Screen the last lines of the pane.
	Detail string `json:"detail,omitempty"`
	Screen string `json:"screen,omitempty"`
}

// Receipt is the body of INJECTED, DEFERRED, HELD and REFUSED: what became of
// the message that Re names.
type Receipt struct {
	// Evidence says how an injection is known: api, hook, transcript, screen, none.
	Evidence string `json:"evidence,omitempty"`
	// Reason says why it was deferred or refused; Detail says it to people.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Position counts from 1 in the line of the deferred.
	Position int `json:"position,omitempty"`
}
