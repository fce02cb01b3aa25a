package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/fault"
	"fleet/pkg/gateway"
	"fleet/pkg/output"
)

func newGateway(app *App) *cobra.Command {
	return group("gateway", "Run this host's gateway", newGatewayRun(app), newGatewayStatus(app), newGatewayWait(app))
}

func newGatewayRun(app *App) *cobra.Command {
	var debug bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve this host in the foreground",
		Long: `Serve this host in the foreground until SIGINT or SIGTERM. Agents outlive it
and are adopted by the next one. Where broker.url is "embedded" it runs the
broker too. Logs go to stderr, as text on a terminal and as JSON lines
elsewhere.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runGateway(cmd.Context(), app, debug) },
	}
	cmd.Flags().BoolVar(&debug, "debug", false, "log more")
	return cmd
}

func runGateway(ctx context.Context, app *App, debug bool) error {
	c, err := app.config()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fault.New(fault.Failed, "can't tell where this program is: %v", err)
	}
	return gateway.Run(ctx, gateway.Options{Config: c, Version: version, Program: program, Environ: os.Environ(),
		Log: app.log(debug)}, func() {})
}

// log is the log of a command that stays: on stderr, as text on a terminal and as
// JSON lines elsewhere.
func (a *App) log(debug bool) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if debug {
		o.Level = slog.LevelDebug
	}
	if output.New(a.Err, a.Err, output.Auto, true).Terminal {
		return slog.New(slog.NewTextHandler(a.Err, o))
	}
	return slog.New(slog.NewJSONHandler(a.Err, o))
}

func newGatewayStatus(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how the gateway is",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return runGatewayStatus(cmd.Context(), app) },
	}
}

func runGatewayStatus(ctx context.Context, app *App) error {
	g, err := app.gateway()
	if err != nil {
		return err
	}
	s, err := g.Status(ctx)
	if err != nil {
		return err
	}
	return showStatus(app, s)
}

var statusColumns = []output.Column[api.Status]{
	{Title: "host", Cell: func(s api.Status) string { return string(s.Host) }},
	{Title: "broker", Cell: func(s api.Status) string {
		if s.Broker.Embedded {
			return s.Broker.State + " (embedded)"
		}
		return s.Broker.State
	}},
	{Title: "agents", Cell: func(s api.Status) string { return plural(s.Agents, "agent") }},
	{Title: "peers", Cell: func(s api.Status) string { return plural(s.Peers, "peer") }},
	{Title: "turns", Cell: func(s api.Status) string { return plural(s.OpenTurns, "open turn") }},
	{Title: "stored", Cell: func(s api.Status) string { return plural(s.Outcomes, "stored outcome") }},
	{Title: "reason", Cell: func(s api.Status) string { return s.Broker.Reason }},
}

func showStatus(app *App, s api.Status) error {
	p := app.printer()
	if app.json {
		return p.JSON(s)
	}
	return output.Rows(p, "status", statusColumns, []api.Status{s})
}

func newGatewayWait(app *App) *cobra.Command {
	var r api.WaitRequest
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the gateway is ready",
		Long: `Wait until the gateway answers, and with flags until the broker, a peer or an
agent is there too. For scripts and CI. Ends with 6 if that is not so in time.`,
		Example: "  fleet gateway wait --broker --peer beta --timeout 30s",
		Args:    args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runGatewayWait(cmd.Context(), app, r, timeout) },
	}
	cmd.Flags().BoolVar(&r.Broker, "broker", false, "until the broker is there, and this host's queues on it")
	cmd.Flags().StringVar(&r.Peer, "peer", "", "until `HOST` is there")
	cmd.Flags().StringVar(&r.Agent, "agent", "", "until `AGENT` is there")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "give up after this")
	return cmd
}

// knock is the pause between two looks for a gateway that is only starting.
const knock = 20 * time.Millisecond

func runGatewayWait(ctx context.Context, app *App, r api.WaitRequest, timeout time.Duration) error {
	g, err := app.gateway()
	if err != nil {
		return err
	}
	until := time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(ctx, until.Add(time.Second)) // a gateway that is stopped answers nothing
	defer cancel()
	for {
		r.Within = max(time.Until(until), time.Millisecond).Seconds()
		s, err := g.Await(ctx, r)
		if err == nil {
			return showStatus(app, s)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return fault.New(fault.TimedOut, "the gateway does not answer").WithHint("is its process stopped?")
		}
		if fault.From(err).Kind != fault.NoGateway {
			return err
		}
		if time.Now().After(until) {
			return fault.New(fault.TimedOut, "%s", fault.From(err).Message).WithHint("%s", fault.From(err).Hint)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(knock):
		}
	}
}
