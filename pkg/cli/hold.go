package cli

import (
	"os"

	"github.com/spf13/cobra"

	"fleet/pkg/pane/pty"
)

// newHold is the holder process of a pty agent. The gateway starts it; nobody
// else does.
func newHold(app *App) *cobra.Command {
	return &cobra.Command{
		Use:    "pty-hold",
		Short:  "Hold an agent's terminal (started by the gateway)",
		Hidden: true,
		Args:   args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return pty.Hold(cmd.Context(), app.In, os.NewFile(pty.ReadyFD, "ready"))
		},
	}
}
