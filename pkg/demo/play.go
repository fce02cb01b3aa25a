package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
)

// EventsFD is the descriptor on which a player tells what happens.
const EventsFD = lockFD + 1

// player plays one demo.
type player struct {
	stage
	options Options
	program string
	out     *json.Encoder
	kept    atomic.Bool // the input's end says nothing any more
	ending  atomic.Bool // so does a process's

	key  map[string]string // of each host, which the other needs
	sent sent
}

// Play is the main function of the player in a demo's directory: it reads the rest
// of o from in, one line, plays the demo, tells on events (EventsFD, which it closes)
// what happens, and removes everything once in or ctx ends or the play is over. The
// process is expected to have nothing else to do.
func Play(ctx context.Context, o Options, dir string, in io.Reader, events io.WriteCloser) error {
	unix.CloseOnExec(lockFD)
	unix.CloseOnExec(EventsFD)
	defer events.Close()
	s, err := openStage(dir)
	if err != nil {
		return err
	}
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("read what to play: %w", err), s.clear())
	}
	p := &player{stage: s, options: o, program: o.Program, out: json.NewEncoder(events), key: map[string]string{}}

	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, lines) // only its end counts
		if !p.kept.Load() {
			end(fault.New(fault.Interrupted, "interrupted"))
		}
	}()
	f := fault.From(p.play(ctx, end))
	if f == nil && p.options.Keep {
		p.keep(ctx, events)
	}
	p.ending.Store(true)
	if f == nil {
		p.tell(Event{Step: "stop the worker, the gateways and the broker, and remove the directory"})
	}
	if err := p.clear(); err != nil && f == nil {
		f = fault.From(err)
	} else if err != nil {
		f = f.WithAlso(fault.From(err).Message).WithAlso(fault.From(err).Also...)
	}
	p.tell(Event{End: &End{Fault: f}})
	return nil
}

// tell never fails: a reader that has gone ends the player's input too.
func (p *player) tell(e Event) { _ = p.out.Encode(e) }

func (p *player) fact(format string, a ...any) { p.tell(Event{Fact: fmt.Sprintf(format, a...)}) }

// stepBound is how long one step may take, besides the worker's work.
const stepBound = 30 * time.Second

// play takes the steps. What fails is a fault that names the step and shows the
// end of the log concerned.
func (p *player) play(ctx context.Context, end context.CancelCauseFunc) error {
	ctx, cancel := context.WithTimeoutCause(ctx, playBound+p.options.Work,
		fault.New(fault.TimedOut, "the demo did not come to its end within %s", playBound+p.options.Work))
	defer cancel()
	for _, step := range p.steps(end) {
		p.tell(Event{Step: step.text})
		bound := stepBound + p.options.Work
		ctx, cancel := context.WithTimeoutCause(ctx, bound, fault.New(fault.TimedOut, "that took longer than %s", bound))
		err := step.take(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel()
		if err != nil {
			return p.explain(step, err)
		}
	}
	return nil
}

// explain says which step failed, and why. What fails because the worker has died
// is that.
func (p *player) explain(step step, err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.New(fault.Interrupted, "interrupted")
	}
	f := *fault.From(err)
	if f.Kind == fault.Interrupted {
		return &f
	}
	if died, how := p.workerDied(); died {
		also := f.Also
		if f.Kind != fault.AgentFailed {
			also = append([]string{f.Message}, also...)
		}
		return fault.New(fault.AgentFailed, "the worker on beta ended before it had answered (%s)", how).WithAlso(also...).
			WithHint("whoever waits for a reply is told like this, by status 8")
	}
	what, _, _ := strings.Cut(step.text, ",")
	f.Message = "can't " + what + ": " + f.Message
	shown := &f
	for _, name := range step.logs {
		shown = p.withLog(shown, name)
	}
	return shown
}

// keep leaves everything running, and tells how to reach it, until ctx ends.
func (p *player) keep(ctx context.Context, events io.Closer) {
	p.kept.Store(true)
	p.tell(Event{Kept: &Kept{Dir: p.dir, Program: p.program, Alpha: p.host(alpha), Beta: p.host(beta)}})
	events.Close()
	<-ctx.Done()
}

// environ is what a command gets on a host: the person's own environment, in which
// nothing else speaks to fleet.
func (p *player) environ(host string) []string {
	var list []string
	for _, kv := range p.options.Environ {
		if !strings.HasPrefix(kv, "FLEET_") {
			list = append(list, kv)
		}
	}
	return append(list, "FLEET_DIR="+p.host(host))
}

// typed tells a command as one would type it.
func (p *player) typed(host string, args ...string) {
	p.tell(Event{Command: &Command{Host: host, Line: commandLine(args)}})
}

// fleet tells a command and runs it.
func (p *player) fleet(ctx context.Context, host string, answer any, args ...string) error {
	p.typed(host, args...)
	return p.ask(ctx, host, answer, args...)
}

// ask runs a command on a host. Where answer is not nil it gets what the command
// prints under --json. A command that fails is its fault.
func (p *player) ask(ctx context.Context, host string, answer any, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, p.program, append([]string{"--json"}, args...)...)
	cmd.Env = p.environ(host)
	cmd.Stdout = &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = grace
	if err := p.start(commandName, cmd); err != nil {
		return err
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		var failure struct {
			Error *fault.Fault `json:"error"`
		}
		if json.Unmarshal(out.Bytes(), &failure) == nil && failure.Error != nil {
			return failure.Error
		}
		return p.withLog(fault.New(fault.Failed, "it ended with %s", status(err)), commandName)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(out.Bytes(), answer); err != nil {
		return fmt.Errorf("read what fleet %s printed: %w", args[0], err)
	}
	return nil
}

// run starts a process that stays. Its end ends the play: what it is has ended, with
// kind.
func (p *player) run(end context.CancelCauseFunc, name, host, what string, kind fault.Kind, args ...string) error {
	p.tell(Event{Command: &Command{Host: host, Line: commandLine(args) + " &"}})
	cmd := exec.Command(p.program, args...)
	cmd.Env = p.environ(host)
	if err := p.start(name, cmd); err != nil {
		return err
	}
	go func() { // ends with the process, which clear ends
		err := cmd.Wait()
		if !p.ending.Load() {
			end(fault.New(kind, "%s ended (%s)", what, status(err)))
		}
	}()
	return nil
}

// copyProgram gives a demo that is kept a program that stays: `go run` removes its
// own.
func (p *player) copyProgram() error {
	path := filepath.Join(p.dir, "fleet")
	if os.Link(p.program, path) == nil {
		p.program = path
		return nil
	}
	from, err := os.Open(p.program)
	if err != nil {
		return fmt.Errorf("copy the program: %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return fmt.Errorf("copy the program: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("copy the program: %w", err)
	}
	p.program = path
	return nil
}

// plain is a word that a shell takes as it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// commandLine is a command as one would type it.
func commandLine(args []string) string {
	words := []string{"fleet"}
	for _, a := range args {
		if !plain.MatchString(a) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
