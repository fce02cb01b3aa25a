package output_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/creack/pty"

	"fleet/pkg/fault"
	"fleet/pkg/output"
)

// agent is a row as other packages would have one.
type agent struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Text  string `json:"text"`
}

var columns = []output.Column[agent]{
	{"name", func(a agent) string { return a.Name }},
	{"state", func(a agent) string { return a.State }},
	{"text", func(a agent) string { return a.Text }},
}

var agents = []agent{
	{"worker", "idle", "1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a"},
	{"日本", "busy", ""},
	{"x", "", "a <b> & c"},
}

// print runs f with a printer and returns both streams.
func print(t *testing.T, p output.Printer, f func(*output.Printer) error) (stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	p.Out, p.Err = &out, &err
	if e := f(&p); e != nil {
		t.Fatal(e)
	}
	return out.String(), err.String()
}

func rows(list []agent) func(*output.Printer) error {
	return func(p *output.Printer) error { return output.Rows(p, "agents", columns, list) }
}

func TestR56_RowsOnATerminal(t *testing.T) {
	out, _ := print(t, output.Printer{Terminal: true}, rows(agents))
	want := "" +
		"NAME    STATE  TEXT\n" +
		"worker  idle   1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a\n" +
		"日本    busy\n" +
		"x              a <b> & c\n"
	if out != want {
		t.Errorf("got:\n%s\nwant:\n%s", out, want)
	}
}

func TestR56_RowsInAPipe(t *testing.T) {
	out, _ := print(t, output.Printer{Width: 20, Colour: true}, rows(agents))
	want := "worker\tidle\t1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a\n日本\tbusy\t\nx\t\ta <b> & c\n"
	if out != want {
		t.Errorf("got:\n%q\nwant:\n%q", out, want)
	}
	if out, _ := print(t, output.Printer{}, rows(nil)); out != "" {
		t.Errorf("no rows print %q", out)
	}
}

func TestR56_RowsAsJSON(t *testing.T) {
	out, _ := print(t, output.Printer{Format: output.JSON, Terminal: true, Width: 20, Colour: true}, rows(agents))
	want := `{"v":1,"agents":[{"name":"worker","state":"idle","text":"1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a"},` +
		`{"name":"日本","state":"busy","text":""},{"name":"x","state":"","text":"a <b> & c"}]}` + "\n"
	if out != want {
		t.Errorf("got:\n%s\nwant:\n%s", out, want)
	}
	if out, _ := print(t, output.Printer{Format: output.JSON}, rows(nil)); out != `{"v":1,"agents":[]}`+"\n" {
		t.Errorf("no rows print %q", out)
	}
}

func TestR56_ColourOnlyWhereAllowed(t *testing.T) {
	coloured, _ := print(t, output.Printer{Terminal: true, Colour: true}, rows(agents))
	plain, _ := print(t, output.Printer{Terminal: true}, rows(agents))
	if !strings.Contains(coloured, "\x1b[1m") || strings.Contains(plain, "\x1b") {
		t.Errorf("coloured %q, plain %q", coloured, plain)
	}
	if got := strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "").Replace(coloured); got != plain {
		t.Errorf("colour changes more than colour: %q", got)
	}
}

func TestR56_TableFitsTheTerminal(t *testing.T) {
	list := []agent{{strings.Repeat("n", 30), "idle", strings.Repeat("日本語", 20)}, {"x", "busy", "short"}}
	for _, width := range []int{20, 30, 40, 80, 200} {
		out, _ := print(t, output.Printer{Terminal: true, Width: width}, rows(list))
		for _, line := range strings.Split(out, "\n") {
			cells := 0
			for _, r := range line {
				cells++
				if unicode.Is(unicode.Han, r) {
					cells++
				}
			}
			if cells > max(width, 8+2+5+2+8) {
				t.Errorf("width %d: a line of %d columns: %s", width, cells, line)
			}
		}
	}
	out, _ := print(t, output.Printer{Terminal: true, Width: 300}, rows(list))
	if strings.Contains(out, "…") {
		t.Errorf("cut although it fits:\n%s", out)
	}
}

