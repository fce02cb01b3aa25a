package inject

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/pane"
)

func TestR36_Normalise(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"plain":                  "plain",
		"\n\n":                   "",
		"\x00\x07\x1b":           "",
		"a\r\nb\rc\n":            "a\nb\nc",
		"a\r\r\nb":               "a\n\nb",
		"a\n\r b":                "a\n\n b",
		"a\x00\x01\x08\x0b\x1fb": "ab",
		"\x1b[31mred\x1b[201~":   "[31mred[201~",
		"a\u009b31m\u0085b":      "a31mb",
		"a\x7fb":                 "ab",
		"\xff\xfe":               "\ufffd\ufffd",
		"a\xc3":                  "a\ufffd",
		"\xed\xa0\x80":           "\ufffd\ufffd\ufffd",
		"ok \ufffd":              "ok \ufffd",
		"\u202a\u202e\u2066\u2069\u200e\u200f\u061c": "<U+202A><U+202E><U+2066><U+2069><U+200E><U+200F><U+061C>",
		"\tx \n y\t\n":         "\tx \n y\t",
		"👩‍💻 e\u0301 日 \u00a0": "👩‍💻 e\u0301 日 \u00a0",
		"x\u2028y\ufeff":       "x\u2028y\ufeff",
		"ends with blanks  \n": "ends with blanks  ",
		"\u202ea\r":            "<U+202E>a",
	} {
		if got := Normalise(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzR36_Normalise(f *testing.F) {
	for _, s := range []string{"a\r\nb", "\x1b[201~", "\u009b", "\xff\u202e\n\n", "👩‍💻", "\r\x00\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Normalise(text)
		if Normalise(got) != got {
			t.Errorf("%q: %q is not the end", text, got)
		}
		if !utf8.ValidString(got) || strings.HasSuffix(got, "\n") || strings.ContainsFunc(got, func(r rune) bool {
			return unicode.IsControl(r) && r != '\t' && r != '\n' || unicode.Is(unicode.Bidi_Control, r)
		}) {
			t.Errorf("%q: %q", text, got)
		}
		harmless := func(r rune) bool { return !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) }
		if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !harmless(r) }) < 0 && got != text {
			t.Errorf("%q became %q for nothing", text, got)
		}
		one := Clean(text)
		if strings.ContainsAny(one, "\n\t") || len(one) > maxClean || !utf8.ValidString(one) || Clean(one) != one {
			t.Errorf("%q: clean %q", text, one)
		}
		checkHeader(t, text)
	})
}

// checkHeader looks at what a hostile name and text can do to a message.
func checkHeader(t *testing.T, text string) {
	c, err := Compose(Brief{ID: envelope.NewID(), FromName: text, FromHost: "alpha", Text: text, Spool: t.TempDir()}, pane.Terminal{})
	if err != nil {
		t.Fatal(err)
	}
	header, body, more := strings.Cut(string(c.Text), "\n")
	n := 0
	if more {
		n = strings.Count(body, "\n") + 1
	}
	if n != c.Lines || strings.Count(header, "@") != 1 || strings.Count(header, ",") != 1 || !strings.HasPrefix(header, "[fleet ") || len(header) > 300 {
		t.Errorf("%d lines said, %d there, header %q", c.Lines, n, header)
	}
}

func TestR36_Clean(t *testing.T) {
	for s, want := range map[string]string{
		" a\nb\tc\x1b ":          "a b c",
		"\u202eeve":              "<U+202E>eve",
		strings.Repeat("é", 200): strings.Repeat("é", 128),
		"a\u2028b":               "a b",
	} {
		if got := Clean(s); got != want {
			t.Errorf("%q: %q", s, got)
		}
	}
}

