package gateway

import (
	"fleet/pkg/api"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
)

// deepest bounds the walk from a process to its ancestors.
const deepest = 64

// Identify says whom a process speaks for: the agent in whose pane it runs, else
// the agent whose token it holds, else the operator (R15).
func (g *Gateway) Identify(pid int, token string) (localapi.Caller, error) {
	if a := g.inPane(pid); a != nil {
		return localapi.Caller{GID: a.gid, Name: a.name, Role: a.role, PID: pid}, nil
	}
	if token == "" {
		return localapi.Caller{GID: identity.OperatorGID(g.cfg.Host), Name: string(api.Operator), Role: api.Operator, PID: pid}, nil
	}
	gid, err := g.tokens.Check(token)
	if err != nil {
		return localapi.Caller{}, err
	}
	a := g.agents.get(gid)
	if a == nil {
		return localapi.Caller{}, fault.New(fault.NotFound, "the agent of this token has ended").
			WithHint("unset FLEET_TOKEN to speak as the operator, or register the agent again")
	}
	return localapi.Caller{GID: a.gid, Name: a.name, Role: a.role, PID: pid}, nil
}

// inPane finds the agent whose program is an ancestor of pid or leads its
// session; the session finds also what was put into the background and has lost
// its parent.
func (g *Gateway) inPane(pid int) *agent {
	for range deepest {
		if pid <= 1 {
			return nil
		}
		if a := g.agents.withPID(pid); a != nil {
			return a
		}
		parent, session, err := kin(pid)
		if err != nil {
			return nil
		}
		if a := g.agents.withPID(session); a != nil {
			return a
		}
		pid = parent
	}
	return nil
}
