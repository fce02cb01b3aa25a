package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/roster"
)

// hostUnknown is the state of a host that has fallen silent.
const hostUnknown = roster.Unknown

// presence joins the roster to the broker: it speaks when the roster says so, and
// hands in what was heard.
type presence struct {
	g       *Gateway
	roster  *roster.Roster
	changed signal              // fired after every change of a view
	answers *queue[[]roster.Do] // to what was heard, published by speak
	poke    chan struct{}       // tells run to look at the roster's next moment again

	mu      sync.Mutex // guards ignored
	ignored map[envelope.Reason]int
}

func newPresence(g *Gateway) *presence {
	profiles := make([]string, 0, len(g.cfg.Profiles))
	for name := range g.cfg.Profiles {
		profiles = append(profiles, name)
	}
	return &presence{
		g: g,
		roster: roster.New(roster.Self{Host: g.cfg.Host, Incarnation: g.incarnation, Version: g.version, Profiles: profiles},
			roster.Options{Heartbeat: g.cfg.Roster.Heartbeat, RemoveAfter: g.cfg.Roster.Forget}),
		answers: newQueue[[]roster.Do](),
		poke:    make(chan struct{}, 1),
		ignored: map[envelope.Reason]int{},
	}
}

// run speaks and ages until ctx ends, then says goodbye.
func (p *presence) run(ctx context.Context) {
	go p.speak(ctx)
	for ctx.Err() == nil {
		var link <-chan struct{}
		if p.g.bus != nil {
			link = p.g.bus.Changed()
			p.followLink()
		}
		do, next := p.roster.Tick(p.g.now())
		p.publish(ctx, do)
		p.events()
		timer := time.NewTimer(max(next.Sub(p.g.now()), time.Millisecond))
		select {
		case <-timer.C:
		case <-p.poke:
		case <-link:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	if p.g.bus != nil {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		p.publish(bye, p.roster.Leave(p.g.now()))
	}
}

// speak publishes answers until ctx ends.
func (p *presence) speak(ctx context.Context) {
	for ctx.Err() == nil {
		for _, do := range p.answers.take(ctx) {
			p.publish(ctx, do)
		}
	}
}

func (p *presence) followLink() {
	if p.g.bus.State().Link == bus.Up {
		p.roster.LinkUp(p.g.now())
	} else {
		p.roster.LinkDown(p.g.now())
	}
}

// events logs what happened, and fires what waits for a change.
func (p *presence) events() {
	for _, e := range p.roster.Events() {
		p.g.log.Info("roster", "event", e.Kind, "host", e.Host)
	}
	p.changed.fire()
}

// touched is called after everything that may change the roster.
func (p *presence) touched() {
	p.changed.fire()
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// publish seals and publishes what the roster wants said. What is lost is asked
// for again, so nobody waits for a confirm; a query that no queue takes is
// reported, because its host is gone.
func (p *presence) publish(ctx context.Context, do []roster.Do) {
	g := p.g
	if g.bus == nil {
		return
	}
	for _, d := range do {
		e := envelope.Envelope{Kind: d.Kind, ID: d.ID, Re: d.Re, Trace: envelope.NewTrace(), From: identity.OperatorGID(g.cfg.Host),
			FromHost: g.cfg.Host, To: address(d), TS: envelope.At(g.now()), Body: d.Body}
		env, sealed, err := envelope.Seal(e, g.signer, g.cfg.Limits)
		if err != nil {
			g.log.Error("can't seal presence", "kind", d.Kind, "err", err)
			continue
		}
		pub, err := g.bus.Publish(ctx, g.message(env, sealed))
		if err != nil || d.Kind != envelope.Query {
			continue
		}
		go func() { // ends with the publication, whose bound is the query's
			<-pub.Done()
			if outcome, _ := pub.Outcome(); outcome == bus.Unroutable {
				p.roster.HearUnroutable(g.now(), d.To, d.ID)
				p.touched()
			}
		}()
	}
}

// address is the signed `to` of what the roster says.
func address(d roster.Do) string {
	switch d.Kind {
	case envelope.Query:
		return string(d.To)
	case envelope.State:
		return string(identity.OperatorGID(d.To))
	default:
		return "broadcast.all"
	}
}

// heard publishes what an input calls for, and logs what was left out of it.
func (p *presence) heard(do []roster.Do, err error) {
	if err != nil {
		level := p.g.log.Warn
		var w roster.Warnings
		if errors.As(err, &w) && w.Alarm() {
			level = p.g.log.Error
		}
		level("presence", "problem", clean(err.Error()))
	}
	if len(do) > 0 {
		p.answers.put(do) // a broker's handler must not wait for the publish window
	}
	p.touched()
}

func (p *presence) hearPresence(e envelope.Envelope) {
	p.heard(p.roster.HearPresence(p.g.now(), e.FromHost, e.Body))
}

func (p *presence) hearQuery(e envelope.Envelope) {
	p.heard(p.roster.HearQuery(p.g.now(), e.FromHost, e.ID, e.Body))
}

func (p *presence) hearState(e envelope.Envelope) {
	p.heard(p.roster.HearState(p.g.now(), e.FromHost, e.Re, e.Body))
}

// refused counts presence that is not believed, and says so once for each reason.
func (p *presence) refused(r *envelope.Refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ignored[r.Reason]++; p.ignored[r.Reason] == 1 {
		p.g.log.Warn("presence is not believed; more of this kind is not logged", "reason", r.Reason, "detail", r.Detail)
	}
}

// update brings an agent of this host up to date.
func (p *presence) update(v api.Agent) {
	oldest := time.Time{}
	if v.Undrained > 0 {
		oldest = p.g.now().Add(-time.Duration(v.OldestSeconds * float64(time.Second)))
	}
	err := p.roster.SetLocal(p.g.now(), roster.Agent{GID: v.GID, Name: v.Name, Role: string(v.Role), State: v.State,
		Groups: v.Groups, Profile: v.Profile, Undrained: v.Undrained, UndrainedOldest: oldest})
	if err != nil {
		p.g.log.Error("the roster does not take an agent", "agent", v.Name, "err", err)
	}
	p.touched()
}

func (p *presence) remove(gid identity.GID) {
	p.roster.RemoveLocal(p.g.now(), gid)
	p.touched()
}

// resolve finds the agent of an address. It fails with NotFound or Ambiguous.
func (p *presence) resolve(address string) (api.Agent, error) {
	a, err := p.roster.Resolve(address, p.g.now())
	if err != nil {
		return api.Agent{}, err
	}
	return p.view(a), nil
}

// requireLive refuses an address whose host is silent (R23).
func (p *presence) requireLive(address string) error {
	a, err := p.roster.Resolve(address, p.g.now())
	if err != nil {
		return err
	}
	h, ok := p.host(a.Host)
	if !ok || h.State == hostUnknown {
		return fault.New(fault.Refused, "%s is not live: its gateway is silent", a.Address()).
			WithHint("without --require-live the message rests in its inbox until the gateway is back")
	}
	return nil
}

// owner is the host that a gid belongs to, where that is known.
func (p *presence) owner(gid identity.GID) (identity.Host, bool) { return p.roster.Owner(gid) }

// knows says whether gid is known to live on host: announced by it, or its
// operator.
func (p *presence) knows(gid identity.GID, host identity.Host) bool {
	if gid == identity.OperatorGID(host) {
		return true
	}
	owner, ok := p.roster.Owner(gid)
	return ok && owner == host
}

func (p *presence) host(h identity.Host) (roster.HostView, bool) {
	return p.roster.Host(h, p.g.now())
}

// nameOf is an agent's name for people: its address' first part, or "operator",
// or a gid that no roster names.
func (p *presence) nameOf(gid identity.GID, host identity.Host) string {
	if gid == identity.OperatorGID(host) {
		return string(api.Operator)
	}
	a, err := p.roster.Resolve(string(gid), p.g.now())
	if err != nil || a.Name == "" {
		return string(gid)
	}
	return a.Name
}

func (p *presence) view(a roster.Agent) api.Agent {
	v := api.Agent{GID: a.GID, Name: a.Name, Role: api.Role(a.Role), Host: a.Host, Address: a.Address(), State: a.State,
		Groups: a.Groups, Profile: a.Profile, Since: a.Since, Undrained: a.Undrained}
	if !a.UndrainedOldest.IsZero() {
		v.OldestSeconds = max(p.g.now().Sub(a.UndrainedOldest).Seconds(), 0)
	}
	return v
}

// Roster is the union view.
func (g *Gateway) Roster(context.Context) (api.Roster, error) { return g.who.union(), nil }

func (p *presence) union() api.Roster {
	now := p.g.now()
	r := api.Roster{Revision: p.roster.Version(), Hosts: []api.Host{}, Agents: []api.Agent{}}
	for _, h := range p.roster.Hosts(now) {
		r.Hosts = append(r.Hosts, api.Host{Host: h.Host, State: h.State, Since: h.Since, Version: h.Version, Profiles: h.Profiles,
			Agents: h.Agents, HeartbeatSeconds: time.Duration(h.Heard).Seconds(), SkewSeconds: time.Duration(h.Skew).Seconds()})
	}
	for _, a := range p.roster.Agents(now) {
		r.Agents = append(r.Agents, p.view(a))
	}
	return r
}

// WatchRoster emits the union view now and after every change of it.
func (g *Gateway) WatchRoster(ctx context.Context, emit func(api.Roster) error) error {
	last := uint64(0)
	for begun := false; ; begun = true {
		changed := g.who.changed.next()
		if v := g.who.roster.Version(); !begun || v != last {
			last = v
			if err := emit(g.who.union()); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
