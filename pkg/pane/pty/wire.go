package pty

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

// protocolVersion is what this build speaks, "major.minor"; see the package
// comment for its history and the rule for changing it.
const protocolVersion = "1.0"

// Bounds of the protocol, in bytes. A request line holds a text in base64 and
// little else.
const (
	maxText   = 2 << 20
	maxLine   = maxText/3*4 + 64<<10
	maxAnswer = 6*maxTags + 64<<10 // a byte has up to six in JSON; output is shorter
	maxID     = 128
	maxSubmit = 16
	maxSettle = 10 * time.Second
)

// The requests. All but hello need a hello before them on their connection.
const (
	opHello    = "hello"    // version, gid: the first line of a connection
	opInfo     = "info"     // answered with info
	opTag      = "tag"      // key, value
	opWrite    = "write"    // id, text, submit, settle_ms, until_ms: answered with written
	opLookup   = "lookup"   // id: answered with written
	opTerminal = "terminal" // answered with terminal
	opOutput   = "output"   // answered with output: the last of what the program printed
	opWait     = "wait"     // answered with exit, when the program has ended
	opClose    = "close"    // answered when the program is gone
)

// request is one line from a client.
type request struct {
	Op       string       `json:"op"`
	Version  string       `json:"version,omitempty"`
	GID      identity.GID `json:"gid,omitempty"`
	Key      string       `json:"key,omitempty"`
	Value    string       `json:"value,omitempty"`
	ID       string       `json:"id,omitempty"`
	Text     []byte       `json:"text,omitempty"`
	Submit   []byte       `json:"submit,omitempty"`
	SettleMS int64        `json:"settle_ms,omitempty"`
	// UntilMS is when the client stops waiting, in milliseconds of the Unix
	// epoch; client and holder share one clock. 0: the holder's own bound.
	UntilMS int64 `json:"until_ms,omitempty"`
}

// answer is one line from the holder: a fault, or what the request asks for.
// A write may carry both, the fault and what was written.
type answer struct {
	Fault    *fault.Fault  `json:"fault,omitempty"`
	Version  string        `json:"version,omitempty"`
	Info     *wireInfo     `json:"info,omitempty"`
	Written  pane.Written  `json:"written,omitempty"`
	Terminal *wireTerminal `json:"terminal,omitempty"`
	Output   []byte        `json:"output,omitempty"`
	Exit     *exitRecord   `json:"exit,omitempty"`
}

type wireInfo struct {
	GID     identity.GID      `json:"gid"`
	PID     int               `json:"pid"`
	Started time.Time         `json:"started"`
	Tags    map[string]string `json:"tags,omitempty"`
	Exit    *exitRecord       `json:"exit,omitempty"`
}

func (w wireInfo) info() pane.Info {
	info := pane.Info{GID: w.GID, PID: w.PID, Started: w.Started, Tags: w.Tags}
	if w.Exit != nil {
		info.Dead, info.Exit = true, w.Exit.exit()
	}
	return info
}

type wireTerminal struct {
	BracketedPaste bool  `json:"bracketed_paste"`
	Canonical      bool  `json:"canonical"`
	LineBytes      int   `json:"line_bytes,omitempty"`
	QuietMS        int64 `json:"quiet_ms"`
}

func (w wireTerminal) terminal() pane.Terminal {
	return pane.Terminal{BracketedPaste: w.BracketedPaste, Canonical: w.Canonical,
		LineBytes: w.LineBytes, Quiet: time.Duration(w.QuietMS) * time.Millisecond}
}

// exitRecord is pane.Exit on the wire and in the state file.
type exitRecord struct {
	Code   int       `json:"code"`
	Signal string    `json:"signal,omitempty"`
	At     time.Time `json:"at"`
}

func (e exitRecord) exit() pane.Exit { return pane.Exit{Code: e.Code, Signal: e.Signal, At: e.At} }

// errLine is a line over its bound. The connection is of no use afterwards,
// because nobody knows where the next line starts.
var errLine = errors.New("the line is too long")

// readLine reads up to and without a newline. It fails with errLine where the
// line has more than most bytes, and with io.ErrUnexpectedEOF where the input
// ends inside a line: a request without its newline must never be carried out.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most+1 {
			return nil, errLine
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// decodeRequest reads one line and checks everything that can be checked
// without the holder's state. It fails with fault.Usage. Unknown fields are
// ignored, so that a later minor version can add some.
func decodeRequest(line []byte) (request, error) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return request{}, fault.New(fault.Usage, "the request is not a JSON object of the pty protocol")
	}
	switch r.Op {
	case opHello:
		if major, _, ok := strings.Cut(r.Version, "."); !ok || major+"." != protocolVersion[:2] {
			return r, fault.New(fault.Usage, "this holder speaks version %s of the pty protocol", protocolVersion)
		}
		return r, nil
	case opInfo, opTerminal, opOutput, opWait, opClose:
		return r, nil
	case opTag:
		return r, checkTag(r.Key, r.Value)
	case opLookup:
		return r, checkID(r.ID)
	case opWrite:
		return r, checkWrite(r)
	}
	return r, fault.New(fault.Usage, "this holder does not know the request %.40q", r.Op)
}

func checkWrite(r request) error {
	if err := checkID(r.ID); err != nil {
		return err
	}
	if len(r.Text) > maxText {
		return fault.New(fault.Usage, "a text of %d bytes is over the terminal's limit of %d", len(r.Text), maxText)
	}
	if len(r.Submit) > maxSubmit || r.SettleMS < 0 || r.SettleMS > maxSettle.Milliseconds() {
		return fault.New(fault.Usage, "the submit key or the pause before it is out of bounds")
	}
	return checkText(r.Text)
}

// checkText refuses what could act on the terminal. The caller has normalised
// the text; this is the last door before the program, so it looks again.
func checkText(text []byte) error {
	for i, c := range string(text) {
		switch {
		case c == '\t' || c == '\n':
		case c < 0x20, c >= 0x7f && c <= 0x9f:
			return fault.New(fault.Usage, "the text has the control character U+%04X at byte %d", c, i)
		case c == 0xfffd && !bytes.HasPrefix(text[i:], []byte("\ufffd")):
			return fault.New(fault.Usage, "the text is not valid UTF-8 at byte %d", i)
		}
	}
	return nil
}

// checkID keeps ids to what the journal's lines can hold.
func checkID(id string) error {
	if id == "" || len(id) > maxID {
		return fault.New(fault.Usage, "a write needs an id of 1 to %d bytes", maxID)
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return fault.New(fault.Usage, "a write's id is printable ASCII without blanks")
		}
	}
	return nil
}

// maxTags bounds all keys and values of one pane together, in bytes.
const maxTags = 256 << 10

func checkTag(key, value string) error {
	if key == "" || len(key) > 128 || len(key)+len(value) > maxTags {
		return fault.New(fault.Usage, "a tag has a key of 1 to 128 bytes, and all tags together at most %d bytes", maxTags)
	}
	return nil
}

// writeLine sends v as one line.
func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
