// Package cli is the command line: one file a command, each of three parts
// (options, parse, run), where the run part is one call and one print.
//
// It decides the exit status in one place (Main) and prints through output. What
// a command means is the gateway's business; it knows only how to ask and how to
// show.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"fleet/pkg/client"
	"fleet/pkg/config"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/output"
)

// App is what the commands share: the streams, and what the flags of the root
// say.
type App struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer

	dir  string // --dir
	json bool   // --json
}

// Main runs the command line of this process and returns its exit status.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	app := &App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	root := newRoot(app)
	root.SetArgs(os.Args[1:])
	_, err := root.ExecuteContextC(ctx)
	return app.end(ctx, err)
}

// end reports an error and decides the exit status.
func (a *App) end(ctx context.Context, err error) int {
	var other status
	var quiet reported
	switch {
	case err == nil:
		return 0
	case errors.As(err, &other):
		return max(int(other), 1)
	case errors.As(err, &quiet):
		return fault.Exit(quiet.error)
	}
	err = explain(ctx, err)
	a.printer().Fail(err)
	return fault.Exit(err)
}

// reported is an error that has been printed already.
type reported struct{ error }

// Unwrap is the error itself.
func (r reported) Unwrap() error { return r.error }

// explain turns the errors of the flag parser and of signals into faults.
func explain(ctx context.Context, err error) error {
	var f *fault.Fault
	switch {
	case errors.As(err, &f):
		return err
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return fault.New(fault.Interrupted, "interrupted")
	case errors.Is(err, syscall.EPIPE):
		return fault.New(fault.Failed, "the reader of the output has gone")
	case isUsage(err):
		return fault.New(fault.Usage, "%s", strings.TrimSpace(err.Error()))
	}
	return err
}

// usageError marks what is wrong with the command line itself.
type usageError struct{ error }

func isUsage(err error) bool {
	var u usageError
	// cobra has no type for an unknown command.
	return errors.As(err, &u) || strings.HasPrefix(err.Error(), "unknown command") ||
		strings.HasPrefix(err.Error(), "required flag") || strings.Contains(err.Error(), "none of the others can be")
}

// args makes a cobra argument check whose failure is a usage error that shows
// how the command is used.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, list []string) error {
		if err := check(cmd, list); err != nil {
			return fault.New(fault.Usage, "%s: %s", cmd.CommandPath(), strings.TrimSpace(err.Error())).
				WithHint("usage: %s", cmd.UseLine())
		}
		return nil
	}
}

func (a *App) printer() *output.Printer {
	format := output.Auto
	if a.json {
		format = output.JSON
	}
	return output.New(a.Out, a.Err, format, os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb")
}

func (a *App) config() (config.Config, error) { return config.Load(config.Override{Dir: a.dir}) }

// directory is the host's directory, which need not exist yet.
func (a *App) directory() (string, error) {
	if a.dir != "" {
		return a.dir, nil
	}
	return config.DefaultDir()
}

// gateway is the client of this host's gateway.
func (a *App) gateway() (*client.Client, error) {
	dir, err := a.directory()
	if err != nil {
		return nil, err
	}
	return client.New(config.PathsOf(dir).Socket(), os.Getenv("FLEET_TOKEN")), nil
}

// textOptions are the ways to give a text: an argument, "-" for stdin, or a file.
type textOptions struct{ file string }

func (o *textOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.file, "file", "", "read the text from `FILE` (- is stdin)")
}

// read returns the text byte for byte, less nothing. It fails with fault.Usage
// for what is not UTF-8.
func (o *textOptions) read(app *App, arg string, given bool) (string, error) {
	var b []byte
	var err error
	switch {
	case given && o.file != "":
		return "", fault.New(fault.Usage, "the text is given twice, as an argument and as a file")
	case given && arg != "-":
		b = []byte(arg)
	case given || o.file == "-":
		b, err = io.ReadAll(app.In)
	case o.file != "":
		b, err = os.ReadFile(o.file)
	default:
		return "", fault.New(fault.Usage, "there is no text to send").WithHint("give it as an argument, as - for stdin, or with --file FILE")
	}
	if err != nil {
		return "", fault.New(fault.Usage, "can't read the text: %v", err)
	}
	if !utf8.Valid(b) {
		return "", fault.New(fault.Usage, "the text is not valid UTF-8").WithHint("send a file's path rather than its bytes")
	}
	return string(b), nil
}

// quotedText takes from least to most arguments, the last of which is a text that
// a shell must not have split.
func quotedText(least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, list []string) error {
		if len(list) > most {
			return fmt.Errorf("%d arguments are more than %d: quote the text", len(list), most)
		}
		return cobra.MinimumNArgs(least)(nil, list)
	}
}

// parseKey reads a public key argument.
func parseKey(s string) (identity.PublicKey, error) { return identity.ParsePublicKey(s) }
