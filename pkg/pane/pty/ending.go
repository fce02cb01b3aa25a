package pty

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
	"fleet/pkg/pane"
)

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

// lost is the end of a program whose holder was killed: the terminal went with
// the holder, and hung up.
func lost() exitRecord {
	return exitRecord{Code: -1, Signal: unix.SIGHUP.String(), At: time.Now()}
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
