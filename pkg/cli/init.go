package cli

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fleet/pkg/config"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

type initOptions struct{ host, broker, brokerFile string }

func newInit(app *App) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make this host's directory, configuration and key",
		Long: `Make this host's directory with fleet.yaml and an Ed25519 key where they are
missing. What stands is kept. Prints the line that the other hosts need. Without
a broker the gateway runs one itself: a single host needs nothing else.`,
		Example: "  fleet init --host alpha --broker-file url.txt   # amqps://alpha:PASSWORD@broker.example/fleet",
		Args:    args(cobra.NoArgs),
		RunE:    func(*cobra.Command, []string) error { return runInit(app, o) },
	}
	cmd.Flags().StringVar(&o.host, "host", "", "the host's `NAME`, one DNS label (default: this machine's)")
	cmd.Flags().StringVar(&o.broker, "broker", "", "the broker's `URL`, or embedded: in the gateway itself, or none: this host only (default embedded)")
	cmd.Flags().StringVar(&o.brokerFile, "broker-file", "", "read the broker's URL from `FILE` (- is stdin), for one with a password")
	cmd.MarkFlagsMutuallyExclusive("broker", "broker-file")
	return cmd
}

// initResult is what --json prints.
type initResult struct {
	Host    identity.Host `json:"host"`
	Dir     string        `json:"dir"`
	Created []string      `json:"created"`
	Key     string        `json:"key"`
}

// url is the broker's URL. One with a password comes from a file: what stands on a
// command line can be read by everybody on the machine, and stays in the shell's
// history. The broker's own default login is no secret.
func (o initOptions) url(app *App) (string, error) {
	if o.brokerFile != "" {
		text := textOptions{file: o.brokerFile}
		s, err := text.read(app, "", false)
		return strings.TrimSpace(s), err
	}
	if u, err := url.Parse(o.broker); err == nil && u.User != nil {
		if password, set := u.User.Password(); set && password != "guest" {
			return "", fault.New(fault.Usage, "a password does not belong on a command line").
				WithHint("fleet init --broker-file FILE reads the URL from a file; - is stdin")
		}
	}
	return cmp.Or(o.broker, config.EmbeddedURL), nil
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
	broker, err := o.url(app)
	if err != nil {
		return err
	}
	dir, err := app.directory()
	if err != nil {
		return err
	}
	created, err := config.Init(dir, host, broker)
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
	if c.Broker.Embedded() && slices.Contains(created, c.File) {
		p.Say("the gateway runs the broker itself; for a RabbitMQ or LavinMQ cluster set broker.url in %s", c.File)
	}
	p.Say("on each other host:")
	return p.Text("fleet peer add " + string(c.Host) + " " + signer.Public().String())
}
