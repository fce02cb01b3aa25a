package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fleet/pkg/demo"
	"fleet/pkg/fault"
	"fleet/pkg/output"
	"fleet/pkg/trace"
)

func newDemo(app *App) *cobra.Command {
	o := demo.Options{Brief: "hello from alpha"}
	var stop string
	cmd := &cobra.Command{
		Use:   "demo [BRIEF]",
		Short: "See two hosts, a broker and a worker at work on this machine",
		Long: `Play a whole fleet on this machine: a broker, the hosts alpha and beta, a
scripted worker on beta to which alpha sends BRIEF, and its reply, which is what
stdout gets; stderr tells each step and the commands that it takes. Everything
is in a temporary directory, and is removed at the end, however it ends.

Kill the worker in the middle to see what the sender learns (status 8).`,
		Example: `  fleet demo
  fleet demo --keep 'a brief of my own'`,
		Args: args(quotedText(0, 1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if stop != "" {
				return runDemoStop(app, stop, len(a) > 0 || o.Keep)
			}
			if len(a) > 0 {
				o.Brief = a[0]
			}
			return runDemo(cmd.Context(), app, o)
		},
	}
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave it running, and print how to talk to it")
	cmd.Flags().StringVar(&stop, "stop", "", "end the demo that was kept in `DIRECTORY`, and remove it")
	cmd.Flags().DurationVar(&o.Work, "work", 2*time.Second, "how long the worker works on a brief")
	return cmd
}

func runDemo(ctx context.Context, app *App, o demo.Options) error {
	if err := ofThisProcess(&o); err != nil {
		return err
	}
	ctx, end := untilHangup(ctx)
	defer end()
	story := newStory(app)
	result, err := demo.Run(ctx, o, story.tell)
	if err != nil {
		return err
	}
	if app.json {
		return story.answer.JSON(result)
	}
	return story.failed
}

// ofThisProcess fills in what no flag says.
func ofThisProcess(o *demo.Options) error {
	program, err := os.Executable()
	if err != nil {
		return fault.New(fault.Failed, "can't tell where this program is: %v", err)
	}
	o.Program, o.Environ, o.Temp = program, os.Environ(), os.TempDir()
	return nil
}

func runDemoStop(app *App, dir string, more bool) error {
	if more {
		return fault.New(fault.Usage, "--stop goes with nothing else")
	}
	dir = filepath.Clean(dir)
	if err := demo.Stop(dir); err != nil {
		return err
	}
	if app.json {
		return app.printer().JSON(map[string]string{"stopped": dir})
	}
	app.printer().Say("%s is removed", dir)
	return nil
}

// untilHangup ends ctx also where the terminal goes.
func untilHangup(ctx context.Context) (context.Context, func()) {
	if signal.Ignored(syscall.SIGHUP) { // nohup
		return ctx, func() {}
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// story tells a demo to a person, on stderr. The reply alone goes to stdout. Under
// --json nothing is told.
type story struct {
	answer  *output.Printer
	people  *output.Printer // stderr, with what a table needs to know of it
	begun   bool
	waiting bool  // a line of dots is open
	failed  error // the reply can't be printed
}

func newStory(app *App) *story {
	aside := *app
	aside.Out, aside.json = app.Err, false
	s := &story{answer: app.printer(), people: aside.printer()}
	return s
}

// traceColumns show steps by the time since the first.
func traceColumns(first time.Time) []output.Column[trace.Line] {
	return []output.Column[trace.Line]{
		{Title: "when", Cell: func(l trace.Line) string { return l.At.Sub(first).Round(time.Millisecond).String() }},
		{Title: "host", Cell: func(l trace.Line) string { return string(l.Host) }},
		{Title: "step", Cell: func(l trace.Line) string { return string(l.Step) }},
		{Title: "kind", Cell: func(l trace.Line) string { return string(l.Kind) }},
	}
}

func (s *story) tell(e demo.Event) {
	if s.answer.Format == output.JSON {
		return
	}
	if s.wait(e.Waiting) {
		return
	}
	p := s.people
	switch {
	case e.Step != "":
		gap := "\n"
		if !s.begun {
			gap = ""
		}
		s.begun = true
		p.Say("%s-- %s", gap, e.Step)
	case e.Command != nil:
		p.Say("%s$ %s", e.Command.Host, e.Command.Line)
	case e.Fact != "":
		p.Say("   %s", strings.ReplaceAll(e.Fact, "\n", "\n   "))
	case e.Reply != nil:
		s.failed = errors.Join(s.failed, s.answer.Text(*e.Reply))
	case e.Roster != nil:
		// Who can't be told need not be.
		_ = output.Rows(p, "agents", agentColumns, e.Roster.Agents)
	case len(e.Trace) > 0:
		_ = output.Rows(p, "trace", traceColumns(e.Trace[0].At), e.Trace)
	case e.Kept != nil:
		s.kept(e.Kept)
	}
}

// wait shows on a terminal that it goes on: a dot a second. It says whether that is
// all there is to tell.
func (s *story) wait(d time.Duration) bool {
	if d == 0 {
		if s.waiting {
			s.waiting = false
			_, _ = s.people.Out.Write([]byte("\n"))
		}
		return false
	}
	if s.people.Terminal {
		dot := "."
		if !s.waiting {
			dot = "   ."
		}
		s.waiting = true
		_, _ = s.people.Out.Write([]byte(dot))
	}
	return true
}

func (s *story) kept(k *demo.Kept) {
	p := s.people
	p.Say("\n-- it stays. You are alpha's operator with")
	p.Say("export FLEET_DIR=%s PATH=%s:$PATH", k.Alpha, k.Dir)
	p.Say("fleet send worker@beta --wait 'a brief of my own'")
	p.Say("   and beta's with FLEET_DIR=%s. This ends and removes it all:", k.Beta)
	p.Say("fleet demo --stop %s", k.Dir)
}

// newDemoPlay and newDemoWorker are the demo's own processes.
func newDemoPlay(app *App) *cobra.Command {
	return &cobra.Command{
		Use:    "demo-play DIRECTORY",
		Short:  "Play a demo (started by fleet demo)",
		Hidden: true,
		Args:   args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			ctx, end := untilHangup(cmd.Context())
			defer end()
			var o demo.Options
			if err := ofThisProcess(&o); err != nil {
				return err
			}
			return demo.Play(ctx, o, a[0], app.In, os.NewFile(demo.EventsFD, "events"))
		},
	}
}

func newDemoWorker(app *App) *cobra.Command {
	var work time.Duration
	cmd := &cobra.Command{
		Use:    "demo-worker",
		Short:  "Work as a demo's worker (started by beta's gateway)",
		Hidden: true,
		Args:   args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			program, err := os.Executable()
			if err != nil {
				return err
			}
			return demo.Work(cmd.Context(), program, work, app.In, app.Out)
		},
	}
	cmd.Flags().DurationVar(&work, "work", 0, "how long it works on a brief")
	return cmd
}
