package cli

import (
	"github.com/spf13/cobra"

	"fleet/pkg/config"
	"fleet/pkg/identity"
)

type initOptions struct{ host, broker string }

func newInit(app *App) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make this host's directory, configuration and key",
		Long: `Make this host's directory with fleet.yaml and an Ed25519 key where they are
missing. What stands is kept. Prints the line that the other hosts need.`,
		Example: "  fleet init --host alpha --broker amqps://alpha:PASSWORD@broker.example/fleet",
		Args:    args(cobra.NoArgs),
		RunE:    func(*cobra.Command, []string) error { return runInit(app, o) },
	}
	cmd.Flags().StringVar(&o.host, "host", "", "the host's `NAME`, one DNS label (default: this machine's)")
	cmd.Flags().StringVar(&o.broker, "broker", "", "the broker's `URL`; without one only agents of this host can be reached")
	return cmd
}

// initResult is what --json prints.
type initResult struct {
	Host    identity.Host `json:"host"`
	Dir     string        `json:"dir"`
	Created []string      `json:"created"`
	Key     string        `json:"key"`
}

func runInit(app *App, o initOptions) error {
	var host identity.Host
	if o.host != "" {
		parsed, err := identity.ParseHost(o.host)
		if err != nil {
			return err
		}
		host = parsed
	}
	dir, err := app.directory()
	if err != nil {
		return err
	}
	created, err := config.Init(dir, host, o.broker)
	if err != nil {
		return err
	}
	c, err := config.Load(config.Override{Dir: dir})
	if err != nil {
		return err
	}
	signer, err := identity.LoadSigner(c.Dir)
	if err != nil {
		return err
	}
	p := app.printer()
	if app.json {
		if created == nil {
			created = []string{}
		}
		return p.JSON(initResult{Host: c.Host, Dir: c.Dir, Created: created, Key: signer.Public().String()})
	}
	for _, path := range created {
		p.Say("made %s", path)
	}
	if len(created) == 0 {
		p.Say("%s stands already", c.Dir)
	}
	p.Say("on each other host:")
	return p.Text("fleet peer add " + string(c.Host) + " " + signer.Public().String())
}
