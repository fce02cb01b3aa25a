package pty

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// ReadyFD is the descriptor on which a holder reports whether its program runs.
const ReadyFD = 3

// linger is how long a holder stays after its program has ended and the last
// request was answered. The state file tells of the end after that.
const linger = 24 * time.Hour

// restAfter is how long after the last client a holder gives memory back. A
// host has one holder for each agent, and most of them wait most of the time.
const restAfter = 5 * time.Second

// shrink gives back what only the last work needed.
func shrink() {
	debug.FreeOSMemory()
	unmapIdle()
}

// spawn is what a holder reads on its standard input.
type spawn struct {
	Protocol string            `json:"protocol"`
	StateDir string            `json:"state_dir"`
	GID      identity.GID      `json:"gid"`
	Name     string            `json:"name"`
	Argv     []string          `json:"argv"`
	Dir      string            `json:"dir"`
	Env      []string          `json:"env"`
	Cols     int               `json:"cols"`
	Rows     int               `json:"rows"`
	Tags     map[string]string `json:"tags"`
}

// report is the one line that a holder writes on ReadyFD.
type report struct {
	Fault *fault.Fault `json:"fault,omitempty"`
	State *state       `json:"state,omitempty"`
}

// holder owns one terminal and the program in it.
type holder struct {
	files    files
	master   *os.File
	raw      syscall.RawConn // of master
	output   *output
	journal  *journal
	listener *net.UnixListener

	slot  chan struct{} // holds one token while a text is being typed
	gone  chan struct{} // closed when the program has ended and that is recorded
	end   chan struct{} // closed by the first close request
	ended sync.Once     // guards end
	conns sync.WaitGroup
	asked atomic.Int64 // when the last request came, in Unix seconds
	rest  *time.Timer  // calls shrink some time after the last client has left

	mu    sync.Mutex // guards state, in memory and in its file
	state state
}

// Hold is the main function of a holder process. It reads what to start from
// in, reports on ready (ReadyFD, which it closes) whether the program runs, and
// returns when the pane was closed or the holder was told to end. The process
// is expected to be the leader of its session and to have nothing else to do:
// Hold closes descriptors it did not open, and takes over the signals. A ctx
// that ends hangs up the program, like SIGTERM.
func Hold(ctx context.Context, in io.Reader, ready io.WriteCloser) error {
	signals := takeSignals()
	closeInherited()
	h, err := begin(in)
	r := report{}
	if err != nil {
		r.Fault = fault.From(err)
	} else {
		s := h.snapshot()
		r.State = &s
	}
	reportErr := writeLine(ready, r)
	ready.Close()
	if err != nil {
		return errors.Join(err, reportErr)
	}
	// A report that nobody reads is a gateway that died meanwhile: its successor
	// finds the pane in the directory.
	shrink()
	return h.run(ctx, signals)
}

// takeSignals catches what must not end the holder, and takes it from whoever
// caught it before, such as a context that an interrupt ends. Caught, not
// ignored: an ignored signal would stay ignored in the program.
func takeSignals() <-chan os.Signal {
	all := []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}
	caught := make(chan os.Signal, 4)
	signal.Reset(all...)
	signal.Notify(caught, all...)
	return caught
}

// closeInherited closes what the gateway's own parent left open in it, such as
// a lock or a script's pipe, which a holder would keep open for days. What this
// process opened itself closes on exec, so it is told apart by that.
func closeInherited() {
	for _, fd := range openFiles() {
		switch {
		case fd < ReadyFD:
		case fd == ReadyFD:
			unix.CloseOnExec(fd)
		default:
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				unix.Close(fd)
			}
		}
	}
}

