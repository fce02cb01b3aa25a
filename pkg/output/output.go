// Package output is what a command prints: rows as a table on a terminal, as
// tabs in a pipe, as JSON on request; and errors.
//
// Stdout is the answer and nothing else; what is for people only goes to
// stderr. Texts come from other agents, so nothing that a terminal would act on
// passes. The package does not know what the rows mean, reads no environment
// and ends no process.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
)

// Format says what stdout holds.
type Format int

// The formats.
const (
	Auto Format = iota // a table on a terminal, tabs elsewhere
	JSON               // one document, or one a line for streams
)

// Printer prints one command's answer. It is for one goroutine at a time.
type Printer struct {
	Out    io.Writer
	Err    io.Writer
	Format Format
	// Terminal: Out is a terminal, of Width columns (0: unknown).
	Terminal bool
	Width    int
	Colour   bool // Out may hold colours
}

// New makes a printer for two streams and finds out what out is. plain turns
// colours off: NO_COLOR is set, or the terminal is a dumb one.
func New(out, err io.Writer, format Format, plain bool) *Printer {
	p := &Printer{Out: out, Err: err, Format: format}
	if f, ok := out.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		p.Terminal = true
		p.Colour = !plain
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			p.Width = int(size.Col)
		}
	}
	return p
}

// JSON prints v, an object, as one document on one line. Its first field is the
// version of fleet's documents, "v".
func (p *Printer) JSON(v any) error { return p.Line(v) }

// Line prints v as one document on a line of its own, for streams. The line is
// written at once, so that a reader can follow.
func (p *Printer) Line(v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	_, err = p.Out.Write(escapeJSON(versioned(b)))
	return err
}

// versioned is an encoded object with the version as its first field, unless it
// has one.
func versioned(b []byte) []byte {
	first := fmt.Appendf(nil, `{"v":%d`, Version)
	switch {
	case len(b) == 0 || b[0] != '{' || bytes.HasPrefix(b, []byte(`{"v":`)):
		return b
	case bytes.HasPrefix(b, []byte("{}")):
		return append(first, b[1:]...)
	}
	return append(append(first, ','), b[1:]...)
}

// encode is v as JSON and a line end. What HTML would want escaped is left
// readable.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b.Bytes(), nil
}

// Text prints s, the answer of a command whose answer is a text. A pipe gets it
// byte for byte, a terminal without control characters; either gets a closing
// line end.
func (p *Printer) Text(s string) error {
	if p.Terminal {
		s = cleanLines(s)
	}
	if !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	_, err := io.WriteString(p.Out, s)
	return err
}

// Say tells people something, on stderr.
func (p *Printer) Say(format string, args ...any) {
	// A stderr that is gone leaves nobody to tell.
	_, _ = io.WriteString(p.Err, strings.TrimSuffix(cleanLines(fmt.Sprintf(format, args...)), "\n")+"\n")
}

// Fail reports err: for people on stderr, under Format JSON also as exactly one
// document {"error": fault} on stdout. It prints nothing for nil, and leaves the
// exit status to the caller.
func (p *Printer) Fail(err error) {
	f := fault.From(err)
	if f == nil {
		return
	}
	p.Say("fleet: %s", Clean(f.Message))
	for _, line := range f.Also {
		p.Say("  %s", Clean(line))
	}
	if f.ID != "" {
		p.Say("id: %s", Clean(f.ID))
	}
	if f.Hint != "" {
		p.Say("hint: %s", Clean(f.Hint))
	}
	if p.Format == JSON {
		if f.Kind == "" {
			c := *f
			c.Kind = fault.Failed
			f = &c
		}
		if err := p.Line(map[string]*fault.Fault{"error": f}); err != nil {
			p.Say("fleet: can't print the error as JSON: %s", err)
		}
	}
}
