package powercut

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Strace is cmd under strace, which writes to log. Where strace does not work
// (another system, a container that forbids it) the test is skipped, or fails if
// FLEET_TEST_REQUIRE_STRACE is 1.
func Strace(t testing.TB, log string, cmd *exec.Cmd, options ...string) *exec.Cmd {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err == nil {
		err = exec.CommandContext(t.Context(), strace, "-f", "-o", os.DevNull, "true").Run()
	}
	if err != nil {
		if os.Getenv("FLEET_TEST_REQUIRE_STRACE") == "1" {
			t.Fatalf("strace does not work: %v", err)
		}
		t.Skipf("strace does not work (%v); FLEET_TEST_REQUIRE_STRACE=1 makes this a failure", err)
	}
	args := append([]string{"-f", "-o", log, "-e", "signal=none"}, options...)
	traced := exec.CommandContext(t.Context(), strace, append(args, cmd.Args...)...)
	traced.Env = cmd.Env
	return traced
}

// calls are those that change files, or may. Those that trace does not understand
// are an error when they are about the directory.
const calls = "trace=openat,?open,?creat,write,writev,pwrite64,pwritev,fsync,fdatasync,msync,ftruncate,truncate,fallocate," +
	"?link,linkat,?rename,?renameat,renameat2,?unlink,unlinkat"

// Trace runs cmd, which must succeed, and returns what it did to the files in
// dir, and said.
func Trace(t testing.TB, dir string, cmd *exec.Cmd, options ...string) []Event {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	tr := trace{dir: dir, begun: map[string]call{}, known: map[string]bool{}}
	there, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range there {
		tr.known[e.Name()] = true
	}
	options = append([]string{"-y", "-xx", "-s", "4000000", "-e", calls}, options...)
	if out, err := Strace(t, log, cmd, options...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out[max(0, len(out)-2000):])
	}
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for at := 1; lines.Scan(); at++ {
		if err := tr.line(at, lines.Text()); err != nil {
			t.Fatalf("line %d of the log: %v", at, err)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return tr.events
}

// trace is strace's log as far as it was read.
type trace struct {
	dir    string
	begun  map[string]call // by thread
	known  map[string]bool // names that there are
	events []Event
}

var (
	callForm    = regexp.MustCompile(`^(\d+) +(\w+)\(`)
	resumedForm = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>`)
)

// line reads one line.
func (tr *trace) line(at int, line string) error {
	if m := resumedForm.FindStringSubmatch(line); m != nil {
		c := tr.begun[m[1]]
		if c.name != m[2] {
			return fmt.Errorf("it resumes %s, begun was %s", m[2], c.name)
		}
		delete(tr.begun, m[1])
		c.args += line[len(m[0]):]
		return tr.end(at, c)
	}
	m := callForm.FindStringSubmatch(line)
	if m == nil {
		return nil // a thread's end
	}
	c := call{name: m[2], args: line[len(m[0]):], began: at}
	args, unfinished := strings.CutSuffix(c.args, " <unfinished ...>")
	c.args = args
	// What has begun to be written may be written, and what has begun to be said was
	// true before.
	e, ok, err := c.atBegin(tr.dir)
	if err != nil {
		return err
	}
	if ok {
		e.at, e.began = at, at
		tr.add(e)
	}
	if unfinished {
		tr.begun[m[1]] = c
		return nil
	}
	return tr.end(at, c)
}

func (tr *trace) end(at int, c call) error {
	e, ok, err := c.atEnd(tr.dir)
	if err != nil || !ok {
		return err
	}
	e.at, e.began = at, c.began
	tr.add(e)
	return nil
}

// add keeps an event, but for a file that is opened and there already.
func (tr *trace) add(e Event) {
	switch e.What {
	case Created:
		if tr.known[e.File] {
			return
		}
		tr.known[e.File] = true
	case Linked, Renamed:
		tr.known[e.To] = true
	}
	if e.What == Removed || e.What == Renamed {
		delete(tr.known, e.File)
	}
	tr.events = append(tr.events, e)
}
