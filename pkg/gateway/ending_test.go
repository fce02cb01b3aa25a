package gateway

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"fleet/pkg/api"
	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/topology"
	"fleet/pkg/trace"
	"fleet/pkg/turn"
)

// fakePanes is a backend whose panes live until they are closed, which fails as
// often as refuse says.
type fakePanes struct {
	mu     sync.Mutex // guards all below
	panes  map[identity.GID]*fakePane
	spawns int
	refuse int
	narrow int // the longest line that the terminals take, in bytes; 0: any
}

func (b *fakePanes) Name() string { return "fake" }

func (b *fakePanes) Spawn(_ context.Context, s pane.Spec) (pane.Pane, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.panes[s.GID] != nil {
		return nil, fault.New(fault.Conflict, "it has a pane")
	}
	b.spawns++
	b.panes[s.GID] = &fakePane{b: b, info: pane.Info{GID: s.GID, PID: 1 << 30, Tags: s.Tags}, closed: make(chan struct{})}
	return b.panes[s.GID], nil
}

func (b *fakePanes) List(context.Context) (all []pane.Pane, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.panes {
		all = append(all, p)
	}
	return all, nil
}

type fakePane struct {
	b      *fakePanes
	info   pane.Info
	closed chan struct{}
}

func (p *fakePane) Info(context.Context) (pane.Info, error)                 { return p.info, nil }
func (p *fakePane) Tag(context.Context, string, string) error               { return nil }
func (p *fakePane) Write(context.Context, pane.Write) (pane.Written, error) { return pane.Done, nil }
func (p *fakePane) Lookup(context.Context, string) (pane.Written, error)    { return pane.Done, nil }
func (p *fakePane) Screen(context.Context, int) (string, error)             { return "", nil }
func (p *fakePane) Terminal(context.Context) (pane.Terminal, error) {
	return pane.Terminal{Quiet: time.Hour, Canonical: p.b.narrow > 0, LineBytes: p.b.narrow}, nil
}
func (p *fakePane) Wait(ctx context.Context) (pane.Exit, error) {
	select {
	case <-p.closed:
		return pane.Exit{}, nil
	case <-ctx.Done():
		return pane.Exit{}, ctx.Err()
	}
}

func (p *fakePane) Close(context.Context) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.b.refuse > 0 {
		p.b.refuse--
		return errors.New("it does not die")
	}
	delete(p.b.panes, p.info.GID)
	close(p.closed)
	return nil
}

