package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleet/pkg/broker/login"
	"fleet/pkg/config"
	"fleet/pkg/embedded"
	"fleet/pkg/fault"
	"fleet/pkg/output"
)

func newBroker(app *App) *cobra.Command {
	return group("broker", "Run the AMQP broker that fleet brings along", newBrokerRun(app),
		group("user", "Say who may log in to it", newBrokerUserAdd(app), newBrokerUserList(app), newBrokerUserRemove(app)))
}

// localListen is where `fleet broker run` listens if nobody says where.
const localListen = "127.0.0.1:5672"

// brokerOptions beat what the configuration says.
type brokerOptions struct {
	listen                    []string
	certificate, key, metrics string
	debug                     bool
}

func newBrokerRun(app *App) *cobra.Command {
	var o brokerOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve AMQP 0-9-1 in the foreground",
		Long: `Serve AMQP 0-9-1 in the foreground until SIGINT or SIGTERM, for this machine or a
small trusted fleet. Messages and users are kept in the directory "broker" of the
host's directory, with a unix socket broker.sock; the file "url" holds, while it
runs, a URL with a user and its password that any AMQP client takes. A broker
without users makes the user "fleet". An address that other machines can reach
takes TLS. The section "embedded" of fleet.yaml, which need not be there, sets
addresses and limits.`,
		Example: "  fleet broker run\n  fleet broker run --listen broker.example:5671 --certificate broker.pem --key broker.key",
		Args:    args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runBroker(cmd.Context(), app, o) },
	}
	cmd.Flags().StringArrayVar(&o.listen, "listen", nil, "`HOST:PORT` to listen on, port 0 for a free one; may be repeated (default "+localListen+")")
	cmd.Flags().StringVar(&o.certificate, "certificate", "", "PEM `FILE` with the certificate for TLS")
	cmd.Flags().StringVar(&o.key, "key", "", "PEM `FILE` with its key, mode 0600")
	cmd.Flags().StringVar(&o.metrics, "metrics", "", "loopback `HOST:PORT` of the metrics for Prometheus")
	cmd.Flags().BoolVar(&o.debug, "debug", false, "log more")
	return cmd
}

// settings is the configuration with the flags over it.
func (o brokerOptions) settings(app *App) (config.Config, error) {
	dir, err := app.directory()
	if err != nil {
		return config.Config{}, err
	}
	if _, err := config.MakeDir(dir); err != nil {
		return config.Config{}, err
	}
	c, err := app.config()
	if err != nil {
		return config.Config{}, err
	}
	e := &c.Embedded
	for _, address := range o.listen {
		if err := config.CheckAddress(address); err != nil {
			return config.Config{}, err
		}
	}
	if len(o.listen) > 0 {
		e.Listen = o.listen
	}
	if len(e.Listen) == 0 {
		e.Listen = []string{localListen}
	}
	for flag, value := range map[*string]*string{&o.certificate: &e.Certificate, &o.key: &e.Key} {
		if *flag == "" {
			continue
		}
		if *value, err = filepath.Abs(*flag); err != nil {
			return config.Config{}, fmt.Errorf("make %s absolute: %w", *flag, err)
		}
	}
	if o.metrics != "" {
		e.Metrics = o.metrics
	}
	return c, nil
}

// brokerReady is what --json prints once the broker serves.
type brokerReady struct {
	Event   string   `json:"event"` // ready
	Listen  []string `json:"listen"`
	Socket  string   `json:"socket"`
	URLFile string   `json:"url_file,omitempty"` // it holds the URL with the password
	Metrics string   `json:"metrics,omitempty"`
}

