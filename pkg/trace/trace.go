// Package trace is what became of each message: one JSON line a step, in a file
// of this host (R50).
//
// A line carries ids, never message text and never a secret. Reading, merging
// over hosts and drawing are for the reader's side of this room; deciding what
// is a step is the gateway's.
package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// Step is what happened. Steps are part of the file's schema: added, never
// renamed.
type Step string

// The steps (DESIGN §2).
const (
	Accepted  Step = "accepted"  // a local caller's message has its id and is on its way
	Published Step = "published" // the broker has it and has routed it
	Returned  Step = "returned"  // no queue takes it, or the queue is full
	Unproven  Step = "unknown"   // nobody can tell yet
	Received  Step = "received"  // verified, and in the recipient's mailbox on disk
	Refused   Step = "refused"   // not accepted; Reason says why
	Held      Step = "held"      // waits for its puller
	Deferred  Step = "deferred"  // waits for its worker
	Claimed   Step = "claimed"   // will be injected; never a second time
	Injected  Step = "injected"  // the agent has it
	Answered  Step = "answered"  // the turn has its terminal outcome, on disk
	Drained   Step = "drained"   // the puller said that it has it
	Expired   Step = "expired"
	Spawned   Step = "spawned"
	Stopped   Step = "stopped"
	Died      Step = "died"
)

// Line is one step of one message.
type Line struct {
	At       time.Time      `json:"at"`
	Host     identity.Host  `json:"host"`
	Step     Step           `json:"step"`
	Trace    envelope.Trace `json:"trace,omitempty"`
	ID       envelope.ID    `json:"id,omitempty"`
	Kind     envelope.Kind  `json:"kind,omitempty"`
	From     identity.GID   `json:"from,omitempty"`
	FromHost identity.Host  `json:"from_host,omitempty"`
	To       string         `json:"to,omitempty"`
	Turn     string         `json:"turn,omitempty"`
	Re       envelope.ID    `json:"re,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	Evidence string         `json:"evidence,omitempty"`
	Detail   string         `json:"detail,omitempty"` // fleet's own words, never a body's
}

// Of starts the line of a message's step.
func Of(step Step, e envelope.Envelope) Line {
	return Line{Step: step, Trace: e.Trace, ID: e.ID, Kind: e.Kind, From: e.From, FromHost: e.FromHost,
		To: e.To, Turn: e.Turn, Re: e.Re}
}

// Rotation of the file: at this many bytes it becomes audit.log.1, and so on;
// the oldest of this many goes.
const (
	rotateBytes = 64 << 20
	keepFiles   = 4
)

// Writer appends lines to one file. It may be used from any goroutine.
type Writer struct {
	host identity.Host
	path string

	mu    sync.Mutex // guards file and bytes
	file  *os.File
	bytes int64
	lost  bool
	log   *slog.Logger
}

// Open appends to path, mode 0600.
func Open(path string, host identity.Host, log *slog.Logger) (*Writer, error) {
	w := &Writer{host: host, path: path, log: log}
	if err := w.open(); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	return w, nil
}

func (w *Writer) open() error {
	f, err := os.OpenFile(w.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	w.file, w.bytes = f, info.Size()
	return nil
}

// Write appends l with the host and, unless it has one, the present time. A line
// that can't be written is lost, which is logged once: no message waits for its
// trace.
func (w *Writer) Write(l Line) {
	l.Host = w.host
	if l.At.IsZero() {
		l.At = time.Now()
	}
	l.At = l.At.UTC().Truncate(time.Microsecond)
	b, err := json.Marshal(l)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.bytes > rotateBytes {
		// A file that can't be put aside just goes on growing.
		if w.rotate() != nil {
			w.bytes = rotateBytes / 2 // not every line tries again
		}
	}
	if err == nil {
		// One write with O_APPEND, so that a kill leaves whole lines.
		_, err = w.file.Write(append(b, '\n'))
		w.bytes += int64(len(b)) + 1
	}
	if err != nil && !w.lost {
		w.log.Error("the audit log can't be written; its lines are lost until it can", "file", w.path, "err", err)
	}
	w.lost = err != nil
}

func (w *Writer) rotate() error {
	name := func(n int) string { return w.path + "." + strconv.Itoa(n) }
	for n := keepFiles - 1; n >= 1; n-- {
		if err := os.Rename(name(n), name(n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(w.path, name(1)); err != nil {
		return err
	}
	old := w.file
	if err := w.open(); err != nil {
		// Lines go on into the old file, under its old name.
		return errors.Join(err, os.Rename(name(1), w.path))
	}
	return old.Close()
}

// Close ends the writer.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file.Close()
}
