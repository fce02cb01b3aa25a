//go:build linux

package pty

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
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

// programs are what the tests run in other processes: the test binary with the
// program's name as first argument.
var programs = map[string]func(args []string){
	"pty-hold":    holdProgram,
	"raw-reader":  rawReader,
	"line-reader": lineReader,
	"deaf":        deaf,
	"stubborn":    stubborn,
	"gateway":     gatewayProgram,
}

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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM) // as commands do
	defer stop()
	if err := Hold(ctx, os.Stdin, os.NewFile(ReadyFD, "ready")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// heard is what a reader program tells of one submitted message.
type heard struct {
	Bytes  int
	Sum    string
	Framed bool   // between the markers of bracketed paste
	Head   string // the first bytes
}

func sum(text []byte) string {
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}

func tell(w io.Writer, v any) {
	if err := writeLine(w, v); err != nil {
		os.Exit(3)
	}
}

func openFIFO(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	return f
}

// makeRaw does to the terminal on stdin what a TUI does.
func makeRaw() {
	t, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	t.Iflag &^= unix.ICRNL | unix.IXON | unix.ISTRIP | unix.INLCR
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(0, unix.TCSETS, t); err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}

// rawReader is a TUI: raw mode, bracketed paste as args[1] switches it on, a
// message ends with CR outside of a paste.
func rawReader(args []string) {
	out := openFIFO(args[0])
	makeRaw()
	if len(args) > 1 {
		// Cut in two, and two modes in one sequence.
		os.Stdout.WriteString("\x1b[?1049;20")
		os.Stdout.WriteString("04" + args[1])
	}
	os.Stdout.WriteString("ready\r\n")
	tell(out, "ready")
	var text []byte
	framed, inside := false, false
	buf := make([]byte, 64<<10)
	var rest []byte
	for {
		n, err := os.Stdin.Read(buf)
		if err != nil {
			return
		}
		rest = append(rest, buf[:n]...)
		for len(rest) > 0 {
			if rest[0] == 0x1b && len(rest) < len(pasteEnd) {
				break
			}
			switch {
			case bytes.HasPrefix(rest, []byte(pasteStart)):
				framed, inside, rest = true, true, rest[len(pasteStart):]
			case bytes.HasPrefix(rest, []byte(pasteEnd)):
				inside, rest = false, rest[len(pasteEnd):]
			case rest[0] == '\r' && !inside:
				tell(out, heard{len(text), sum(text), framed, string(text[:min(len(text), 40)])})
				fmt.Fprintf(os.Stdout, "took %d\r\n", len(text))
				text, framed, rest = nil, false, rest[1:]
			default:
				text, rest = append(text, rest[0]), rest[1:]
			}
		}
	}
}

// lineReader is a plain program: canonical mode, a message ends with a line
// that is "."; it reports the lines before it, without their last line end.
func lineReader(args []string) {
	out := openFIFO(args[0])
	tell(out, "ready")
	in := bufio.NewReader(os.Stdin)
	var text []byte
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		if string(line) != ".\n" {
			text = append(text, line...)
			continue
		}
		text = bytes.TrimSuffix(text, []byte("\n"))
		tell(out, heard{len(text), sum(text), false, string(text[:min(len(text), 40)])})
		text = nil
	}
}

// deaf reads nothing until it is told to through a second pipe.
func deaf(args []string) {
	makeRaw()
	out := openFIFO(args[0])
	gate := openFIFO(args[1])
	tell(out, "ready")
	bufio.NewReader(gate).ReadString('\n')
	rawReader(args[:1])
}

// stubborn ignores every polite end, and has a child that does so too.
func stubborn(args []string) {
	signal.Ignore(unix.SIGHUP, unix.SIGTERM, unix.SIGINT)
	out := openFIFO(args[0])
	if len(args) == 1 {
		child := exec.Command(os.Args[0], "stubborn", args[0], "child")
		if err := child.Start(); err != nil {
			os.Exit(3)
		}
		tell(out, child.Process.Pid)
	}
	for {
		time.Sleep(time.Hour)
	}
}

// gatewayProgram spawns a raw reader, writes into it, and waits to be killed.
func gatewayProgram(args []string) {
	dir, gid, fifo := args[0], identity.GID(args[1]), args[2]
	out := openFIFO(args[3])
	b, err := New(dir, []string{os.Args[0], "pty-hold"}, nil)
	if err == nil {
		var p pane.Pane
		p, err = b.Spawn(context.Background(), pane.Spec{GID: gid, Argv: []string{os.Args[0], "raw-reader", fifo, "h"},
			Env: []string{"SECRET=of-the-agent"}, Tags: map[string]string{"profile": "x"}})
		if err == nil {
			err = p.Tag(context.Background(), "turn", "open")
		}
		for paste := false; err == nil && !paste; time.Sleep(5 * time.Millisecond) {
			var term pane.Terminal
			term, err = p.Terminal(context.Background())
			paste = term.BracketedPaste
		}
		if err == nil {
			_, err = p.Write(context.Background(), pane.Write{ID: "first", Text: []byte("one"), Submit: []byte("\r")})
		}
		if err == nil {
			var info pane.Info
			info, err = p.Info(context.Background())
			tell(out, info.PID)
		}
	}
	if err != nil {
		tell(out, err.Error())
	}
	select {}
}