// newLocal is a gateway without broker and socket over the files in dir, with one
// profile. end ends it as a kill would: nothing more is written.
func newLocal(t *testing.T, dir string, panes pane.Backend) (g *Gateway, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	g = &Gateway{version: "test", log: slog.New(slog.DiscardHandler), now: time.Now, ctx: ctx, incarnation: 1, panes: panes,
		agents: newAgents(), live: newQueue[live]()}
	g.cfg = config.Config{Dir: dir, Host: "alpha", Limits: envelope.DefaultLimits,
		Roster:   config.Roster{Heartbeat: time.Second, Forget: time.Hour},
		Mailbox:  config.MailboxLimits{Messages: 100, Bytes: 1 << 20},
		Profiles: map[string]config.Profile{"p": {Command: []string{"p"}, Ready: config.Ready{Timeout: time.Minute}}}}
	g.layout = topology.Layout{Host: "alpha", Type: topology.Classic, Limits: topology.DefaultLimits}
	g.sends = &sends{g: g, active: map[string]*sending{}}
	g.outbox = newOutbox(g)
	var err error
	if g.signer, _, err = identity.Create(dir); err != nil {
		t.Fatal(err)
	}
	if g.tokens, err = identity.LoadTokens(dir); err != nil {
		t.Fatal(err)
	}
	if g.audit, err = trace.Open(filepath.Join(dir, "audit"), "alpha", g.log); err != nil {
		t.Fatal(err)
	}
	if g.store, err = mailbox.Open(filepath.Join(dir, "mailbox"), mailbox.Options{}); err != nil {
		t.Fatal(err)
	}
	g.who = newPresence(g)
	if err := g.outbox.load(); err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	working.Go(func() { g.outbox.run(ctx) })
	end = sync.OnceFunc(func() {
		cancel()
		g.running.Wait()
		working.Wait()
		if err := g.store.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return g, end
}

func spawnOne(t *testing.T, g *Gateway, name string) api.SpawnResult {
	t.Helper()
	r, err := g.Spawn(t.Context(), localapi.Caller{}, api.SpawnRequest{GID: identity.NewGID(), Name: name, Profile: "p"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestR34_ConcurrentSpawns: requests with one gid make one agent and get one answer.
func TestR34_ConcurrentSpawns(t *testing.T) {
	panes := &fakePanes{panes: map[identity.GID]*fakePane{}}
	g, _ := newLocal(t, t.TempDir(), panes)
	gid := identity.NewGID()
	answers := make([]api.SpawnResult, 10)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], err = g.Spawn(t.Context(), localapi.Caller{}, api.SpawnRequest{GID: gid, Name: "w", Profile: "p"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, a := range answers {
		if a.Agent.GID != gid || a.PID != answers[0].PID || a.Agent.Address != "w@alpha" {
			t.Errorf("an answer differs: %+v", a)
		}
	}
	if panes.spawns != 1 || len(g.agents.all()) != 1 {
		t.Errorf("%d panes were started and %d agents made; want one of each", panes.spawns, len(g.agents.all()))
	}
}

// TestR34_ConcurrentRegisters: requests with one new name make one agent.
func TestR34_ConcurrentRegisters(t *testing.T) {
	g, _ := newLocal(t, t.TempDir(), &fakePanes{})
	gids := make([]identity.GID, 10)
	var all sync.WaitGroup
	for i := range gids {
		all.Go(func() {
			r, err := g.Register(t.Context(), localapi.Caller{}, api.RegisterRequest{Name: "lead"})
			if err != nil {
				t.Error(err)
			}
			gids[i] = r.Agent.GID
		})
	}
	all.Wait()
	for _, gid := range gids {
		if gid != gids[0] || gid == "" {
			t.Errorf("two agents: %s and %s", gid, gids[0])
		}
	}
}

// TestR34_StopFails: an agent whose program lives has not ended, and a restarted
// gateway goes on with its end.
func TestR34_StopFails(t *testing.T) {
	dir := t.TempDir()
	panes := &fakePanes{panes: map[identity.GID]*fakePane{}, refuse: 1000}
	g, end := newLocal(t, dir, panes)
	w := spawnOne(t, g, "w")
	if _, err := g.Stop(t.Context(), localapi.Caller{}, api.StopRequest{Agent: "w"}); !errors.Is(err, fault.Failed) {
		t.Errorf("stop says %v, although the program lives", err)
	}
	if a := g.agents.get(w.Agent.GID); a == nil {
		t.Error("the agent is gone, although its program lives")
	}
	end()
	panes.refuse = 0 // for the next gateway; this one has ended
	if _, ok := panes.panes[w.Agent.GID]; !ok {
		t.Fatal("the pane is gone, although it could not be closed")
	}
	g, _ = newLocal(t, dir, panes)
	if err := g.restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := g.agents.get(w.Agent.GID); a != nil {
		select {
		case <-a.ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the restarted gateway keeps an agent that was being stopped")
		}
	}
	if len(panes.panes) != 0 {
		t.Error("the program lives")
	}
	if _, left, err := readRow[grave](g, gravesTable, string(w.Agent.GID)); left || err != nil {
		t.Errorf("its grave is left: %v %v", left, err)
	}
	for _, a := range g.who.union().Agents {
		if a.GID == w.Agent.GID {
			t.Errorf("the roster still has it: %+v", a)
		}
	}
}

// give puts a turn of a that lead asked for into a's hands.
func give(t *testing.T, g *Gateway, a *agent, from identity.GID) turn.Turn {
	t.Helper()
	e := envelope.Envelope{Kind: envelope.Send, ID: envelope.NewID(), Trace: envelope.NewTrace(), From: from, FromHost: g.cfg.Host,
		To: string(a.gid), Body: []byte(`{"text":"do"}`)}
	env, sealed, err := envelope.Seal(e, g.signer, g.cfg.Limits)
	if err != nil {
		t.Fatal(err)
	}
	var opened turn.Turn
	if err := g.store.Write(t.Context(), func(tx *mailbox.Tx) error {
		k, err := g.keep(tx, a.gid, a.role, arrival{env: env, sealed: sealed}, true)
		if err == nil {
			opened = *k.opened
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := a.ask(t.Context(), func() { a.turns.Put(opened) }); err != nil {
		t.Fatal(err)
	}
	return opened
}

func answer(t *testing.T, a *agent, message envelope.ID, text string) (api.ReplyResult, error) {
	t.Helper()
	done := make(chan replied, 1)
	a.post(func() { a.reply(message, text, func(r replied) { done <- r }) })
	select {
	case r := <-done:
		return r.result, r.err
	case <-time.After(20 * time.Second):
		t.Fatal("no answer to a reply")
		return api.ReplyResult{}, nil
	}
}

// TestR25_ReplyAfterTheEnd: a turn whose row is gone gets no second outcome.
func TestR25_ReplyAfterTheEnd(t *testing.T) {
	g, _ := newLocal(t, t.TempDir(), &fakePanes{panes: map[identity.GID]*fakePane{}})
	a := g.agents.get(spawnOne(t, g, "w").Agent.GID)
	opened := give(t, g, a, identity.NewGID())
	if err := g.store.Write(t.Context(), func(tx *mailbox.Tx) error {
		return mailbox.Delete(tx, turnsTable, opened.Key())
	}); err != nil {
		t.Fatal(err)
	}
	if r, err := answer(t, a, opened.Message, "late"); !errors.Is(err, fault.Stale) {
		t.Errorf("the reply is %+v, %v; want stale", r, err)
	}
}

// TestR8_OutcomesKeepTheirOrder: while one outcome waits here for an agent of this
// host, the next one of the same two goes behind it.
func TestR8_OutcomesKeepTheirOrder(t *testing.T) {
	g, _ := newLocal(t, t.TempDir(), &fakePanes{panes: map[identity.GID]*fakePane{}})
	w := g.agents.get(spawnOne(t, g, "w").Agent.GID)
	lead, err := g.Register(t.Context(), localapi.Caller{}, api.RegisterRequest{Name: "lead"})
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{}) // keeps the outbox from its work
	g.outbox.in.put(func() { <-gate })
	target := g.agents.get(lead.Agent.GID)
	g.agents.remove(target) // as if its mailbox were full: what comes for it is stored
	first, second := give(t, g, w, target.gid), give(t, g, w, target.gid)
	if r, err := answer(t, w, first.Message, "1"); err != nil || r.State != "stored" {
		t.Fatalf("the first outcome: %+v %v", r, err)
	}
	g.agents.add(target)
	if r, err := answer(t, w, second.Message, "2"); err != nil || r.State != "stored" {
		t.Errorf("the second outcome went past the first: %+v %v", r, err)
	}
	close(gate)
	var got []envelope.ID
	for len(got) < 2 {
		changed := target.changed.next()
		if err := g.store.Read(func(tx *mailbox.Tx) error {
			heads, err := tx.Heads(target.gid, 0, 10)
			got = got[:0]
			for _, m := range heads {
				got = append(got, m.Re)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if len(got) == 2 {
			break
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("only %d outcomes came", len(got))
		}
	}
	if got[0] != first.Message || got[1] != second.Message {
		t.Errorf("the outcomes came in the wrong order")
	}
}

// TestR24_SpoolGoesWithTheTurn: the file of a long brief is gone once it is
// answered, and the agent's directory once it has ended.
func TestR24_SpoolGoesWithTheTurn(t *testing.T) {
	g, _ := newLocal(t, t.TempDir(), &fakePanes{panes: map[identity.GID]*fakePane{}})
	a := g.agents.get(spawnOne(t, g, "w").Agent.GID)
	opened := give(t, g, a, identity.NewGID())
	path := filepath.Join(a.spool(), string(opened.Message)+".txt")
	if err := os.MkdirAll(a.spool(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("long"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := answer(t, a, opened.Message, "done"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the brief's file stays: %v", err)
	}
	if _, err := g.Stop(t.Context(), localapi.Caller{}, api.StopRequest{Agent: "w"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(a.spool()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the agent's directory stays: %v", err)
	}
}

// TestR24_FailureFits: what a failure carries is cut to what the smallest limit
// lets through, on whole runes.
func TestR24_FailureFits(t *testing.T) {
	g, _ := newLocal(t, t.TempDir(), &fakePanes{})
	g.cfg.Limits.TextBytes = 1
	for _, filler := range []string{"x", "\"", "\x01", "é", "\u2028", "\xff", "🙂"} {
		f := failure{kind: envelope.Failed, reason: fault.AgentFailed, detail: "begin" + strings.Repeat(filler, 1<<16),
			screen: strings.Repeat(filler, 1<<16) + "end"}
		o := f.outcome()
		if !strings.HasPrefix(o.Detail, "begin") || !strings.HasSuffix(o.Screen, "end") || strings.ContainsRune(o.Screen, '\ufffd') {
			t.Errorf("%q: the wrong part is kept", filler)
		}
		n, err := g.end(turn.Open(identity.NewGID(), 1, envelope.Envelope{ID: envelope.NewID(), Trace: envelope.NewTrace(),
			From: identity.NewGID(), FromHost: "alpha"}, time.Now()), f.kind, o, status{})
		if err != nil {
			t.Errorf("%q: %v", filler, err)
		} else if utf8.ValidString(filler) && len(n.sealed.Bytes) < 4<<10 {
			t.Errorf("%q: only %d bytes are kept", filler, len(n.sealed.Bytes))
		}
	}
}
