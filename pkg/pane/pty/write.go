package pty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/pane"
)

const (
	pasteStart = "\x1b[200~"
	pasteEnd   = "\x1b[201~"

	// ownBound is how long a write waits for its program where the client sets
	// no bound.
	ownBound = 10 * time.Minute
	// readBound is how long the pause before the submit key waits for the program
	// to read the text. A key that queues right behind a long paste is taken for
	// a part of it by some programs.
	readBound = 5 * time.Second
	// slice is how long one attempt to write may block; between two the holder
	// looks whether the program still runs.
	slice = 500 * time.Millisecond
)

// write answers a write request: at most once for each id, one text at a time,
// in the order in which the requests came. ctx ends when the client leaves; a
// text that is begun is written to its end all the same, however long the
// program takes, because half a text in front of the next one would be worse.
func (h *holder) write(ctx context.Context, r request) (pane.Written, *fault.Fault) {
	until := time.Now().Add(ownBound)
	if r.UntilMS != 0 {
		until = time.UnixMilli(r.UntilMS)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()

	e := h.journal.find(r.ID)
	if e == nil {
		select {
		case h.slot <- struct{}{}:
		case <-h.gone:
			return pane.Absent, errEnded()
		case <-ctx.Done():
			return pane.Absent, fault.New(fault.TimedOut, "another text is still being typed into this terminal").
				WithHint("its program does not read; nothing of this text was typed")
		}
		var f *fault.Fault
		if e, f = h.beginText(ctx, r); f != nil {
			return pane.Absent, f
		}
	}
	select {
	case <-e.ended:
	case <-ctx.Done():
		select {
		case <-e.ended:
		default:
			return pane.Partial, fault.New(fault.TimedOut, "the program does not read, so the text is typed in part").
				WithHint("the rest follows when the program reads; the text is not to be typed again")
		}
	}
	if e.done {
		return pane.Done, nil
	}
	return pane.Partial, fault.New(fault.AgentFailed, "the program ended while the text was being typed")
}

// beginText claims r's id and starts to type. It holds the slot and gives it back,
// at the latest when the typing has ended.
func (h *holder) beginText(ctx context.Context, r request) (*entry, *fault.Fault) {
	release := func() { <-h.slot }
	if ctx.Err() != nil { // a select takes either way where both are open
		release()
		return nil, fault.New(fault.TimedOut, "the request came too late; nothing was typed")
	}
	select {
	case <-h.gone:
		release()
		return nil, errEnded()
	default:
	}
	e, fresh, err := h.journal.claim(r.ID)
	if err != nil {
		release()
		return nil, fault.New(fault.Failed, "the write can't be recorded, so it was not begun: %v", err)
	}
	if !fresh {
		release()
		return e, nil
	}
	go func() { // ends with the text, or with the program
		err := h.typeText(r)
		if endErr := h.journal.end(r.ID, err == nil); endErr != nil {
			slog.Error("can't record the end of a write", "err", endErr)
		}
		release()
		if len(r.Text) > ringBytes {
			debug.FreeOSMemory() // a holder is small between two texts
		}
	}()
	return e, nil
}

// typeText types the text and presses the submit key.
func (h *holder) typeText(r request) error {
	text := r.Text
	if len(text) > 0 && h.output.bracketed() {
		text = bytes.Join([][]byte{[]byte(pasteStart), text, []byte(pasteEnd)}, nil)
	}
	if err := h.writeAll(text); err != nil {
		return err
	}
	if len(r.Submit) == 0 {
		return nil
	}
	if settle := time.Duration(r.SettleMS) * time.Millisecond; settle > 0 {
		h.awaitRead()
		select {
		case <-time.After(settle):
		case <-h.gone:
			return errEnded()
		}
	}
	return h.writeAll(r.Submit)
}

// writeAll returns when the terminal has taken all of b, or the program is gone.
func (h *holder) writeAll(b []byte) error {
	for len(b) > 0 {
		select {
		case <-h.gone:
			return errEnded()
		default:
		}
		h.master.SetWriteDeadline(time.Now().Add(slice))
		n, err := h.master.Write(b)
		b = b[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("write to terminal: %w", err)
		}
	}
	return nil
}

// awaitRead waits until the program has read what was typed, at most readBound.
func (h *holder) awaitRead() {
	bound := time.After(readBound)
	for empty := 0; empty < 2; { // once may fall between a read and the refill from the kernel's first buffer
		n, ok := unread(h.raw)
		if !ok {
			return
		}
		if n == 0 {
			empty++
		} else {
			empty = 0
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-bound:
			return
		case <-h.gone:
			return
		}
	}
}

func errEnded() *fault.Fault {
	return fault.New(fault.AgentFailed, "the program in this terminal has ended")
}
