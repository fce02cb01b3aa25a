package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/api"
	"fleet/pkg/client"
	"fleet/pkg/config"
	"fleet/pkg/fault"
	"fleet/pkg/pane/pty"
)

// The processes of a demo. Each has NAME.pid, which it holds locked as long as it
// runs, and NAME.log. The gateways are named after their hosts.
const (
	playerName  = "player"
	brokerName  = "broker"
	alpha       = "alpha"
	beta        = "beta"
	commandName = "command" // one at a time
)

// workerName is the agent's name on beta.
const workerName = "worker"

// prefix starts the name of every demo's directory.
const prefix = "fleet-demo-"

// stage is the directory of a demo.
type stage struct{ dir string }

// newStage makes a directory, below temp if paths there are short enough for unix
// sockets and can be pasted into a shell.
func newStage(temp string) (stage, error) {
	const mostTemp = 103 - len("/"+prefix+"4294967295/alpha/panes/") - len("00000000-0000-0000-0000-000000000000.sock")
	if len(temp) > mostTemp || !filepath.IsAbs(temp) || !plain.MatchString(temp) {
		temp = "/tmp"
	}
	dir, err := os.MkdirTemp(temp, prefix)
	if err != nil {
		return stage{}, fault.New(fault.Failed, "can't make a directory for the demo: %v", err).
			WithHint("TMPDIR names another place; its path must be short")
	}
	return stage{dir}, nil
}

// openStage finds a demo's directory.
func openStage(dir string) (stage, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return stage{}, fmt.Errorf("make %s absolute: %w", dir, err)
	}
	s := stage{dir}
	_, err = os.Lstat(s.pidFile(playerName))
	if err != nil || !strings.HasPrefix(filepath.Base(dir), prefix) {
		return stage{}, fault.New(fault.Usage, "%s is not the directory of a demo", dir).
			WithHint("`fleet demo --keep` prints which it is")
	}
	// What lies in it says which processes are ended, so nobody else may write there.
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || int(st.Uid) != os.Getuid() || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o077 != 0 {
		return stage{}, fault.New(fault.Refused, "%s is not a directory of yours alone", dir).
			WithHint("it is not touched; a demo's directory belongs to who started it, with mode 0700")
	}
	return s, nil
}

// host is a host's FLEET_DIR.
func (s stage) host(name string) string { return filepath.Join(s.dir, name) }

func (s stage) pidFile(name string) string { return filepath.Join(s.dir, name+".pid") }
func (s stage) log(name string) string     { return filepath.Join(s.dir, name+".log") }

// lockFD is the descriptor that holds a process's lock in it; what else cmd passes
// on comes after.
const lockFD = 3

// start starts a process. Its output goes to its log, unless cmd says otherwise.
func (s stage) start(name string, cmd *exec.Cmd) error {
	lock, err := os.OpenFile(s.pidFile(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("make the file of process %s: %w", name, err)
	}
	defer lock.Close() // the process goes on holding the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock the file of process %s: %w", name, err)
	}
	log, err := os.OpenFile(s.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make the log of process %s: %w", name, err)
	}
	defer log.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	cmd.Stderr = log
	cmd.Dir = s.dir
	cmd.ExtraFiles = append([]*os.File{lock}, cmd.ExtraFiles...)
	if err := cmd.Start(); err != nil {
		return fault.New(fault.Failed, "can't start %s: %v", cmd.Path, err)
	}
	if _, err := fmt.Fprintf(lock, "%d\n", cmd.Process.Pid); err != nil {
		return fmt.Errorf("write the file of process %s: %w", name, errors.Join(err, cmd.Process.Kill(), cmd.Wait()))
	}
	return nil
}

// running says whether a process runs, and which it is; 0: that is not written yet.
func (s stage) running(name string) (pid int, yes bool) {
	f, err := os.Open(s.pidFile(name))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0, false
	}
	text := make([]byte, 16)
	n, _ := f.Read(text) // nothing yet: 0
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid, true
}

// knock is the pause between two looks at what only files tell.
const knock = 10 * time.Millisecond

// grace is how long a process may take to end in order.
const grace = 5 * time.Second

// end ends a process: SIGTERM, and after patience SIGKILL. It blocks until the
// process is gone, and fails where it does not go.
func (s stage) end(ctx context.Context, name string, patience time.Duration) error {
	signal, since := unix.Signal(0), time.Now()
	for ; ; time.Sleep(knock) {
		pid, yes := s.running(name)
		waited := time.Since(since)
		switch {
		case !yes:
			return nil
		case ctx.Err() != nil || waited > patience+grace:
			return fmt.Errorf("process %d (%s) does not end", pid, name)
		case pid <= 1:
		case signal == 0:
			signal = unix.SIGTERM
			_ = unix.Kill(pid, signal)       // it may have ended just now
			_ = unix.Kill(pid, unix.SIGCONT) // one that is stopped ends too
		case waited > patience:
			_ = unix.Kill(pid, unix.SIGKILL) // likewise
		}
	}
}

// remove ends the player, which clears the stage, and clears it where the player has
// not.
func (s stage) remove() error {
	if err := s.end(context.Background(), playerName, clearBound); err != nil {
		return fault.New(fault.Failed, "can't end the demo in %s: %v", s.dir, err)
	}
	return s.clear()
}

// clear ends every process but the player, and removes the directory. Done twice it
// does nothing.
func (s stage) clear() error {
	if _, err := os.Lstat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearBound)
	defer cancel()
	errs := []error{s.end(ctx, commandName, grace)}
	s.stopWorker(ctx)
	errs = append(errs, s.end(ctx, beta, grace), s.end(ctx, alpha, grace))
	for _, host := range []string{alpha, beta} {
		errs = append(errs, s.closePanes(ctx, host))
	}
	errs = append(errs, s.end(ctx, brokerName, grace))
	if err := errors.Join(errs...); err != nil {
		return fault.New(fault.Failed, "the demo in %s can't be removed", s.dir).
			WithAlso(strings.Split(err.Error(), "\n")...).WithHint("`fleet demo --stop %s` tries again", s.dir)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return fault.New(fault.Failed, "can't remove %s: %v", s.dir, err)
	}
	return nil
}

// stopWorker lets beta's gateway stop its worker, if there are such. What it does
// not do, closePanes does.
func (s stage) stopWorker(ctx context.Context) {
	if _, yes := s.running(beta); !yes {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_, _ = client.New(config.PathsOf(s.host(beta)).Socket(), "").Stop(ctx, api.StopRequest{Agent: workerName})
}

// closePanes ends what a gateway has left running, which is what gateways do.
func (s stage) closePanes(ctx context.Context, host string) error {
	dir := config.PathsOf(s.host(host)).Panes()
	if _, err := os.Lstat(dir); err != nil {
		return nil // the host was not made, or its gateway did not start
	}
	backend, err := pty.New(dir, []string{"none"}, nil) // it starts nothing
	if err != nil {
		return err
	}
	panes, err := backend.List(ctx)
	errs := []error{err}
	for _, p := range panes {
		errs = append(errs, p.Close(ctx))
	}
	return errors.Join(errs...)
}

// withLog adds the end of a process's log to what is said of it.
func (s stage) withLog(f *fault.Fault, name string) *fault.Fault {
	const most, lines = 4 << 10, 8
	text, err := os.ReadFile(s.log(name))
	if err != nil || len(text) == 0 {
		return f
	}
	all := strings.Split(strings.TrimSpace(string(text[max(0, len(text)-most):])), "\n")
	return f.WithAlso("the end of " + name + ".log:").WithAlso(all[max(0, len(all)-lines):]...)
}
