package gateway

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/turn"
)

// restore makes the agents of an earlier gateway again: the operator, the
// registered ones, those whose panes live, and for a last word those whose panes
// died meanwhile (R16).
func (g *Gateway) restore(ctx context.Context) error {
	if err := g.adopt(ctx, g.newAgent(identity.OperatorGID(g.cfg.Host), string(api.Operator), api.Operator, nil), nil); err != nil {
		return err
	}
	var regs []registration
	graves := map[identity.GID]grave{}
	var owners []identity.GID
	if err := g.store.Read(func(tx *mailbox.Tx) (err error) {
		if err := mailbox.Each(tx, agentsTable, "", func(_ string, r registration) error {
			regs = append(regs, r)
			return nil
		}); err != nil {
			return err
		}
		if err := mailbox.Each(tx, gravesTable, "", func(_ string, r grave) error {
			graves[r.GID] = r
			return nil
		}); err != nil {
			return err
		}
		owners, err = tx.Agents()
		return err
	}); err != nil {
		return fmt.Errorf("read the mailbox file: %w", err)
	}
	for _, r := range regs {
		a := g.newAgent(r.GID, r.Name, r.Role, r.Groups)
		a.since = r.Since
		if err := g.adopt(ctx, a, lastWords(graves, a.gid)); err != nil {
			return err
		}
	}
	if err := g.restorePanes(ctx, graves); err != nil {
		return err
	}
	for _, gid := range owners {
		if g.agents.get(gid) != nil {
			continue
		}
		// Its pane is gone: what it left is answered all the same.
		a := g.newAgent(gid, string(gid), api.Worker, nil)
		f := lastWords(graves, gid)
		if f != nil {
			a = g.newAgent(gid, graves[gid].Name, graves[gid].Role, nil)
		} else {
			f = goneMeanwhile(a, "its pane is gone", "")
		}
		if err := g.adopt(ctx, a, f); err != nil {
			return err
		}
	}
	for gid, r := range graves {
		if g.bus != nil && g.agents.get(gid) == nil {
			g.reopen(r)
		}
	}
	return nil
}

// lastWords is how an agent was being ended when its gateway ended; nil: it was
// not.
func lastWords(graves map[identity.GID]grave, gid identity.GID) *failure {
	r, ok := graves[gid]
	if !ok {
		return nil
	}
	f := r.farewell()
	return &f
}

func goneMeanwhile(a *agent, how, screen string) *failure {
	return &failure{kind: envelope.Failed, reason: fault.AgentFailed, dead: envelope.ReasonUndeliverable,
		detail: a.name + " ended while its gateway was away (" + how + ")", screen: screen}
}

// restorePanes adopts what the pane backend still has.
func (g *Gateway) restorePanes(ctx context.Context, graves map[identity.GID]grave) error {
	bound, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	panes, err := g.panes.List(bound)
	if err != nil {
		return fmt.Errorf("list panes: %w", err)
	}
	for _, p := range panes {
		info, err := p.Info(bound)
		if err != nil {
			g.log.Error("a pane does not answer; its agent is adopted all the same", "gid", info.GID, "err", err)
		}
		if err := g.restorePane(ctx, p, info, lastWords(graves, info.GID)); err != nil {
			return err
		}
	}
	return nil
}

// restorePane adopts one pane. last is how its agent was being ended, if it was.
func (g *Gateway) restorePane(ctx context.Context, p pane.Pane, info pane.Info, last *failure) error {
	if info.GID == "" {
		return nil // half-built: the backend's own reaping
	}
	name := info.Tags[tagName]
	if name == "" {
		name = string(info.GID)
	}
	groups := strings.FieldsFunc(info.Tags[tagGroups], func(r rune) bool { return r == ',' })
	a := g.newAgent(info.GID, name, api.Worker, groups)
	a.pane, a.pid, a.since, a.profile = p, info.PID, info.Started, info.Tags[tagProfile]
	rules, ok := g.cfg.Profiles[a.profile]
	if !ok {
		g.log.Warn("an agent's profile is no longer in fleet.yaml; its injections can't be confirmed", "agent", name, "profile", a.profile)
	}
	a.rules = rules
	if info.Dead && last == nil {
		screen, _ := p.Screen(ctx, screenLines)
		last = goneMeanwhile(a, howEnded(info.Exit), screen)
	}
	return g.adopt(ctx, a, last)
}

// adopt loads what the mailbox file has of an agent and begins it. Briefs that
// were claimed are settled first: the pane says what became of them. With last, it
// is begun only to be ended: it gets nothing any more.
func (g *Gateway) adopt(ctx context.Context, a *agent, last *failure) error {
	var heads []mailbox.Message
	var open []turn.Turn
	if err := g.store.Read(func(tx *mailbox.Tx) (err error) {
		if heads, err = tx.Heads(a.gid, 0, 1<<30); err != nil {
			return err
		}
		if a.stats, err = tx.Stats(a.gid); err != nil {
			return err
		}
		return mailbox.Each(tx, turnsTable, turn.Prefix(a.gid), func(_ string, t turn.Turn) error {
			open = append(open, t)
			return nil
		})
	}); err != nil {
		return fmt.Errorf("read the mailbox of %s: %w", a.name, err)
	}
	for _, t := range open {
		a.turns.Put(t)
	}
	for _, m := range heads {
		w := waiting{seq: m.Seq, id: m.ID, from: m.From, host: m.FromHost, exp: m.Exp}
		switch {
		case m.Kind != envelope.Send || m.State != mailbox.Waiting:
		case a.role.Pulls():
			if !w.exp.IsZero() {
				a.held = append(a.held, w)
			}
		default:
			a.line = append(a.line, w)
		}
	}
	if last != nil {
		a.closing, a.farewell = true, *last // nobody runs it yet
		g.begin(a)
		a.post(func() { a.dig(digFirst) })
		return nil
	}
	g.begin(a)
	a.post(func() {
		for _, t := range a.turns.All() {
			if a.pane != nil && t.Proof != turn.Confirmed {
				a.settle(t)
			}
		}
		a.setExpiry()
		a.advance()
	})
	return nil
}

// settle goes on proving a brief that an earlier gateway had claimed.
func (a *agent) settle(t turn.Turn) {
	m, ok, err := readMessage(a.g, a.gid, t.Seq)
	if err != nil || !ok {
		a.g.log.Error("a claimed message can't be read", "agent", a.name, "id", t.Message, "err", err)
		return
	}
	e, err := stored(m.Sealed)
	if err != nil {
		a.g.log.Error("a claimed message can't be read", "agent", a.name, "id", t.Message, "err", err)
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	a.proving[t.Message] = cancel
	go a.prove(ctx, t, e)
}

// reopen brings back an ended agent for the sake of its inbox.
func (g *Gateway) reopen(r grave) {
	a := g.newAgent(r.GID, r.Name, r.Role, nil)
	a.closing = true
	a.gone = true
	a.farewell = r.farewell()
	g.agents.remove(a)
	g.running.Go(a.run)
	g.attach(a)
	g.running.Go(a.closeInbox)
}
