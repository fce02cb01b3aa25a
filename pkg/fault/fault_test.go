package fault_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"fleet/pkg/fault"
)

// The table of the manual. Scripts depend on it, so a change here is a break.
func TestR57_ExitStatus(t *testing.T) {
	want := map[fault.Kind]int{
		fault.Failed: 1, fault.NotSubmitted: 1, fault.Usage: 2, fault.Config: 2, fault.NotFound: 3, fault.Ambiguous: 3, fault.NoGateway: 4,
		fault.NoBroker: 5, fault.TimedOut: 6, fault.Expired: 6, fault.Refused: 7, fault.Conflict: 7, fault.Stale: 7, fault.TooLate: 7,
		fault.Full: 7, fault.HostHeld: 7, fault.AgentFailed: 8, fault.Abandoned: 8, fault.Partial: 9, fault.Unknown: 10, fault.Interrupted: 130,
	}
	if got := fault.Kinds(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for kind, code := range want {
		f := fault.New(kind, "x")
		for _, err := range []error{f, fmt.Errorf("outer: %w", f), errors.Join(errors.New("other"), f)} {
			if got := fault.Exit(err); got != code {
				t.Errorf("%s exits %d, want %d", kind, got, code)
			}
		}
	}
}

func TestR57_NothingUnknownExitsZero(t *testing.T) {
	for _, err := range []error{errors.New("plain"), fault.New("kind_of_a_newer_gateway", "x"), &fault.Fault{}, &fault.Fault{Message: "no kind"}} {
		if got := fault.Exit(err); got != 1 {
			t.Errorf("%#v exits %d, want 1", err, got)
		}
	}
	if got := fault.Exit(nil); got != 0 {
		t.Errorf("nil exits %d", got)
	}
}

func TestKindsIsACopy(t *testing.T) {
	fault.Kinds()[fault.Full] = 0
	if fault.Exit(fault.New(fault.Full, "x")) != 7 {
		t.Error("the table can be changed from outside")
	}
}

// A fault crosses the socket and arrives equal.
func TestR57_JSONRoundTrip(t *testing.T) {
	for kind := range fault.Kinds() {
		for _, want := range []*fault.Fault{
			fault.New(kind, "no agent %s on this host", "eve"),
			fault.New(kind, "a\n\"b\"\u2028").WithHint("do %d things", 2).WithID("0192").WithAlso("one", "two").WithAlso("three"),
		} {
			b, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var got *fault.Fault
			if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v (%v), want %+v", b, got, err, want)
			}
			if !errors.Is(got, kind) || !errors.Is(got, want) || fault.Exit(got) != fault.Exit(want) {
				t.Errorf("%s is another kind after the journey", kind)
			}
		}
	}
}

func TestJSONRefuses(t *testing.T) {
	for _, text := range []string{`{}`, `{"kind":"full"}`, `{"message":"x"}`, `{"kind":7,"message":"x"}`, `[]`, `"full"`, `{"kind":"full","message":"x"`} {
		var f fault.Fault
		if err := json.Unmarshal([]byte(text), &f); err == nil {
			t.Errorf("%s is taken for %+v", text, f)
		}
	}
	var newer fault.Fault
	if err := json.Unmarshal([]byte(`{"kind":"newer","message":"x","retry_after":5}`), &newer); err != nil || newer.Kind != "newer" {
		t.Errorf("a newer gateway's fault: %v, %+v", err, newer)
	}
}

func TestIs(t *testing.T) {
	full := fault.New(fault.Full, "the inbox is full")
	wrapped := fmt.Errorf("send: %w", full)
	if !errors.Is(wrapped, fault.Full) || !errors.Is(wrapped, fault.New(fault.Full, "another")) {
		t.Error("a wrapped fault is not its kind")
	}
	if errors.Is(wrapped, fault.Expired) || errors.Is(wrapped, fault.New(fault.Expired, "x")) || errors.Is(errors.New("full"), fault.Full) {
		t.Error("a fault is of a kind that it is not")
	}
}

func TestFrom(t *testing.T) {
	f := fault.New(fault.Config, "it is damaged").WithHint("restore it").WithID("1").WithAlso("a")
	if fault.From(nil) != nil || fault.From(f) != f {
		t.Error("nil or a bare fault is changed")
	}
	got := fault.From(fmt.Errorf("read host key: %w", f))
	if got.Message != "read host key: it is damaged" || got.Kind != f.Kind || got.Hint != f.Hint || got.ID != "1" || len(got.Also) != 1 {
		t.Errorf("got %+v", got)
	}
	if f.Message != "it is damaged" {
		t.Error("the wrapped fault was changed")
	}
	if got := fault.From(errors.New("plain")); got.Kind != fault.Failed || got.Message != "plain" {
		t.Errorf("got %+v", got)
	}
}

// With... return copies: a shared fault does not change under its other users.
func TestWithCopies(t *testing.T) {
	base := fault.New(fault.Full, "x").WithAlso("a").WithAlso("b").WithAlso("c") // grown, so that there is room behind
	one, two := base.WithAlso("d"), base.WithAlso("e")
	base.WithHint("h")
	base.WithID("i")
	if base.Hint != "" || base.ID != "" || !reflect.DeepEqual(base.Also, []string{"a", "b", "c"}) || one.Also[3] != "d" || two.Also[3] != "e" {
		t.Errorf("base %+v, one %+v, two %+v", base, one, two)
	}
}