// hostile is what an agent may put into a name, a state or a text.
var hostile = []string{
	"\x1b]52;c;aGk=\x07\x1b[2J\x1b[31mred",
	"\u009b31mc1\u0085\u007f",
	"one\ntwo\r\nthree\tfour\x00",
	"user\u202etxt.exe \u2066x\u2069 \u200f",
	"bad \xff\xfe utf8 \xc3",
	"\u2028line\u2029",
}

func TestR61_CellsNeverActOnATerminal(t *testing.T) {
	for _, text := range hostile {
		list := []agent{{text, text, text}}
		for _, p := range []output.Printer{{Terminal: true, Width: 80}, {Terminal: true}, {}, {Format: output.JSON}} {
			out, _ := print(t, p, rows(list))
			if n := strings.Count(out, "\n"); n != 1 && !(p.Terminal && n == 2) {
				t.Errorf("%q: %d lines", text, n)
			}
			if !p.Terminal && p.Format == output.Auto && strings.Count(out, "\t") != 2 {
				t.Errorf("%q breaks the columns: %q", text, out)
			}
			inert(t, strings.NewReplacer("\n", "", "\t", "").Replace(out))
		}
	}
}

// inert fails where s holds anything that a terminal acts on.
func inert(t *testing.T, s string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("not UTF-8: %q", s)
	}
	for _, r := range s {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			t.Errorf("%U passes in %q", r, s)
		}
	}
}

func TestR56_JSONKeepsWhatItEscapes(t *testing.T) {
	text := "\x1b[2J\u009b31m\u202e\u007f<&>\u2028 日本 👩‍👩‍👧"
	out, _ := print(t, output.Printer{}, func(p *output.Printer) error { return p.JSON(agent{Text: text}) })
	var got agent
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Text != text {
		t.Errorf("got %q (%v), want %q", got.Text, err, text)
	}
	inert(t, strings.TrimSuffix(out, "\n"))
}

func TestR56_StreamsAreOneDocumentALine(t *testing.T) {
	out, _ := print(t, output.Printer{Format: output.JSON}, func(p *output.Printer) error {
		return errors.Join(p.Line(agent{Name: "a\nb"}), p.Line(agent{Name: "c"}))
	})
	want := `{"v":1,"name":"a\nb","state":"","text":""}` + "\n" + `{"v":1,"name":"c","state":"","text":""}` + "\n"
	if out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestR56_Errors(t *testing.T) {
	full := fault.New(fault.Ambiguous, "several agents are called %s", "eve").
		WithHint("name one by its id").WithID("0192").WithAlso("eve@alpha", "eve@\x1b[2Jbeta")
	people := "fleet: several agents are called eve\n  eve@alpha\n  eve@[2Jbeta\nid: 0192\nhint: name one by its id\n"
	for _, c := range []struct {
		name           string
		format         output.Format
		err            error
		stdout, stderr string
	}{
		{"nil", output.JSON, nil, "", ""},
		{"people", output.Auto, full, "", people},
		{"scripts", output.JSON, full,
			`{"v":1,"error":{"kind":"ambiguous","message":"several agents are called eve","hint":"name one by its id","id":"0192","also":["eve@alpha","eve@\u001b[2Jbeta"]}}` + "\n", people},
		{"wrapped", output.JSON, fmt.Errorf("read host key: %w", fault.New(fault.Config, "it is damaged")),
			`{"v":1,"error":{"kind":"config","message":"read host key: it is damaged"}}` + "\n", "fleet: read host key: it is damaged\n"},
		{"not a fault", output.JSON, context.DeadlineExceeded,
			`{"v":1,"error":{"kind":"failed","message":"context deadline exceeded"}}` + "\n", "fleet: context deadline exceeded\n"},
		{"no kind", output.JSON, &fault.Fault{Message: "odd"}, `{"v":1,"error":{"kind":"failed","message":"odd"}}` + "\n", "fleet: odd\n"},
		{"lines", output.Auto, errors.New("one\ntwo"), "", "fleet: one two\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := print(t, output.Printer{Format: c.format}, func(p *output.Printer) error { p.Fail(c.err); return nil })
			if out != c.stdout || err != c.stderr {
				t.Errorf("stdout %q\nwant   %q\nstderr %q\nwant   %q", out, c.stdout, err, c.stderr)
			}
		})
	}
}

