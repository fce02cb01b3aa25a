package gateway

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
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
	"fleet/pkg/roster"
	"fleet/pkg/topology"
	"fleet/pkg/trace"
)

// The tags that a worker's pane carries, from which a restarted gateway makes the
// agent again (R16).
const (
	tagName    = "name"
	tagProfile = "profile"
	tagGroups  = "groups"
)

// newAgent makes an agent that does not run yet.
func (g *Gateway) newAgent(gid identity.GID, name string, role api.Role, groups []string) *agent {
	a := &agent{g: g, gid: gid, name: name, role: role, groups: groups, since: g.now(),
		in: newQueue[func()](), ended: make(chan struct{}), leases: map[envelope.ID]*lease{},
		parked: map[identity.GID][]arrival{}, proving: map[envelope.ID]context.CancelFunc{}}
	a.ctx, a.cancel = context.WithCancel(g.ctx)
	return a
}

// begin lets a running agent take messages: locally at once, from the broker as
// soon as its inbox stands.
func (g *Gateway) begin(a *agent) {
	g.agents.add(a)
	g.running.Go(a.run)
	a.post(a.announce)
	g.attach(a)
	if a.pane != nil {
		g.running.Go(a.watchPane)
	}
}

// attach consumes the agent's inbox and takes its live messages.
func (g *Gateway) attach(a *agent) {
	if g.bus == nil {
		return
	}
	g.bus.BindLive(topology.LiveKey(a.gid))
	g.bus.Attach(a.queueName(), func(d topology.Dialect) topology.Queue {
		return g.layout.Inbox(d, a.gid, a.role.Pulls(), a.groups)
	}, g.room(), a.receiveInbox)
}

func (a *agent) queueName() string {
	return a.g.layout.Inbox(topology.Dialect{}, a.gid, false, nil).Name
}

// spool is where the agent's long texts lie.
func (a *agent) spool() string { return filepath.Join(a.g.cfg.Paths().Spool(), string(a.gid)) }

// Spawn starts a worker on this host. A second request with the same gid gets
// the same answer; what a failed one began is undone.
func (g *Gateway) Spawn(ctx context.Context, _ localapi.Caller, r api.SpawnRequest) (api.SpawnResult, error) {
	rules, err := g.checkSpawn(r)
	if err != nil {
		return api.SpawnResult{}, err
	}
	if err := g.agents.once(ctx, "spawn "+string(r.GID), func() error {
		if g.agents.get(r.GID) != nil {
			return nil
		}
		return g.spawn(ctx, r, rules)
	}); err != nil {
		return api.SpawnResult{}, err
	}
	a := g.agents.get(r.GID)
	if a == nil {
		return api.SpawnResult{}, fault.New(fault.AgentFailed, "agent %s ended at once", r.Name)
	}
	return g.spawned(ctx, a)
}

// spawn makes the agent and its pane, or leaves nothing.
func (g *Gateway) spawn(ctx context.Context, r api.SpawnRequest, rules config.Profile) (err error) {
	if err := g.agents.reserve(r.Name, r.GID); err != nil {
		return err
	}
	a := g.newAgent(r.GID, r.Name, api.Worker, mergeGroups(rules.Groups, r.Groups))
	a.profile, a.rules = r.Profile, rules
	if a.pane, err = g.startPane(ctx, a, r); err != nil {
		a.cancel()
		g.agents.release(r.Name, r.GID)
		return err
	}
	info, err := a.pane.Info(ctx)
	if err != nil {
		g.log.Warn("a new pane does not answer", "agent", a.name, "err", err)
	}
	a.pid = info.PID
	g.begin(a)
	g.audit.Write(trace.Line{Step: trace.Spawned, To: string(a.gid), Detail: "profile " + r.Profile})
	g.log.Info("spawned", "agent", a.name, "gid", a.gid, "profile", r.Profile)
	g.awaitInbox(ctx, a)
	return nil
}

