package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fleet/pkg/fault"
)

func newRoot(app *App) *cobra.Command {
	root := &cobra.Command{
		Use:   "fleet",
		Short: "Let agents on several machines send each other work",
		Long: `fleet lets coding agents and scripts on several machines delegate work to each
other, ask, answer and reply, as if they sat on one machine. Each machine runs
one gateway; the gateways meet at an AMQP broker.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(app.Out)
	root.SetErr(app.Err)
	root.PersistentFlags().StringVar(&app.dir, "dir", "", "the host's `DIRECTORY` (default $FLEET_DIR, else ~/.fleet)")
	root.PersistentFlags().BoolVar(&app.json, "json", false, "print one JSON document, or one a line for streams")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fault.New(fault.Usage, "%s: %s", cmd.CommandPath(), err).WithHint("`%s --help` lists the flags", cmd.CommandPath())
	})
	root.AddCommand(
		newInit(app), newKey(app), newPeer(app), newGateway(app), newBroker(app), newRegister(app), newSpawn(app), newStop(app),
		newSend(app), newReply(app), newInbox(app), newRoster(app), newDemo(app), newVersion(app), newHold(app), newDemoPlay(app), newDemoWorker(app),
	)
	root.InitDefaultCompletionCmd()
	return root
}

// group is a command that only holds others.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: noSuchCommand, RunE: func(cmd *cobra.Command, _ []string) error {
		return fault.New(fault.Usage, "%s needs a command", cmd.CommandPath()).WithHint("`%s --help` lists them", cmd.CommandPath())
	}}
	cmd.AddCommand(children...)
	return cmd
}

// noSuchCommand checks the arguments of a command that only holds others: what
// reaches it names none of them.
func noSuchCommand(cmd *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	f := fault.New(fault.Usage, "unknown command %q", cmd.CommandPath()+" "+a[0])
	cmd.SuggestionsMinimumDistance = 2 // letters
	if near := cmd.SuggestionsFor(a[0]); len(near) > 0 {
		return f.WithHint("did you mean %s %s?", cmd.CommandPath(), near[0])
	}
	return f.WithHint("`%s --help` lists the commands", cmd.CommandPath())
}

// Leaves lists every command that does something, as it is typed, for the check
// that each is run by a script.
func Leaves() []string {
	var leaves []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.HasSubCommands() {
			for _, child := range c.Commands() {
				walk(child)
			}
			return
		}
		if !c.Hidden && c.Name() != "help" {
			leaves = append(leaves, strings.TrimSpace(c.CommandPath()))
		}
	}
	walk(newRoot(&App{}))
	return leaves
}

// plural is "1 message" or "2 messages".
func plural(n int, what string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
