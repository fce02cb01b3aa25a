package pty

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"fleet/pkg/pane"
)

// keepWrites is how many writes a pane remembers at least. A gateway asks about
// the last few; the bound keeps holder and file small over months.
const keepWrites = 4096

// journal is the memory of what a pane was asked to write. Each claim is in its
// file before the first byte is typed, so a write is never begun that a later
// reader of the file would not know of.
//
// The file has one line for each claim, "p ID", and for each end, "d ID". A
// torn last line is a claim that was not made.
type journal struct {
	path string

	mu    sync.Mutex // guards all below
	file  *os.File
	lines int
	known map[string]*entry
	order []string // ids, oldest first
}

// entry is one write. ended is closed when nothing more will be typed; done is
// read after that, or under the journal's lock.
type entry struct {
	ended chan struct{}
	done  bool
}

func createJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create write journal: %w", err)
	}
	return &journal{path: path, file: f, known: map[string]*entry{}}, nil
}

// claim registers id before its first byte. fresh is false where id is known;
// the entry is then the first request's.
func (j *journal) claim(id string) (e *entry, fresh bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.known[id]; e != nil {
		return e, false, nil
	}
	if err := j.append("p " + id + "\n"); err != nil {
		return nil, false, err
	}
	e = &entry{ended: make(chan struct{})}
	j.known[id] = e
	j.order = append(j.order, id)
	return e, true, nil
}

// end records that nothing more will be typed for id; done says whether all of
// it was. The memory is right even where the file can't be written: the reader
// of the file then sees a write that nobody can vouch for, which is safe.
func (j *journal) end(id string, done bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.known[id]
	e.done = done
	close(e.ended)
	if !done {
		return nil
	}
	return j.append("d " + id + "\n")
}

// written is the answer to a Lookup.
func (j *journal) written(id string) pane.Written {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch e := j.known[id]; {
	case e == nil:
		return pane.Absent
	case e.done:
		return pane.Done
	}
	return pane.Partial
}

func (j *journal) find(id string) *entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.known[id]
}

// append writes one line; j.mu is held.
func (j *journal) append(line string) error {
	if j.lines >= 4*keepWrites {
		if err := j.compact(); err != nil {
			return err
		}
	}
	if _, err := j.file.WriteString(line); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	j.lines++
	return nil
}

// compact forgets all but the last keepWrites ids; j.mu is held.
func (j *journal) compact() error {
	drop := max(0, len(j.order)-keepWrites)
	var text strings.Builder
	lines := 0
	for _, id := range j.order[drop:] {
		text.WriteString("p " + id + "\n")
		lines++
		if j.known[id].done {
			text.WriteString("d " + id + "\n")
			lines++
		}
	}
	next := filepath.Join(filepath.Dir(j.path), "."+strings.TrimSuffix(filepath.Base(j.path), ".writes")+"-writes")
	if err := os.WriteFile(next, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("compact write journal: %w", err)
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("compact write journal: %w", err)
	}
	if err := os.Rename(next, j.path); err != nil {
		f.Close()
		return fmt.Errorf("compact write journal: %w", err)
	}
	j.file.Close()
	for _, id := range j.order[:drop] {
		delete(j.known, id)
	}
	j.file, j.lines, j.order = f, lines, append([]string(nil), j.order[drop:]...)
	return nil
}

// lookupJournal answers a Lookup from the file alone, for a pane whose holder
// is gone.
func lookupJournal(path, id string) (pane.Written, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return pane.Absent, nil
	}
	if err != nil {
		return "", fmt.Errorf("read write journal: %w", err)
	}
	defer f.Close()
	found := pane.Absent
	for r := bufio.NewReader(f); ; {
		line, err := readLine(r, maxID+2)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return found, nil
		}
		if err != nil {
			return "", fmt.Errorf("read write journal: %w", err)
		}
		switch string(line) {
		case "p " + id:
			found = pane.Partial
		case "d " + id:
			found = pane.Done
		}
	}
}