func listFDs(dir string) []int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var fds []int
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// begin claims the gid, opens the socket and starts the program. When it fails
// it leaves nothing behind.
func begin(in io.Reader) (*holder, error) {
	var s spawn
	if err := json.NewDecoder(io.LimitReader(in, 16<<20)).Decode(&s); err != nil {
		return nil, fmt.Errorf("read what to start: %w", err)
	}
	if s.Protocol != protocolVersion || len(s.Argv) == 0 {
		return nil, fault.New(fault.Failed, "the gateway and its holder program are of different versions").
			WithHint("restart the gateway after an upgrade")
	}
	self, ok := processOf(os.Getpid())
	if !ok {
		return nil, errors.New("read the holder's own start time")
	}
	h := &holder{
		files: files{dir: s.StateDir, gid: s.GID}, output: newOutput(),
		rest: time.AfterFunc(restAfter, shrink), slot: make(chan struct{}, 1), gone: make(chan struct{}), end: make(chan struct{}),
		state: state{Protocol: protocolVersion, GID: s.GID, Name: s.Name, Argv: s.Argv, Dir: s.Dir,
			Cols: s.Cols, Rows: s.Rows, Socket: socketName(s.StateDir, s.GID), Boot: bootID(),
			Holder: self, Started: time.Now(), Tags: s.Tags},
	}
	h.asked.Store(time.Now().Unix())
	if err := h.files.claim(&h.state); err != nil {
		return nil, err
	}
	if err := h.start(s); err != nil {
		return nil, errors.Join(err, h.files.remove())
	}
	return h, nil
}

// start makes everything that a claimed pane needs and starts its program.
func (h *holder) start(s spawn) (err error) {
	if h.journal, err = createJournal(h.files.journal()); err != nil {
		return err
	}
	if h.listener, err = listen(h.files.socket()); err != nil {
		return err
	}
	master, slave, err := openTerminal(s.Cols, s.Rows)
	if err != nil {
		return err
	}
	defer slave.Close()
	h.master = master
	if h.raw, err = master.SyscallConn(); err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	p, err := startChild(s, slave)
	if err != nil {
		return err
	}
	h.state.Started = time.Now()
	h.state.Child, _ = processOf(p.Pid)
	if err := h.files.save(&h.state); err != nil {
		endSession(context.Background(), h.state.Child)
		p.Wait()
		return err
	}
	printed := make(chan struct{})
	go h.read(printed)
	go h.reap(p, printed)
	return nil
}

// listen opens the pane's socket for its owner alone. A socket file that is in
// the way belongs to a holder that is gone, since the gid was claimed.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("clear pane socket: %w", err)
	}
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("open pane socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // a file's end is remove's business
	return l, nil
}

// change alters the state in memory and in its file. The memory keeps the
// change also where the file can't be written.
func (h *holder) change(alter func(*state)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	alter(&h.state)
	return h.files.save(&h.state)
}

// snapshot is a copy that may be read without the lock.
func (h *holder) snapshot() state {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state
	s.Tags = maps.Clone(s.Tags)
	return s
}

// run serves until the pane is closed, ctx ends or SIGTERM comes, or nobody has
// asked for a long time after the program's end.
func (h *holder) run(ctx context.Context, signals <-chan os.Signal) error {
	go h.serve()
	idle := time.NewTicker(time.Hour)
	defer idle.Stop()
	for {
		select {
		case <-h.end:
			return h.finish(ctx, true)
		case <-ctx.Done():
			return h.finish(ctx, false)
		case s := <-signals:
			if s == unix.SIGTERM {
				return h.finish(ctx, false)
			}
		case <-idle.C:
			select {
			case <-h.gone:
				if time.Since(time.Unix(h.asked.Load(), 0)) > linger {
					return h.finish(ctx, false)
				}
			default:
			}
		}
	}
}

// finish ends the program and all in its session, and lets the open requests be
// answered. Where the pane was closed its files go; otherwise the state file
// stays and tells of the program's end.
func (h *holder) finish(ctx context.Context, closed bool) error {
	ctx = context.WithoutCancel(ctx)
	empty := endSession(ctx, h.state.Child)
	select {
	case <-h.gone:
	case <-time.After(5 * time.Second): // stuck in the kernel; the evidence stays
	}
	if closed && empty {
		if err := h.files.remove(); err != nil {
			return err
		}
	}
	h.listener.Close()
	os.Remove(h.files.socket())
	answered := make(chan struct{})
	go func() { h.conns.Wait(); close(answered) }() // ends with the process
	select {
	case <-answered:
	case <-time.After(time.Second): // a client that does not read, or sits idle
	}
	if !empty {
		return fault.New(fault.Failed, "some process of agent %s can't be ended", h.files.gid)
	}
	return nil
}
