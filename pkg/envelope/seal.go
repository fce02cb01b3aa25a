package envelope

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// ContentType is the AMQP content type of an envelope, and what binds a
// signature to this use of the key.
const ContentType = "application/vnd.fleet+json"

// The AMQP headers that carry the signature. They never start with "x-", which
// belongs to the broker.
const (
	HeaderKey       = "fleet-key"
	HeaderSignature = "fleet-sig"
	HeaderTrace     = "traceparent"
)

// signatureText is the length of a signature in base64 without padding.
const signatureText = 86

// Sealed is an envelope as it travels and as it is stored.
type Sealed struct {
	Bytes     []byte         `json:"bytes"`
	Key       identity.KeyID `json:"key"`
	Signature string         `json:"sig"`
}

// signedBytes is DSSE's pre-authentication encoding, version 1, of body under
// ContentType (https://github.com/secure-systems-lab/dsse/blob/master/protocol.md):
// the signature covers exact bytes and what they are for, and is verified
// before anything is parsed.
func signedBytes(body []byte) []byte {
	b := make([]byte, 0, len(body)+64)
	b = append(b, "DSSEv1 "...)
	b = strconv.AppendInt(b, int64(len(ContentType)), 10)
	b = append(b, ' ')
	b = append(b, ContentType...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, ' ')
	return append(b, body...)
}

// Seal fills in V, and ID and TS where they are zero, then encodes and signs e.
// It fails with fault.Usage for an envelope that no receiver would accept.
func Seal(e Envelope, signer *identity.Signer, limits Limits) (Envelope, Sealed, error) {
	e.V = Version
	if e.ID == "" {
		e.ID = NewID()
	}
	if e.TS.IsZero() {
		e.TS = At(time.Now())
	}
	if e.Body == nil {
		e.Body = json.RawMessage("{}")
	}
	if err := e.check(limits); err != nil {
		return e, Sealed{}, fault.New(fault.Usage, "can't send this %s: %s", e.Kind, err.Detail)
	}
	body, err := Encode(e)
	if err != nil {
		return e, Sealed{}, fmt.Errorf("encode %s: %w", e.Kind, err)
	}
	if len(body) > limits.EncodedBytes() {
		return e, Sealed{}, fault.New(fault.Usage, "the text needs %d bytes once encoded, more than the %d that a message may have",
			len(body), limits.EncodedBytes())
	}
	return e, SealBytes(body, signer), nil
}

// SealBytes signs body as it is. Tests make faulty envelopes with it.
func SealBytes(body []byte, signer *identity.Signer) Sealed {
	return Sealed{
		Bytes:     body,
		Key:       signer.Public().ID(),
		Signature: base64.RawURLEncoding.EncodeToString(signer.Sign(signedBytes(body))),
	}
}

// Encode is v as compact JSON without HTML escapes, which keeps text short.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Keyring finds the configured peer that a key belongs to.
type Keyring interface {
	Find(identity.KeyID) (identity.Host, identity.PublicKey, bool)
}

// Limits bound what a message may hold.
type Limits struct {
	TextBytes int // longest text, as UTF-8
}

// DefaultLimits is R22's: a text of 1 MiB.
var DefaultLimits = Limits{TextBytes: 1 << 20}

// EncodedBytes bounds the whole JSON object: the text with half of it escaped,
// and 16 KiB for all other fields.
func (l Limits) EncodedBytes() int { return l.TextBytes + l.TextBytes/2 + 16<<10 }

// Freshness (R19).
const (
	// MostAhead is how far a sender's clock may be ahead.
	MostAhead = 5 * time.Minute
	// DefaultMemory is how long a seen message is remembered, and so how old one may be.
	DefaultMemory = 14 * 24 * time.Hour
)

// Digest is the hexadecimal SHA-256 of what a message says and to whom, without
// when: a retry with the same id has the same digest (R21).
func (e Envelope) Digest() string {
	h := sha256.New()
	for _, part := range []string{string(e.Kind), e.To, string(e.Re), e.Turn} {
		fmt.Fprintf(h, "%d:%s\n", len(part), part)
	}
	h.Write(e.Body)
	return hex.EncodeToString(h.Sum(nil))
}

