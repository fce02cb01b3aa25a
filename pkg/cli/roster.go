package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/identity"
	"fleet/pkg/output"
)

func newRoster(app *App) *cobra.Command {
	var watch, hosts bool
	cmd := &cobra.Command{
		Use:   "roster",
		Short: "Show who is where, in what state",
		Long: `Show the agents of all hosts. The address of a row is what ` + "`fleet send`" + ` takes.
With --watch print the roster now and whatever changes, until interrupted; with
--json one whole roster a line.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runRoster(cmd.Context(), app, watch, hosts) },
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "go on with what changes")
	cmd.Flags().BoolVar(&hosts, "hosts", false, "show the hosts instead of the agents")
	return cmd
}

var agentColumns = []output.Column[api.Agent]{
	{Title: "address", Cell: func(a api.Agent) string { return a.Address }},
	{Title: "role", Cell: func(a api.Agent) string { return string(a.Role) }},
	{Title: "state", Cell: func(a api.Agent) string { return a.State }},
	{Title: "profile", Cell: func(a api.Agent) string { return a.Profile }},
	{Title: "groups", Cell: func(a api.Agent) string { return strings.Join(a.Groups, ",") }},
	{Title: "waiting", Cell: func(a api.Agent) string { return strconv.Itoa(a.Undrained) }},
	{Title: "oldest", Cell: func(a api.Agent) string { return age(a.OldestSeconds, a.Undrained > 0) }},
	{Title: "gid", Cell: func(a api.Agent) string { return string(a.GID) }},
}

var hostColumns = []output.Column[api.Host]{
	{Title: "host", Cell: func(h api.Host) string { return string(h.Host) }},
	{Title: "state", Cell: func(h api.Host) string { return h.State }},
	{Title: "agents", Cell: func(h api.Host) string { return strconv.Itoa(h.Agents) }},
	{Title: "heard", Cell: func(h api.Host) string { return age(h.HeartbeatSeconds, h.State != "here") }},
	{Title: "skew", Cell: func(h api.Host) string { return skew(h) }},
	{Title: "version", Cell: func(h api.Host) string { return h.Version }},
	{Title: "profiles", Cell: func(h api.Host) string { return strings.Join(h.Profiles, ",") }},
}

// skew is how far the host's clock is ahead of ours, where that is worth a look.
func skew(h api.Host) string {
	if h.State == "here" || h.SkewSeconds > -1 && h.SkewSeconds < 1 {
		return ""
	}
	return strconv.FormatFloat(h.SkewSeconds, 'f', 0, 64) + "s"
}

func age(seconds float64, known bool) string {
	if !known {
		return ""
	}
	return output.Age(time.Duration(seconds * float64(time.Second)))
}

func runRoster(ctx context.Context, app *App, watch, hosts bool) error {
	g, err := app.gateway()
	if err != nil {
		return err
	}
	if watch {
		return watchRoster(ctx, app, hosts, g.WatchRoster)
	}
	r, err := g.Roster(ctx)
	if err != nil {
		return err
	}
	p := app.printer()
	switch {
	case app.json:
		return p.JSON(r)
	case hosts:
		return output.Rows(p, "hosts", hostColumns, r.Hosts)
	}
	return output.Rows(p, "agents", agentColumns, r.Agents)
}

// watchRoster prints every row first, then each that is new, other or gone.
func watchRoster(ctx context.Context, app *App, hosts bool, watch func(context.Context, func(api.Roster) error) error) error {
	p := app.printer()
	agents, seenHosts := map[identity.GID]api.Agent{}, map[identity.Host]api.Host{}
	return watch(ctx, func(r api.Roster) error {
		switch {
		case app.json:
			return p.Line(r)
		case hosts:
			return output.Rows(p, "hosts", hostColumns, changedHosts(seenHosts, r.Hosts))
		}
		return output.Rows(p, "agents", agentColumns, changedAgents(agents, r.Agents))
	})
}

// changedAgents returns what differs from seen, and brings seen up to date. Who
// has gone comes once more, with the state gone.
func changedAgents(seen map[identity.GID]api.Agent, now []api.Agent) []api.Agent {
	var changed []api.Agent
	here := map[identity.GID]bool{}
	for _, a := range now {
		here[a.GID] = true
		old, known := seen[a.GID]
		if !known || old.State != a.State || old.Undrained != a.Undrained || old.Address != a.Address {
			changed = append(changed, a)
		}
		seen[a.GID] = a
	}
	for gid, a := range seen {
		if !here[gid] {
			a.State = "gone"
			changed = append(changed, a)
			delete(seen, gid)
		}
	}
	return changed
}

func changedHosts(seen map[identity.Host]api.Host, now []api.Host) []api.Host {
	var changed []api.Host
	here := map[identity.Host]bool{}
	for _, h := range now {
		here[h.Host] = true
		old, known := seen[h.Host]
		if !known || old.State != h.State || old.Agents != h.Agents {
			changed = append(changed, h)
		}
		seen[h.Host] = h
	}
	for host, h := range seen {
		if !here[host] {
			h.State = "gone"
			changed = append(changed, h)
			delete(seen, host)
		}
	}
	return changed
}
