package gateway

import (
	"context"
	"sort"
	"sync"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// agents are the addressables of this host. A name is reserved before its agent
// exists, so that two spawns of one name can't both begin.
type agents struct {
	mu      sync.Mutex // guards the maps
	byGID   map[identity.GID]*agent
	names   map[string]identity.GID
	pids    map[int]*agent        // by the process that leads a pane's session
	ending  map[identity.GID]bool // no longer in byGID, but not wholly gone
	flights map[string]*flight    // what is being made, by what must not be made twice
}

// flight is the making of an agent. Whoever asks for the same meanwhile waits for
// its end.
type flight struct {
	done chan struct{}
	err  error // read after done, like left
	left bool  // its caller went away
}

func newAgents() *agents {
	return &agents{byGID: map[identity.GID]*agent{}, names: map[string]identity.GID{}, pids: map[int]*agent{},
		ending: map[identity.GID]bool{}, flights: map[string]*flight{}}
}

func (x *agents) get(gid identity.GID) *agent {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byGID[gid]
}

// once runs begin unless somebody runs one under the same key: then it waits for
// that one and returns its answer. Where that one only failed because its caller
// went away, it runs its own.
func (x *agents) once(ctx context.Context, key string, begin func() error) error {
	for {
		x.mu.Lock()
		f := x.flights[key]
		if f == nil {
			f = &flight{done: make(chan struct{})}
			x.flights[key] = f
			x.mu.Unlock()
			f.err = begin()
			f.left = ctx.Err() != nil
			x.mu.Lock()
			delete(x.flights, key)
			x.mu.Unlock()
			close(f.done)
			return f.err
		}
		x.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.err == nil || !f.left {
			return f.err
		}
	}
}

// reserve keeps a name for gid. It fails with fault.Refused where the name is
// taken by another, and with fault.Conflict while an agent of the same gid ends.
func (x *agents) reserve(name string, gid identity.GID) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if holder, taken := x.names[name]; taken && holder != gid {
		return fault.New(fault.Refused, "the name %s is taken on this host", name).
			WithHint("it belongs to agent %s; choose another, or `fleet stop %s` first", holder, name)
	}
	if x.ending[gid] {
		return fault.New(fault.Conflict, "agent %s is being stopped", gid)
	}
	x.names[name] = gid
	return nil
}

// release gives a reserved name back.
func (x *agents) release(name string, gid identity.GID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.names[name] == gid {
		delete(x.names, name)
	}
}

func (x *agents) add(a *agent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byGID[a.gid] = a
	x.names[a.name] = a.gid
	if a.pid > 0 {
		x.pids[a.pid] = a
	}
}

func (x *agents) withPID(pid int) *agent {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.pids[pid]
}

// remove takes a out. Its gid stays taken until forget.
func (x *agents) remove(a *agent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ending[a.gid] = true
	if x.byGID[a.gid] == a {
		delete(x.byGID, a.gid)
	}
	if x.names[a.name] == a.gid {
		delete(x.names, a.name)
	}
	if x.pids[a.pid] == a {
		delete(x.pids, a.pid)
	}
}

// forget frees the gid of an agent of which nothing is left.
func (x *agents) forget(gid identity.GID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.ending, gid)
}

// all lists the agents in the order of their ids.
func (x *agents) all() []*agent {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make([]*agent, 0, len(x.byGID))
	for _, a := range x.byGID {
		list = append(list, a)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].gid < list[j].gid })
	return list
}

func (x *agents) named(name string) *agent {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byGID[x.names[name]]
}

// local finds an agent of this host by name, name@host, gid or unique prefix.
func (g *Gateway) local(address string) (*agent, error) {
	if a := g.agents.named(address); a != nil {
		return a, nil
	}
	found, err := g.who.resolve(address)
	if err != nil {
		return nil, err
	}
	if found.Host != g.cfg.Host {
		return nil, fault.New(fault.Refused, "%s lives on %s", address, found.Host).
			WithHint("this command works on agents of this host")
	}
	if a := g.agents.get(found.GID); a != nil {
		return a, nil
	}
	return nil, fault.New(fault.NotFound, "no agent %s on this host", address).WithHint("`fleet roster` lists the agents")
}

// openTurns counts over all agents.
func (g *Gateway) openTurns(ctx context.Context) int {
	n := 0
	for _, a := range g.agents.all() {
		open, err := asked(ctx, a, a.turns.Len)
		if err != nil && ctx.Err() != nil {
			return n
		}
		n += open // 0 of one that has just ended
	}
	return n
}

// asked is ask for a question with an answer: where ctx ends first, f still runs,
// and must then write nothing that its caller reads.
func asked[T any](ctx context.Context, a *agent, f func() T) (T, error) {
	got := make(chan T, 1)
	if err := a.ask(ctx, func() { got <- f() }); err != nil {
		var none T
		return none, err
	}
	return <-got, nil
}

// announce brings the agent's row in the roster up to date, unless it was taken
// out.
func (a *agent) announce() {
	if !a.gone {
		a.g.who.update(a.view())
	}
}
