package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/trace"
)

// newHost is a gateway without broker, socket and panes, whose mailboxes hold
// messages each.
func newHost(t *testing.T, messages, seenMost int) *Gateway {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	signer, err := identity.NewSigner(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &Gateway{version: "test", log: log, now: time.Now, ctx: ctx, incarnation: 1, signer: signer, agents: newAgents(), live: newQueue[live]()}
	g.cfg = config.Config{Host: "alpha", Limits: envelope.DefaultLimits, Roster: config.Roster{Heartbeat: time.Second, Forget: time.Hour},
		Mailbox: config.MailboxLimits{Messages: messages, Bytes: 1 << 20},
		Bounds:  config.Bounds{Receipt: time.Minute, Confirm: time.Minute, Away: time.Hour, Lease: 300 * time.Millisecond}}
	g.sends = &sends{g: g, active: map[string]*sending{}}
	g.outbox = newOutbox(g)
	if g.audit, err = trace.Open(filepath.Join(dir, "audit"), "alpha", log); err != nil {
		t.Fatal(err)
	}
	if g.store, err = mailbox.Open(filepath.Join(dir, "mailbox"), mailbox.Options{MessagesMost: messages, SeenMost: seenMost}); err != nil {
		t.Fatal(err)
	}
	g.who = newPresence(g)
	t.Cleanup(func() {
		cancel()
		g.running.Wait()
		if err := errors.Join(g.store.Close(), g.audit.Close()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// agent begins an agent that nobody watches.
func (g *Gateway) agent(name string, role api.Role) *agent {
	a := g.newAgent(identity.NewGID(), name, role, nil)
	g.agents.add(a)
	g.running.Go(a.run)
	return a
}

func brief(t *testing.T, id envelope.ID, from identity.GID, host identity.Host, to *agent, text string) envelope.Envelope {
	t.Helper()
	body, err := envelope.Encode(envelope.Text{Text: text})
	if err != nil {
		t.Fatal(err)
	}
	return envelope.Envelope{Kind: envelope.Send, ID: id, Trace: envelope.NewTrace(), From: from, FromHost: host, To: string(to.gid),
		TS: envelope.At(time.Now()), Body: body}
}

func (g *Gateway) sealed(t *testing.T, e envelope.Envelope) (envelope.Envelope, envelope.Sealed) {
	t.Helper()
	e, s, err := envelope.Seal(e, g.signer, g.cfg.Limits)
	if err != nil {
		t.Fatal(err)
	}
	return e, s
}

// handTo hands a local message in and waits for what becomes of it.
func handTo(t *testing.T, a *agent, e envelope.Envelope) error {
	t.Helper()
	e, s := a.g.sealed(t, e)
	result := make(chan error, 1)
	a.post(func() { a.arrive(arrival{env: e, sealed: s, result: func(err error) { result <- err }}) })
	return <-result
}

// messages are the ids in a's mailbox, once there are n.
func messages(t *testing.T, a *agent, n int) (ids []envelope.ID, all []mailbox.Message) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		changed := a.changed.next()
		if err := a.g.store.Read(func(tx *mailbox.Tx) (err error) {
			all, err = tx.Messages(a.gid, 0, 1000)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		ids = ids[:0]
		for _, m := range all {
			ids = append(ids, m.ID)
		}
		if len(ids) == n {
			return ids, all
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond): // what leaves a mailbox tells nobody
		case <-timeout:
			t.Fatalf("%s has %d messages, want %d", a.name, len(ids), n)
		}
	}
}

func TestR11_RepeatFindsItselfInAFullMailbox(t *testing.T) {
	g := newHost(t, 2, 0) // room for one, and for one that the broker may hand over
	a, from := g.agent("lead", api.Main), identity.NewGID()
	first := brief(t, envelope.NewID(), from, "alpha", a, "1")
	if err := handTo(t, a, first); err != nil {
		t.Fatal(err)
	}
	if err := handTo(t, a, brief(t, envelope.NewID(), from, "alpha", a, "2")); !errors.Is(err, fault.Full) {
		t.Errorf("a message more: %v, want full", err)
	}
	if err := handTo(t, a, first); err != nil {
		t.Errorf("the same again: %v", err)
	}
	messages(t, a, 1)
}

func TestR21_OneIDOfTwoSenders(t *testing.T) {
	g := newHost(t, 100, 0)
	a, id := g.agent("lead", api.Main), envelope.NewID()
	first := brief(t, id, identity.NewGID(), "alpha", a, "1")
	if err := handTo(t, a, first); err != nil {
		t.Fatal(err)
	}
	for _, host := range []identity.Host{"alpha", "beta"} {
		if err := handTo(t, a, brief(t, id, identity.NewGID(), host, a, "1")); !errors.Is(err, fault.Conflict) {
			t.Errorf("from %s: %v, want a conflict", host, err)
		}
	}
	if err := handTo(t, a, first); err != nil {
		t.Errorf("the first again: %v", err)
	}
}

func TestR21_QuotaIsThePeersAffair(t *testing.T) {
	g := newHost(t, 100, 1)
	a := g.agent("lead", api.Main)
	write := func(host identity.Host) error {
		e, s := g.sealed(t, brief(t, envelope.NewID(), identity.NewGID(), host, a, "x"))
		return g.store.Write(t.Context(), func(tx *mailbox.Tx) error {
			_, err := a.write(tx, arrival{env: e, sealed: s, ack: func() {}}, false)
			return err
		})
	}
	if err := write("beta"); err != nil {
		t.Fatal(err)
	}
	var quota mailbox.QuotaError
	if err := write("beta"); !errors.As(err, &quota) || !errors.Is(err, fault.Full) || fault.From(err).Hint == "" {
		t.Errorf("beyond the quota: %v", err)
	}
	if err := write("gamma"); err != nil {
		t.Errorf("from another host: %v", err)
	}
}

// An arrival that can't be written holds back those after it.
func TestR8_NothingOvertakesWhatCouldNotBeWritten(t *testing.T) {
	g := newHost(t, 100, 0)
	a, from := g.agent("lead", api.Main), identity.NewGID()
	var want []envelope.ID
	acked := make(chan envelope.ID, 100)
	arrive := func(host identity.Host) {
		e, s := g.sealed(t, brief(t, envelope.NewID(), from, "beta", a, "x"))
		e.FromHost = host
		want = append(want, e.ID)
		a.post(func() { a.put(arrival{env: e, sealed: s, ack: func() { acked <- e.ID }}) })
	}
	arrive("") // no mailbox takes that
	for range 5 {
		arrive("beta")
	}
	for over := false; !over; { // until all of them have come back
		if err := a.ask(t.Context(), func() { over = len(a.overflow) == 6 }); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		arrive("beta")
	}
	messages(t, a, 0)
	a.post(func() {
		a.overflow[0].env.FromHost = "beta"
		a.retryOverflow()
	})
	for i := range want {
		if id := <-acked; id != want[i] {
			t.Fatalf("acknowledged %d: %s, want %s", i, id, want[i])
		}
	}
	if got, _ := messages(t, a, len(want)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// noPane is the pane of a worker who must get nothing.
type noPane struct{ pane.Pane }

func TestR10a_ExpiredIsNotClaimedOnArrival(t *testing.T) {
	g := newHost(t, 100, 0)
	lead := g.agent("lead", api.Main)
	w := g.newAgent(identity.NewGID(), "worker", api.Worker, nil)
	w.pane, w.rules = noPane{}, config.Profile{When: config.WhenIdle}
	g.agents.add(w)
	g.running.Go(w.run)
	e := brief(t, envelope.NewID(), lead.gid, "alpha", w, "late")
	e.Exp = envelope.At(time.Now().Add(-time.Second))
	if err := handTo(t, w, e); err != nil {
		t.Fatal(err)
	}
	_, got := messages(t, lead, 1)
	if got[0].Kind != envelope.Failed || got[0].Re != e.ID {
		t.Errorf("its sender got %+v", got[0])
	}
	messages(t, w, 0)
}

func TestR12a_HeldExpires(t *testing.T) {
	g := newHost(t, 100, 0)
	lead, other := g.agent("lead", api.Main), g.agent("other", api.Main)
	e := brief(t, envelope.NewID(), lead.gid, "alpha", other, "late")
	e.Exp = envelope.At(time.Now().Add(200 * time.Millisecond))
	if err := handTo(t, other, e); err != nil {
		t.Fatal(err)
	}
	_, held := messages(t, other, 1)
	if err := other.ask(t.Context(), func() { other.leases[e.ID] = &lease{seq: held[0].Seq, until: time.Now().Add(time.Second)} }); err != nil {
		t.Fatal(err)
	}
	_, got := messages(t, lead, 1)
	if time.Since(e.Exp.Time) < 500*time.Millisecond {
		t.Error("it was failed while somebody was taking it")
	}
	if got[0].Kind != envelope.Failed || got[0].Re != e.ID {
		t.Errorf("its sender got %+v", got[0])
	}
	messages(t, other, 0)
	// The agent hears of the commit that all this shows after others may have seen it.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		open := 0
		if err := other.ask(t.Context(), func() { open = other.turns.Len() }); err != nil {
			t.Fatal(err)
		}
		if open == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("its turn is still open")
		}
	}
}

func TestR27_WorkerCantTakeItsBriefFromTheLine(t *testing.T) {
	g := newHost(t, 100, 0)
	w := g.agent("worker", api.Worker)
	e := brief(t, envelope.NewID(), identity.NewGID(), "alpha", w, "x")
	if err := handTo(t, w, e); err != nil {
		t.Fatal(err)
	}
	r, err := g.Ack(t.Context(), localapi.Caller{GID: w.gid}, api.AckRequest{IDs: []envelope.ID{e.ID}})
	if err != nil || r.Acked != 0 {
		t.Errorf("acked %d, %v", r.Acked, err)
	}
	messages(t, w, 1)
}

func TestR27_InboxFollow(t *testing.T) {
	g := newHost(t, 100, 0)
	a, from := g.agent("lead", api.Main), identity.NewGID()
	ids := []envelope.ID{envelope.NewID(), envelope.NewID()}
	for _, id := range ids {
		if err := handTo(t, a, brief(t, id, from, "alpha", a, "x")); err != nil {
			t.Fatal(err)
		}
	}
	_, all := messages(t, a, 2)
	if err := a.ask(t.Context(), func() { a.take(all[0]) }); err != nil { // by a client that dies
		t.Fatal(err)
	}
	shown := make(chan envelope.ID, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- g.Inbox(t.Context(), localapi.Caller{GID: a.gid}, api.InboxRequest{Follow: true, Wait: true, Lease: true},
			func(m api.Message) error { shown <- m.ID; return nil })
	}()
	for _, want := range []envelope.ID{ids[1], ids[0]} {
		if id := <-shown; id != want {
			t.Errorf("shown %s, want %s", id, want)
		}
	}
	a.cancel()
	if err := <-ended; !errors.Is(err, fault.NotFound) {
		t.Errorf("the inbox of an ended agent: %v", err)
	}
}

func TestR23_OutcomeWithoutARecord(t *testing.T) {
	g := newHost(t, 100, 0)
	a, worker, asked := g.agent("lead", api.Main), identity.NewGID(), envelope.NewID()
	e := brief(t, envelope.NewID(), worker, "alpha", a, "done")
	e.Kind, e.Re, e.Turn = envelope.Reply, asked, string(envelope.NewID())
	if err := handTo(t, a, e); err != nil {
		t.Fatal(err)
	}
	if err := g.store.Read(func(tx *mailbox.Tx) error {
		note, err := findOutcome(tx, sendRow{ID: asked, From: a.gid, To: worker})
		if err != nil || note == nil || note.Kind != envelope.Reply {
			t.Errorf("found %+v, %v", note, err)
		}
		none, err := findOutcome(tx, sendRow{ID: envelope.NewID(), From: a.gid, To: worker})
		if err != nil || none != nil {
			t.Errorf("of another message: %+v, %v", none, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// newSend is a send under a chosen id to an agent of another host.
func (g *Gateway) newSend(t *testing.T, from *agent, to identity.GID, id envelope.ID, text string) *sending {
	t.Helper()
	s, err := g.newSending(localapi.Caller{GID: from.gid}, api.Agent{GID: to, Name: "worker", Host: "beta"},
		api.SendRequest{ID: string(id), Text: text})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Many callers use one id at once: those with the recorded text join, the others
// are refused, and nobody waits for ever.
func TestR21_ManyStartsOfOneID(t *testing.T) {
	g := newHost(t, 100, 0)
	a, to, id := g.agent("lead", api.Main), identity.NewGID(), envelope.NewID()
	row := g.newSend(t, a, to, id, "right").row
	row.First = &api.Event{Step: api.StepHeld}
	if err := g.store.Write(t.Context(), func(tx *mailbox.Tx) error { return mailbox.Set(tx, sendsTable, sendKey(a.gid, id), row) }); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 40 {
		text := [2]string{"right", "wrong"}[i%2]
		s := g.newSend(t, a, to, id, text)
		all.Go(func() {
			got, err := g.sends.start(s)
			if text == "wrong" {
				if !errors.Is(err, fault.Conflict) {
					t.Errorf("another text: %v", err)
				}
				return
			}
			if err != nil {
				t.Errorf("the same text: %v", err)
				return
			}
			_ = got.leftBy(context.Canceled)
			got.leave(false)
		})
		all.Go(func() { g.sends.filled(a.gid) })
	}
	all.Wait()
}

// Who joined a send that may not begin after all is judged by itself.
func TestR21_JoinedOneThatMayNotBegin(t *testing.T) {
	g := newHost(t, 100, 0)
	a, to, id := g.agent("lead", api.Main), identity.NewGID(), envelope.NewID()
	row := g.newSend(t, a, to, id, "right").row
	row.First = &api.Event{Step: api.StepHeld}
	if err := g.store.Write(t.Context(), func(tx *mailbox.Tx) error { return mailbox.Set(tx, sendsTable, sendKey(a.gid, id), row) }); err != nil {
		t.Fatal(err)
	}
	wrong, right := g.newSend(t, a, to, id, "wrong"), g.newSend(t, a, to, id, "right")
	g.sends.active[wrong.key] = wrong
	started := make(chan error, 1)
	go func() {
		_, err := g.sends.start(right)
		started <- err
	}()
	for joined := false; !joined; {
		wrong.mu.Lock()
		joined = wrong.watchers == 1
		wrong.mu.Unlock()
	}
	if err := g.sends.begin(wrong); !errors.Is(err, fault.Conflict) {
		t.Errorf("another text: %v", err)
	}
	if err := <-started; err != nil {
		t.Errorf("the same text: %v", err)
	}
}

func TestR10a_RefusedCopySaysNothingOfAnEarlierOne(t *testing.T) {
	g := newHost(t, 100, 0)
	a := g.agent("lead", api.Main)
	for _, o := range []bus.Outcome{bus.Unroutable, bus.Full, bus.Refused} {
		for name, before := range map[string]func(*sending){
			"alone":   func(*sending) {},
			"routed":  func(s *sending) { s.routed = true },
			"unknown": func(s *sending) { s.row.First = &api.Event{Step: api.StepUnknown} },
		} {
			s := g.newSend(t, a, identity.NewGID(), envelope.NewID(), "x")
			s.watchers = 1
			before(s)
			s.published(o, nil)
			last := s.since(0)[0]
			if failed := last.Step == api.StepFailed; failed != (name == "alone") || !failed && last.Step != api.StepUnknown {
				t.Errorf("%s, %s: %s %v", o, name, last.Step, last.Fault)
			}
		}
	}
}

func TestR10a_ClaimedSaysNothingYet(t *testing.T) {
	g := newHost(t, 100, 0)
	lead, w := g.agent("lead", api.Main), g.agent("worker", api.Worker)
	s := g.newSend(t, lead, w.gid, envelope.NewID(), "x")
	g.sends.active[s.key] = s
	w.tellKnown(s.env, mailbox.Seen{Status: status{State: claimed}.encode()})
	if len(s.queue.items) != 0 {
		t.Error("a claimed message is said to be in line")
	}
	w.tellKnown(s.env, mailbox.Seen{Status: status{State: deferred}.encode()})
	if len(s.queue.items) != 1 {
		t.Error("a deferred message is not said to be in line")
	}
}

func TestR10a_LastWordOfWhatExpires(t *testing.T) {
	g := newHost(t, 100, 0)
	lead := g.agent("lead", api.Main)
	now := time.Now()
	g.now = func() time.Time { return now }
	begin := func() *sending {
		s := g.newSend(t, lead, identity.NewGID(), envelope.NewID(), "x")
		s.sent, s.asked, s.row.Exp = now, now, now.Add(time.Second)
		s.waiters, s.watchers, s.told = 1, 1, true
		return s
	}
	for name, c := range map[string]struct {
		set  func(*sending)
		late time.Duration
		want fault.Kind
	}{
		"a receipt may still come": {func(s *sending) { s.routed = true }, 59 * time.Second, ""},
		"routed":                   {func(s *sending) { s.routed = true }, time.Minute, fault.Unknown},
		"rested":                   {func(s *sending) { s.routed, s.away = true, true }, time.Minute, fault.Expired},
		"not handed over":          {func(*sending) {}, time.Minute, fault.Expired},
		"own host":                 {func(s *sending) { s.row.ToHost = "alpha" }, 59 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin()
			c.set(s)
			now = now.Add(time.Second + c.late + time.Millisecond)
			s.asked = now
			s.look(t.Context())
			var got fault.Kind
			for _, e := range s.since(0) {
				if e.Last {
					got = e.Fault.Kind
				}
			}
			if got != c.want {
				t.Errorf("ended with %q, want %q", got, c.want)
			}
		})
	}
}
