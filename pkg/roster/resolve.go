package roster

import (
	"fmt"
	"strings"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// leastPrefix is the number of hexadecimal digits that a gid may be cut to.
const leastPrefix = 4

// mostCandidates bounds the list of what an ambiguous address may mean.
const mostCandidates = 20

// Resolve finds the agent that address names: a gid, the beginning of one (at
// least 4 hexadecimal digits), a name, or name@host; operator@host also where
// the host's operator is not announced. An agent of an unknown host is found
// too. It fails with fault.NotFound, with fault.Ambiguous, which lists the
// candidates in Also, and with fault.Usage for what is no address.
func (r *Roster) Resolve(address string, now time.Time) (Agent, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	name, host, qualified := strings.Cut(address, "@")
	if qualified {
		return r.resolveAt(name, host, now)
	}
	if gid, err := identity.ParseGID(address); err == nil {
		return r.resolveGID(gid, now)
	}
	prefix, isPrefix := gidPrefix(address)
	if identity.CheckName(address) != nil && !isPrefix {
		return Agent{}, fault.New(fault.Usage, "%s is not an agent's address", printable(address)).
			WithHint("an address is a name, name@host, an agent id, or its first digits (at least %d)", leastPrefix)
	}
	var found []Agent
	for _, rec := range r.records {
		if gid, ok := rec.names[address]; ok {
			found = append(found, r.viewAgent(rec, rec.agents[gid], now))
		}
		if !isPrefix {
			continue
		}
		for gid, e := range rec.agents {
			if strings.HasPrefix(string(gid), prefix) && e.Name != address {
				found = append(found, r.viewAgent(rec, e, now))
			}
		}
	}
	return pick(address, found)
}

// gidPrefix is s as the beginning of a gid's text form, if it can be one.
func gidPrefix(s string) (string, bool) {
	s = strings.ToLower(s)
	if len(s) >= 36 || len(strings.ReplaceAll(s, "-", "")) < leastPrefix {
		return "", false
	}
	for i, c := range []byte(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && !strings.ContainsRune("0123456789abcdef", rune(c)) {
			return "", false
		}
	}
	return s, true
}

// pick is the one agent in found.
func pick(address string, found []Agent) (Agent, error) {
	switch len(found) {
	case 0:
		return Agent{}, fault.New(fault.NotFound, "no agent %s on any host", address).
			WithHint("`fleet roster` lists the agents")
	case 1:
		return found[0], nil
	}
	sortAgents(found)
	lines := make([]string, 0, mostCandidates+1)
	for i, a := range found {
		if i == mostCandidates {
			lines = append(lines, fmt.Sprintf("and %d more", len(found)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s  %s  %s  %s", a.Address(), a.GID, a.Role, a.State))
	}
	return Agent{}, fault.New(fault.Ambiguous, "%s fits %d agents", address, len(found)).
		WithHint("name one of them in full").WithAlso(lines...)
}

func (r *Roster) resolveGID(gid identity.GID, now time.Time) (Agent, error) {
	o, ok := r.owners[keyOf(gid)]
	if !ok {
		return pick(string(gid), nil)
	}
	if e := o.rec.agents[gid]; e != nil {
		return r.viewAgent(o.rec, e, now), nil
	}
	if gid == o.rec.operator && o.rec.known {
		return r.operator(o.rec, now), nil
	}
	return Agent{}, fault.New(fault.NotFound, "agent %s is gone from host %s", gid, o.rec.host).
		WithHint("`fleet roster` lists the agents")
}

func (r *Roster) resolveAt(name, host string, now time.Time) (Agent, error) {
	h, err := identity.ParseHost(host)
	if err != nil {
		return Agent{}, err
	}
	if err := identity.CheckName(name); err != nil {
		return Agent{}, err
	}
	rec := r.records[h]
	if rec == nil || !rec.known {
		return Agent{}, fault.New(fault.NotFound, "no host %s in the roster", h).
			WithHint("`fleet roster` lists the hosts, and `fleet gateway wait --peer %s` waits for it", h)
	}
	if gid, ok := rec.names[name]; ok {
		return r.viewAgent(rec, rec.agents[gid], now), nil
	}
	if name == Operator {
		return r.operator(rec, now), nil
	}
	return Agent{}, fault.New(fault.NotFound, "no agent %s on host %s", name, h).
		WithHint("`fleet roster` lists the agents")
}

// operator is the operator of a host that does not announce it.
func (r *Roster) operator(rec *record, now time.Time) Agent {
	a := Agent{GID: rec.operator, Name: Operator, Role: Operator, Host: rec.host, State: Idle, Since: rec.shownAt}
	return r.viewAgent(rec, &entry{Agent: a}, now)
}

// printable shows what a person typed on one line, cut to a readable length.
func printable(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
