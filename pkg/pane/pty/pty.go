// Package pty is the built-in pane backend: each agent's terminal is kept by a
// small process of its own, the holder, so that agents outlive the gateway.
//
// It owns the holder process, its protocol and its files. It does not know what
// is typed, by whom or why.
//
// # Files
//
// A pane has up to four files in the backend's directory: GID.json, its state
// (see state), GID.sock, the holder's socket (a shorter name where the path
// would be too long), GID.writes, the journal of what was typed (see journal),
// and GID.log, the holder's last words. They stand until the pane is closed,
// also when program and holder are gone, so that a later gateway learns of the
// end. A pane is judged dead by process evidence alone: pid and start time.
//
// # Protocol
//
// On the socket both sides send JSON objects, one a line. The first request is
// hello with version and gid; every request has one answer, in order. A holder
// outlives upgrades of the program that started it, so a minor version may add
// requests and fields whose absence and whose being ignored are both harmless,
// and nothing is ever renamed. A holder answers a request that it does not know
// with a fault.
//
// History of the version, which is "major.minor": 1.0 (2026-11-30) the first.
//
// # Supervisors
//
// A service manager that kills a service's whole group, as systemd does unless
// the unit says KillMode=process, ends the holders with the gateway.
package pty

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

// Backend keeps panes in one directory.
type Backend struct {
	dir    string
	holder []string
	log    *slog.Logger
}

var _ pane.Backend = (*Backend)(nil)

// New returns the backend whose panes are in dir, which it makes (0700) where
// it is missing. holder is the program, with arguments, that calls Hold. A nil
// log is silent. It fails with fault.Config where dir is open to others or its
// path is so long that no socket fits in.
func New(dir string, holder []string, log *slog.Logger) (*Backend, error) {
	if len(holder) == 0 || !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("pty backend in %q with holder %q: needs an absolute directory and a program", dir, holder)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dir = filepath.Clean(dir)
	if n := len(dir) + 1 + len(socketName(dir, identity.NewGID())); n > maxSocket {
		return nil, fault.New(fault.Config, "a socket in %s would have a path of %d bytes, the system takes %d", dir, n, maxSocket).
			WithHint("choose a shorter FLEET_DIR")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make pane directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("look at pane directory: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fault.New(fault.Config, "%s has mode %04o, so others can reach the agents' terminals", dir, mode).
			WithHint("chmod 700 %s", dir)
	}
	return &Backend{dir: dir, holder: holder, log: log}, nil
}

// Name is "pty".
func (b *Backend) Name() string { return "pty" }

// spawnBound is how long a holder may take to report.
const spawnBound = 30 * time.Second

// Spawn starts spec's program under a new holder. It fails with fault.Usage
// where spec is malformed; see pane.Backend for the rest.
func (b *Backend) Spawn(ctx context.Context, spec pane.Spec) (pane.Pane, error) {
	s, err := b.spawnRequest(spec)
	if err != nil {
		return nil, err
	}
	f := files{dir: b.dir, gid: s.GID}
	if _, err := os.Lstat(f.state()); err == nil {
		return nil, conflict(s.GID)
	}
	ctx, cancel := context.WithTimeout(ctx, spawnBound)
	defer cancel()
	cmd, ready, err := b.startHolder(f, s)
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	self, _ := processOf(cmd.Process.Pid)
	reaped := make(chan struct{})
	go func() { // ends with the holder; waits in the poller, not in a thread
		defer close(reaped)
		awaitEnd(context.Background(), self)
		cmd.Wait()
	}()
	state, err := readReport(ctx, ready)
	if err == nil {
		return &handle{files: f, last: state}, nil
	}
	if errors.Is(err, fault.Conflict) {
		return nil, err // the files are another pane's
	}
	if words := lastWords(f.log()); errors.Is(err, errNoReport) {
		err = fault.New(fault.Failed, "the holder of agent %s ended before it had started the program", s.GID).
			WithHint("it said: %s", words)
	}
	self.signal(syscall.SIGKILL)
	<-reaped
	return nil, errors.Join(err, b.undo(f, self))
}

// spawnRequest checks spec and makes it what a holder reads.
func (b *Backend) spawnRequest(spec pane.Spec) (spawn, error) {
	gid, err := identity.ParseGID(string(spec.GID))
	if err != nil {
		return spawn{}, err
	}
	cols, rows := spec.Cols, spec.Rows
	if cols == 0 {
		cols = 120
	}
	if rows == 0 {
		rows = 40
	}
	if len(spec.Argv) == 0 || spec.Argv[0] == "" || cols < 0 || rows < 0 || cols > 9999 || rows > 9999 {
		return spawn{}, fault.New(fault.Usage, "a pane needs a program and a size of at most 9999 by 9999")
	}
	size := 0
	for k, v := range spec.Tags {
		if size += len(k) + len(v); checkTag(k, v) != nil || size > maxTags {
			return spawn{}, fault.New(fault.Usage, "the tags of agent %s are over their limit", gid)
		}
	}
	return spawn{Protocol: protocolVersion, StateDir: b.dir, GID: gid, Name: spec.Name, Argv: spec.Argv,
		Dir: spec.Dir, Env: spec.Env, Cols: cols, Rows: rows, Tags: spec.Tags}, nil
}

// holderEnv is a holder's whole environment: nothing of the gateway's, which
// holds secrets. A holder has next to nothing to compute, and the settings keep
// it small.
var holderEnv = []string{"GOMAXPROCS=1", "GOGC=25", "GOMEMLIMIT=16MiB", "PATH=" + defaultPath}

// startHolder starts the holder process for s and returns the end of the pipe
// on which it reports.
func (b *Backend) startHolder(f files, s spawn) (*exec.Cmd, *os.File, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, nil, fmt.Errorf("encode what to start: %w", err)
	}
	log, err := os.OpenFile(f.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open holder log: %w", err)
	}
	defer log.Close()
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make ready pipe: %w", err)
	}
	defer readyEnd.Close()
	cmd := exec.Command(b.holder[0], b.holder[1:]...)
	cmd.Dir = "/"
	cmd.Env = holderEnv
	cmd.Stdin = bytes.NewReader(text)
	cmd.Stderr = log
	cmd.ExtraFiles = []*os.File{readyEnd} // ReadyFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		ready.Close()
		os.Remove(f.log())
		return nil, nil, fault.New(fault.Failed, "can't start the holder program: %v", err)
	}
	return cmd, ready, nil
}

