package testscript_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agent is a scripted agent for a profile: it reads what is typed into its
// terminal, writes what it sees into a log for `await`, and answers.
//
//	agent -log FILE [-mode echo|digest|mute|die] ...
//
// The log has one fact a line:
//
//	ready pid=PID
//	got ID from=NAME@HOST lines=N bytes=N sha256=HEX
//	noise "TEXT"          a line that belongs to no message
//	replied ID status=N   and what the command printed, quoted
//	ran ID status=N OUTPUT
//	end                   its input ended
//
// The body of the last message is in FILE.last, that of each in FILE.ID.
type agent struct {
	log  *os.File
	path string
	mode string
	fifo string
	run  string
	exit int
}

func agentMain() int {
	var a agent
	f := flag.NewFlagSet("agent", flag.ExitOnError)
	f.StringVar(&a.path, "log", "", "`FILE` for what it sees")
	f.StringVar(&a.mode, "mode", "echo", "echo: reply the body; digest: reply its length and SHA-256; mute: no reply; die: exit at the first message")
	f.StringVar(&a.fifo, "fifo", "", "before each answer wait until somebody writes to this named `PIPE`")
	f.StringVar(&a.run, "run", "", "for each message run this shell `COMMAND` with $ID, $FROM and the body as input; replaces -mode's reply")
	f.IntVar(&a.exit, "exit", 3, "the `STATUS` of die")
	start := f.Duration("start", 0, "be deaf for so long first")
	gate := f.String("gate", "", "be deaf until somebody writes to this named `PIPE`")
	rawMode := f.Bool("raw", false, "raw terminal with bracketed paste, like a full-screen program; otherwise the terminal's own lines")
	_ = f.Parse(os.Args[1:]) // exits on errors
	var err error
	if a.log, err = os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 2
	}
	time.Sleep(*start) // the behaviour asked for: a program that is slow to start
	a.block(*gate)
	if *rawMode {
		stty := exec.Command("stty", "raw", "-echo")
		stty.Stdin = os.Stdin
		if out, err := stty.CombinedOutput(); err != nil {
			a.note("error stty: %v %q", err, out)
			return 2
		}
		fmt.Print("\x1b[?2004h")
	}
	a.note("ready pid=%d", os.Getpid())
	if *rawMode {
		a.readKeys(bufio.NewReader(os.Stdin))
	} else {
		a.readLines(bufio.NewReader(os.Stdin))
	}
	a.note("end")
	return 0
}

// note writes one line, whole, so that `await` never sees half of it.
func (a *agent) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.log, format+"\n", args...) // nobody to tell
}