func (g *Gateway) checkSpawn(r api.SpawnRequest) (config.Profile, error) {
	if gid, err := identity.ParseGID(string(r.GID)); err != nil || gid != r.GID {
		return config.Profile{}, fault.New(fault.Usage, "the request names no agent id")
	}
	if err := checkNames(r.Name, r.Groups); err != nil {
		return config.Profile{}, err
	}
	if r.Name == string(api.Operator) {
		return config.Profile{}, fault.New(fault.Refused, "the name operator is the host's own")
	}
	rules, ok := g.cfg.Profiles[r.Profile]
	if ok {
		return rules, nil
	}
	names := make([]string, 0, len(g.cfg.Profiles))
	for name := range g.cfg.Profiles {
		names = append(names, name)
	}
	sort.Strings(names)
	f := fault.New(fault.NotFound, "this host has no profile %q", r.Profile)
	if len(names) == 0 {
		return rules, f.WithHint("profiles are defined in fleet.yaml, which the gateway reads when it starts")
	}
	return rules, f.WithHint("it has %s; the gateway reads fleet.yaml when it starts", strings.Join(names, ", "))
}

// startPane starts the program and waits until it is ready.
func (g *Gateway) startPane(ctx context.Context, a *agent, r api.SpawnRequest) (pane.Pane, error) {
	env, err := g.environment(a)
	if err != nil {
		return nil, err
	}
	dir := a.rules.Dir
	if r.Dir != "" {
		dir = r.Dir
	}
	if dir == "" {
		dir = "/"
		if home, err := os.UserHomeDir(); err == nil {
			dir = home
		}
	}
	p, err := g.panes.Spawn(ctx, pane.Spec{GID: a.gid, Name: a.name, Argv: a.rules.Command, Dir: dir, Env: env,
		Tags: map[string]string{tagName: a.name, tagProfile: r.Profile, tagGroups: strings.Join(a.groups, ",")}})
	if err != nil {
		return nil, err
	}
	if err := awaitReady(ctx, p, a.rules.Ready); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if closeErr := p.Close(undo); closeErr != nil {
			g.log.Error("can't close a pane that did not become ready", "agent", a.name, "err", closeErr)
		}
		return nil, err
	}
	return p, nil
}

// awaitReady waits until the program has been quiet for long enough (R40). It
// fails with AgentFailed where the program ends, and with TimedOut.
func awaitReady(ctx context.Context, p pane.Pane, ready config.Ready) error {
	ctx, cancel := context.WithTimeout(ctx, ready.Timeout)
	defer cancel()
	died := make(chan pane.Exit, 1)
	go func() { // ends with the program or ctx
		if exit, err := p.Wait(ctx); err == nil {
			died <- exit
		}
	}()
	for {
		t, err := p.Terminal(ctx)
		if err == nil && t.Quiet >= ready.Quiet {
			return nil
		}
		pause := ready.Quiet
		if err == nil {
			pause = max(ready.Quiet-t.Quiet, 5*time.Millisecond)
		}
		select {
		case exit := <-died:
			return notReady(p, fault.New(fault.AgentFailed, "the program ended at once (exit status %d)", exit.Code))
		case <-ctx.Done():
			return notReady(p, fault.New(fault.TimedOut, "the program did not become quiet within %s", ready.Timeout).
				WithHint("the profile's ready.timeout and ready.quiet set the bounds"))
		case <-time.After(pause):
		}
	}
}

// notReady adds the last lines of the screen.
func notReady(p pane.Pane, f *fault.Fault) *fault.Fault {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	screen, err := p.Screen(ctx, screenLines)
	if err != nil {
		return f
	}
	for line := range strings.Lines(screen) {
		f = f.WithAlso(clean(strings.TrimSuffix(line, "\n")))
	}
	return f
}

// checkNames refuses an agent that the roster would not take.
func checkNames(name string, groups []string) error {
	for _, s := range append([]string{name}, groups...) {
		if err := identity.CheckName(s); err != nil {
			return err
		}
		if s == "all" {
			return fault.New(fault.Usage, "all is the group of everybody, and no name")
		}
	}
	if len(groups) > roster.MostGroups {
		return fault.New(fault.Usage, "%d groups are more than the %d that an agent may have", len(groups), roster.MostGroups)
	}
	return nil
}

// base are the variables of the gateway's own environment that every program
// needs; all else comes from the profile.
var base = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM"}

