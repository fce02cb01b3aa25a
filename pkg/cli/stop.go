package cli

import (
	"context"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/output"
)

func newStop(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "stop AGENT",
		Short: "End an agent of this host",
		Long: `End an agent of this host: its process, its open turns (their senders get
ABANDONED), its inbox. Ending what is not there is no error.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error { return runStop(cmd.Context(), app, a[0]) },
	}
}

var stopColumns = []output.Column[api.StopResult]{
	{Title: "name", Cell: func(r api.StopResult) string { return r.Name }},
	{Title: "state", Cell: func(r api.StopResult) string {
		if r.Stopped {
			return "stopped"
		}
		return "not there"
	}},
	{Title: "abandoned", Cell: func(r api.StopResult) string { return plural(r.Abandoned, "turn") }},
}

func runStop(ctx context.Context, app *App, agent string) error {
	g, err := app.gateway()
	if err != nil {
		return err
	}
	r, err := g.Stop(ctx, api.StopRequest{Agent: agent})
	if err != nil {
		return err
	}
	if app.json {
		return app.printer().JSON(r)
	}
	if !r.Stopped {
		app.printer().Say("fleet: no agent %s is there; `fleet roster` lists the agents", agent)
	}
	return output.Rows(app.printer(), "stopped", stopColumns, []api.StopResult{r})
}