// A printed error is read back as the same fault.
func TestR56_JSONErrorArrivesEqual(t *testing.T) {
	want := fault.New(fault.Full, "the inbox of eve is full").WithHint("wait").WithID("x").WithAlso("a", "b")
	out, _ := print(t, output.Printer{Format: output.JSON}, func(p *output.Printer) error { p.Fail(want); return nil })
	var got struct{ Error *fault.Fault }
	if err := json.Unmarshal([]byte(out), &got); err != nil || !reflect.DeepEqual(got.Error, want) {
		t.Errorf("got %+v (%v), want %+v", got.Error, err, want)
	}
}

func TestSay(t *testing.T) {
	out, err := print(t, output.Printer{}, func(p *output.Printer) error {
		p.Say("two\nlines from %s", "\x1b[2Jeve")
		p.Say("done\n")
		return nil
	})
	if out != "" || err != "two\nlines from [2Jeve\ndone\n" {
		t.Errorf("stdout %q, stderr %q", out, err)
	}
}

func TestR58_TextIsExactInAPipe(t *testing.T) {
	text := "a\tb\r\n\x1b[31m日本\u202e"
	out, _ := print(t, output.Printer{}, func(p *output.Printer) error { return p.Text(text) })
	if out != text+"\n" {
		t.Errorf("pipe: %q", out)
	}
	out, _ = print(t, output.Printer{Terminal: true}, func(p *output.Printer) error { return p.Text(text + "\n") })
	if out != "a\tb\n[31m日本<U+202E>\n" {
		t.Errorf("terminal: %q", out)
	}
}

func TestR56_FindsOutWhatStdoutIs(t *testing.T) {
	control, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	defer terminal.Close()
	if err := pty.Setsize(control, &pty.Winsize{Cols: 77, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	if p := output.New(terminal, os.Stderr, output.Auto, false); !p.Terminal || !p.Colour || p.Width != 77 {
		t.Errorf("on a terminal: %+v", p)
	}
	if p := output.New(terminal, os.Stderr, output.Auto, true); !p.Terminal || p.Colour {
		t.Errorf("with NO_COLOR: %+v", p)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if p := output.New(w, terminal, output.JSON, false); p.Terminal || p.Colour || p.Format != output.JSON {
		t.Errorf("in a pipe: %+v", p)
	}
	if p := output.New(&bytes.Buffer{}, os.Stderr, output.Auto, false); p.Terminal || p.Colour {
		t.Errorf("in a buffer: %+v", p)
	}
}

// broken is a stdout that is gone.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriteErrorsAreReported(t *testing.T) {
	for _, p := range []output.Printer{{Terminal: true}, {}, {Format: output.JSON}} {
		p.Out = broken{}
		if err := output.Rows(&p, "agents", columns, agents); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	var stderr bytes.Buffer
	p := output.Printer{Out: broken{}, Err: &stderr, Format: output.JSON}
	p.Fail(errors.New("x"))
	if !strings.Contains(stderr.String(), "can't print the error as JSON") {
		t.Errorf("stderr %q", stderr.String())
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 999 * time.Millisecond: "0s", 59 * time.Second: "59s", time.Minute: "1m",
		119 * time.Minute: "1h", 47 * time.Hour: "47h", 48 * time.Hour: "2d", 400 * 24 * time.Hour: "400d",
	} {
		if got := output.Age(d); got != want {
			t.Errorf("%s is shown as %s, want %s", d, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := output.Clean(s)
		inert(t, c)
		if output.Clean(c) != c {
			t.Errorf("not idempotent: %q, %q", s, c)
		}
		var b bytes.Buffer
		p := output.Printer{Out: &b}
		if err := p.JSON(s); err != nil {
			t.Fatal(err)
		}
		inert(t, strings.TrimSuffix(b.String(), "\n"))
		var back string
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || back != strings.ToValidUTF8(s, "\ufffd") && utf8.ValidString(s) {
			t.Errorf("%q came back as %q (%v)", s, back, err)
		}
	})
}
