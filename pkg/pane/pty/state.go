package pty

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// state is what a pane's file holds, so that a later gateway finds the pane
// and can judge it without its holder. The environment is not in it.
type state struct {
	Protocol string       `json:"protocol"`
	GID      identity.GID `json:"gid"`
	Name     string       `json:"name,omitempty"`
	Argv     []string     `json:"argv"`
	Dir      string       `json:"dir,omitempty"`
	Cols     int          `json:"cols"`
	Rows     int          `json:"rows"`
	Socket   string       `json:"socket"` // file name beside the state file
	// Boot names the run of the kernel; process ids of another run mean nothing.
	Boot    string            `json:"boot"`
	Holder  process           `json:"holder"`
	Child   process           `json:"child"` // zero until the program has been started
	Started time.Time         `json:"started"`
	Tags    map[string]string `json:"tags,omitempty"`
	Exit    *exitRecord       `json:"exit,omitempty"`
}

// holderLives and childLives judge by process evidence alone.
func (s *state) holderLives() bool { return s.Boot == bootID() && s.Holder.lives() }
func (s *state) childLives() bool  { return s.Boot == bootID() && s.Child.lives() }

// files are the places of one pane's files in a directory.
type files struct {
	dir string
	gid identity.GID
}

func (f files) state() string   { return filepath.Join(f.dir, string(f.gid)+".json") }
func (f files) journal() string { return filepath.Join(f.dir, string(f.gid)+".writes") }
func (f files) log() string     { return filepath.Join(f.dir, string(f.gid)+".log") }
func (f files) socket() string  { return filepath.Join(f.dir, socketName(f.dir, f.gid)) }

// maxSocket is what fits sockaddr_un.sun_path on every system with its NUL.
const maxSocket = 103

// socketName is the gid, or where that makes too long a path, its first digits:
// enough to tell a host's agents apart, and hello names the whole gid.
func socketName(dir string, gid identity.GID) string {
	name := string(gid) + ".sock"
	if len(dir)+1+len(name) > maxSocket {
		name = string(gid[:8]+gid[9:13]) + ".s"
	}
	return name
}

// claim writes the first state file of a pane. It fails with fault.Conflict
// where there is one, whoever writes at the same time.
func (f files) claim(s *state) error {
	temp, err := f.temp(s)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Link(temp, f.state()); errors.Is(err, fs.ErrExist) {
		return conflict(f.gid)
	} else if err != nil {
		return fmt.Errorf("write pane state: %w", err)
	}
	return nil
}

// save replaces the state file, whole or not at all.
func (f files) save(s *state) error {
	temp, err := f.temp(s)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, f.state()); err != nil {
		os.Remove(temp)
		return fmt.Errorf("write pane state: %w", err)
	}
	return nil
}

// temp writes s to a new file of mode 0600 and returns its path. It does not
// sync: the file tells of processes, and a power cut ends those too.
func (f files) temp(s *state) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode pane state: %w", err)
	}
	t, err := os.CreateTemp(f.dir, "."+string(f.gid)+"-*")
	if err != nil {
		return "", fmt.Errorf("write pane state: %w", err)
	}
	_, err = t.Write(append(text, '\n'))
	if closeErr := t.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		os.Remove(t.Name())
		return "", fmt.Errorf("write pane state: %w", err)
	}
	return t.Name(), nil
}

// errDamaged is a state file that says nothing.
var errDamaged = errors.New("the pane's state file is damaged")

// load reads the state file. It fails with fs.ErrNotExist where the pane was
// closed, and with errDamaged.
func (f files) load() (*state, error) {
	// Not blocking, because what lies there may be a pipe that nobody writes to.
	file, err := os.OpenFile(f.state(), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read pane state: %w", err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", f.state(), errDamaged)
	}
	text, err := io.ReadAll(io.LimitReader(file, 4<<20))
	if err != nil {
		return nil, fmt.Errorf("read pane state: %w", err)
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil || s.GID != f.gid || s.Holder.PID <= 0 {
		return nil, fmt.Errorf("%s: %w", f.state(), errDamaged)
	}
	return &s, nil
}

// remove deletes everything of the pane, the state file last: while it stands,
// nobody else can claim the gid.
func (f files) remove() error {
	leftovers, _ := filepath.Glob(filepath.Join(f.dir, "."+string(f.gid)+"-*"))
	for _, path := range append(leftovers, f.socket(), f.journal(), f.log(), f.state()) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove pane: %w", err)
		}
	}
	return nil
}

func conflict(gid identity.GID) error {
	return fault.New(fault.Conflict, "the agent %s has a pane already", gid).
		WithHint("a pane stays, also after its program has ended, until it is closed")
}
