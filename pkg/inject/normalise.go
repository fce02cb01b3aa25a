package inject

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Normalise is the one change that fleet makes to a message's text before an
// agent gets it. Digests of a text are taken after it. In this order:
//
//   - each byte that is not valid UTF-8 becomes U+FFFD;
//   - CR LF and CR become LF;
//   - NUL and the other C0 controls but TAB and LF, DEL, and the C1 controls
//     (U+0080 to U+009F, with the 8-bit CSI) are dropped, so that no escape
//     sequence is left;
//   - controls of writing direction (Unicode's Bidi_Control), which could make a
//     line read as what it is not, are spelled out, such as <U+202E>;
//   - LFs at the end are dropped.
//
// Everything else is kept byte for byte. Normalise is idempotent.
func Normalise(text string) string {
	if isNormal(text) {
		return strings.TrimRight(text, "\n")
	}
	var out strings.Builder
	out.Grow(len(text))
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			out.WriteRune(utf8.RuneError)
		case r == '\r':
			out.WriteByte('\n')
			if strings.HasPrefix(text[i+n:], "\n") {
				n++
			}
		case dropped(r):
		case unicode.Is(unicode.Bidi_Control, r):
			fmt.Fprintf(&out, "<U+%04X>", r)
		default:
			out.WriteString(text[i : i+n])
		}
		i += n
	}
	return strings.TrimRight(out.String(), "\n")
}

// isNormal says whether text needs no change but at its end, as most texts do.
func isNormal(text string) bool {
	for i, r := range text {
		if r < utf8.RuneSelf && r != '\r' && !dropped(r) {
			continue
		}
		if r == '\r' || dropped(r) || unicode.Is(unicode.Bidi_Control, r) ||
			r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			return false
		}
	}
	return true
}

func dropped(r rune) bool {
	return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r <= 0x9f
}

// maxClean bounds a one-line value, in bytes.
const maxClean = 256

// Clean makes a value from outside, such as a name, fit for one line of text:
// normalised, line ends and tabs as blanks, no blanks at either end, at most
// 256 bytes, cut at a character.
func Clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, Normalise(s))
	s = strings.TrimSpace(s)
	if len(s) > maxClean {
		cut := maxClean
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = strings.TrimSpace(s[:cut])
	}
	return s
}
