//go:build linux

package pty

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

func TestR61_HostileProgram(t *testing.T) {
	b := newBackend(t)
	p := shell(t, b, `head -c 3000000 /dev/urandom; printf '\033]0;'; head -c 3000000 /dev/zero | tr '\0' x; printf '\033\\\033[?2004h'; head -c 1000000 /dev/urandom | tr -d '\033'; echo; echo the end; exec cat`)
	awaitScreen(t, p, "the end")
	if term, err := p.Terminal(ctxT(t)); err != nil || !term.BracketedPaste {
		t.Errorf("%+v, %v", term, err)
	}
	if pss := pssOf(t, holderOf(t, p).PID); !raceEnabled && pss > 8<<10 {
		t.Errorf("the holder has %d KiB", pss)
	}
	writeT(t, p, "a", "still here")
}

// pssOf is the proportional set size in KiB.
func pssOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	m := regexp.MustCompile(`Pss:\s+(\d+) kB`).FindSubmatch(text)
	if err != nil || m == nil {
		t.Fatalf("read smaps: %v %s", err, text)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

func TestP4_HolderIsSmall(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	fresh := pssOf(t, holderOf(t, p).PID)
	for i := range 50 {
		writeT(t, p, fmt.Sprint(i), pattern(20000, 80))
		infoT(t, p)
	}
	writeT(t, p, "big", pattern(1<<20, 80))
	used := pssOf(t, holderOf(t, p).PID)
	t.Logf("PSS of a holder: %d KiB fresh, %d KiB after 51 texts of 2 MB", fresh, used)
	if !raceEnabled && max(fresh, used) > 8<<10 {
		t.Errorf("PSS of a holder: %d and %d KiB, the target is 8 MiB", fresh, used)
	}
}

func TestP4_IdlePagesAreLetGo(t *testing.T) {
	resident := func() (kib int) {
		status, err := os.ReadFile("/proc/self/status")
		m := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
		if err != nil || m == nil {
			t.Fatalf("read status: %v %s", err, status)
		}
		kib, _ = strconv.Atoi(string(m[1]))
		return kib
	}
	before := resident()
	unmapIdle()
	if after := resident(); after > before*3/4 {
		t.Errorf("%d KiB of the program were mapped, then %d", before, after)
	}
}

// talk sends lines to a holder as they are and returns its answers.
func talk(t *testing.T, p pane.Pane, lines string) []answer {
	t.Helper()
	conn, err := net.Dial("unix", p.(*handle).files.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	go func() {
		io.WriteString(conn, lines)
		conn.(*net.UnixConn).CloseWrite()
	}()
	var answers []answer
	for in := bufio.NewReader(conn); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return answers
		}
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatalf("answer %q: %v", line, err)
		}
		answers = append(answers, a)
	}
}

func TestR61_GarbageOnTheSocket(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	gid := infoT(t, p).GID
	hello := fmt.Sprintf(`{"op":"hello","version":"1.7","gid":"%s","new":[1]}`+"\n", gid)
	for _, c := range []struct {
		lines   string
		answers int // at least; each but hello's has a fault
	}{
		{"\n", 1}, {"GET / HTTP/1.1\r\n\r\n", 1}, {"\x00\xff\xfe\n", 1}, {"[]\n", 1}, {`{"op":"info"}` + "\n", 1},
		{`{"op":"hello","version":"2.0","gid":"` + string(gid) + `"}` + "\n", 1},
		{`{"op":"hello","version":"1.0","gid":"` + string(identity.NewGID()) + `"}` + "\n", 1},
		{`{"op":"hello"}` + "\n", 1},
		{strings.Repeat("[", 100000) + "\n", 1},
		{hello + `{"op":"fly"}` + "\n" + `{"op":"write","id":""}` + "\n", 3},
		{hello + `{"op":"write","id":"x","text":"!!"}` + "\n", 2},
		{hello + `{"op":"write","id":"x","text":"G1s="}` + "\n", 2},
		{hello + `{"op":"write","id":"x","settle_ms":-1}` + "\n", 2},
		{hello + `{"op":"tag"}` + "\n", 2},
		{hello + strings.Repeat("x", maxLine+10) + "\n", 1},
	} {
		answers := talk(t, p, c.lines)
		if len(answers) < c.answers {
			t.Errorf("%.60q: %d answers", c.lines, len(answers))
		}
		for i, a := range answers {
			if isHello := strings.HasPrefix(c.lines, hello) && i == 0; isHello != (a.Fault == nil) {
				t.Errorf("%.60q: answer %d is %+v", c.lines, i, a)
			}
		}
	}
	if answers := talk(t, p, strings.TrimSpace(hello)); len(answers) != 0 {
		t.Errorf("a line without its end was answered: %+v", answers)
	}
	if info := infoT(t, p); info.Dead {
		t.Errorf("info %+v", info)
	}
}

func TestR61_ManyConnections(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	path := p.(*handle).files.socket()
	var conns []net.Conn
	for range maxConns + 10 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	last := conns[len(conns)-1]
	last.SetDeadline(time.Now().Add(time.Minute))
	if line, err := bufio.NewReader(last).ReadString('\n'); err != nil || !strings.Contains(line, `"full"`) {
		t.Errorf("%q, %v", line, err)
	}
	for _, c := range conns {
		c.Close()
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { awaitInfo(t, p) })
	}
	wg.Wait()
}

// awaitInfo asks until the holder has noticed that others left.
func awaitInfo(t *testing.T, p pane.Pane) {
	for range 1000 {
		if _, err := p.Info(ctxT(t)); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("the holder does not come back")
}

func FuzzR61_Stat(f *testing.F) {
	f.Add([]byte("1 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 19 20"))
	f.Fuzz(func(t *testing.T, text []byte) { parseStat(1, text) })
}

func TestR16_StatOfOddNames(t *testing.T) {
	s, ok := parseStat(5, []byte("5 (a) Z ) () S 1 6 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 12345 1"))
	if !ok || s.ended || s.session != 7 || s.Start != 12345 {
		t.Errorf("%+v, %v", s, ok)
	}
	if s, ok := parseStat(5, []byte("5 (x) Z 1 6 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1")); !ok || !s.ended {
		t.Errorf("a zombie: %+v, %v", s, ok)
	}
	if s, ok := parseStat(5, []byte("5 (x) Z 1 6 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 2 0 12345 1")); !ok || s.ended {
		t.Errorf("a first thread that ended: %+v, %v", s, ok)
	}
}
