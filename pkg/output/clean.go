package output

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Clean is s as one line that no terminal acts on: control characters are gone,
// line ends and tabs are spaces, invalid UTF-8 is U+FFFD, and characters that
// would change the direction of what follows are written out as <U+202E>.
func Clean(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s { // a range yields U+FFFD for invalid bytes
		switch {
		case r == '\n' || r == '\r' || r == '\t' || r == '\u2028' || r == '\u2029':
			b.WriteByte(' ')
		case unicode.IsControl(r):
		case bidi(r):
			fmt.Fprintf(&b, "<U+%04X>", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// plain says whether Clean has nothing to do, as mostly.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// cleanLines cleans every line of s and keeps line ends and tabs.
func cleanLines(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
	for i, l := range lines {
		cells := strings.Split(l, "\t")
		for j, c := range cells {
			cells[j] = Clean(c)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

// bidi says whether r is one of Unicode's bidirectional controls.
func bidi(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }

// escapeJSON writes the characters that JSON may hold raw and a terminal would
// act on as \uXXXX, which every reader takes for the same. They only occur
// inside strings.
func escapeJSON(b []byte) []byte {
	if bytes.IndexFunc(b, hidden) < 0 {
		return b
	}
	out := make([]byte, 0, len(b)+64)
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if hidden(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = append(out, b[:size]...)
		}
		b = b[size:]
	}
	return out
}

func hidden(r rune) bool { return r != '\n' && (unicode.IsControl(r) || bidi(r)) }

// Age is d in its largest unit, as people say it: 12s, 5m, 3h, 4d. Less than
// nothing, which clocks bring about, is 0s.
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