// errNoReport is a holder that ended without a word on the pipe.
var errNoReport = errors.New("the holder did not report")

func readReport(ctx context.Context, ready *os.File) (*state, error) {
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := readLine(bufio.NewReader(ready), 4<<20)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for the holder's report: %w", ctx.Err())
	}
	var r report
	if err != nil || json.Unmarshal(line, &r) != nil || r.Fault == nil && r.State == nil {
		return nil, errNoReport
	}
	if r.Fault != nil {
		return nil, r.Fault
	}
	return r.State, nil
}

// undo removes what a holder left that was ended in the middle of its start.
func (b *Backend) undo(f files, holder process) error {
	s, err := f.load()
	if errors.Is(err, fs.ErrNotExist) {
		return f.remove() // the log, and a state file that was not claimed yet
	}
	if err != nil || s.Holder != holder {
		return err
	}
	endSession(context.Background(), s.Child)
	return f.remove()
}

// lastWords is the end of a holder's log, on one line.
func lastWords(path string) string {
	text, err := os.ReadFile(path)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return "nothing"
	}
	return strings.ReplaceAll(plain(text[max(0, len(text)-1000):], 5), "\n", "; ")
}

// List returns a pane for each state file, whoever wrote it. It asks no holder:
// Info does, one by one, and says which is dead. It does not block on panes.
func (b *Backend) List(ctx context.Context) ([]pane.Pane, error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, fmt.Errorf("list panes: %w", err)
	}
	var panes []pane.Pane
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		gid, err := identity.ParseGID(name)
		if !ok || err != nil || string(gid) != name {
			continue
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		h := &handle{files: files{dir: b.dir, gid: gid}}
		if _, err := h.load(); errors.Is(err, fs.ErrNotExist) {
			continue // closed meanwhile
		} else if err != nil {
			b.log.Warn("a pane's state can't be read", "gid", gid, "err", err)
		}
		panes = append(panes, h)
	}
	return panes, nil
}
