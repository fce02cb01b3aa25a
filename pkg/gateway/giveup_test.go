package gateway

import (
	"errors"
	"testing"

	"fleet/pkg/api"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
)

// TestR24_WhatCantBeTypedFails: a brief that its worker's terminal can never take
// ends its turn, and the worker is free for the next.
func TestR24_WhatCantBeTypedFails(t *testing.T) {
	panes := &fakePanes{panes: map[identity.GID]*fakePane{}, narrow: 10} // a header has more
	g, _ := newLocal(t, t.TempDir(), panes)
	if err := g.restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := spawnOne(t, g, "w")
	operator := localapi.Caller{GID: identity.OperatorGID("alpha"), Name: "operator", Role: api.Operator}
	for range 2 {
		var last api.Event
		if err := g.Send(t.Context(), operator, api.SendRequest{To: "w", Text: "hi", Wait: true, TimeoutSeconds: 20}, func(e api.Event) error {
			last = e
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(last.Fault, fault.NotSubmitted) {
			t.Fatalf("the send ended with %+v", last)
		}
	}
	a := g.agents.get(w.Agent.GID)
	open, err := asked(t.Context(), a, func() int { return a.turns.Len() })
	if err != nil || open != 0 {
		t.Errorf("%d turns are open, %v", open, err)
	}
}