func runBroker(ctx context.Context, app *App, o brokerOptions) error {
	c, err := o.settings(app)
	if err != nil {
		return err
	}
	b, err := embedded.Listen(ctx, embedded.Options{Dir: c.Paths().Broker(), Settings: c.Embedded, Command: "fleet broker run",
		Version: version, Log: app.log(o.debug)})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if err := b.Run(ctx, func() {
		if err := sayReady(app, b); err != nil {
			end(err) // who started it waits for this line and is gone
		}
	}); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// sayReady tells people, and under --json programs, where the broker is.
func sayReady(app *App, b *embedded.Broker) error {
	p := app.printer()
	p.Say("listening on %s", b.Socket())
	for i, address := range b.Addresses() {
		switch {
		case i > 0:
			p.Say("listening on %s", address)
		case b.URLFile() == "":
			p.Say("listening on %s; `fleet broker user list` lists who may log in", address)
		default:
			p.Say("listening on %s; URL with the password in %s", address, b.URLFile())
		}
	}
	if b.Metrics() != "" {
		p.Say("metrics on http://%s/metrics", b.Metrics())
	}
	if !app.json {
		return nil
	}
	return p.Line(brokerReady{Event: "ready", Listen: b.Addresses(), Socket: b.Socket(), URLFile: b.URLFile(), Metrics: b.Metrics()})
}

// brokerUsers are those of this host's broker, which need not run.
func (a *App) brokerUsers() (*login.Users, error) {
	dir, err := a.directory()
	if err != nil {
		return nil, err
	}
	if _, err := config.MakeDir(dir); err != nil {
		return nil, err
	}
	return embedded.OpenUsers(config.PathsOf(dir).Broker(), nil)
}

func newBrokerUserAdd(app *App) *cobra.Command {
	var password textOptions
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Let a user log in, or change the password",
		Long: `Let a user log in to this host's broker, or change the password of one who may.
Without a file the password is a random one, which is printed, once. A broker that
runs knows at once; connections that stand are not ended.`,
		Example: "  fleet broker user add beta >password\n  fleet broker user add beta --password-file password",
		Args:    args(cobra.ExactArgs(1)),
		RunE:    func(_ *cobra.Command, a []string) error { return runBrokerUserAdd(app, a[0], password) },
	}
	cmd.Flags().StringVar(&password.file, "password-file", "", "read the password from `FILE` (- is stdin)")
	return cmd
}

// userRow is a user as it is printed.
type userRow struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since"`
}

var userColumns = []output.Column[userRow]{
	{Title: "user", Cell: func(r userRow) string { return r.Name }},
	{Title: "since", Cell: func(r userRow) string { return r.Since.Format(time.RFC3339) }},
}

func runBrokerUserAdd(app *App, name string, file textOptions) error {
	if file.file == "" && app.json {
		return fault.New(fault.Usage, "--json shows no password").WithHint("give one with --password-file FILE; - is stdin")
	}
	users, err := app.brokerUsers()
	if err != nil {
		return err
	}
	var fresh bool
	password := ""
	if file.file == "" {
		password = login.Random()
		fresh, err = users.AddRandom(name, password)
	} else {
		var text string
		if text, err = file.read(app, "", false); err != nil {
			return err
		}
		fresh, err = users.Add(name, strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r"))
	}
	if err != nil {
		return err
	}
	p := app.printer()
	if fresh {
		p.Say("%s may log in", name)
	} else {
		p.Say("%s has a new password", name)
	}
	if password != "" {
		return p.Text(password)
	}
	return printUsers(app, users, name)
}

func newBrokerUserList(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List who may log in, and since when with this password",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			users, err := app.brokerUsers()
			if err != nil {
				return err
			}
			return printUsers(app, users, "")
		},
	}
}

// printUsers prints one user, or all.
func printUsers(app *App, users *login.Users, name string) error {
	list, err := users.List()
	if err != nil {
		return err
	}
	var rows []userRow
	for _, u := range list {
		if name == "" || u.Name == name {
			rows = append(rows, userRow(u))
		}
	}
	return output.Rows(app.printer(), "users", userColumns, rows)
}

func newBrokerUserRemove(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Let a user log in no more",
		Long:  "Let a user log in no more. A broker that runs knows at once; connections that stand are not ended.",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, a []string) error {
			users, err := app.brokerUsers()
			if err != nil {
				return err
			}
			gone, err := users.Remove(a[0])
			if err != nil {
				return err
			}
			p := app.printer()
			p.Say("%s may log in no more", gone.Name)
			return output.Rows(p, "users", userColumns, []userRow{userRow(gone)})
		},
	}
}
