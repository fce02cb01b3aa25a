package cli

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/identity"
	"fleet/pkg/output"
)

func newSpawn(app *App) *cobra.Command {
	var r api.SpawnRequest
	cmd := &cobra.Command{
		Use:     "spawn NAME",
		Short:   "Start a worker on this host",
		Long:    "Start a worker on this host from a profile in fleet.yaml, and return once it is ready.",
		Example: "  fleet spawn worker --profile claude",
		Args:    args(cobra.ExactArgs(1)),
		RunE:    func(cmd *cobra.Command, a []string) error { return runSpawn(cmd.Context(), app, r, a[0]) },
	}
	cmd.Flags().StringVar(&r.Profile, "profile", "", "the `PROFILE` in fleet.yaml")
	cmd.Flags().StringVar(&r.Dir, "cwd", "", "start it in this `DIRECTORY` rather than the profile's")
	cmd.Flags().StringSliceVar(&r.Groups, "group", nil, "make it a member of `GROUP` too")
	_ = cmd.MarkFlagRequired("profile") // the flag exists
	return cmd
}

var spawnColumns = []output.Column[api.SpawnResult]{
	{Title: "address", Cell: func(r api.SpawnResult) string { return r.Agent.Address }},
	{Title: "gid", Cell: func(r api.SpawnResult) string { return string(r.Agent.GID) }},
	{Title: "pid", Cell: func(r api.SpawnResult) string { return strconv.Itoa(r.PID) }},
}

func runSpawn(ctx context.Context, app *App, r api.SpawnRequest, name string) error {
	r.Name, r.GID = name, identity.NewGID()
	if r.Dir != "" {
		dir, err := filepath.Abs(r.Dir)
		if err != nil {
			return err
		}
		r.Dir = dir
	}
	g, err := app.gateway()
	if err != nil {
		return err
	}
	result, err := g.Spawn(ctx, r)
	if err != nil {
		return err
	}
	if app.json {
		return app.printer().JSON(result)
	}
	return output.Rows(app.printer(), "agents", spawnColumns, []api.SpawnResult{result})
}
