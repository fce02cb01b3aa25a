package envelope_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// signer is the key of a seed that ends in n.
func signer(t testing.TB, n byte) *identity.Signer {
	t.Helper()
	seed := make([]byte, 32)
	seed[31] = n
	s, err := identity.NewSigner(seed)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ring knows some hosts' keys.
type ring map[identity.KeyID]struct {
	host identity.Host
	key  identity.PublicKey
}

func (r ring) Find(id identity.KeyID) (identity.Host, identity.PublicKey, bool) {
	k, ok := r[id]
	return k.host, k.key, ok
}

func (r ring) with(host identity.Host, s *identity.Signer) ring {
	r[s.Public().ID()] = struct {
		host identity.Host
		key  identity.PublicKey
	}{host, s.Public()}
	return r
}

// alphasRing knows alpha's key, that of seed 0, and no other.
func alphasRing(t testing.TB) ring { return ring{}.with("alpha", signer(t, 0)) }

const (
	lead   identity.GID = "1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a"
	worker identity.GID = "a1e8a9b3-1406-41e0-8bba-d29cb6aeea93"
)

// noon is when the tests' messages are sent.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// brief is a SEND that is valid in every respect.
func brief() envelope.Envelope {
	return envelope.Envelope{
		Kind: envelope.Send, ID: "0192f0c1-2345-7abc-8def-0123456789ab", Trace: "4bf92f3577b34da6a3ce929d0e0e4736",
		From: lead, FromHost: "alpha", To: string(worker), TS: envelope.At(noon), Exp: envelope.At(noon.Add(time.Hour)),
		Body: json.RawMessage(`{"text":"run the tests <now> & report\n日本 👩‍👩‍👧"}`),
	}
}

// fields is brief as a JSON object to tamper with.
func fields(t testing.TB) map[string]any {
	t.Helper()
	e := brief()
	e.V = envelope.Version
	b, err := envelope.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// tampered is brief with some fields changed (nil removes one), signed by alpha.
func tampered(t testing.TB, changes map[string]any) envelope.Sealed {
	t.Helper()
	m := fields(t)
	for k, v := range changes {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	b, err := envelope.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return envelope.SealBytes(b, signer(t, 0))
}

// open opens at noon with alpha's key and the default limits.
func open(t testing.TB, s envelope.Sealed) (envelope.Envelope, bool, *envelope.Refusal) {
	t.Helper()
	return envelope.Open(s, alphasRing(t), envelope.DefaultLimits, noon)
}

// refusedAs fails unless s is refused for that reason.
func refusedAs(t testing.TB, s envelope.Sealed, want envelope.Reason, verified bool) {
	t.Helper()
	_, v, refusal := open(t, s)
	var got *envelope.Refusal
	if refusal != nil && !errors.As(error(refusal), &got) {
		t.Fatal("a refusal is no error")
	}
	if got == nil || got.Reason != want || v != verified {
		t.Errorf("got %v, verified %v; want %s, verified %v", refusal, v, want, verified)
	}
}
