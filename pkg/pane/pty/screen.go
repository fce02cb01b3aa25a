package pty

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a screen's text is made of: hostile output must not make a
// small ring into a large text.
const (
	maxCols  = 1000
	maxLines = 2000
)

// plain makes readable text of terminal output: up to lines last lines, without
// control characters and escape sequences, valid UTF-8. It is no emulator. It
// follows what line-wise programs do (carriage return, backspace, erasing a
// line, moving within it); a jump to another place of the screen starts a line.
func plain(out []byte, lines int) string {
	p := printer{keep: min(max(lines, 0), maxLines)}
	for len(out) > 0 {
		if c := out[0]; c == 0x1b {
			out = out[p.sequence(out):]
		} else if c < 0x20 || c == 0x7f {
			p.control(c)
			out = out[1:]
		} else {
			r, n := utf8.DecodeRune(out)
			p.put(r)
			out = out[n:]
		}
	}
	p.flush()
	return strings.Join(p.lines, "\n")
}

// printer holds the line under way and the lines before it.
type printer struct {
	lines []string
	keep  int
	line  []rune
	col   int
}

// put prints one character at the cursor.
func (p *printer) put(r rune) {
	if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || p.col >= maxCols {
		return
	}
	for len(p.line) < p.col {
		p.line = append(p.line, ' ')
	}
	if p.col < len(p.line) {
		p.line[p.col] = r
	} else {
		p.line = append(p.line, r)
	}
	p.col++
}

func (p *printer) control(c byte) {
	switch c {
	case '\n', '\v', '\f':
		p.newline()
	case '\r':
		p.col = 0
	case '\b':
		p.col = max(0, p.col-1)
	case '\t':
		p.col = min(p.col/8*8+8, maxCols)
	}
}

func (p *printer) newline() {
	p.lines = append(p.lines, strings.TrimRight(string(p.line), " "))
	if drop := len(p.lines) - 2*p.keep - 16; drop > 0 { // now and then, not each time
		p.lines = append(p.lines[:0], p.lines[len(p.lines)-p.keep:]...)
	}
	p.line, p.col = p.line[:0], 0
}

// flush ends the last line, drops empty ones at the end and keeps the last of
// the rest.
func (p *printer) flush() {
	p.newline()
	n := len(p.lines)
	for n > 0 && p.lines[n-1] == "" {
		n--
	}
	p.lines = p.lines[max(0, n-p.keep):n]
}

// sequence acts on the escape sequence at the start of s and returns its
// length. A sequence that is cut by the end of s is dropped whole.
func (p *printer) sequence(s []byte) int {
	if len(s) < 2 {
		return len(s)
	}
	switch s[1] {
	case '[':
		return p.csi(s)
	case ']', 'P', 'X', '^', '_': // OSC, DCS, SOS, PM, APC: a string up to BEL or ST
		for i := 2; i < len(s); i++ {
			switch {
			case s[i] == 0x07 || s[i] == 0x18 || s[i] == 0x1a:
				return i + 1
			case s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\':
				return i + 2
			case s[i] == 0x1b:
				return i // cut off by the next sequence
			}
		}
		return len(s)
	}
	i := 1
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2f { // such as the charset's ESC ( B
		i++
	}
	if i == len(s) {
		return i
	}
	if s[i] < 0x20 || s[i] >= 0x7f {
		return i // not a sequence: the byte counts by itself
	}
	if i == 1 && (s[1] == 'D' || s[1] == 'E' || s[1] == 'c') { // next line; reset
		p.newline()
	}
	return i + 1
}

// csi acts on ESC [ params final.
func (p *printer) csi(s []byte) int {
	i := 2
	for i < len(s) && s[i] >= 0x20 && s[i] < 0x40 {
		i++
	}
	if i == len(s) {
		return i
	}
	params, final := s[2:i], s[i]
	if final < 0x40 || final >= 0x7f {
		return i
	}
	switch n := number(params); final {
	case 'C': // right
		p.col = min(p.col+max(n, 1), maxCols)
	case 'D': // left
		p.col = max(0, p.col-max(n, 1))
	case 'G', '`': // to a column
		p.col = min(max(n, 1)-1, maxCols)
	case 'K':
		p.erase(n)
	case 'A', 'B', 'E', 'F', 'H', 'd', 'f', 'J':
		if len(p.line) > 0 {
			p.newline()
		}
	}
	return i + 1
}

// erase removes a part of the line, as EL does.
func (p *printer) erase(how int) {
	switch {
	case how == 0 && p.col < len(p.line):
		p.line = p.line[:p.col]
	case how == 1:
		for i := range min(p.col+1, len(p.line)) {
			p.line[i] = ' '
		}
	case how == 2:
		p.line = p.line[:0]
	}
}

// number is the first parameter, bounded; 0 where there is none.
func number(params []byte) int {
	n := 0
	for _, c := range params {
		if c < '0' || c > '9' {
			break
		}
		n = min(n*10+int(c-'0'), maxCols)
	}
	return n
}