// Reason says in one word why an envelope was refused. It stands in the dead
// letter's header and in the log, so reasons are added and never renamed.
type Reason string

// The reasons. The gateway's own, which need memory, are here too, so that
// there is one list.
const (
	ReasonMalformed      Reason = "malformed"
	ReasonTooLarge       Reason = "too_large"
	ReasonUnsigned       Reason = "unsigned"
	ReasonUnknownKey     Reason = "unknown_key"
	ReasonBadSignature   Reason = "bad_signature"
	ReasonNewerVersion   Reason = "newer_version"
	ReasonUnknownKind    Reason = "unknown_kind"
	ReasonWrongHost      Reason = "wrong_host"      // the sender does not live on the signing host
	ReasonWrongRecipient Reason = "wrong_recipient" // not addressed to whose queue it came out of
	ReasonFuture         Reason = "future"          // sent further ahead than clocks may differ
	ReasonTooOld         Reason = "too_old"         // older than the memory of what was seen
	ReasonExpired        Reason = "expired"
	ReasonNotAsked       Reason = "not_asked" // answers what its sender was not asked
	ReasonUnknownSender  Reason = "unknown_sender"
	ReasonConflict       Reason = "conflict" // same id, other body
	ReasonInboxFull      Reason = "inbox_full"
	ReasonUndeliverable  Reason = "undeliverable" // a terminal outcome whose recipient has no inbox any more
)

// Printable is what of a refused envelope may stand in a log: its ids, where a
// configured peer signed it and they have their forms.
func (e Envelope) Printable(verified bool) (p Envelope) {
	if !verified {
		return p
	}
	if id, ok := ParseID(string(e.ID)); ok {
		p.ID = id
	}
	if e.Trace.valid() {
		p.Trace = e.Trace
	}
	if gid, err := identity.ParseGID(string(e.From)); err == nil {
		p.From = gid
	}
	if host, err := identity.ParseHost(string(e.FromHost)); err == nil {
		p.FromHost = host
	}
	if _, known := rules[e.Kind]; known {
		p.Kind = e.Kind
	}
	return p
}

// Refusal says why an envelope is not accepted. Detail is safe to print: it
// holds no raw byte of an unverified body.
type Refusal struct {
	Reason Reason
	Detail string
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Detail }

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// Refuse makes a refusal for the gateway's own reasons.
func Refuse(reason Reason, format string, args ...any) *Refusal {
	return refuse(reason, format, args...)
}

// Open verifies and decodes s. Signature and size come first: nothing is parsed
// of a body that no configured peer signed. On refusal the envelope is what
// could be decoded, for the log's ids only when verified is true.
func Open(s Sealed, keys Keyring, limits Limits, now time.Time) (e Envelope, verified bool, refusal *Refusal) {
	e, verified, refusal = OpenAnyAge(s, keys, limits)
	if refusal != nil {
		return e, verified, refusal
	}
	if ahead := e.TS.Sub(now); ahead > MostAhead {
		return e, true, refuse(ReasonFuture, "its clock is %s ahead, more than %s", ahead.Round(time.Second), MostAhead)
	}
	if age := now.Sub(e.TS.Time); age > DefaultMemory {
		return e, true, refuse(ReasonTooOld, "it is %s old, more than %s", age.Round(time.Second), DefaultMemory)
	}
	return e, true, nil
}