// block waits for a writer of a named pipe to come and go.
func (a *agent) block(pipe string) {
	if pipe == "" {
		return
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil && !os.IsExist(err) {
		a.note("error mkfifo: %v", err)
	}
	f, err := os.Open(pipe)
	if err != nil {
		a.note("error open: %v", err)
		return
	}
	_, _ = io.Copy(io.Discard, f) // only its end counts
	_ = f.Close()
}

// header is the line before every injected text: who, how many lines follow.
var header = regexp.MustCompile(`^\[fleet (\S+) from (\S+), (\d+) lines?\b.*\]$`)

// inFileNote in a header says that the body is a pointer.
const inFileNote = "; text in a file;"

// readLines serves a terminal that edits lines itself.
func (a *agent) readLines(in *bufio.Reader) {
	line := func() (string, bool) {
		s, err := in.ReadString('\n')
		return strings.TrimRight(s, "\r\n"), err == nil || s != ""
	}
	for {
		head, ok := line()
		if !ok {
			return
		}
		m := header.FindStringSubmatch(head)
		if m == nil {
			a.note("noise %q", head)
			continue
		}
		n, _ := strconv.Atoi(m[3]) // digits
		body := make([]string, 0, n)
		for range n {
			s, ok := line()
			if !ok {
				a.note("noise %q", "the input ended within a message")
				return
			}
			body = append(body, s)
		}
		a.take(m[1], m[2], body, strings.Contains(head, inFileNote))
	}
}

// readKeys serves a raw terminal: text comes as pastes and keys, Enter submits.
func (a *agent) readKeys(in *bufio.Reader) {
	const begin, end = "\x1b[200~", "\x1b[201~"
	var draft bytes.Buffer
	pasting := false
	for {
		c, err := in.ReadByte()
		if err != nil {
			return
		}
		switch {
		case c == '\r' && !pasting:
			a.submitted(draft.String())
			draft.Reset()
			continue
		case c == '\r':
			c = '\n' // terminals send a paste's line ends as CR
		}
		draft.WriteByte(c)
		switch b := draft.Bytes(); {
		case !pasting && bytes.HasSuffix(b, []byte(begin)):
			pasting = true
			draft.Truncate(len(b) - len(begin))
		case pasting && bytes.HasSuffix(b, []byte(end)):
			pasting = false
			draft.Truncate(len(b) - len(end))
		}
	}
}

func (a *agent) submitted(text string) {
	lines := strings.Split(text, "\n")
	m := header.FindStringSubmatch(lines[0])
	if m == nil || m[3] != strconv.Itoa(len(lines)-1) {
		a.note("noise %q", text)
		return
	}
	a.take(m[1], m[2], lines[1:], strings.Contains(lines[0], inFileNote))
}

// take handles one message.
func (a *agent) take(id, from string, lines []string, inFile bool) {
	body := strings.Join(lines, "\n")
	if inFile {
		body = a.fetch(body)
	}
	for _, name := range []string{id, "last"} {
		if err := os.WriteFile(a.path+"."+name, []byte(body), 0o600); err != nil {
			a.note("error %v", err)
		}
	}
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(body)))
	a.note("got %s from=%s lines=%d bytes=%d sha256=%s", id, from, len(lines), len(body), sum)
	if a.mode == "die" {
		os.Exit(a.exit)
	}
	a.block(a.fifo)
	switch {
	case a.run != "":
		a.command("ran", id, from, body, "sh", "-c", a.run)
	case a.mode == "echo":
		a.command("replied", id, from, body, "fleet", "reply", id, "-")
	case a.mode == "digest":
		a.command("replied", id, from, "", "fleet", "reply", id, fmt.Sprintf("bytes=%d sha256=%s", len(body), sum))
	}
}

// pointer is typed in place of a long body; the header says so.
var pointer = regexp.MustCompile(`^Read the whole message, ([0-9]+) bytes with sha256 ([0-9a-f]{64}), in the file (/.*)$`)

// fetch returns the body that a pointer line stands for.
func (a *agent) fetch(body string) string {
	m := pointer.FindStringSubmatch(body)
	if m == nil {
		a.note("error no pointer: %q", body)
		return body
	}
	text, err := os.ReadFile(m[3])
	if got := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || got != m[2] || strconv.Itoa(len(text)) != m[1] {
		a.note("error pointer %q: %v, %d bytes, %s", body, err, len(text), got)
		return body
	}
	info, err := os.Stat(m[3])
	if err != nil {
		a.note("error pointer %q: %v", body, err)
		return body
	}
	a.note("pointer %s mode=%o", m[3], info.Mode())
	return string(text)
}

func (a *agent) command(verb, id, from, input string, argv ...string) {
	cmd := exec.Command(argv[0], argv[1:]...)
	// What setup says of races; a gateway does not hand its own environment on.
	cmd.Env = append(os.Environ(), "ID="+id, "FROM="+from, raceReports(filepath.Dir(os.Getenv("FLEET_DIR"))))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	a.note("%s %s status=%d %q", verb, id, exitStatus(err), out)
}

func TestAgentReadsPastes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	a := agent{log: log, path: path, mode: "mute"}
	a.readKeys(bufio.NewReader(strings.NewReader(
		"draft\r\x1b[200~[fleet m1 from lead@alpha, 2 lines; answer: fleet reply m1 TEXT]\rone\ntwo\x1b[201~\r" +
			"\x1b[200~[fleet m2 from lead@alpha, 9 lines]\none\x1b[201~\r")))
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = "noise \"draft\"\n" +
		"got m1 from=lead@alpha lines=2 bytes=7 sha256=HEX\n" +
		"noise \"[fleet m2 from lead@alpha, 9 lines]\\none\"\n"
	if sum := regexp.MustCompile(`sha256=[0-9a-f]{64}`); sum.ReplaceAllString(string(got), "sha256=HEX") != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if body, _ := os.ReadFile(path + ".last"); string(body) != "one\ntwo" {
		t.Errorf("body %q", body)
	}
}
