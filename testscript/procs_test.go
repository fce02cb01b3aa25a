package testscript_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// signals are those that scripts send, and whether the receiver is to end of it.
var signals = map[string]struct {
	number syscall.Signal
	ends   bool
}{
	"INT": {syscall.SIGINT, true}, "TERM": {syscall.SIGTERM, true}, "KILL": {syscall.SIGKILL, true},
	"HUP": {syscall.SIGHUP, false}, "STOP": {syscall.SIGSTOP, false}, "CONT": {syscall.SIGCONT, false},
	"USR1": {syscall.SIGUSR1, false},
}

// cmdKillgw: killgw HOST SIGNAL. The gateway's lock file holds its pid.
func cmdKillgw(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "killgw HOST SIGNAL")
	lock := filepath.Join(worldOf(ts).dir, args[0], "gateway.lock")
	send(ts, args[1], lock)
}

// cmdSigproc: sigproc SIGNAL PID|FILE.
func cmdSigproc(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "sigproc SIGNAL PID|FILE")
	send(ts, args[0], args[1])
}

func send(ts *testscript.TestScript, name, target string) {
	sig, ok := signals[strings.TrimPrefix(name, "SIG")]
	if !ok {
		ts.Fatalf("no such signal: %s", name)
	}
	text := target
	if _, err := strconv.Atoi(target); err != nil {
		text = ts.ReadFile(target)
	}
	fields := strings.Fields(text)
	if len(fields) == 0 {
		ts.Fatalf("%s holds no pid", target)
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil || pid <= 1 {
		ts.Fatalf("%s holds no pid: %q", target, fields[0])
	}
	began := startOf(pid)
	ts.Check(syscall.Kill(pid, sig.number))
	if !sig.ends {
		return
	}
	if !eventually(waitBound, func() bool { return !runs(pid) || startOf(pid) != began }) {
		ts.Fatalf("process %d did not end of %s within %s", pid, name, waitBound)
	}
}

// runs says whether pid is there and not a zombie. A process whose first thread
// is a zombie runs as long as another thread does: until that ends, files stay
// open and locked.
func runs(pid int) bool {
	f := statOf(pid)
	if len(f) == 0 || f[0] != "Z" {
		return len(f) > 0
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // gone: none
	return len(threads) > 1
}

// startOf tells two processes with one pid apart.
func startOf(pid int) string {
	if f := statOf(pid); len(f) > 19 {
		return f[19]
	}
	return ""
}

// statOf is /proc/PID/stat from the state on; see proc(5).
func statOf(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// killAllOf kills whatever belongs to the script whose folder dir is: it has the
// folder in its environment or arguments, works in it, holds a file of it open, or
// descends from such a one. Some may start others meanwhile, so it looks again
// until nothing is left; it returns what would not die.
func killAllOf(dir string) []string {
	var left []string
	eventually(10*time.Second, func() bool {
		left = left[:0]
		for _, pid := range pidsOf(dir) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			left = append(left, fmt.Sprintf("%d %s", pid, bytes.TrimSpace(name)))
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
		}
		return len(left) == 0
	})
	return left
}

// pidsOf lists the processes that belong to dir, and their descendants.
func pidsOf(dir string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // no Linux: the scripts' processes end by themselves or stay
	}
	children := map[int][]int{}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || !runs(pid) {
			continue
		}
		if f := statOf(pid); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1]) // the kernel's number
			children[parent] = append(children[parent], pid)
		}
		if belongs(pid, dir) {
			pids = append(pids, pid)
		}
	}
	for i := 0; i < len(pids); i++ { // it grows meanwhile
		for _, child := range children[pids[i]] {
			if !slices.Contains(pids, child) {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

func belongs(pid int, dir string) bool {
	proc := fmt.Sprintf("/proc/%d/", pid)
	for _, name := range []string{"environ", "cmdline"} {
		if b, err := os.ReadFile(proc + name); err == nil && mentions(b, dir) {
			return true
		}
	}
	links, _ := filepath.Glob(proc + "fd/*")
	for _, link := range append(links, proc+"cwd") {
		if to, err := os.Readlink(link); err == nil && mentions([]byte(to), dir) {
			return true
		}
	}
	return false
}

// mentions finds dir in b as a whole path or the beginning of one.
func mentions(b []byte, dir string) bool {
	for {
		i := bytes.Index(b, []byte(dir))
		if i < 0 {
			return false
		}
		b = b[i+len(dir):]
		if len(b) == 0 || !isDigit(b[0]) {
			return true
		}
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func TestKillAllOf(t *testing.T) {
	parent := t.TempDir()
	dir, other := filepath.Join(parent, "f1"), filepath.Join(parent, "f12")
	for _, d := range []string{dir, other} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if pidsOf(parent) != nil || len(statOf(os.Getpid())) == 0 {
		t.Skip("needs /proc")
	}
	start := func(cwd, script string, env ...string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir, cmd.Env = cwd, append(os.Environ(), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	const stay = "trap '' TERM HUP; sleep 600 & wait"
	victims := []*exec.Cmd{
		start("/", stay, "FLEET_DIR="+dir+"/alpha"),
		start(dir, stay),
		start("/", "exec 3>"+dir+"/log; "+stay),
		start("/", stay+"; : "+dir),
	}
	innocent := start(other, stay, "X="+other)
	defer func() {
		killAllOf(other)
		_ = innocent.Wait() // killed
	}()
	if !eventually(waitBound, func() bool { return len(pidsOf(dir)) >= 2*len(victims) && len(pidsOf(other)) == 2 }) {
		t.Fatalf("found %v of the script, %v of the other", pidsOf(dir), pidsOf(other))
	}
	if left := killAllOf(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, v := range victims {
		if got := exitStatus(v.Wait()); got != 128+int(syscall.SIGKILL) {
			t.Errorf("%v ended with %d", v.Args, got)
		}
	}
	if !runs(innocent.Process.Pid) {
		t.Error("another script's process was killed")
	}
}
