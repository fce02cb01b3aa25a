package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/inject"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/trace"
	"fleet/pkg/turn"
)

// screenLines is how much of a dead agent's screen its failures carry.
const screenLines = 20

// injectBound is how long one try at a pane may take before the sender hears
// that nobody knows.
const injectBound = 20 * time.Second

// free says whether the worker may have a message now.
func (a *agent) free() bool {
	return a.pane != nil && !a.closing && !a.claiming && len(a.proving) == 0 &&
		(a.rules.When == config.WhenAlways || a.turns.Len() == 0)
}

// mayClaim says whether a message that arrives now is the next one.
func (a *agent) mayClaim() bool { return len(a.line) == 0 && a.writes == 1 && a.free() }

// advance claims the next message of the line, if the worker may have one now.
func (a *agent) advance() {
	if len(a.line) == 0 || !a.free() {
		return
	}
	head := a.line[0]
	a.line = a.line[1:]
	if !head.exp.IsZero() && a.g.now().After(head.exp) {
		a.expire(head)
		a.advance()
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	a.proving[head.id] = cancel
	a.writes++
	var t turn.Turn
	var e envelope.Envelope
	a.g.store.Go(func(tx *mailbox.Tx) error {
		m, ok, err := tx.Message(a.gid, head.seq)
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.NotFound, "message %s is no longer in the mailbox", head.id)
		}
		if err := json.Unmarshal(m.Sealed.Bytes, &e); err != nil {
			return fmt.Errorf("decode stored message: %w", err)
		}
		t = turn.Open(a.gid, head.seq, e, a.g.now())
		return a.g.claim(tx, t)
	}, func(err error) {
		a.post(func() { a.claimed(ctx, head, t, e, err) })
	})
}

// claimed goes on once the claim is on disk: from here the message is never
// claimed again, and only the pane can say what became of it.
func (a *agent) claimed(ctx context.Context, w waiting, t turn.Turn, e envelope.Envelope, err error) {
	a.wrote()
	if err != nil {
		a.certain(w.id)
		if errors.Is(err, fault.NotFound) {
			a.advance() // it was ended meanwhile
			return
		}
		a.g.log.Error("can't claim a message", "agent", a.name, "trace", e.Trace, "id", w.id, "err", err)
		a.line = append([]waiting{w}, a.line...)
		a.after(2*time.Second, a.advance)
		return
	}
	a.startProving(ctx, t, e)
}

// claim writes that a message will be injected, and never claimed again.
func (g *Gateway) claim(tx *mailbox.Tx, t turn.Turn) error {
	// One of another sender may have the id: this one waits until that has ended.
	open, ok, err := mailbox.Get[turn.Turn](tx, turnsTable, t.Key())
	if err == nil && ok && open.Seq != t.Seq {
		err = fault.New(fault.Conflict, "the id of message %s is in use", t.Message)
	}
	if err != nil {
		return err
	}
	if err := tx.Claim(t.Agent, t.Seq); err != nil {
		return err
	}
	if err := mailbox.Set(tx, turnsTable, t.Key(), t); err != nil {
		return err
	}
	return tx.SetStatus(t.Agent, t.FromHost, t.From, t.Message, status{State: claimed}.encode())
}

// startProving injects a brief whose claim is on disk.
func (a *agent) startProving(ctx context.Context, t turn.Turn, e envelope.Envelope) {
	a.turns.Put(t)
	a.g.audit.Write(trace.Of(trace.Claimed, e))
	if a.closing {
		return
	}
	a.announce()
	go a.prove(ctx, t, e)
}

// certain ends the proving of a brief.
func (a *agent) certain(id envelope.ID) {
	if cancel := a.proving[id]; cancel != nil {
		cancel()
		delete(a.proving, id)
	}
}

