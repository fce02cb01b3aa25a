package inject

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

// maxTyped is the longest body that is typed, in bytes after normalisation;
// what is longer goes to a file. Programs lose bytes of a long paste.
const maxTyped = 8 << 10

// settle is the pause between text and submit key: programs that tell typing
// from pasting by speed take a key that follows sooner for a part of the paste.
const settle = 150 * time.Millisecond

// Brief is one message as it is given to an agent.
type Brief struct {
	ID envelope.ID
	// Key is what the pane remembers the delivery by; empty: the ID. Two senders may
	// have chosen the same ID.
	Key      string
	FromName string // of the sender; what can't be in a name is replaced
	FromHost identity.Host
	Text     string
	// Spool is the agent's own directory for texts that are not typed. It is made
	// (0700) when it is needed.
	Spool string
}

// Composed is what is typed for a brief.
type Composed struct {
	Text   []byte // header line and body, without a line end at the end
	Submit []byte
	Settle time.Duration
	Lines  int    // of the body, as the header says
	File   string // where the text is, if the body only points to it
}

// Compose makes header and body for a terminal that is set up as t. A text over
// 8 KiB, or with a line that t would cut, is written to <Spool>/<id>.txt (0600,
// whole or not at all) and the body is the pointer to it; composing the same
// brief again writes the same file. An empty text, or one of nothing but
// controls and line ends, is a header with 0 lines: a nudge is a message too.
// It fails with fault.Usage where the brief has no id, and with fault.Config
// where t is too narrow even for the pointer.
func Compose(b Brief, t pane.Terminal) (Composed, error) {
	id, ok := envelope.ParseID(string(b.ID))
	if !ok || id != b.ID {
		return Composed{}, fault.New(fault.Usage, "%.40q is not a message id", b.ID)
	}
	body := Normalise(b.Text)
	c := Composed{Submit: []byte("\r"), Settle: settle}
	if t.Canonical && !t.BracketedPaste {
		c.Settle = 0 // the terminal itself takes the lines, at any speed
	}
	note := ""
	if len(body) > maxTyped || longest(body) > limit(t) {
		path, err := spool(b.Spool, id, body)
		if err != nil {
			return Composed{}, err
		}
		c.File = path
		note = "; text in a file"
		body = pointer(path, body)
	}
	if body != "" {
		c.Lines = strings.Count(body, "\n") + 1
	}
	text := header(b, c.Lines, note)
	if body != "" {
		text += "\n" + body
	}
	if longest(text) > limit(t) {
		return Composed{}, fault.New(fault.Config, "the terminal takes lines of %d bytes, the message's first lines have %d",
			limit(t), longest(text)).WithHint("choose a shorter FLEET_DIR")
	}
	c.Text = []byte(text)
	return c, nil
}

// header is the first line; the package comment documents it.
func header(b Brief, lines int, note string) string {
	noun := "lines"
	if lines == 1 {
		noun = "line"
	}
	return fmt.Sprintf("[fleet %s from %s@%s, %d %s%s; answer: fleet reply %s TEXT]",
		b.ID, word(b.FromName), word(string(b.FromHost)), lines, noun, note, b.ID)
}

// pointer is the body line in place of a text that is in a file.
func pointer(path, body string) string {
	sum := sha256.Sum256([]byte(body))
	return fmt.Sprintf("Read the whole message, %d bytes with sha256 %s, in the file %s",
		len(body), hex.EncodeToString(sum[:]), path)
}

// word keeps a name to one word of a header: whoever names himself "x@y, 0
// lines]" names himself with low lines.
func word(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._-", r):
			return r
		}
		return '_'
	}, Clean(name))
	if name == "" {
		return "_"
	}
	return name[:min(len(name), 64)]
}

// limit is the longest line that t takes.
func limit(t pane.Terminal) int {
	if t.Canonical && t.LineBytes > 0 {
		return t.LineBytes
	}
	return int(^uint(0) >> 1)
}

func longest(text string) int {
	most := 0
	for line := range strings.SplitSeq(text, "\n") {
		most = max(most, len(line))
	}
	return most
}

// spool writes body to the id's file in dir and returns the path. It replaces a
// file of an earlier attempt, which has the same content.
func spool(dir string, id envelope.ID, body string) (string, error) {
	if !filepath.IsAbs(dir) || dir != Normalise(dir) || strings.ContainsAny(dir, "\n\t") {
		return "", fault.New(fault.Config, "%q can't hold the texts of agents", dir).
			WithHint("it must be an absolute path that is one line of plain text")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make spool directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", fmt.Errorf("look at spool directory: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fault.New(fault.Config, "%s has mode %04o, so others can read the texts in it", dir, mode).
			WithHint("chmod 700 %s", dir)
	}
	f, err := os.CreateTemp(dir, "."+string(id)+"-*") // 0600 by contract
	if err != nil {
		return "", fmt.Errorf("write message text: %w", err)
	}
	_, err = f.WriteString(body)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	path := filepath.Join(dir, string(id)+".txt")
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("write message text: %w", err)
	}
	return path, nil
}
