package pty

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/pane"
)

// handle is a pane seen from a gateway. It keeps no connection: what it knows
// is in the pane's files and its holder.
type handle struct {
	files files

	mu   sync.Mutex // guards last
	last *state     // the latest that was read, for when the files are gone
}

var _ pane.Pane = (*handle)(nil)

// Info asks the holder. Where the holder is gone it judges by the state file
// and by the processes; it fails with fault.AgentFailed where the program has
// outlived its terminal, with fault.TimedOut where the holder does not answer,
// both with what the state file says, and with fault.NotFound where the pane
// was closed.
func (h *handle) Info(ctx context.Context) (pane.Info, error) {
	a, err := quick(ctx, h.files, request{Op: opInfo})
	if err == nil && a.Fault == nil && a.Info != nil {
		return a.Info.info(), nil
	}
	if err == nil {
		return h.recorded(), silent(a)
	}
	s, gone, err := h.judge(ctx, err)
	if err != nil {
		return h.recorded(), err
	}
	w := wireInfo{GID: s.GID, PID: s.Child.PID, Started: s.Started, Tags: s.Tags, Exit: s.Exit}
	if w.Exit == nil {
		if s.childLives() {
			return w.info(), gone
		}
		w.Exit = h.lostOnce()
	}
	return w.info(), nil
}

// recorded is what the state file says of a pane that does not answer; nothing
// where there is none.
func (h *handle) recorded() pane.Info {
	s, err := h.load()
	if err != nil {
		return pane.Info{}
	}
	return wireInfo{GID: s.GID, PID: s.Child.PID, Started: s.Started, Tags: s.Tags, Exit: s.Exit}.info()
}

// judge looks at the evidence after a call has failed with err. It returns the
// pane's state and, as gone, the fault for what only a holder can do, if the
// holder is gone; otherwise it fails.
func (h *handle) judge(ctx context.Context, err error) (s *state, gone *fault.Fault, _ error) {
	s, loadErr := h.load()
	if errors.Is(loadErr, fs.ErrNotExist) {
		return nil, nil, notHere(h.files.gid)
	}
	if loadErr != nil {
		return nil, nil, fault.New(fault.Failed, "%v", loadErr).
			WithHint("`fleet stop %s` removes it", h.files.gid)
	}
	if s.holderLives() && !h.dying(ctx, s, err) {
		if f := (*fault.Fault)(nil); errors.As(err, &f) {
			return nil, nil, f
		}
		return nil, nil, fault.New(fault.TimedOut, "the terminal of agent %s does not answer: %v", h.files.gid, err).
			WithHint("its holder is process %d; is it stopped?", s.Holder.PID)
	}
	if s.Exit != nil {
		return s, errEnded(), nil
	}
	return s, fault.New(fault.AgentFailed, "the terminal of agent %s is gone: its holder, process %d, has ended",
		h.files.gid, s.Holder.PID), nil
}

// dying waits a moment where the connection broke or was refused, because a
// process that is killed loses its sockets a little before its life.
func (h *handle) dying(ctx context.Context, s *state, err error) bool {
	if f := (*fault.Fault)(nil); errors.As(err, &f) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	return awaitEnd(ctx, s.Holder) == nil
}

// load reads the state file and remembers what it says.
func (h *handle) load() (*state, error) {
	s, err := h.files.load()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil && h.last.Holder == s.Holder && s.Exit == nil {
		s.Exit = h.last.Exit // of lostOnce
	}
	h.last = s
	return s, nil
}

// ask is for requests that only a holder can answer.
func (h *handle) ask(ctx context.Context, r request) (answer, error) {
	a, err := quick(ctx, h.files, r)
	if err == nil {
		if a.Fault != nil {
			return a, a.Fault
		}
		return a, nil
	}
	_, gone, err := h.judge(ctx, err)
	if err != nil {
		return answer{}, err
	}
	return answer{}, gone
}

// Tag stores a value with the pane; an empty value removes the tag. It fails
// with fault.Full where all tags together have more than 256 KiB.
func (h *handle) Tag(ctx context.Context, key, value string) error {
	if err := checkTag(key, value); err != nil {
		return err
	}
	_, err := h.ask(ctx, request{Op: opTag, Key: key, Value: value})
	return err
}

// Write types w. Absent with an error means that no byte was or will be typed,
// Partial with an error that the text may be typed in part or may yet be; a
// Lookup tells later. The holder gives up a moment before ctx's deadline, so
// that its answer arrives.
func (h *handle) Write(ctx context.Context, w pane.Write) (pane.Written, error) {
	r := request{Op: opWrite, ID: w.ID, Text: w.Text, Submit: w.Submit, SettleMS: w.Settle.Milliseconds()}
	if err := checkWrite(r); err != nil {
		return pane.Absent, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		margin := min(200*time.Millisecond, time.Until(deadline)/4)
		r.UntilMS = deadline.Add(-margin).UnixMilli()
	}
	a, err := call(ctx, h.files, r)
	if err == nil {
		return told(a)
	}
	_, gone, judged := h.judge(ctx, err)
	var f *failure
	if judged != nil && errors.As(err, &f) && f.sent {
		return pane.Partial, judged
	}
	// This request was not carried out, or its holder is gone. What the journal
	// says is complete: a claim is in it before the first byte is typed.
	written, journalErr := lookupJournal(h.files.journal(), w.ID)
	switch {
	case journalErr != nil:
		return pane.Partial, journalErr
	case written == pane.Done:
		return written, nil
	case judged != nil:
		return written, judged
	}
	return written, gone
}

// told is a holder's answer to a write.
func told(a answer) (pane.Written, error) {
	switch {
	case a.Fault != nil && a.Written == "":
		return pane.Absent, a.Fault // refused before it was looked at
	case a.Fault != nil:
		return a.Written, a.Fault
	case a.Written == "":
		return pane.Partial, silent(a)
	}
	return a.Written, nil
}

// Lookup says what became of an earlier Write. A pane remembers its last 4,096
// writes, also after its holder has ended.
func (h *handle) Lookup(ctx context.Context, id string) (pane.Written, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	a, err := quick(ctx, h.files, request{Op: opLookup, ID: id})
	if err == nil {
		if a.Fault != nil || a.Written == "" {
			return "", silent(a)
		}
		return a.Written, nil
	}
	if _, _, err := h.judge(ctx, err); err != nil {
		return "", err
	}
	return lookupJournal(h.files.journal(), id)
}

// Terminal says how the program has set its terminal up.
func (h *handle) Terminal(ctx context.Context) (pane.Terminal, error) {
	a, err := h.ask(ctx, request{Op: opTerminal})
	if err != nil {
		return pane.Terminal{}, err
	}
	if a.Terminal == nil {
		return pane.Terminal{}, silent(a)
	}
	return a.Terminal.terminal(), nil
}

// Screen returns up to lines of the last output. The text is made here and not
// in the holder, which stays small and may be older than this program.
func (h *handle) Screen(ctx context.Context, lines int) (string, error) {
	a, err := h.ask(ctx, request{Op: opOutput})
	if err != nil {
		return "", err
	}
	return plain(a.Output, lines), nil
}

// silent is the fault of an answer that lacks what was asked for.
func silent(a answer) error {
	if a.Fault != nil {
		return a.Fault
	}
	return fault.New(fault.Failed, "the terminal's holder gave an empty answer").
		WithHint("its protocol has version %s, this program's %s", a.Version, protocolVersion)
}