// environment is what an agent's program gets.
func (g *Gateway) environment(a *agent) ([]string, error) {
	extra, err := a.rules.Environ()
	if err != nil {
		return nil, err
	}
	vars := map[string]string{}
	for _, kv := range g.environ {
		if k, v, ok := strings.Cut(kv, "="); ok && slices.Contains(base, k) {
			vars[k] = v
		}
	}
	for _, kv := range extra {
		if k, v, ok := strings.Cut(kv, "="); ok {
			vars[k] = v
		}
	}
	// The agent answers with `fleet reply`, so it must find the program.
	vars["PATH"] = strings.TrimSuffix(filepath.Dir(g.program)+":"+vars["PATH"], ":")
	vars["FLEET_DIR"] = g.cfg.Dir
	vars["FLEET_TOKEN"] = g.tokens.For(a.gid)
	list := make([]string, 0, len(vars))
	for k, v := range vars {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list, nil
}

func mergeGroups(a, b []string) []string {
	all := append(append([]string(nil), a...), b...)
	sort.Strings(all)
	return slices.Compact(all)
}

// awaitInbox waits a moment for the inbox to stand on the broker, so that a host
// which hears of the agent can reach it. Without the broker it waits for nothing.
func (g *Gateway) awaitInbox(ctx context.Context, a *agent) {
	if g.bus == nil || g.bus.State().Link != bus.Up {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := g.bus.Served(ctx, a.queueName()); err != nil {
		g.log.Warn("an inbox does not stand yet", "agent", a.name, "err", err)
	}
}

func (g *Gateway) spawned(ctx context.Context, a *agent) (api.SpawnResult, error) {
	view, err := asked(ctx, a, a.view)
	if err != nil {
		return api.SpawnResult{}, err
	}
	r := api.SpawnResult{Agent: view}
	r.Agent.Address = a.name + "@" + string(g.cfg.Host)
	if a.pane == nil {
		return r, fault.New(fault.Conflict, "agent %s stands already and has no pane", a.gid)
	}
	r.PID = a.pid
	return r, nil
}

// Register makes an agent without a pane of ours, or resumes the one that has
// the name.
func (g *Gateway) Register(ctx context.Context, _ localapi.Caller, r api.RegisterRequest) (api.RegisterResult, error) {
	if r.Role == "" {
		r.Role = api.Main
	}
	if err := checkNames(r.Name, r.Groups); err != nil {
		return api.RegisterResult{}, err
	}
	if r.Role != api.Main && r.Role != api.Orchestrator || r.Name == string(api.Operator) {
		return api.RegisterResult{}, fault.New(fault.Usage, "a registered agent is a main or an orchestrator").
			WithHint("workers are started with `fleet spawn`")
	}
	if err := g.agents.once(ctx, "register "+r.Name, func() error {
		if g.agents.named(r.Name) != nil {
			return nil
		}
		return g.register(ctx, r)
	}); err != nil {
		return api.RegisterResult{}, err
	}
	a := g.agents.named(r.Name)
	if a == nil {
		return api.RegisterResult{}, fault.New(fault.NotFound, "agent %s has just been stopped", r.Name)
	}
	if a.role != r.Role {
		return api.RegisterResult{}, fault.New(fault.Refused, "%s is registered as %s", r.Name, a.role).
			WithHint("`fleet stop %s` ends it", r.Name)
	}
	view, err := asked(ctx, a, a.view)
	if err != nil {
		return api.RegisterResult{}, err
	}
	view.Address = a.name + "@" + string(g.cfg.Host)
	return api.RegisterResult{Agent: view, Token: g.tokens.For(a.gid)}, nil
}

// register makes an agent without a pane, durably.
func (g *Gateway) register(ctx context.Context, r api.RegisterRequest) error {
	reg := registration{GID: identity.NewGID(), Name: r.Name, Role: r.Role, Groups: mergeGroups(nil, r.Groups), Since: g.now()}
	if err := g.agents.reserve(reg.Name, reg.GID); err != nil {
		return err
	}
	if err := g.store.Write(ctx, func(tx *mailbox.Tx) error {
		return mailbox.Set(tx, agentsTable, string(reg.GID), reg)
	}); err != nil {
		g.agents.release(reg.Name, reg.GID)
		return err
	}
	a := g.newAgent(reg.GID, reg.Name, reg.Role, reg.Groups)
	g.begin(a)
	g.awaitInbox(ctx, a)
	return nil
}