func TestR39_Header(t *testing.T) {
	const id = "0192f0c1-0000-7000-8000-000000000000"
	b := Brief{ID: id, FromName: "lead", FromHost: "alpha"}
	for text, want := range map[string]string{
		"":          "[fleet " + id + " from lead@alpha, 0 lines; answer: fleet reply " + id + " TEXT]",
		"\x1b\r\n ": "[fleet " + id + " from lead@alpha, 2 lines; answer: fleet reply " + id + " TEXT]\n\n ",
		"\x00\n":    "[fleet " + id + " from lead@alpha, 0 lines; answer: fleet reply " + id + " TEXT]",
		"/x":        "[fleet " + id + " from lead@alpha, 1 line; answer: fleet reply " + id + " TEXT]\n/x",
		"a\nb\nc\n": "[fleet " + id + " from lead@alpha, 3 lines; answer: fleet reply " + id + " TEXT]\na\nb\nc",
	} {
		b.Text = text
		c, err := Compose(b, pane.Terminal{})
		if err != nil || string(c.Text) != want {
			t.Errorf("%q: %q, %v", text, c.Text, err)
		}
	}
	b.FromName = ""
	if c, err := Compose(b, pane.Terminal{}); err != nil || !strings.HasPrefix(string(c.Text), "[fleet "+id+" from _@alpha,") {
		t.Errorf("%q, %v", c.Text, err)
	}
	for _, id := range []envelope.ID{"", "x", "0192F0C1-0000-7000-8000-000000000000", "0192f0c1-0000-7000-8000-00000000000\n"} {
		if _, err := Compose(Brief{ID: id}, pane.Terminal{}); !errors.Is(err, fault.Usage) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

func TestR36_LongTextsAreSpooled(t *testing.T) {
	spool := filepath.Join(t.TempDir(), "a", "spool")
	line := func(n int) string { return strings.Repeat("x", n) }
	canonical := pane.Terminal{Canonical: true, LineBytes: 4095}
	for _, c := range []struct {
		text string
		term pane.Terminal
		file bool
	}{
		{line(8192), pane.Terminal{}, false},
		{line(8193), pane.Terminal{}, true},
		{line(8192) + "\r\n\n", pane.Terminal{}, false}, // measured after normalisation
		{line(4095), canonical, false},
		{line(4096), canonical, true},
		{line(4000) + "\n" + line(4000), canonical, false},
		{line(4096), pane.Terminal{LineBytes: 4095}, false},
	} {
		b := Brief{ID: envelope.NewID(), FromName: "a", FromHost: "b", Text: c.text, Spool: spool}
		got, err := Compose(b, c.term)
		if err != nil || (got.File != "") != c.file {
			t.Errorf("%d bytes, %+v: file %q, %v", len(c.text), c.term, got.File, err)
		}
		if got.File == "" {
			continue
		}
		if got.File != filepath.Join(spool, string(b.ID)+".txt") || got.Lines != 1 || !strings.HasSuffix(string(got.Text), " "+got.File) {
			t.Errorf("%+v", got)
		}
		text, err := os.ReadFile(got.File)
		if err != nil || string(text) != c.text {
			t.Errorf("%d bytes in the file, %v", len(text), err)
		}
		if info, err := os.Stat(got.File); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if again, err := Compose(b, c.term); err != nil || string(again.Text) != string(got.Text) {
			t.Errorf("again: %+v, %v", again, err)
		}
	}
	if info, err := os.Stat(spool); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(spool, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestR46_SpoolIsTheOwnersAlone(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", maxTyped+1)
	for _, dir := range []string{open, "", "relative", "/tmp/a\nb", "/tmp/\x1b"} {
		if _, err := Compose(Brief{ID: envelope.NewID(), Text: long, Spool: dir}, pane.Terminal{}); !errors.Is(err, fault.Config) {
			t.Errorf("%q: %v", dir, err)
		}
	}
	// A link that somebody put in the way is replaced, not followed.
	b := Brief{ID: envelope.NewID(), Text: long, Spool: filepath.Join(t.TempDir(), "s")}
	target := filepath.Join(t.TempDir(), "target")
	if err := os.MkdirAll(b.Spool, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(b.Spool, string(b.ID)+".txt")); err != nil {
		t.Fatal(err)
	}
	if _, err := Compose(b, pane.Terminal{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link was followed: %v", err)
	}
}

func TestR36_TerminalTooNarrow(t *testing.T) {
	b := Brief{ID: envelope.NewID(), FromName: "a", FromHost: "b", Text: strings.Repeat("x", 300), Spool: filepath.Join(t.TempDir(), "s")}
	if _, err := Compose(b, pane.Terminal{Canonical: true, LineBytes: 100}); !errors.Is(err, fault.Config) {
		t.Errorf("got %v", err)
	}
}

func TestR36_PauseBeforeSubmit(t *testing.T) {
	b := Brief{ID: envelope.NewID(), Text: "x"}
	for term, want := range map[pane.Terminal]bool{
		{}:                                      true,
		{BracketedPaste: true}:                  true,
		{Canonical: true}:                       false,
		{Canonical: true, BracketedPaste: true}: true,
	} {
		c, err := Compose(b, term)
		if err != nil || (c.Settle == settle) != want || string(c.Submit) != "\r" {
			t.Errorf("%+v: %+v, %v", term, c, err)
		}
	}
}
