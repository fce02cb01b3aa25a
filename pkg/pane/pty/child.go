package pty

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
)

// defaultPath is searched where the program's environment has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// openTerminal makes a terminal of the given size. The master does not block
// and takes deadlines; the slave blocks, because programs expect that.
func openTerminal(cols, rows int) (master, slave *os.File, err error) {
	m, slave, err := pty.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	defer m.Close()
	if err := pty.Setsize(m, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)}); err != nil {
		slave.Close()
		return nil, nil, fmt.Errorf("size terminal: %w", err)
	}
	// The module's calls have put its file into blocking mode for good, so the
	// master is a second descriptor that the runtime polls.
	fd, err := unix.FcntlInt(m.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		err = unix.SetNonblock(int(slave.Fd()), false)
	}
	if err != nil {
		slave.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	return os.NewFile(uintptr(fd), "master"), slave, nil
}

// startChild starts the program in a session of its own whose controlling
// terminal is slave. It fails with fault.Failed and the reason.
func startChild(s spawn, slave *os.File) (*os.Process, error) {
	if info, err := os.Stat(s.Dir); s.Dir != "" && (err != nil || !info.IsDir()) {
		return nil, fault.New(fault.Failed, "the directory %s is not there", s.Dir)
	}
	path, err := findProgram(s.Argv[0], s.Dir, s.Env)
	if err != nil {
		return nil, err
	}
	p, err := os.StartProcess(path, s.Argv, &os.ProcAttr{
		Dir:   s.Dir,
		Env:   withTerm(s.Env),
		Files: []*os.File{slave, slave, slave},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		var why *fs.PathError
		if errors.As(err, &why) {
			err = why.Err
		}
		return nil, fault.New(fault.Failed, "can't start %s: %v", path, err)
	}
	return p, nil
}

// findProgram resolves a name as a shell in dir would that has env, since the
// holder's own PATH is not the agent's.
func findProgram(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if err := executable(path); err != nil {
			return "", fault.New(fault.Failed, "can't start %s: %v", path, err)
		}
		return path, nil
	}
	search := lookupEnv(env, "PATH", defaultPath)
	var denied error
	for _, d := range filepath.SplitList(search) {
		if !filepath.IsAbs(d) {
			continue // an agent is never started from where it happens to stand
		}
		path := filepath.Join(d, name)
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			denied = fault.New(fault.Failed, "can't start %s: %v", path, err)
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fault.New(fault.Failed, "the program %s was not found", name).
		WithHint("name it by its full path, or set PATH in the agent's environment; PATH is %s", search)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		var why *fs.PathError
		if errors.As(err, &why) {
			err = why.Err
		}
		return err
	case info.IsDir():
		return unix.EISDIR
	}
	return unix.Access(path, unix.X_OK)
}

// withTerm adds TERM where env has none. It never returns nil, which would mean
// the holder's own environment.
func withTerm(env []string) []string {
	out := append(make([]string, 0, len(env)+1), env...)
	if lookupEnv(env, "TERM", "") == "" {
		out = append(out, "TERM=xterm-256color")
	}
	return out
}

// lookupEnv is the last value of key in env, as getenv in most programs has it.
func lookupEnv(env []string, key, otherwise string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], key+"="); ok {
			return v
		}
	}
	return otherwise
}

// read takes what the program prints. It ends when every process has let go of
// the terminal.
func (h *holder) read(printed chan<- struct{}) {
	defer close(printed)
	buf := make([]byte, 16<<10)
	for {
		n, err := h.master.Read(buf)
		h.output.add(buf[:n])
		if err != nil {
			return
		}
	}
}

// reap waits for the program's end and records it. It ends with the program.
func (h *holder) reap(p *os.Process, printed <-chan struct{}) {
	status, err := p.Wait()
	select {
	case <-printed:
	case <-time.After(200 * time.Millisecond): // something else still has the terminal
	}
	exit := exitRecord{Code: -1, At: time.Now()}
	if err == nil {
		if ws, ok := status.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			exit.Signal = ws.Signal().String()
		} else {
			exit.Code = status.ExitCode()
		}
	}
	err = h.change(func(s *state) { s.Exit = &exit })
	if err != nil {
		// Nobody reads this but a person who looks for a full disk; who asks the
		// socket still gets the truth.
		slog.Error("can't record the program's end", "err", err)
	}
	close(h.gone)
}
