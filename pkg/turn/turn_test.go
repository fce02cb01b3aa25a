package turn

import (
	"errors"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

func brief(from identity.GID) envelope.Envelope {
	return envelope.Envelope{Kind: envelope.Send, ID: envelope.NewID(), Trace: envelope.NewTrace(), From: from, FromHost: "alpha"}
}

func TestR16_IDsSurviveARestart(t *testing.T) {
	agent, now := identity.NewGID(), time.Now()
	e := brief(identity.NewGID())
	one, again := Open(agent, 1, e, now), Open(agent, 9, e, now.Add(time.Hour))
	if one.ID != again.ID || one.OutcomeID() != again.OutcomeID() || one.Key() != again.Key() {
		t.Error("a turn opened again has another identity")
	}
	other := e
	other.From = identity.NewGID()
	if Open(agent, 1, other, now).ID == one.ID {
		t.Error("two senders with one message id share a turn")
	}
	if Open(identity.NewGID(), 1, e, now).ID == one.ID {
		t.Error("two recipients of one message share a turn")
	}
	if string(one.OutcomeID()) == one.ID {
		t.Error("the outcome has the turn's id")
	}
}

func TestR24_Answerable(t *testing.T) {
	var s Set
	if _, err := s.Answerable(""); !errors.Is(err, fault.Stale) {
		t.Errorf("no turn: %v", err)
	}
	agent, from := identity.NewGID(), identity.NewGID()
	a, b := brief(from), brief(from)
	s.Put(Open(agent, 1, a, time.Now()))
	if got, err := s.Answerable(""); err != nil || got.Message != a.ID {
		t.Errorf("the only one: %+v, %v", got, err)
	}
	s.Put(Open(agent, 2, b, time.Now()))
	_, err := s.Answerable("")
	if !errors.Is(err, fault.Usage) || len(fault.From(err).Also) != 2 {
		t.Errorf("two open: %v", err)
	}
	if got, err := s.Answerable(b.ID); err != nil || got.Message != b.ID {
		t.Errorf("named: %+v, %v", got, err)
	}
	if all := s.All(); len(all) != 2 || all[0].Message != a.ID {
		t.Errorf("oldest first: %+v", all)
	}
}

func TestR25_OneOutcomeATurn(t *testing.T) {
	var s Set
	e := brief(identity.NewGID())
	s.Put(Open(identity.NewGID(), 1, e, time.Now()))
	s.Drop(e.ID)
	if _, err := s.Answerable(e.ID); !errors.Is(err, fault.Stale) {
		t.Errorf("answered twice: %v", err)
	}
	if s.Len() != 0 {
		t.Errorf("%d open", s.Len())
	}
}
