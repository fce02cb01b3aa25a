package envelope_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew")

// vector is one row of testdata/vectors.json; see the README there.
type vector struct {
	Name      string `json:"name"`
	Seed      string `json:"seed"`
	PublicKey string `json:"public_key"`
	Key       string `json:"key"`
	Body      string `json:"body"`
	Signature string `json:"signature"`
	Now       string `json:"now"`
	Result    string `json:"result"`
	Digest    string `json:"digest,omitempty"`
}

// bare is alpha's signature over the body without the encoding around it.
func bare(t testing.TB, body []byte) string {
	t.Helper()
	return base64.RawURLEncoding.EncodeToString(signer(t, 0).Sign(body))
}

// vectors makes the rows; result says what the author expects.
func vectors(t *testing.T) []vector {
	t.Helper()
	var list []vector
	add := func(name string, n byte, s envelope.Sealed, now time.Time, result string) {
		seed := make([]byte, 32)
		seed[31] = n
		v := vector{Name: name, Seed: hex.EncodeToString(seed), PublicKey: signer(t, n).Public().String(), Key: string(s.Key),
			Body: base64.StdEncoding.EncodeToString(s.Bytes), Signature: s.Signature, Now: now.Format(time.RFC3339), Result: result}
		e, _, refusal := envelope.Open(s, alphasRing(t), envelope.DefaultLimits, now)
		switch {
		case refusal != nil && string(refusal.Reason) != result, refusal == nil && result != "ok":
			t.Errorf("%s: %v, want %s", name, refusal, result)
		case refusal == nil:
			v.Digest = e.Digest()
		}
		list = append(list, v)
	}
	seal := func(e envelope.Envelope) envelope.Sealed {
		_, s, err := envelope.Seal(e, signer(t, 0), envelope.DefaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	good := seal(brief())
	reply := brief()
	reply.Kind, reply.From, reply.To, reply.Re, reply.Turn, reply.Exp = envelope.Reply, worker, string(lead), reply.ID, string(reply.ID), envelope.Time{}
	reply.ID = envelope.DeriveID(reply.Turn, "outcome")
	add("a brief", 0, good, noon, "ok")
	add("its reply", 0, seal(reply), noon, "ok")
	add("fields of a later 1.x", 0, tampered(t, map[string]any{"v": "1.4", "priority": 5}), noon, "ok")
	add("five minutes ahead", 0, good, noon.Add(-5*time.Minute), "ok")
	changed := good
	changed.Bytes = bytes.Replace(good.Bytes, []byte("run"), []byte("ruN"), 1)
	add("one byte of the body changed", 0, changed, noon, "bad_signature")
	plain := good
	plain.Signature = bare(t, good.Bytes)
	add("signed without the pre-authentication encoding", 0, plain, noon, "bad_signature")
	add("signed by an unknown key", 1, envelope.SealBytes(good.Bytes, signer(t, 1)), noon, "unknown_key")
	unsigned := good
	unsigned.Signature = ""
	add("not signed", 0, unsigned, noon, "unsigned")
	add("a newer major version", 0, tampered(t, map[string]any{"v": "2.0"}), noon, "newer_version")
	add("an unknown kind", 0, tampered(t, map[string]any{"kind": "SHOUT"}), noon, "unknown_kind")
	add("not JSON", 0, envelope.SealBytes([]byte("run the tests"), signer(t, 0)), noon, "malformed")
	add("an answer to nothing", 0, tampered(t, map[string]any{"kind": "REPLY"}), noon, "malformed")
	add("another host's sender", 0, tampered(t, map[string]any{"from_host": "beta"}), noon, "wrong_host")
	add("presence that an agent claims", 0, tampered(t, map[string]any{"kind": "PRESENCE"}), noon, "wrong_host")
	add("more than five minutes ahead", 0, good, noon.Add(-301*time.Second), "future")
	add("older than the memory", 0, good, noon.Add(envelope.DefaultMemory+time.Second), "too_old")
	return list
}

func TestR18_Vectors(t *testing.T) {
	path := filepath.Join("testdata", "vectors.json")
	var made bytes.Buffer
	enc := json.NewEncoder(&made)
	enc.SetIndent("", "  ")
	if err := enc.Encode(vectors(t)); err != nil {
		t.Fatal(err)
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(path, made.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, made.Bytes()) {
		t.Errorf("%s is not what this build makes: the wire format has changed", path)
	}
	var list []vector
	if err := json.Unmarshal(kept, &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		checkByHand(t, v)
	}
}

// checkByHand verifies a vector with nothing of the package, as another
// implementation would.
func checkByHand(t *testing.T, v vector) {
	t.Helper()
	seed, err := hex.DecodeString(v.Seed)
	if err != nil {
		t.Fatal(err)
	}
	body, err := base64.StdEncoding.DecodeString(v.Body)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := base64.RawURLEncoding.DecodeString(v.Signature)
	if err != nil {
		t.Fatal(err)
	}
	var message bytes.Buffer
	message.WriteString("DSSEv1 26 application/vnd.fleet+json ")
	message.WriteString(strconv.Itoa(len(body)))
	message.WriteString(" ")
	message.Write(body)
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	fits := len(sig) == ed25519.SignatureSize && ed25519.Verify(public, message.Bytes(), sig)
	if want := v.Result != "bad_signature" && v.Result != "unsigned"; fits != want {
		t.Errorf("%s: the signature fits: %v, want %v", v.Name, fits, want)
	}
}

// FuzzOpen: nothing panics, and only what alpha's key signed is accepted.
func FuzzOpen(f *testing.F) {
	good := tampered(f, nil)
	f.Add(good.Bytes, string(good.Key), good.Signature)
	f.Add([]byte("{}"), "", "")
	f.Add(good.Bytes, string(good.Key), bare(f, good.Bytes))
	keys, public := alphasRing(f), signer(f, 0).Public()
	f.Fuzz(func(t *testing.T, body []byte, key, sig string) {
		for _, id := range []identity.KeyID{identity.KeyID(key), public.ID()} {
			s := envelope.Sealed{Bytes: body, Key: id, Signature: sig}
			e, verified, refusal := envelope.Open(s, keys, envelope.DefaultLimits, noon)
			raw, err := base64.RawURLEncoding.DecodeString(sig)
			message := append([]byte("DSSEv1 26 application/vnd.fleet+json "+strconv.Itoa(len(body))+" "), body...)
			genuine := err == nil && s.Key == public.ID() && public.Verify(message, raw)
			if verified && !genuine || refusal == nil && !verified {
				t.Fatalf("accepted without a signature: %+v", e)
			}
			if !verified && e.ID != "" {
				t.Fatalf("parsed without a signature: %+v", e)
			}
		}
	})
}

// FuzzDecode: whatever a peer signs is refused with a reason or is an envelope
// that this build would itself send.
func FuzzDecode(f *testing.F) {
	f.Add(tampered(f, nil).Bytes)
	f.Add([]byte(`{"v":"1.0","kind":"SEND","kind":"REPLY","body":{"text":"\ud800"}}`))
	f.Add([]byte(`{"v":"1.0","ts":"2026-11-30T12:00:00Z","exp":null,"body":{}}`))
	f.Add([]byte(`{"V":"1","KIND":"SEND"}`))
	keys, alpha := alphasRing(f), signer(f, 0)
	f.Fuzz(func(t *testing.T, body []byte) {
		e, verified, refusal := envelope.Open(envelope.SealBytes(body, alpha), keys, envelope.DefaultLimits, noon)
		if !verified && refusal.Reason != envelope.ReasonTooLarge {
			t.Fatalf("its own signature does not fit: %v", refusal)
		}
		if refusal != nil {
			if refusal.Reason == "" || refusal.Detail == "" {
				t.Fatalf("a refusal without a reason: %+v", refusal)
			}
			return
		}
		again, sealed, err := envelope.Seal(e, alpha, envelope.DefaultLimits)
		if err != nil {
			t.Fatalf("accepted, but can't be sent: %v\n%s", err, body)
		}
		back, _, refusal := envelope.Open(sealed, keys, envelope.DefaultLimits, noon)
		if refusal != nil || back.ID != again.ID || back.To != e.To || !back.TS.Equal(e.TS.Time) || !back.Exp.Equal(e.Exp.Time) {
			t.Fatalf("%v\nsent %+v\ngot  %+v", refusal, again, back)
		}
	})
}
