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
	mu    sync.Mutex // guards the maps
	byGID map[identity.GID]*agent
	names map[string]identity.GID
	pids  map[int]*agent // by the process that leads a pane's session
}

func newAgents() *agents {
	return &agents{byGID: map[identity.GID]*agent{}, names: map[string]identity.GID{}, pids: map[int]*agent{}}
}

func (x *agents) get(gid identity.GID) *agent {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byGID[gid]
}

// reserve keeps a name for gid. It fails with fault.Refused where the name is
// taken by another.
func (x *agents) reserve(name string, gid identity.GID) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if holder, taken := x.names[name]; taken && holder != gid {
		return fault.New(fault.Refused, "the name %s is taken on this host", name).
			WithHint("it belongs to agent %s; choose another, or `fleet stop %s` first", holder, name)
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

func (x *agents) remove(a *agent) {
	x.mu.Lock()
	defer x.mu.Unlock()
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
		if a.ask(ctx, func() { n += a.turns.Len() }) != nil {
			return n
		}
	}
	return n
}
