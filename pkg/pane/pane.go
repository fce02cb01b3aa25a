// Package pane is what a terminal that an agent runs in can do, whoever keeps
// it: the built-in pty holder, tmux or herdr.
//
// It is an interface and the values it speaks in. It does not know messages,
// turns or hosts; inject decides what is written and when.
package pane

import (
	"context"
	"time"

	"fleet/pkg/identity"
)

// Spec is an agent to start. Env is the child's whole environment, as
// KEY=VALUE; it never appears on a command line.
type Spec struct {
	GID  identity.GID
	Name string // for people who look at the terminal's title
	Argv []string
	Dir  string
	Env  []string
	Cols int // 0: 120
	Rows int // 0: 40
	// Tags are stored with the pane and survive the gateway, such as the profile.
	Tags map[string]string
}

// Info is a pane as its backend knows it.
type Info struct {
	GID     identity.GID
	PID     int // the agent's process; also its session and process group
	Started time.Time
	Tags    map[string]string
	Dead    bool
	Exit    Exit // valid when Dead
}

// Exit says how the agent's process ended.
type Exit struct {
	Code   int    // exit status; -1 when a signal ended it or nobody saw it
	Signal string // such as "killed"; empty otherwise
	At     time.Time
}

// Written is what a pane knows about one message that it was asked to write.
type Written string

// The answers of Pane.Lookup.
const (
	Absent  Written = "absent"  // the pane was never asked to write it
	Partial Written = "partial" // some bytes were written, or the writing goes on
	Done    Written = "done"    // text and submit key were written whole
)

// Write is one text to type and submit.
type Write struct {
	// ID makes the write happen at most once: a second request with the same id
	// reports what became of the first and writes nothing.
	ID   string
	Text []byte // normalised: printable UTF-8, TAB and LF
	// Submit is the key that is pressed after the text, as bytes; empty: none.
	Submit []byte
	// Settle is the pause between text and submit key.
	Settle time.Duration
}

// Backend keeps panes.
type Backend interface {
	// Name is the backend's word in the configuration: pty, tmux, herdr.
	Name() string
	// Spawn starts spec's program in a new pane and returns once it runs. It fails
	// with fault.Conflict where the gid has a pane already, and with fault.Failed
	// where the program can't be started; nothing is left behind then.
	Spawn(ctx context.Context, spec Spec) (Pane, error)
	// List returns every pane of this backend that carries a gid, also dead ones
	// and those that an earlier gateway started. A pane that does not answer
	// within its bound is reported dead only if its process is gone.
	List(ctx context.Context) ([]Pane, error)
}

// Pane is one agent's terminal. Its methods may be called from any goroutine;
// the caller sees to it that only one Write is under way.
type Pane interface {
	// Info is what the backend knows now. It fails where the pane is out of reach;
	// what is on record (gid, pid, start, tags) comes with the error.
	Info(ctx context.Context) (Info, error)
	// Tag stores a value with the pane.
	Tag(ctx context.Context, key, value string) error
	// Write types w and returns what is known afterwards. An error with Partial
	// means that nobody can tell how much arrived. It blocks while the program
	// does not read, until ctx ends.
	Write(ctx context.Context, w Write) (Written, error)
	// Lookup says what became of an earlier Write, also by another gateway.
	Lookup(ctx context.Context, id string) (Written, error)
	// Terminal says how the program has set its terminal up.
	Terminal(ctx context.Context) (Terminal, error)
	// Screen returns up to lines of the last output as plain text without control
	// characters.
	Screen(ctx context.Context, lines int) (string, error)
	// Wait blocks until the agent's process ends or ctx does.
	Wait(ctx context.Context) (Exit, error)
	// Close ends the process (hang-up, then kill) and removes the pane. Closing
	// what is gone is no error.
	Close(ctx context.Context) error
}

// Terminal is how a program has set its terminal up.
type Terminal struct {
	BracketedPaste bool // the program asked for it (DECSET 2004)
	// Canonical: the terminal itself edits lines, and cuts one that is longer than
	// LineBytes.
	Canonical bool
	LineBytes int
	// Quiet is how long the program has printed nothing.
	Quiet time.Duration
}
