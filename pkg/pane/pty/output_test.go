package pty

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestR36_BracketedPasteIsFollowed(t *testing.T) {
	for _, c := range []struct {
		out  string
		want bool
	}{
		{"\x1b[?2004h", true},
		{"\x1b[?2004h\x1b[?2004l", false},
		{"\x1b[?1049;2004h", true},
		{"\x1b[?2004;25h text", true},
		{"\x1b[?2004h\x1b[?1;2004;7l", false},
		{"\x1b[?02004h", true},
		{"\x1b[?20040h", false},
		{"\x1b[?12004h", false},
		{"\x1b[2004h", false},
		{"\x1b[?2004", false},
		{"[?2004h", false},
		{"\x1b]0;[?2004h\x07", false},
		{"\x1b[?2004h\x1bc", false},
		{"\x1b[?2004h\x1b[0m\x1b(B\x1b[2J", true},
		{"\x1b[?20\x18" + "04h", false},
		{"\x1b[?20\x1b[?2004h", true},
		{"\x1b[?" + strings.Repeat("1;", 40) + "2004h\x1b[?25h", false},
		{"\x1b[?20é04h", false},
	} {
		for cut := range len(c.out) + 1 {
			var m modes
			m.feed([]byte(c.out[:cut]))
			m.feed([]byte(c.out[cut:]))
			if m.paste != c.want {
				t.Errorf("%q cut at %d: %v", c.out, cut, m.paste)
			}
		}
		var m modes
		for i := range len(c.out) {
			m.feed([]byte{c.out[i]})
		}
		if m.paste != c.want {
			t.Errorf("%q byte by byte: %v", c.out, m.paste)
		}
	}
}

func TestR35_RingKeepsTheEnd(t *testing.T) {
	o := newOutput()
	var all []byte
	for i := range 20000 {
		line := fmt.Appendf(nil, "line %d\r\n", i)
		all = append(all, line...)
		o.add(line)
		if i%997 == 0 {
			got := o.tail()
			if !bytes.HasSuffix(all, got) || len(got) < min(len(all), ringBytes-20) || len(got) > ringBytes {
				t.Fatalf("after %d bytes the ring gives %d", len(all), len(got))
			}
		}
	}
	o.add(bytes.Repeat([]byte("0123456789\n"), 20000))
	if got := plain(o.tail(), 2); got != "0123456789\n0123456789" {
		t.Errorf("got %q", got)
	}
}

func TestR35_ScreenIsPlainText(t *testing.T) {
	for out, want := range map[string]string{
		"":                                     "",
		"a\r\nb\r\n":                           "a\nb",
		"50%\r100%\r\n":                        "100%",
		"abcdef\rxy":                           "xycdef",
		"abcdef\rxy\x1b[K":                     "xy",
		"abc\x1b[2K\rd":                        "d",
		"\x1b[1;31mred\x1b[0m \x1b(Bx":         "red x",
		"\x1b]0;title\x07a\x1b]8;;u\x1b\\b":    "ab",
		"\x1bPq#0\x1b\\a\x1b_x\x1b\\b":         "ab",
		"a\x1b[3Cb\x1b[2Dc":                    "a  cb",
		"one\x1b[5;1Htwo":                      "one\ntwo",
		"abc\b\bX":                             "aXc",
		"a\tb":                                 "a       b",
		"\x1b]0;never ends":                    "",
		"a\x1b":                                "a",
		"a\x1b[":                               "a",
		"bad \xff\xc3 \u009b31m\u202e utf":     "bad \ufffd\ufffd 31m utf",
		"e\u0301 👩‍💻 日本":                       "e\u0301 👩‍💻 日本",
		"l1\r\n\r\nl3\r\n\r\n\r\n":             "l1\n\nl3",
		"x\x1b[999999999999999999999Cy":        "x",
		"\x1b[?25l\x1b[>4;2m\x1b[ q\x1b=\x1b>": "",
	} {
		if got := plain([]byte(out), 10); got != want {
			t.Errorf("%q: %q, want %q", out, got, want)
		}
	}
	if got := plain([]byte("1\n2\n3\n4\n"), 2); got != "3\n4" {
		t.Errorf("got %q", got)
	}
	if got := plain([]byte("1\n2\n"), 0) + plain([]byte("1\n"), -5); got != "" {
		t.Errorf("got %q", got)
	}
}

// checkPlain is what must hold for any output.
func checkPlain(t *testing.T, out []byte, lines int) {
	text := plain(out, lines)
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) {
		t.Errorf("%q gives %q", out, text)
	}
	if n := strings.Count(text, "\n"); text != "" && n+1 > lines {
		t.Errorf("%d lines, asked for %d", n+1, lines)
	}
}

func FuzzR61_Screen(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b]0;x\x07\x1b[?2004h\r\n\x1b[5C\x1bP"), 5)
	f.Add([]byte(strings.Repeat("\x1b[500C\n", 100)), 2000)
	f.Fuzz(func(t *testing.T, out []byte, lines int) {
		checkPlain(t, out, lines)
		var whole, cut modes
		whole.feed(out)
		for i := range out {
			cut.feed(out[i : i+1])
		}
		if whole != cut {
			t.Errorf("modes differ: %+v, %+v", whole, cut)
		}
	})
}

func TestR61_HostileOutputStaysSmall(t *testing.T) {
	for _, out := range []string{
		strings.Repeat("\x1b[1000Cx\n", ringBytes/9),
		strings.Repeat("\x1b]", ringBytes/2),
		strings.Repeat("\x1b", ringBytes),
		strings.Repeat("\x1bP"+strings.Repeat("x", 100), ringBytes/102),
		"\x1b]" + strings.Repeat("x", ringBytes),
	} {
		if text := plain([]byte(out), maxLines); len(text) > maxLines*(maxCols+1) {
			t.Errorf("%.20q gives %d bytes", out, len(text))
		}
	}
}

func FuzzR61_Request(f *testing.F) {
	for _, line := range []string{`{"op":"hello","version":"1.0"}`, `{"op":"write","id":"x","text":"eA==","submit":"DQ==","settle_ms":5}`,
		`{"op":"tag","key":"k","value":"v"}`, `{"op":"lookup","id":"x"}`, `[`, `{"op":7}`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := decodeRequest(line)
		if err != nil {
			return
		}
		if r.Op == opWrite && (checkText(r.Text) != nil || bytes.ContainsRune(r.Text, 0x1b) || !utf8.Valid(r.Text) || checkID(r.ID) != nil) {
			t.Errorf("%q was let through", line)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRequest(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}