// fifo is a named pipe that a test reads lines of JSON from.
type fifo struct {
	t    *testing.T
	path string
	file *os.File
	in   *bufio.Reader
}

func newFIFO(t *testing.T, name string) *fifo {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &fifo{t: t, path: path, file: f, in: bufio.NewReaderSize(f, 64<<10)}
}

// next decodes the next line into v; a minute is for ever here.
func (f *fifo) next(v any) {
	f.t.Helper()
	f.file.SetReadDeadline(time.Now().Add(time.Minute))
	line, err := f.in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		f.t.Fatalf("read %s: %v %q", f.path, err, line)
	}
}

func (f *fifo) ready() {
	f.t.Helper()
	var word string
	if f.next(&word); word != "ready" {
		f.t.Fatalf("said %q", word)
	}
}

// silent fails where something more was said; it looks once.
func (f *fifo) silent() {
	f.t.Helper()
	f.file.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if line, err := f.in.ReadString('\n'); err == nil {
		f.t.Fatalf("unexpected: %s", line)
	}
}

// testDir is short enough for sockets.
func testDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pty")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newBackend(t *testing.T) *Backend {
	t.Helper()
	return backendIn(t, testDir(t))
}

func backendIn(t *testing.T, dir string) *Backend {
	t.Helper()
	b, err := New(dir, []string{os.Args[0], "pty-hold"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		panes, _ := b.List(context.Background())
		for _, p := range panes {
			if err := p.Close(context.Background()); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return b
}

// ctxT is generous: a test that meets it hangs.
func ctxT(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// program spawns a program of this binary.
func program(t *testing.T, b *Backend, args ...string) pane.Pane {
	t.Helper()
	return spawnT(t, b, append([]string{os.Args[0]}, args...)...)
}

// composer spawns a raw reader with bracketed paste and returns when the holder
// has seen that.
func composer(t *testing.T, b *Backend, words *fifo) pane.Pane {
	t.Helper()
	p := program(t, b, "raw-reader", words.path, "h")
	words.ready()
	awaitScreen(t, p, "ready")
	return p
}

func spawnT(t *testing.T, b *Backend, argv ...string) pane.Pane {
	t.Helper()
	p, err := b.Spawn(ctxT(t), pane.Spec{GID: identity.NewGID(), Argv: argv,
		Env: []string{"PATH=" + defaultPath}, Tags: map[string]string{"profile": "test"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func shell(t *testing.T, b *Backend, script string) pane.Pane {
	t.Helper()
	return spawnT(t, b, "sh", "-c", script)
}

func holderOf(t *testing.T, p pane.Pane) process {
	t.Helper()
	s, err := p.(*handle).files.load()
	if err != nil {
		t.Fatal(err)
	}
	return s.Holder
}

// stop stops a process and returns when each of its threads has stopped.
func stop(t *testing.T, p process) {
	t.Helper()
	unix.Kill(p.PID, unix.SIGSTOP)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		running := 0
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID))
		for _, task := range tasks {
			text, err := os.ReadFile(task)
			if err == nil && !bytes.Contains(text, []byte(") T ")) {
				running++
			}
		}
		if running == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d threads do not stop", running)
		}
	}
}

func infoT(t *testing.T, p pane.Pane) pane.Info {
	t.Helper()
	info, err := p.Info(ctxT(t))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func writeT(t *testing.T, p pane.Pane, id, text string) {
	t.Helper()
	w, err := p.Write(ctxT(t), pane.Write{ID: id, Text: []byte(text), Submit: []byte("\r")})
	if err != nil || w != pane.Done {
		t.Fatalf("write %s: %s, %v", id, w, err)
	}
}

func lookupT(t *testing.T, p pane.Pane, id string) pane.Written {
	t.Helper()
	w, err := p.Lookup(ctxT(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// pattern is n bytes of text with lines of up to width bytes.
func pattern(n, width int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d ", i)
		if b.Len()/width != (b.Len()+8)/width {
			b.WriteString("\n")
		}
	}
	return strings.TrimRight(b.String()[:n-1], "\n ") + strings.Repeat("x", n-len(strings.TrimRight(b.String()[:n-1], "\n ")))
}