// OpenAnyAge is Open without the check of the sender's clock.
func OpenAnyAge(s Sealed, keys Keyring, limits Limits) (e Envelope, verified bool, refusal *Refusal) {
	if len(s.Bytes) > limits.EncodedBytes() {
		return e, false, refuse(ReasonTooLarge, "it has %d bytes, more than %d", len(s.Bytes), limits.EncodedBytes())
	}
	if s.Key == "" || s.Signature == "" {
		return e, false, refuse(ReasonUnsigned, "it carries no signature")
	}
	host, key, ok := keys.Find(s.Key)
	if !ok {
		return e, false, refuse(ReasonUnknownKey, "no configured peer has its key")
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(s.Signature)
	// The decoder skips line ends; a signature has one spelling.
	if err != nil || len(s.Signature) != signatureText || !key.Verify(signedBytes(s.Bytes), sig) {
		return e, false, refuse(ReasonBadSignature, "the signature does not fit (key of %s)", host)
	}
	e, refusal = decode(s.Bytes, limits)
	if refusal != nil {
		return e, true, refusal
	}
	if e.FromHost != host {
		return e, true, refuse(ReasonWrongHost, "it claims to come from %s and is signed by %s", e.FromHost, host)
	}
	if op := identity.OperatorGID(host); rules[e.Kind].Sender == ByOperator && e.From != op {
		return e, true, refuse(ReasonWrongHost, "a %s comes only from the gateway of %s itself", e.Kind, host)
	}
	return e, true, nil
}

// decode parses a verified body. The version is judged before anything else of
// it, so that a newer major is never half-understood (R20); only a body that does
// not fit is read once more for its version.
func decode(body []byte, limits Limits) (Envelope, *Refusal) {
	var e Envelope
	shape := json.Unmarshal(body, &e)
	version := e.V
	if shape != nil {
		var head struct {
			V string `json:"v"`
		}
		if err := json.Unmarshal(body, &head); err != nil {
			return Envelope{}, refuse(ReasonMalformed, "it is not a JSON object of the expected shape")
		}
		version = head.V
	}
	major, err := strconv.ParseUint(strings.SplitN(version, ".", 2)[0], 10, 16)
	switch {
	case err != nil:
		return Envelope{}, refuse(ReasonMalformed, "it names no version")
	case major != 1:
		return Envelope{}, refuse(ReasonNewerVersion, "it has version %d, this gateway reads 1", major)
	case shape != nil:
		return Envelope{}, refuse(ReasonMalformed, "a field has the wrong type")
	}
	return e, e.check(limits)
}

// check says whether the fields have their forms. Encoder and decoder use it,
// so nothing is sent that would be refused.
func (e Envelope) check(limits Limits) *Refusal {
	rule, ok := rules[e.Kind]
	if !ok {
		return refuse(ReasonUnknownKind, "its kind is none that this gateway knows")
	}
	if id, ok := ParseID(string(e.ID)); !ok || id != e.ID {
		return refuse(ReasonMalformed, "its id is not a UUID")
	}
	if !e.Trace.valid() {
		return refuse(ReasonMalformed, "its trace is not 32 hexadecimal digits")
	}
	if gid, err := identity.ParseGID(string(e.From)); err != nil || gid != e.From {
		return refuse(ReasonMalformed, "its sender is not an agent id")
	}
	if _, err := identity.ParseHost(string(e.FromHost)); err != nil {
		return refuse(ReasonMalformed, "its sending host is not a host name")
	}
	if e.To == "" || len(e.To) > 128 {
		return refuse(ReasonMalformed, "its recipient is missing or too long")
	}
	if len(e.Turn) > 64 {
		return refuse(ReasonMalformed, "its turn id is too long")
	}
	if e.Re != "" {
		if re, ok := ParseID(string(e.Re)); !ok || re != e.Re {
			return refuse(ReasonMalformed, "the id that it answers is not a UUID")
		}
	} else if rule.Answers {
		return refuse(ReasonMalformed, "it does not say what it answers")
	}
	if e.TS.IsZero() {
		return refuse(ReasonMalformed, "it does not say when it was sent")
	}
	if len(e.Body) == 0 || e.Body[0] != '{' {
		return refuse(ReasonMalformed, "its body is not an object")
	}
	if e.Kind == Send || e.Kind == Reply {
		var t Text
		if err := json.Unmarshal(e.Body, &t); err != nil {
			return refuse(ReasonMalformed, "its text has the wrong type")
		}
		if len(t.Text) > limits.TextBytes {
			return refuse(ReasonTooLarge, "its text has %d bytes, more than %d", len(t.Text), limits.TextBytes)
		}
	}
	return nil
}
