// Package demo is `fleet demo`: from nothing to a brief that host alpha sends to
// a worker on host beta, and its reply, in one temporary directory of which
// nothing is left.
//
// It owns that directory and the processes in it. What it shows is done by the
// commands that everybody has, which it runs as one would type them; it knows no
// broker, no queue and no message, and prints nothing.
//
// # Two processes
//
// The one in the foreground (Run) tells a person what happens. The player (Play)
// makes it happen, in a session of its own, so that a terminal's signals do not
// reach it. The player's input ends when the foreground process does, however
// that ends, and the player clears the directory then. If the player itself is
// killed, the foreground process clears it. Each process holds a lock on a file
// that names it, so that whoever comes finds what still runs, and nothing else.
// Only who kills both with SIGKILL leaves something, which Stop removes.
package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
	"unicode/utf8"

	"fleet/pkg/fault"
)

// Options are what a demo gets from the command that runs it. The first three are
// each process's own.
type Options struct {
	Program string   `json:"-"` // this program's path
	Environ []string `json:"-"` // of which FLEET_ variables are not passed on
	Temp    string   `json:"-"` // where directories for a while are made

	Brief string        `json:"brief"` // what alpha sends
	Work  time.Duration `json:"work"`  // how long the worker takes
	Keep  bool          `json:"keep"`  // leave it running
}

// Bounds of a demo, beside what its worker takes.
const (
	playBound  = time.Minute
	clearBound = 45 * time.Second
)

// mostBrief keeps a brief so short that it is typed as it is, in bytes.
const mostBrief = 1000

func (o Options) check() error {
	switch {
	case o.Brief == "" || o.Brief[0] == '-' || len(o.Brief) > mostBrief || !utf8.ValidString(o.Brief):
		return fault.New(fault.Usage, "the demo's brief is a text of 1 to %d bytes that does not start with -", mostBrief)
	case o.Work < 0 || o.Work > time.Hour:
		return fault.New(fault.Usage, "the demo's worker works for a time between 0s and 1h")
	}
	return nil
}

// Run plays a demo and calls tell with what happens, also once a second while
// nothing does. When it returns, no process and no file of the demo is left,
// unless it was to be kept. It fails with what failed in the demo: fault.AgentFailed
// where the worker died, fault.Interrupted where ctx ended.
func Run(ctx context.Context, o Options, tell func(Event)) (Result, error) {
	if err := o.check(); err != nil {
		return Result{}, err
	}
	s, err := newStage(o.Temp)
	if err != nil {
		return Result{}, err
	}
	r := runner{stage: s, options: o, tell: tell, began: time.Now()}
	err = r.run(ctx)
	if r.result.Kept == nil {
		err = errors.Join(err, s.remove()) // nothing to do where the player has done it
	}
	r.result.Seconds = time.Since(r.began).Seconds()
	return r.result, err
}

// runner is the foreground's view of a demo.
type runner struct {
	stage   stage
	options Options
	tell    func(Event)
	began   time.Time
	result  Result
	ended   *End
}

// run starts the player and relays what it says until it has ended.
func (r *runner) run(ctx context.Context) error {
	player, in, out, err := r.start()
	if err != nil {
		return err
	}
	defer in.Close()
	events := make(chan Event)
	go func() { // ends with the player, which holds the other end
		defer close(events)
		defer out.Close()
		lines := bufio.NewReader(out)
		for {
			var e Event
			line, err := lines.ReadBytes('\n')
			if err != nil || json.Unmarshal(line, &e) != nil {
				return
			}
			events <- e
		}
	}()
	r.relay(ctx, events, in, player)
	return r.end(ctx, player)
}

// start starts the player with the options on its input.
func (r *runner) start() (player *exec.Cmd, in io.WriteCloser, out *os.File, err error) {
	out, events, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make the player's pipe: %w", err)
	}
	defer events.Close()
	player = exec.Command(r.options.Program, "demo-play", r.stage.dir)
	player.Env = r.options.Environ
	player.ExtraFiles = []*os.File{events} // EventsFD
	player.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if in, err = player.StdinPipe(); err == nil {
		err = r.stage.start(playerName, player)
	}
	if err != nil {
		out.Close()
		return nil, nil, nil, fmt.Errorf("start the player: %w", err)
	}
	_ = json.NewEncoder(in).Encode(r.options) // a player that can't read them ends, which relay sees
	return player, in, out, nil
}

// relay tells what the player says until that is all. When ctx ends it ends the
// player's input; a player that does not end of that in time is killed.
func (r *runner) relay(ctx context.Context, events <-chan Event, in io.Closer, player *exec.Cmd) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	overdue := time.NewTimer(playBound + r.options.Work + clearBound + 10*time.Second)
	defer overdue.Stop()
	interrupted := ctx.Done()
	last := time.Now()
	for {
		select {
		case e, more := <-events:
			if !more {
				return
			}
			last = time.Now()
			if e.End != nil {
				r.ended = e.End
				continue
			}
			r.result.add(e)
			r.tell(e)
		case now := <-tick.C:
			r.tell(Event{Waiting: now.Sub(last)})
		case <-interrupted:
			interrupted = nil
			r.tell(Event{Fact: "interrupted: everything is being removed"})
			in.Close()
			overdue.Reset(clearBound + 10*time.Second)
		case <-overdue.C:
			// It may just have ended.
			_ = player.Process.Kill()
		}
	}
}

// end is what became of the demo, once the player has nothing more to say.
func (r *runner) end(ctx context.Context, player *exec.Cmd) error {
	if r.result.Kept != nil {
		if ctx.Err() == nil {
			return nil // the player stays
		}
		r.result.Kept = nil
		return fault.New(fault.Interrupted, "interrupted")
	}
	err := player.Wait()
	switch {
	case r.ended == nil:
		return r.stage.withLog(fault.New(fault.Failed, "the process that ran the demo ended (%s)", status(err)), playerName)
	case r.ended.Fault != nil:
		return r.ended.Fault
	}
	return nil
}

// Stop ends a demo that was kept, or what is left of one, and removes it. It blocks
// until that is done, and fails with fault.Usage where dir is no demo's.
func Stop(dir string) error {
	s, err := openStage(dir)
	if err != nil {
		return err
	}
	return s.remove()
}

// status is how a process ended, in words.
func status(err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "exit status 0"
	case errors.As(err, &exit):
		return exit.String()
	}
	return err.Error()
}
