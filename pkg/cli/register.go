package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/fault"
	"fleet/pkg/output"
)

type registerOptions struct {
	request api.RegisterRequest
	role    string
	export  bool
}

func newRegister(app *App) *cobra.Command {
	var o registerOptions
	cmd := &cobra.Command{
		Use:   "register NAME [-- COMMAND...]",
		Short: "Make an agent that pulls its messages",
		Long: `Make an agent without a pane of fleet's: a main or an orchestrator that takes
its messages with ` + "`fleet inbox`" + `. The same NAME resumes the same agent.

Who speaks as it holds its token in FLEET_TOKEN: run a COMMAND with it, or print
a line for the shell (--export).`,
		Example: `  fleet register lead -- claude
  eval "$(fleet register lead --export)"`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) > 1 && cmd.ArgsLenAtDash() != 1 {
				return fault.New(fault.Usage, "register takes one name, and a command only after --").WithHint("usage: %s", cmd.UseLine())
			}
			return runRegister(cmd.Context(), app, o, a[0], a[1:])
		},
	}
	cmd.Flags().StringVar(&o.role, "role", string(api.Main), "main or orchestrator")
	cmd.Flags().StringSliceVar(&o.request.Groups, "group", nil, "make it a member of `GROUP`")
	cmd.Flags().BoolVar(&o.export, "export", false, "print a line that sets FLEET_TOKEN in a shell")
	return cmd
}

var registerColumns = []output.Column[api.Agent]{
	{Title: "address", Cell: func(a api.Agent) string { return a.Address }},
	{Title: "role", Cell: func(a api.Agent) string { return string(a.Role) }},
	{Title: "gid", Cell: func(a api.Agent) string { return string(a.GID) }},
}

func runRegister(ctx context.Context, app *App, o registerOptions, name string, command []string) error {
	if o.export && app.json {
		return fault.New(fault.Usage, "--export prints a secret for a shell, and --json never prints one")
	}
	o.request.Name, o.request.Role = name, api.Role(o.role)
	g, err := app.gateway()
	if err != nil {
		return err
	}
	r, err := g.Register(ctx, o.request)
	if err != nil {
		return err
	}
	p := app.printer()
	switch {
	case len(command) > 0:
		return runAs(ctx, app, r.Token, command)
	case o.export:
		return p.Text("export FLEET_TOKEN='" + r.Token + "'")
	case app.json:
		return p.JSON(r.Agent) // never the token
	}
	p.Say("to speak as it: eval \"$(fleet register %s --export)\"", name)
	return output.Rows(p, "agents", registerColumns, []api.Agent{r.Agent})
}

// runAs runs a command that speaks as the agent, and ends as it ends.
func runAs(ctx context.Context, app *App, token string, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "FLEET_TOKEN="+token)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = app.In, app.Out, app.Err
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return status(exit.ExitCode())
	case err != nil:
		return fault.New(fault.Usage, "can't run %s: %v", command[0], err)
	}
	return nil
}

// status is another program's exit status, which becomes ours without a word.
type status int

func (s status) Error() string { return "" }
