package envelope_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

func TestR18_SealAndOpen(t *testing.T) {
	want, sealed, err := envelope.Seal(brief(), signer(t, 0), envelope.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	got, verified, refusal := open(t, sealed)
	if refusal != nil || !verified || !reflect.DeepEqual(got, want) || got.V != "1.0" {
		t.Errorf("%v, verified %v\ngot  %+v\nwant %+v", refusal, verified, got, want)
	}
}

func TestR17_FieldNames(t *testing.T) {
	e := brief()
	e.Turn, e.Re = "t1", e.ID
	_, sealed, err := envelope.Seal(e, signer(t, 0), envelope.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"v":"1.0","kind":"SEND","id":"0192f0c1-2345-7abc-8def-0123456789ab","trace":"4bf92f3577b34da6a3ce929d0e0e4736",` +
		`"from":"1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a","from_host":"alpha","to":"a1e8a9b3-1406-41e0-8bba-d29cb6aeea93","turn":"t1",` +
		`"re":"0192f0c1-2345-7abc-8def-0123456789ab","ts":"2026-11-30T12:00:00.000Z","exp":"2026-11-30T13:00:00.000Z",` +
		`"body":{"text":"run the tests <now> & report\n日本 👩‍👩‍👧"}}`
	if string(sealed.Bytes) != want {
		t.Errorf("got  %s\nwant %s", sealed.Bytes, want)
	}
}

func TestR17_SealFillsIn(t *testing.T) {
	e := brief()
	e.ID, e.TS, e.Exp, e.Body, e.V = "", envelope.Time{}, envelope.Time{}, nil, "9.9"
	before := time.Now().Add(-time.Second)
	got, sealed, err := envelope.Seal(e, signer(t, 0), envelope.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := envelope.ParseID(string(got.ID)); !ok || got.V != envelope.Version || got.TS.Before(before) || string(got.Body) != "{}" {
		t.Errorf("got %+v", got)
	}
	if strings.Contains(string(sealed.Bytes), `"exp"`) {
		t.Errorf("no expiry is written as one: %s", sealed.Bytes)
	}
	for header, name := range map[string]string{envelope.HeaderKey: "key", envelope.HeaderSignature: "signature", envelope.HeaderTrace: "trace"} {
		if strings.HasPrefix(header, "x-") {
			t.Errorf("the %s header is the broker's: %s", name, header)
		}
	}
}

// Every field that is not as it must be is refused, by the receiver with its
// reason and by the sender before anything is published.
func TestR20_EveryRefusalHasItsReason(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes map[string]any
		reason  envelope.Reason
	}{
		{"no version", map[string]any{"v": nil}, envelope.ReasonMalformed},
		{"version of words", map[string]any{"v": "one"}, envelope.ReasonMalformed},
		{"version number", map[string]any{"v": 1}, envelope.ReasonMalformed},
		{"negative version", map[string]any{"v": "-1.0"}, envelope.ReasonMalformed},
		{"newer major", map[string]any{"v": "2.0"}, envelope.ReasonNewerVersion},
		{"older major", map[string]any{"v": "0.9"}, envelope.ReasonNewerVersion},
		{"newer major, other shape", map[string]any{"v": "2.0", "from": 7, "kind": nil, "body": []int{1}}, envelope.ReasonNewerVersion},
		{"unknown kind", map[string]any{"kind": "SHOUT"}, envelope.ReasonUnknownKind},
		{"lower case kind", map[string]any{"kind": "send"}, envelope.ReasonUnknownKind},
		{"no kind", map[string]any{"kind": nil}, envelope.ReasonUnknownKind},
		{"no id", map[string]any{"id": nil}, envelope.ReasonMalformed},
		{"id of words", map[string]any{"id": "first"}, envelope.ReasonMalformed},
		{"upper case id", map[string]any{"id": "0192F0C1-2345-7ABC-8DEF-0123456789AB"}, envelope.ReasonMalformed},
		{"no trace", map[string]any{"trace": nil}, envelope.ReasonMalformed},
		{"zero trace", map[string]any{"trace": strings.Repeat("0", 32)}, envelope.ReasonMalformed},
		{"upper case trace", map[string]any{"trace": strings.Repeat("A", 32)}, envelope.ReasonMalformed},
		{"long trace", map[string]any{"trace": strings.Repeat("a", 33)}, envelope.ReasonMalformed},
		{"no sender", map[string]any{"from": nil}, envelope.ReasonMalformed},
		{"sender's name", map[string]any{"from": "lead@alpha"}, envelope.ReasonMalformed},
		{"no host", map[string]any{"from_host": nil}, envelope.ReasonMalformed},
		{"host in capitals", map[string]any{"from_host": "ALPHA"}, envelope.ReasonMalformed},
		{"another host", map[string]any{"from_host": "beta"}, envelope.ReasonWrongHost},
		{"no recipient", map[string]any{"to": nil}, envelope.ReasonMalformed},
		{"long recipient", map[string]any{"to": strings.Repeat("a", 129)}, envelope.ReasonMalformed},
		{"long turn", map[string]any{"turn": strings.Repeat("a", 65)}, envelope.ReasonMalformed},
		{"answers words", map[string]any{"re": "that"}, envelope.ReasonMalformed},
		{"reply to nothing", map[string]any{"kind": "REPLY"}, envelope.ReasonMalformed},
		{"receipt for nothing", map[string]any{"kind": "INJECTED"}, envelope.ReasonMalformed},
		{"no time", map[string]any{"ts": nil}, envelope.ReasonMalformed},
		{"time of words", map[string]any{"ts": "noon"}, envelope.ReasonMalformed},
		{"expires in the year 10000", map[string]any{"exp": "9999-12-31T23:59:59-23:59"}, envelope.ReasonMalformed},
		{"time as a number", map[string]any{"ts": 7}, envelope.ReasonMalformed},
		{"no body", map[string]any{"body": nil}, envelope.ReasonMalformed},
		{"body is text", map[string]any{"body": "hi"}, envelope.ReasonMalformed},
		{"body is a list", map[string]any{"body": []string{"hi"}}, envelope.ReasonMalformed},
		{"text is a number", map[string]any{"body": map[string]any{"text": 7}}, envelope.ReasonMalformed},
		{"text is a list", map[string]any{"body": map[string]any{"text": []string{"a"}}}, envelope.ReasonMalformed},
		{"long text", map[string]any{"body": map[string]any{"text": strings.Repeat("a", 1<<20+1)}}, envelope.ReasonTooLarge},
		{"too far ahead", map[string]any{"ts": noon.Add(envelope.MostAhead + time.Second)}, envelope.ReasonFuture},
		{"year 9999", map[string]any{"ts": "9999-12-31T23:59:59Z"}, envelope.ReasonFuture},
		{"too old", map[string]any{"ts": noon.Add(-envelope.DefaultMemory - time.Second)}, envelope.ReasonTooOld},
		{"year 1", map[string]any{"ts": "0001-01-02T00:00:00Z"}, envelope.ReasonTooOld},
		{"agent's presence", map[string]any{"kind": "PRESENCE"}, envelope.ReasonWrongHost},
		{"agent's query", map[string]any{"kind": "QUERY"}, envelope.ReasonWrongHost},
		{"agent's state", map[string]any{"kind": "STATE", "re": string(brief().ID)}, envelope.ReasonWrongHost},
		{"another host's operator", map[string]any{"kind": "PRESENCE", "from": string(identity.OperatorGID("beta"))}, envelope.ReasonWrongHost},
	} {
		t.Run(c.name, func(t *testing.T) { refusedAs(t, tampered(t, c.changes), c.reason, true) })
	}
}

func TestR20_NotAnObject(t *testing.T) {
	for _, body := range []string{"", "null", "7", `"SEND"`, "[]", "{", `{"v":"1.0"`, `{"v":"1.0"} {}`, "\x00", "\xff\xfe", `{"v":null}`} {
		refusedAs(t, envelope.SealBytes([]byte(body), signer(t, 0)), envelope.ReasonMalformed, true)
	}
}

func TestR18_SignatureRefusals(t *testing.T) {
	good := tampered(t, nil)
	change := func(f func(*envelope.Sealed)) envelope.Sealed {
		s := good
		f(&s)
		return s
	}
	last := good.Signature[85]
	for _, c := range []struct {
		name   string
		sealed envelope.Sealed
		reason envelope.Reason
	}{
		{"no signature", change(func(s *envelope.Sealed) { s.Signature = "" }), envelope.ReasonUnsigned},
		{"no key", change(func(s *envelope.Sealed) { s.Key = "" }), envelope.ReasonUnsigned},
		{"unknown key", change(func(s *envelope.Sealed) { s.Key = signer(t, 1).Public().ID() }), envelope.ReasonUnknownKey},
		{"stranger's signature", envelope.SealBytes(good.Bytes, signer(t, 1)), envelope.ReasonUnknownKey},
		{"stranger's signature under alpha's key", change(func(s *envelope.Sealed) { s.Signature = envelope.SealBytes(s.Bytes, signer(t, 1)).Signature }), envelope.ReasonBadSignature},
		{"not base64", change(func(s *envelope.Sealed) { s.Signature = "!" + s.Signature[1:] }), envelope.ReasonBadSignature},
		{"padded", change(func(s *envelope.Sealed) { s.Signature += "==" }), envelope.ReasonBadSignature},
		{"with a line end", change(func(s *envelope.Sealed) { s.Signature += "\n" }), envelope.ReasonBadSignature},
		{"short", change(func(s *envelope.Sealed) { s.Signature = s.Signature[:85] }), envelope.ReasonBadSignature},
		{"other spelling", change(func(s *envelope.Sealed) { s.Signature = s.Signature[:85] + string(last+1) }), envelope.ReasonBadSignature},
		{"bare body signed", change(func(s *envelope.Sealed) { s.Signature = bare(t, s.Bytes) }), envelope.ReasonBadSignature},
		{"longer", change(func(s *envelope.Sealed) { s.Bytes = append(slices.Clone(s.Bytes), ' ') }), envelope.ReasonBadSignature},
		{"shorter", change(func(s *envelope.Sealed) { s.Bytes = s.Bytes[:len(s.Bytes)-1] }), envelope.ReasonBadSignature},
		{"oversize", envelope.SealBytes(make([]byte, envelope.DefaultLimits.EncodedBytes()+1), signer(t, 0)), envelope.ReasonTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) { refusedAs(t, c.sealed, c.reason, false) })
	}
}

// Any byte of the body that changes on the way is noticed before it is parsed.
func TestR18_FlippedByteAnywhere(t *testing.T) {
	good := tampered(t, nil)
	keys := alphasRing(t)
	for i := range good.Bytes {
		for _, bit := range []byte{1, 0x20, 0x80} {
			s := good
			s.Bytes = slices.Clone(good.Bytes)
			s.Bytes[i] ^= bit
			if e, verified, r := envelope.Open(s, keys, envelope.DefaultLimits, noon); r == nil || r.Reason != envelope.ReasonBadSignature || verified || e.ID != "" {
				t.Fatalf("byte %d, bit %x: %v, verified %v, %+v", i, bit, r, verified, e)
			}
		}
	}
	for i := range good.Signature {
		s := good
		b := []byte(good.Signature)
		b[i] ^= 1
		s.Signature = string(b)
		if _, verified, r := envelope.Open(s, keys, envelope.DefaultLimits, noon); r == nil || verified {
			t.Fatalf("signature, character %d: accepted", i)
		}
	}
}

func TestR20_UnknownFieldsAreIgnored(t *testing.T) {
	s := tampered(t, map[string]any{"v": "1.99", "priority": map[string]any{"a": []int{1}}, "body": map[string]any{"text": "hi", "colour": "red"}})
	e, _, refusal := open(t, s)
	if refusal != nil || e.V != "1.99" || !strings.Contains(string(e.Body), "colour") {
		t.Errorf("%v %+v", refusal, e)
	}
}

// A field that is there twice has one reading, the last, in every check.
func TestR20_DuplicateFields(t *testing.T) {
	good := string(tampered(t, nil).Bytes)
	double := func(field string) envelope.Sealed {
		return envelope.SealBytes([]byte(strings.TrimSuffix(good, "}")+","+field+"}"), signer(t, 0))
	}
	refusedAs(t, double(`"v":"2.0"`), envelope.ReasonNewerVersion, true)
	refusedAs(t, double(`"from_host":"beta"`), envelope.ReasonWrongHost, true)
	refusedAs(t, double(`"kind":"PRESENCE"`), envelope.ReasonWrongHost, true)
	refusedAs(t, double(`"body":{"text":"`+strings.Repeat("a", 1<<20+1)+`"}`), envelope.ReasonTooLarge, true)
	e, _, refusal := open(t, double(`"body":{"text":"last"}`))
	if refusal != nil || string(e.Body) != `{"text":"last"}` {
		t.Errorf("%v %s", refusal, e.Body)
	}
}

func TestR61_DeepNesting(t *testing.T) {
	for _, depth := range []int{1000, 100_000} {
		deep := `{"v":"1.0","x":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + "}"
		refusal := func() *envelope.Refusal {
			_, _, r := open(t, envelope.SealBytes([]byte(deep), signer(t, 0)))
			return r
		}()
		if refusal == nil {
			t.Errorf("depth %d is accepted", depth)
		}
	}
}

// The sender is told before anything is published, with the limit.
func TestR22_TextLimit(t *testing.T) {
	limits := envelope.Limits{TextBytes: 1000}
	seal := func(text string) error {
		e := brief()
		e.Body, _ = envelope.Encode(envelope.Text{Text: text})
		_, sealed, err := envelope.Seal(e, signer(t, 0), limits)
		if err == nil {
			if _, _, r := envelope.Open(sealed, alphasRing(t), limits, noon); r != nil {
				t.Errorf("what is sent is refused: %v", r)
			}
		}
		return err
	}
	if err := seal(strings.Repeat("a", 1000)); err != nil {
		t.Error(err)
	}
	if err := seal(strings.Repeat("\"", 1000)); err != nil {
		t.Errorf("a short text with escapes: %v", err)
	}
	err := seal(strings.Repeat("a", 1001))
	if !errors.Is(err, fault.Usage) || !strings.Contains(err.Error(), "1001") || !strings.Contains(err.Error(), "1000") {
		t.Errorf("got %v", err)
	}
	growing := envelope.Limits{TextBytes: 1 << 15}
	e := brief()
	e.Body, _ = envelope.Encode(envelope.Text{Text: strings.Repeat("\x01", 1<<15)})
	if _, _, err := envelope.Seal(e, signer(t, 0), growing); !errors.Is(err, fault.Usage) {
		t.Errorf("a text that grows sixfold: %v", err)
	}
}

// What a receiver would refuse is not sealed.
func TestSealRefusesWhatOpenWould(t *testing.T) {
	for name, f := range map[string]func(*envelope.Envelope){
		"kind":   func(e *envelope.Envelope) { e.Kind = "SHOUT" },
		"id":     func(e *envelope.Envelope) { e.ID = "x" },
		"trace":  func(e *envelope.Envelope) { e.Trace = "" },
		"from":   func(e *envelope.Envelope) { e.From = "lead" },
		"host":   func(e *envelope.Envelope) { e.FromHost = "A" },
		"to":     func(e *envelope.Envelope) { e.To = "" },
		"re":     func(e *envelope.Envelope) { e.Kind = envelope.Reply },
		"turn":   func(e *envelope.Envelope) { e.Turn = strings.Repeat("t", 65) },
		"body":   func(e *envelope.Envelope) { e.Body = json.RawMessage(`[]`) },
		"broken": func(e *envelope.Envelope) { e.Kind, e.From, e.Body = envelope.Presence, lead, json.RawMessage(`{"a":`) },
	} {
		e := brief()
		f(&e)
		if _, sealed, err := envelope.Seal(e, signer(t, 0), envelope.DefaultLimits); err == nil || sealed.Bytes != nil {
			t.Errorf("%s: sealed as %s", name, sealed.Bytes)
		}
	}
}

func TestR19_FreshnessBounds(t *testing.T) {
	for _, c := range []struct {
		age    time.Duration
		reason envelope.Reason
	}{{-envelope.MostAhead, ""}, {-envelope.MostAhead - time.Millisecond, envelope.ReasonFuture}, {0, ""}, {envelope.DefaultMemory, ""}, {envelope.DefaultMemory + time.Millisecond, envelope.ReasonTooOld}} {
		s := tampered(t, map[string]any{"ts": noon.Add(-c.age)})
		_, verified, refusal := open(t, s)
		if got := refusal; (got == nil) != (c.reason == "") || got != nil && got.Reason != c.reason || !verified {
			t.Errorf("age %s: %v", c.age, refusal)
		}
		if _, _, refusal := envelope.OpenAnyAge(s, alphasRing(t), envelope.DefaultLimits); refusal != nil {
			t.Errorf("of any age, %s: %v", c.age, refusal)
		}
	}
}

// A retry with the same id says the same, whenever it is sent.
func TestR21_Digest(t *testing.T) {
	base := brief()
	same := base
	same.TS, same.Exp, same.Trace, same.ID, same.V = envelope.At(noon.Add(time.Hour)), envelope.Time{}, "", "", "1.7"
	if base.Digest() != same.Digest() || len(base.Digest()) != 64 {
		t.Error("the digest depends on when it is sent")
	}
	seen := map[string]string{base.Digest(): "base"}
	for name, f := range map[string]func(*envelope.Envelope){
		"kind": func(e *envelope.Envelope) { e.Kind = envelope.Reply },
		"to":   func(e *envelope.Envelope) { e.To = string(lead) },
		"re":   func(e *envelope.Envelope) { e.Re = e.ID },
		"turn": func(e *envelope.Envelope) { e.Turn = "t" },
		"body": func(e *envelope.Envelope) { e.Body = json.RawMessage(`{"text":"x"}`) },
		// Text that moves from one field to the next is not the same message.
		"moved": func(e *envelope.Envelope) { e.To, e.Re = e.To+"a", "" },
		"shift": func(e *envelope.Envelope) { e.To, e.Turn = "", e.To },
	} {
		e := base
		f(&e)
		if other, ok := seen[e.Digest()]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[e.Digest()] = name
	}
}

func TestR13_DerivedIDs(t *testing.T) {
	a := envelope.DeriveID("turn-1", "outcome")
	if a != envelope.DeriveID("turn-1", "outcome") || a != "402721e0-7f00-569d-811b-8db682914e8b" {
		t.Errorf("derived %s", a)
	}
	for _, other := range []envelope.ID{envelope.DeriveID("turn-2", "outcome"), envelope.DeriveID("turn-1", "outcomes")} {
		if other == a {
			t.Error("two names share an id")
		}
	}
	if _, ok := envelope.ParseID(string(a)); !ok {
		t.Errorf("%s is no id", a)
	}
}

func TestR17_IDsAndTraces(t *testing.T) {
	last := envelope.NewID()
	for range 1000 {
		id := envelope.NewID()
		if p, ok := envelope.ParseID(string(id)); !ok || p != id || id <= last || id[14] != '7' {
			t.Fatalf("%s after %s", id, last)
		}
		last = id
	}
	for _, bad := range []string{"", "x", strings.ReplaceAll(string(last), "-", ""), "{" + string(last) + "}", "urn:uuid:" + string(last), string(last) + "\n"} {
		if _, ok := envelope.ParseID(bad); ok {
			t.Errorf("%q is an id", bad)
		}
	}
	trace := envelope.NewTrace()
	e := brief()
	e.Trace = trace
	if _, _, err := envelope.Seal(e, signer(t, 0), envelope.DefaultLimits); err != nil {
		t.Errorf("a minted trace: %v", err)
	}
	want := "00-" + string(trace) + "-8def0123456789ab-01"
	if got := trace.Parent(brief().ID); got != want {
		t.Errorf("traceparent %s, want %s", got, want)
	}
}

func TestR17_Times(t *testing.T) {
	berlin := time.FixedZone("", 3600)
	b, err := json.Marshal(envelope.At(time.Date(2026, 11, 30, 13, 0, 0, 1_999_999, berlin)))
	if err != nil || string(b) != `"2026-11-30T12:00:00.001Z"` {
		t.Errorf("%s, %v", b, err)
	}
	for text, ok := range map[string]bool{
		`"2026-11-30T12:00:00.001Z"`: true, `"2026-11-30T13:00:00.001999+01:00"`: true, `null`: true,
		`"2026-11-30"`: false, `"2026-11-30T25:00:00Z"`: false, `7`: false, `{}`: false, `"2026-11-30T12:00:00"`: false,
		// In UTC these are years that the wire's form can't write.
		`"9999-12-31T23:59:59-23:59"`: false, `"0000-01-01T00:00:00+23:59"`: false,
	} {
		var got envelope.Time
		if err := json.Unmarshal([]byte(text), &got); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		} else if ok && text != "null" && !got.Equal(time.Date(2026, 11, 30, 12, 0, 0, 1e6, time.UTC)) {
			t.Errorf("%s is read as %s", text, got)
		}
	}
}

// The one table: what a kind's row may say.
func TestR2_KindTable(t *testing.T) {
	kinds := envelope.Kinds()
	if len(kinds) != 11 {
		t.Errorf("%d kinds", len(kinds))
	}
	for _, k := range kinds {
		r, ok := envelope.RuleOf(k)
		durable := slices.Contains([]envelope.Kind{envelope.Send, envelope.Reply, envelope.Failed, envelope.Abandoned}, k)
		switch {
		case !ok || r.Exchange == 0 || r.Lane == 0 || r.Sender == 0:
			t.Errorf("%s: an empty column: %+v", k, r)
		case (r.Lane == envelope.Durable) != durable, durable != (r.TTL == 0):
			t.Errorf("%s: lane %d, TTL %s", k, r.Lane, r.TTL)
		case r.Mandatory == (k == envelope.Presence):
			t.Errorf("%s: mandatory %v", k, r.Mandatory)
		case r.Terminal != (durable && k != envelope.Send), r.Terminal && !r.Answers:
			t.Errorf("%s: terminal %v, answers %v", k, r.Terminal, r.Answers)
		}
	}
	if _, ok := envelope.RuleOf("SHOUT"); ok {
		t.Error("an unknown kind has a row")
	}
}

// Nothing raw of a body that nobody vouches for is in a refusal's words.
func TestR20_RefusalsHoldNoRawBytes(t *testing.T) {
	const nasty = "\x1b[2J\u202e\n"
	for _, field := range []string{"v", "kind", "id", "trace", "from", "from_host", "to", "turn", "re", "ts", "body"} {
		for _, s := range []envelope.Sealed{
			tampered(t, map[string]any{field: strings.Repeat(nasty, 50)}),
			envelope.SealBytes([]byte(fmt.Sprintf(`{"v":"1.0",%q:"%s"}`, field, nasty)), signer(t, 1)),
		} {
			if _, _, r := open(t, s); r != nil {
				if i := strings.IndexFunc(r.Error(), unicode.IsControl); i >= 0 || strings.Contains(r.Error(), "\u202e") {
					t.Errorf("%s: %q", field, r.Error())
				}
			}
		}
	}
	if got := envelope.Refuse(envelope.ReasonConflict, "other body").Error(); got != "conflict: other body" {
		t.Errorf("got %q", got)
	}
}
