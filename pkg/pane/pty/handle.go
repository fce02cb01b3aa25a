package pty

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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

// lost is the end of a program whose holder was killed: the terminal went with
// the holder, and hung up.
func lost() exitRecord {
	return exitRecord{Code: -1, Signal: unix.SIGHUP.String(), At: time.Now()}
}

// Info asks the holder. Where the holder is gone it judges by the state file
// and by the processes; it fails with fault.AgentFailed where the program has
// outlived its terminal, with fault.TimedOut where the holder does not answer,
// and with fault.NotFound where the pane was closed.
func (h *handle) Info(ctx context.Context) (pane.Info, error) {
	a, err := quick(ctx, h.files, request{Op: opInfo})
	if err == nil && a.Fault == nil && a.Info != nil {
		return a.Info.info(), nil
	}
	if err == nil {
		return pane.Info{}, silent(a)
	}
	s, gone, err := h.judge(err)
	if err != nil {
		return pane.Info{}, err
	}
	w := wireInfo{GID: s.GID, PID: s.Child.PID, Started: s.Started, Tags: s.Tags, Exit: s.Exit}
	if w.Exit == nil {
		if s.childLives() {
			return pane.Info{}, gone
		}
		w.Exit = h.lostOnce()
	}
	return w.info(), nil
}

// judge looks at the evidence after a call has failed with err. It returns the
// pane's state and, as gone, the fault for what only a holder can do, if the
// holder is gone; otherwise it fails.
func (h *handle) judge(err error) (s *state, gone *fault.Fault, _ error) {
	s, loadErr := h.load()
	if errors.Is(loadErr, fs.ErrNotExist) {
		return nil, nil, notHere(h.files.gid)
	}
	if loadErr != nil {
		return nil, nil, fault.New(fault.Failed, "%v", loadErr).
			WithHint("`fleet stop %s` removes it", h.files.gid)
	}
	if s.holderLives() {
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

// lostOnce makes the record of an end that nobody saw, the same each time.
func (h *handle) lostOnce() *exitRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		e := lost()
		return &e
	}
	if h.last.Exit == nil {
		e := lost()
		h.last.Exit = &e
	}
	return h.last.Exit
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
	_, gone, err := h.judge(err)
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
		if a.Fault != nil {
			return a.Written, a.Fault
		}
		if a.Written == "" {
			return pane.Partial, silent(a)
		}
		return a.Written, nil
	}
	_, gone, judged := h.judge(err)
	if judged == nil {
		// With the holder gone its journal is all there is, and complete: a claim is
		// in it before the first byte is typed.
		written, journalErr := lookupJournal(h.files.journal(), w.ID)
		if journalErr != nil {
			return pane.Partial, journalErr
		}
		if written == pane.Done {
			return written, nil
		}
		return written, gone
	}
	var f *failure
	if errors.As(err, &f) && !f.sent {
		return pane.Absent, judged
	}
	return pane.Partial, judged
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
	if _, _, err := h.judge(err); err != nil {
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

// Wait blocks until the program has ended. While the holder lives its word
// counts; when it is gone the processes do.
func (h *handle) Wait(ctx context.Context) (pane.Exit, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		a, err := call(ctx, h.files, request{Op: opWait})
		if err == nil && a.Exit != nil {
			return a.Exit.exit(), nil
		}
		if ctx.Err() != nil {
			return pane.Exit{}, ctx.Err()
		}
		s, err := h.load()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return h.closedExit(ctx)
		case err != nil:
			return pane.Exit{}, err
		case s.Exit != nil:
			return s.Exit.exit(), nil
		case !s.holderLives():
			return h.orphanExit(ctx, s)
		}
		select {
		case <-ctx.Done():
			return pane.Exit{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// orphanExit waits for a program whose holder was killed.
func (h *handle) orphanExit(ctx context.Context, s *state) (pane.Exit, error) {
	if s.Boot == bootID() {
		if err := awaitEnd(ctx, s.Child); err != nil {
			return pane.Exit{}, err
		}
	}
	return h.lostOnce().exit(), nil
}

// closedExit is the end of a program whose pane was closed by somebody else.
func (h *handle) closedExit(ctx context.Context) (pane.Exit, error) {
	h.mu.Lock()
	s := h.last
	h.mu.Unlock()
	if s == nil {
		return pane.Exit{}, notHere(h.files.gid)
	}
	if s.Exit != nil {
		return s.Exit.exit(), nil
	}
	return h.orphanExit(ctx, s)
}

// Close ends the program and everything in its session, and removes the pane.
// It takes up to 9 s where the processes resist.
func (h *handle) Close(ctx context.Context) error {
	s, err := h.load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, errDamaged) {
		quick(ctx, h.files, request{Op: opClose}) // if there is a holder, it knows its program
		return h.files.remove()
	}
	if err != nil {
		return err
	}
	// The quick question tells a stopped holder from one that is at work.
	if _, err := quick(ctx, h.files, request{Op: opInfo}); err == nil {
		if _, err = call(ctx, h.files, request{Op: opClose}); err == nil {
			err = awaitEnd(ctx, s.Holder)
		}
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if s, err = h.load(); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return h.force(ctx, s)
}

// force ends a pane without its holder's help.
func (h *handle) force(ctx context.Context, s *state) error {
	if s.Boot == bootID() {
		s.Holder.signal(unix.SIGKILL)
		if err := awaitEnd(ctx, s.Holder); err != nil {
			return err
		}
		if !endSession(ctx, s.Child) {
			return fault.New(fault.Failed, "some process of agent %s can't be ended", h.files.gid).
				WithHint("they belong to session %d", s.Child.PID)
		}
	}
	return h.files.remove()
}

// silent is the fault of an answer that lacks what was asked for.
func silent(a answer) error {
	if a.Fault != nil {
		return a.Fault
	}
	return fault.New(fault.Failed, "the terminal's holder gave an empty answer").
		WithHint("its protocol has version %s, this program's %s", a.Version, protocolVersion)
}
