package mailbox_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// kind says what an event of the log was.
type kind int

const (
	wrote      kind = iota + 1 // data to off of the file
	truncated                  // the file to off bytes
	synced                     // the file was brought to the disk
	syncFailed                 // or was not, and the caller was told
	linked                     // the file has got its name
	syncedDir                  // and the name was brought to the disk
	said                       // a line on stdout
)

// event is one call in the log, at the place where it ended; a write and a line
// on stdout count from where they began.
type event struct {
	what  kind
	at    int // line of the log
	began int // line at which the call began
	off   int64
	data  []byte
	line  string
}

// straced is cmd under strace, which writes to log.
func straced(t *testing.T, log string, cmd *exec.Cmd, options ...string) *exec.Cmd {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err == nil {
		err = exec.CommandContext(t.Context(), strace, "-f", "-o", os.DevNull, "true").Run() // a container may forbid it
	}
	if err != nil {
		if os.Getenv("FLEET_TEST_REQUIRE_STRACE") == "1" {
			t.Fatalf("strace does not work: %v", err)
		}
		t.Skipf("strace does not work (%v); FLEET_TEST_REQUIRE_STRACE=1 makes this a failure", err)
	}
	args := append([]string{"-f", "-o", log, "-e", "signal=none"}, options...)
	return exec.CommandContext(t.Context(), strace, append(args, cmd.Args...)...)
}

// traced lets a child do its work on a new mailbox under strace and returns what
// it did.
func traced(t *testing.T, mode, steps string, options ...string) []event {
	t.Helper()
	dir := t.TempDir()
	log, path := filepath.Join(dir, "strace"), filepath.Join(dir, "box", "mailbox")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	options = append([]string{"-y", "-xx", "-s", "4000000",
		"-e", "trace=write,writev,pwrite64,pwritev,fsync,fdatasync,msync,ftruncate,truncate,fallocate,?link,linkat,?rename,?renameat,renameat2"}, options...)
	if out, err := straced(t, log, child(t, "work", path, mode, steps), options...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out[max(0, len(out)-2000):])
	}
	events, err := readTrace(log, path)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

