package pty

import (
	"bytes"
	"strings"
	"sync"
	"time"
)

// ringBytes is how much of the program's output a holder keeps.
const ringBytes = 64 << 10

// output is what the program printed last, and what it told its terminal.
type output struct {
	mu    sync.Mutex // guards all below
	ring  []byte     // grows to ringBytes, then is written round
	next  int        // where the next byte goes once the ring is full
	modes modes
	last  time.Time // of the last output; at first, of the start
}

func newOutput() *output { return &output{last: time.Now()} }

// add takes what the program printed.
func (o *output) add(p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Now()
	o.modes.feed(p)
	if len(p) > ringBytes {
		p = p[len(p)-ringBytes:]
	}
	if room := ringBytes - len(o.ring); room > 0 {
		n := min(room, len(p))
		o.ring, p = append(o.ring, p[:n]...), p[n:]
	}
	for len(p) > 0 {
		n := copy(o.ring[o.next:], p)
		o.next, p = (o.next+n)%ringBytes, p[n:]
	}
}

// tail copies what the ring holds, oldest first. Where older output was lost it
// starts after a line's end, so that it does not start inside an escape
// sequence.
func (o *output) tail() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ring) < ringBytes {
		return bytes.Clone(o.ring)
	}
	all := append(bytes.Clone(o.ring[o.next:]), o.ring[:o.next]...)
	if i := bytes.IndexByte(all[:ringBytes/2], '\n'); i >= 0 {
		all = all[i+1:]
	}
	return all
}

func (o *output) bracketed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.modes.paste
}

func (o *output) quiet() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.last)
}

// modes follows DECSET and DECRST of mode 2004 (bracketed paste) through a
// stream that is cut anywhere. Strings (OSC, DCS) need no care: an escape ends
// them in every terminal, so none can hide a sequence.
type modes struct {
	paste  bool
	at     place
	params [64]byte // of the private sequence under way; longer ones are no mode
	n      int
}

type place byte

const (
	ground  place = iota
	escape        // after ESC
	bracket       // after ESC [
	private       // after ESC [ ?
	other         // in another control sequence, or one that is too long
)

func (m *modes) feed(p []byte) {
	for len(p) > 0 {
		if m.at == ground {
			i := bytes.IndexByte(p, 0x1b)
			if i < 0 {
				return
			}
			m.at, p = escape, p[i+1:]
			continue
		}
		m.step(p[0])
		p = p[1:]
	}
}

func (m *modes) step(c byte) {
	switch {
	case c == 0x1b:
		m.at = escape
		return
	case c == 0x18 || c == 0x1a || c >= 0x80: // CAN, SUB, or text
		m.at = ground
		return
	case c < 0x20 || c == 0x7f: // acts at once, the sequence goes on
		return
	}
	switch m.at {
	case escape:
		m.at = ground
		switch c {
		case '[':
			m.at = bracket
		case 'c': // full reset
			m.paste = false
		}
	case bracket:
		m.at = other
		if c == '?' {
			m.at, m.n = private, 0
		} else if c >= 0x40 {
			m.at = ground
		}
	case private:
		switch {
		case c >= 0x40:
			m.at = ground
			if c == 'h' || c == 'l' {
				m.set(string(m.params[:m.n]), c == 'h')
			}
		case m.n == len(m.params):
			m.at = other
		default:
			m.params[m.n] = c
			m.n++
		}
	case other:
		if c >= 0x40 {
			m.at = ground
		}
	}
}

func (m *modes) set(params string, on bool) {
	for param := range strings.SplitSeq(params, ";") {
		if strings.TrimLeft(param, "0") == "2004" {
			m.paste = on
		}
	}
}