// prove injects the brief of a claimed turn and asks until it is certain. The
// pane writes an id at most once, whoever asks and however often, so asking again
// is harmless. It ends with the turn's proof, the turn, or the agent.
func (a *agent) prove(ctx context.Context, t turn.Turn, e envelope.Envelope) {
	text, err := body[envelope.Text](e)
	if err != nil {
		a.g.log.Error("can't decode a stored brief", "trace", e.Trace, "id", e.ID, "err", err)
	}
	brief := inject.Brief{ID: e.ID, Key: t.ID, FromName: a.g.who.nameOf(e.From, e.FromHost), FromHost: e.FromHost, Text: text.Text,
		Spool: a.spool()}
	told := false
	for pause := 500 * time.Millisecond; ; pause = min(2*pause, 15*time.Second) {
		bound, cancel := context.WithTimeout(ctx, injectBound)
		result := inject.Type(bound, a.pane, brief, a.rules.Evidence)
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch {
		case result.State == inject.Confirmed:
			a.post(func() { a.proven(t, e, result) })
			return
		case result.State == inject.Refused && result.Reason == string(fault.AgentFailed):
			return // its death, which is being watched, ends the turn
		case result.State == inject.Refused && (result.Reason == string(fault.Usage) || result.Reason == string(fault.Config)):
			a.post(func() { a.giveUp(t.Message, "the message can't be typed: "+result.Detail) })
			return
		case result.State == inject.Refused:
			a.g.log.Warn("a pane does not take a message yet", "agent", a.name, "trace", e.Trace, "id", e.ID, "reason", result.Reason, "detail", result.Detail)
		case !told:
			told = true
			a.post(func() { a.unproven(t, e, result) })
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// proven records that the agent has a brief, and tells its sender.
func (a *agent) proven(t turn.Turn, e envelope.Envelope, r inject.Result) {
	a.certain(t.Message)
	if open, ok := a.turns.Find(t.Message); ok { // else it was answered meanwhile
		open.Proof, open.Evidence = turn.Confirmed, r.Evidence
		a.turns.Put(open)
		a.saveTurn(open, e, status{State: injected, Evidence: r.Evidence})
		line := trace.Of(trace.Injected, e)
		line.Turn, line.Evidence = open.ID, r.Evidence
		a.g.audit.Write(line)
		a.tell(e, envelope.Injected, envelope.Receipt{Evidence: r.Evidence})
	}
	a.advance()
}

// unproven records that nobody can tell yet, and says so to the sender. The turn
// stays open: a reply would prove the injection.
func (a *agent) unproven(t turn.Turn, e envelope.Envelope, r inject.Result) {
	open, ok := a.turns.Find(t.Message)
	if !ok {
		return
	}
	open.Proof = turn.Unproven
	a.turns.Put(open)
	a.saveTurn(open, e, status{State: unknown, Reason: r.Reason})
	line := trace.Of(trace.Unproven, e)
	line.Turn, line.Reason, line.Detail = open.ID, r.Reason, r.Detail
	a.g.audit.Write(line)
	a.tell(e, envelope.Refused, envelope.Receipt{Reason: string(fault.Unknown),
		Detail: strings.TrimSuffix("the pane of "+a.name+" does not say ("+r.Reason+") "+r.Detail, " ")})
}

// saveTurn writes a turn and the state with which its brief is answered when it
// comes again. Nobody waits for it: after a crash the pane says the same again.
func (a *agent) saveTurn(t turn.Turn, e envelope.Envelope, s status) {
	a.g.store.Later(func(tx *mailbox.Tx) error {
		if _, open, err := mailbox.Get[turn.Turn](tx, turnsTable, t.Key()); err != nil || !open {
			return err // closed meanwhile
		}
		if err := mailbox.Set(tx, turnsTable, t.Key(), t); err != nil {
			return err
		}
		return tx.SetStatus(a.gid, e.FromHost, e.From, e.ID, s.encode())
	}, func(err error) {
		if err != nil {
			a.g.log.Error("can't save a turn", "agent", a.name, "trace", t.Trace, "turn", t.ID, "err", err)
		}
	})
}

// expire ends a message that nobody claimed in time: its sender is told with a
// terminal FAILED, and a copy goes to the dead letters before it leaves here
// (R10a, R12a).
func (a *agent) expire(w waiting) {
	a.g.failMessage(a, w.seq, failure{kind: envelope.Failed, reason: fault.Expired, dead: envelope.ReasonExpired,
		detail: "nobody took it in time"})
}

// setExpiry arms one timer for the message that expires first: of a worker's line,
// or of what is held for a puller.
func (a *agent) setExpiry() {
	if a.expiry != nil {
		a.expiry.Stop()
		a.expiry = nil
	}
	var first time.Time
	for _, list := range [][]waiting{a.line, a.held} {
		for _, w := range list {
			if at := a.dueAt(w); !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	if first.IsZero() {
		return
	}
	a.expiry = a.after(first.Sub(a.g.now())+time.Millisecond, a.expireDue)
}

// expireDue ends what nobody took in time.
func (a *agent) expireDue() {
	now := a.g.now()
	due := func(w waiting) bool {
		if !passed(a.dueAt(w), now) {
			return false
		}
		a.expire(w)
		return true
	}
	a.line = slices.DeleteFunc(a.line, due)
	a.held = slices.DeleteFunc(a.held, due)
	a.setExpiry()
}

// tellPosition tells the sender that its message waits, unless it went in at
// once.
func (a *agent) tellPosition(e envelope.Envelope) {
	for i, w := range a.line {
		if w.id != e.ID || w.from != e.From {
			continue
		}
		r := envelope.Receipt{Reason: "busy", Position: i + 1,
			Detail: fmt.Sprintf("%s is busy with a turn; %d before it", a.name, i)}
		a.setStatus(e, status{State: deferred, Reason: r.Reason})
		line := trace.Of(trace.Deferred, e)
		line.Reason = r.Reason
		a.g.audit.Write(line)
		a.tell(e, envelope.Deferred, r)
		return
	}
}

// watchPane waits for the death of the agent's process. It ends with the agent.
func (a *agent) watchPane() {
	exit, err := a.pane.Wait(a.ctx)
	for pause := time.Second; err != nil; pause = min(2*pause, time.Minute) {
		if a.ctx.Err() != nil {
			return
		}
		a.g.log.Error("can't watch a pane; trying again", "agent", a.name, "err", err)
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(pause):
		}
		exit, err = a.pane.Wait(a.ctx)
	}
	ctx, cancel := context.WithTimeout(a.ctx, 2*time.Second)
	defer cancel()
	screen, _ := a.pane.Screen(ctx, screenLines) // without a screen the failure is still told
	a.post(func() { a.died(exit, screen) })
}

// died ends everything that the agent had under way with FAILED.
func (a *agent) died(exit pane.Exit, screen string) {
	if a.closing {
		return // it is being stopped
	}
	how := howEnded(exit)
	a.g.audit.Write(trace.Line{Step: trace.Died, To: string(a.gid), Detail: how})
	a.g.log.Warn("an agent's process ended", "agent", a.name, "gid", a.gid, "how", how)
	a.teardown(failure{kind: envelope.Failed, reason: fault.AgentFailed, dead: envelope.ReasonUndeliverable,
		detail: a.name + " ended (" + how + ")", screen: screen})
}