var (
	callForm    = regexp.MustCompile(`^(\d+) +(\w+)\(`)
	resumedForm = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>`)
	resultForm  = regexp.MustCompile(`\) += (-?\d+)[^)]*(\(.*\))?$`)
	handleForm  = regexp.MustCompile(`^(\d+)<([^>]*)>`)
)

// open is a call that has begun.
type openCall struct {
	name, args string
	began      int
}

// readTrace reads strace's log, as far as it is about the mailbox file at path
// and stdout.
func readTrace(log, path string) ([]event, error) {
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	var events []event
	calls := make(map[string]openCall) // by thread
	for at := 1; lines.Scan(); at++ {
		line := lines.Text()
		var thread, rest string
		var call openCall
		if m := resumedForm.FindStringSubmatch(line); m != nil {
			thread, rest = m[1], line[len(m[0]):]
			call = calls[thread]
			if call.name != m[2] {
				return nil, fmt.Errorf("line %d of the log resumes %s, begun was %s", at, m[2], call.name)
			}
			delete(calls, thread)
			call.args += rest
		} else if m := callForm.FindStringSubmatch(line); m != nil {
			thread, rest = m[1], line[len(m[0]):]
			call = openCall{name: m[2], args: rest, began: at}
			if begun, ok := strings.CutSuffix(rest, " <unfinished ...>"); ok {
				call.args = begun
				calls[thread] = call
				// What has begun to be written may be written, and what has begun to be
				// said was true before.
				if e, ok, err := call.begun(path); err != nil {
					return nil, fmt.Errorf("line %d of the log: %w", at, err)
				} else if ok {
					e.at, e.began = at, at
					events = append(events, e)
				}
				continue
			}
			if e, ok, err := call.begun(path); err != nil {
				return nil, fmt.Errorf("line %d of the log: %w", at, err)
			} else if ok {
				e.at, e.began = at, at
				events = append(events, e)
			}
		} else {
			continue // a thread's end
		}
		if e, ok, err := call.ended(path); err != nil {
			return nil, fmt.Errorf("line %d of the log: %w", at, err)
		} else if ok {
			e.at, e.began = at, call.began
			events = append(events, e)
		}
	}
	return events, lines.Err()
}

// handle is the first argument, a file descriptor, and the file behind it.
func (c openCall) handle() (fd, file, rest string) {
	m := handleForm.FindStringSubmatch(c.args)
	if m == nil {
		return "", "", c.args
	}
	return m[1], plain(m[2]), strings.TrimPrefix(c.args[len(m[0]):], ", ")
}

// ours says whether file is the mailbox, under its own name or the one under
// which it is made.
func ours(file, path string) bool {
	return file == path || strings.HasPrefix(file, filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"-"))
}

// begun is the event of a call that counts from its beginning.
func (c openCall) begun(path string) (e event, ok bool, err error) {
	fd, file, rest := c.handle()
	switch {
	case c.name == "write" && fd == "1":
		return event{what: said, line: strings.TrimSpace(plain(quoted(rest)))}, true, nil
	case !ours(file, path):
		return e, false, nil
	}
	switch c.name {
	case "pwrite64":
		text := quoted(rest)
		var size int
		if _, err := fmt.Sscanf(rest[len(text)+2:], ", %d, %d", &size, &e.off); err != nil {
			return e, false, fmt.Errorf("pwrite64: %w", err)
		}
		e.what, e.data = wrote, []byte(plain(text))
		if len(e.data) != size {
			return e, false, fmt.Errorf("pwrite64 of %d bytes shows %d", size, len(e.data))
		}
		return e, true, nil
	case "ftruncate":
		e.what = truncated
		_, err := fmt.Sscan(rest[:strings.IndexAny(rest+")", ") ")], &e.off)
		return e, true, err
	case "fsync", "fdatasync":
		return e, false, nil
	}
	return e, false, fmt.Errorf("%s of the mailbox file is not understood", c.name)
}

// ended is the event of a call that counts from its end.
func (c openCall) ended(path string) (e event, ok bool, err error) {
	m := resultForm.FindStringSubmatch(c.args)
	if m == nil {
		return e, false, fmt.Errorf("%s has no result", c.name)
	}
	good := !strings.HasPrefix(m[1], "-")
	_, file, rest := c.handle()
	switch c.name {
	case "fsync", "fdatasync":
		switch {
		case ours(file, path) && good:
			return event{what: synced}, true, nil
		case ours(file, path):
			return event{what: syncFailed}, true, nil
		case file == filepath.Dir(path) && good:
			return event{what: syncedDir}, true, nil
		}
	case "link", "linkat":
		for part := range strings.SplitSeq(rest, `"`) {
			if plain(part) == path && good {
				return event{what: linked}, true, nil
			}
		}
	case "rename", "renameat", "renameat2", "truncate":
		return e, false, fmt.Errorf("%s is not understood", c.name)
	case "pwrite64", "ftruncate":
		if ours(file, path) && !good {
			return e, false, fmt.Errorf("%s has failed", c.name)
		}
	}
	return e, false, nil
}

// quoted is what stands between the first two quotes of s; with -xx no quote
// stands inside.
func quoted(s string) string {
	_, s, _ = strings.Cut(s, `"`)
	s, _, _ = strings.Cut(s, `"`)
	return s
}

// plain decodes strace's \xNN.
func plain(s string) string {
	b := make([]byte, 0, len(s)/4)
	for i := 0; i < len(s); {
		if i+4 <= len(s) && s[i] == '\\' && s[i+1] == 'x' {
			if n, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				b = append(b, byte(n))
				i += 4
				continue
			}
		}
		b = append(b, s[i])
		i++
	}
	return string(b)
}
