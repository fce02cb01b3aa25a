//go:build linux

package inject

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/identity"
	"fleet/pkg/pane"
	"fleet/pkg/pane/pty"
)

// programs are what the tests run in other processes: the test binary with the
// program's name as first argument.
var programs = map[string]func(args []string){"pty-hold": holdProgram, "composer": composer, "lines": lines, "fleet-reply": fleetReply}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if program, ok := programs[os.Args[1]]; ok {
			program(os.Args[2:])
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func holdProgram([]string) {
	if err := pty.Hold(context.Background(), os.Stdin, os.NewFile(pty.ReadyFD, "ready")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// got is what a program tells of one message: the header, and digest and start
// of the body.
type got struct {
	Header, Sum, Head string
	Bytes             int
	Framed            bool
}

func newGot(header, body string, framed bool) got {
	return got{Header: header, Sum: digest(body), Head: body[:min(len(body), 500)], Bytes: len(body), Framed: framed}
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func tell(path string, v any) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		defer f.Close()
		err = json.NewEncoder(f).Encode(v)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}

// composer is a TUI: raw mode, bracketed paste, Enter outside of a paste
// submits.
func composer(args []string) {
	t, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err != nil {
		os.Exit(3)
	}
	t.Iflag &^= unix.ICRNL | unix.IXON
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	if err := unix.IoctlSetTermios(0, unix.TCSETS, t); err != nil {
		os.Exit(3)
	}
	os.Stdout.WriteString("\x1b[?2004hready\r\n")
	in := bufio.NewReader(os.Stdin)
	var text bytes.Buffer
	for framed := false; ; {
		c, err := in.ReadByte()
		if err != nil {
			return
		}
		switch c {
		case 0x1b:
			mark := make([]byte, 5)
			if _, err := io.ReadFull(in, mark); err != nil {
				return
			}
			if framed = true; string(mark) != "[200~" && string(mark) != "[201~" {
				text.WriteString("ESCAPE " + string(mark))
			}
		case '\r':
			header, body, _ := strings.Cut(text.String(), "\n")
			tell(args[0], newGot(header, body, framed))
			text.Reset()
			framed = false
		default:
			text.WriteByte(c)
		}
	}
}

// lines is a plain program: it reads a header line and as many lines as that
// says, from a terminal in canonical mode.
func lines(args []string) {
	os.Stdout.WriteString("ready\n")
	in := bufio.NewReader(os.Stdin)
	for {
		header, err := in.ReadString('\n')
		if err != nil {
			return
		}
		var id, from string
		var n int
		if _, err := fmt.Sscanf(header, "[fleet %s from %s %d line", &id, &from, &n); err != nil {
			tell(args[0], newGot("no header: "+header, "", false))
			continue
		}
		var body strings.Builder
		for range n {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			body.WriteString(line)
		}
		tell(args[0], newGot(strings.TrimSuffix(header, "\n"), strings.TrimSuffix(body.String(), "\n"), false))
	}
}

// fleetReply stands in for the command that answers: FIFO ID TEXT.
func fleetReply(args []string) { tell(args[0], newGot(args[1], args[2], false)) }

// world is one pane with a program of this binary, and what that tells.
type world struct {
	t     *testing.T
	pane  pane.Pane
	spool string
	fifo  *os.File
	path  string
	in    *bufio.Reader
}

func newWorld(t *testing.T, program string) *world {
	t.Helper()
	w := &world{t: t, path: filepath.Join(t.TempDir(), "fifo"), spool: filepath.Join(t.TempDir(), "spool")}
	if err := unix.Mkfifo(w.path, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.fifo, err = os.OpenFile(w.path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.fifo.Close() })
	w.in = bufio.NewReader(w.fifo)
	dir, err := os.MkdirTemp("", "inj")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := pty.New(dir, []string{os.Args[0], "pty-hold"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{os.Args[0], program, w.path}
	if strings.HasSuffix(program, ".sh") {
		argv = []string{"sh", program}
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	w.pane, err = b.Spawn(ctxT(t), pane.Spec{GID: identity.NewGID(), Argv: argv, Dir: wd,
		Env: []string{"PATH=/usr/bin:/bin", "ANSWER=" + os.Args[0] + " fleet-reply " + w.path}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.pane.Close(context.Background()) })
	for screen := ""; !strings.Contains(screen, "ready"); time.Sleep(5 * time.Millisecond) {
		if screen, err = w.pane.Screen(ctxT(t), 10); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) next() got {
	w.t.Helper()
	w.fifo.SetReadDeadline(time.Now().Add(time.Minute))
	line, err := w.in.ReadBytes('\n')
	var g got
	if err == nil {
		err = json.Unmarshal(line, &g)
	}
	if err != nil {
		w.t.Fatalf("hear the program: %v %q", err, line)
	}
	return g
}

// silent fails where the program tells more; it looks once.
func (w *world) silent() {
	w.t.Helper()
	w.fifo.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if line, err := w.in.ReadString('\n'); err == nil {
		w.t.Fatalf("unexpected: %s", line)
	}
}

// ctxT is generous: a test that meets it hangs.
func ctxT(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
