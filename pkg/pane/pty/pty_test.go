package pty

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

func TestR35_SpawnSetsUpTheProgram(t *testing.T) {
	b := newBackend(t)
	dir := t.TempDir()
	gid := identity.NewGID()
	p, err := b.Spawn(ctxT(t), pane.Spec{GID: gid, Dir: dir, Cols: 91, Rows: 17, Tags: map[string]string{"profile": "p"},
		Argv: []string{"sh", "-c", `pwd; stty size; env; ps -o pid=,sid=,pgid=,tpgid= -p $$; ls -l /proc/$$/fd; trap -- '' HUP; echo end; read x`},
		Env:  []string{"PATH=/usr/bin:/bin", "A=b c"}})
	if err != nil {
		t.Fatal(err)
	}
	screen := awaitScreen(t, p, "end")
	info := infoT(t, p)
	for _, want := range []string{dir, "17 91", "A=b c", "TERM=xterm-256color"} {
		if !strings.Contains(screen, want) {
			t.Errorf("no %q in:\n%s", want, screen)
		}
	}
	if strings.Contains(screen, "GOMAXPROCS") || strings.Contains(screen, "socket:") {
		t.Errorf("the holder shows through:\n%s", screen)
	}
	var pid, sid, pgid, tpgid int
	for line := range strings.Lines(screen) {
		if n, _ := fmt.Sscan(line, &pid, &sid, &pgid, &tpgid); n == 4 {
			break
		}
	}
	if pid != info.PID || sid != pid || pgid != pid || tpgid != pid {
		t.Errorf("pid %d: pid, session, group, foreground are %d %d %d %d", info.PID, pid, sid, pgid, tpgid)
	}
	if info.GID != gid || info.Dead || info.Tags["profile"] != "p" || time.Since(info.Started) > time.Minute {
		t.Errorf("info: %+v", info)
	}
}

// awaitScreen waits until the program has printed want and been quiet: Terminal's
// Quiet and Screen are all there is to see, so it looks again and again.
func awaitScreen(t *testing.T, p pane.Pane, want string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		screen, err := p.Screen(ctxT(t), 500)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(screen, want) {
			return screen
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %q in:\n%s", want, screen)
		}
	}
}

func TestR35_SpawnTellsWhyItFailed(t *testing.T) {
	b := newBackend(t)
	plainFile := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(plainFile, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir, want string
		argv            []string
	}{
		{"no such program", "", "the program nosuchprogram was not found", []string{"nosuchprogram"}},
		{"no such path", "", "can't start /no/such: no such file or directory", []string{"/no/such"}},
		{"not executable", "", "permission denied", []string{plainFile}},
		{"a directory", "", "is a directory", []string{"/tmp"}},
		{"no such directory", "/no/such/dir", "the directory /no/such/dir is not there", []string{"sh"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := b.Spawn(ctxT(t), pane.Spec{GID: identity.NewGID(), Argv: c.argv, Dir: c.dir})
			if !errors.Is(err, fault.Failed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	if left, _ := os.ReadDir(b.dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestR35_SpawnWithoutAHolderProgram(t *testing.T) {
	for name, argv := range map[string][]string{"missing": {"/no/such"}, "mute": {"/bin/true"}, "loud": {"/bin/sh", "-c", "echo broken >&2"}} {
		t.Run(name, func(t *testing.T) {
			b, err := New(testDir(t), argv, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = b.Spawn(ctxT(t), pane.Spec{GID: identity.NewGID(), Argv: []string{"sh"}})
			if !errors.Is(err, fault.Failed) {
				t.Errorf("got %v", err)
			}
			if name == "loud" && !strings.Contains(fault.From(err).Hint, "broken") {
				t.Errorf("hint %q", fault.From(err).Hint)
			}
			if left, _ := os.ReadDir(b.dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestR35_SpawnCancelledLeavesNothing(t *testing.T) {
	b, err := New(testDir(t), []string{"/bin/sh", "-c", "sleep 1000"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Spawn(ctx, pane.Spec{GID: identity.NewGID(), Argv: []string{"sh"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(b.dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestR35_OnePaneForEachGID(t *testing.T) {
	b := newBackend(t)
	gid := identity.NewGID()
	spec := pane.Spec{GID: gid, Argv: []string{"cat"}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []pane.Pane
	for range 6 {
		wg.Go(func() {
			p, err := b.Spawn(ctxT(t), spec)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made = append(made, p)
			} else if !errors.Is(err, fault.Conflict) {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Fatalf("%d panes for one gid", len(made))
	}
	if _, err := b.Spawn(ctxT(t), spec); !errors.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
	infoT(t, made[0])
	if err := made[0].Close(ctxT(t)); err != nil {
		t.Fatal(err)
	}
	p, err := b.Spawn(ctxT(t), spec)
	if err != nil {
		t.Fatalf("after close: %v", err)
	}
	infoT(t, p)
}

func TestR35_ExitIsToldToAll(t *testing.T) {
	b := newBackend(t)
	for script, want := range map[string]pane.Exit{
		"exit 0":                    {Code: 0},
		"exit 7":                    {Code: 7},
		"kill -9 $$":                {Code: -1, Signal: "killed"},
		"printf last-words; exit 3": {Code: 3},
	} {
		p := shell(t, b, script)
		exit, err := p.Wait(ctxT(t))
		exit.At = time.Time{}
		if err != nil || exit != want {
			t.Errorf("%s: %+v, %v", script, exit, err)
		}
		info := infoT(t, p)
		if !info.Dead || info.Exit.Code != want.Code || info.Exit.At.IsZero() {
			t.Errorf("%s: %+v", script, info)
		}
		if w, err := p.Write(ctxT(t), pane.Write{ID: "late", Text: []byte("x")}); w != pane.Absent || !errors.Is(err, fault.AgentFailed) {
			t.Errorf("write to the dead: %s, %v", w, err)
		}
		if screen, err := p.Screen(ctxT(t), 5); err != nil || strings.Contains(script, "last-words") != (screen == "last-words") {
			t.Errorf("%s: screen %q, %v", script, screen, err)
		}
	}
}

func TestR35_WaitEndsWithItsContext(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestR16_GatewayKilledAndPaneAdopted(t *testing.T) {
	dir, gid := testDir(t), identity.NewGID()
	said, words := newFIFO(t, "said"), newFIFO(t, "words")
	gw := exec.Command(os.Args[0], "gateway", dir, string(gid), words.path, said.path)
	gw.Env = append(os.Environ(), "BROKER_PASSWORD=of-the-gateway")
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	gw.ExtraFiles = []*os.File{lock, lock} // what a careless parent leaves open
	if err := gw.Start(); err != nil {
		t.Fatal(err)
	}
	defer gw.Process.Kill()
	words.ready()
	var first heard
	if words.next(&first); first.Head != "one" {
		t.Fatalf("heard %+v", first)
	}
	var pid int
	said.next(&pid)
	gw.Process.Kill()
	gw.Wait()

	b := backendIn(t, dir)
	panes, err := b.List(ctxT(t))
	if err != nil || len(panes) != 1 {
		t.Fatalf("%v, %v", panes, err)
	}
	p := panes[0]
	info := infoT(t, p)
	if info.PID != pid || info.GID != gid || info.Dead || info.Tags["turn"] != "open" || info.Tags["profile"] != "x" {
		t.Errorf("adopted %+v, was %d", info, pid)
	}
	if w := lookupT(t, p, "first"); w != pane.Done {
		t.Errorf("first is %s", w)
	}
	writeT(t, p, "first", "never typed")
	writeT(t, p, "second", "two")
	var second heard
	if words.next(&second); second.Head != "two" || !second.Framed {
		t.Errorf("heard %+v", second)
	}
	checkHolder(t, holderOf(t, p), lock.Name(), info.PID)
	if exited := p.Close(ctxT(t)); exited != nil {
		t.Error(exited)
	}
}

// checkHolder looks at what a holder shows and keeps.
func checkHolder(t *testing.T, holder process, lock string, child int) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", holder.PID)
	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(proc + file)
		if err != nil || strings.Contains(string(text), "of-the-agent") || strings.Contains(string(text), "of-the-gateway") {
			t.Errorf("%s shows a secret: %q, %v", file, text, err)
		}
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(proc + "fd/" + fd.Name()); to == lock {
			t.Errorf("the holder keeps %s open", to)
		}
	}
	if cwd, _ := os.Readlink(proc + "cwd"); cwd != "/" {
		t.Errorf("cwd %s", cwd)
	}
	if s, ok := statOf(holder.PID); !ok || s.session != holder.PID {
		t.Errorf("the holder is in session %d", s.session)
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child)); err != nil || !strings.Contains(string(text), "of-the-agent") {
		t.Errorf("the program lacks its environment: %q, %v", text, err)
	}
}

func TestR16_HolderKilled(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := program(t, b, "raw-reader", words.path, "h")
	words.ready()
	writeT(t, p, "a", "one")
	ended := make(chan pane.Exit, 1)
	go func() {
		exit, err := p.Wait(ctxT(t))
		if err != nil {
			t.Error(err)
		}
		ended <- exit
	}()
	child := infoT(t, p).PID
	unix.Kill(holderOf(t, p).PID, unix.SIGKILL)
	exit := <-ended
	if exit.Code != -1 || exit.Signal != "hangup" || exit.At.IsZero() {
		t.Errorf("exit %+v", exit)
	}
	if s, ok := statOf(child); ok && !s.ended {
		t.Error("the program lives")
	}
	panes, err := backendIn(t, b.dir).List(ctxT(t))
	if err != nil || len(panes) != 1 {
		t.Fatalf("%v, %v", panes, err)
	}
	q := panes[0]
	if info := infoT(t, q); !info.Dead || info.Exit.Code != -1 || info.Tags["profile"] != "test" {
		t.Errorf("info %+v", info)
	}
	if again, err := q.Wait(ctxT(t)); err != nil || again.Code != -1 {
		t.Errorf("%+v, %v", again, err)
	}
	if w := lookupT(t, q, "a"); w != pane.Done {
		t.Errorf("a is %s", w)
	}
	if w := lookupT(t, q, "b"); w != pane.Absent {
		t.Errorf("b is %s", w)
	}
	if w, err := q.Write(ctxT(t), pane.Write{ID: "c", Text: []byte("x")}); w != pane.Absent || !errors.Is(err, fault.AgentFailed) {
		t.Errorf("write: %s, %v", w, err)
	}
}

func TestR16_OrphanOutlivesHolder(t *testing.T) {
	b := newBackend(t)
	said := newFIFO(t, "said")
	p := program(t, b, "stubborn", said.path)
	var grandchild int
	said.next(&grandchild)
	info := infoT(t, p)
	unix.Kill(holderOf(t, p).PID, unix.SIGKILL)
	awaitEnd(ctxT(t), holderOf(t, p))
	if info, err := p.Info(ctxT(t)); !errors.Is(err, fault.AgentFailed) {
		t.Errorf("an orphan is neither dead nor in reach: %+v, %v", info, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if exit, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	if err := p.Close(ctxT(t)); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{info.PID, grandchild} {
		if s, ok := statOf(pid); ok && !s.ended {
			t.Errorf("%d lives", pid)
		}
	}
}

func TestR16_HolderStopped(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := program(t, b, "raw-reader", words.path, "h")
	words.ready()
	holder := holderOf(t, p)
	unix.Kill(holder.PID, unix.SIGSTOP)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if info, err := p.Info(short()); !errors.Is(err, fault.TimedOut) {
		t.Errorf("info: %+v, %v", info, err)
	}
	if exit, err := p.Wait(short()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	if w, err := p.Lookup(short(), "x"); err == nil {
		t.Errorf("lookup: %s", w)
	}
	if w, err := p.Write(short(), pane.Write{ID: "late", Text: []byte("late"), Submit: []byte("\r")}); w != pane.Partial || err == nil {
		t.Errorf("write: %s, %v", w, err)
	}
	unix.Kill(holder.PID, unix.SIGCONT)
	if info := infoT(t, p); info.Dead {
		t.Errorf("info: %+v", info)
	}
	if w := lookupT(t, p, "late"); w != pane.Absent {
		t.Errorf("the write whose client had given up is %s", w)
	}
	words.silent()
}

func TestR35_CloseOfAStoppedHolder(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	info, holder := infoT(t, p), holderOf(t, p)
	unix.Kill(holder.PID, unix.SIGSTOP)
	if err := p.Close(ctxT(t)); err != nil {
		t.Fatal(err)
	}
	if holder.lives() {
		t.Error("the holder lives")
	}
	if s, ok := statOf(info.PID); ok && !s.ended {
		t.Error("the program lives")
	}
}

func TestR34_CloseEndsEverything(t *testing.T) {
	b := newBackend(t)
	said := newFIFO(t, "said")
	p := program(t, b, "stubborn", said.path)
	var grandchild int
	said.next(&grandchild)
	info, holder := infoT(t, p), holderOf(t, p)
	waited := make(chan pane.Exit, 1)
	go func() {
		exit, err := p.Wait(ctxT(t))
		if err != nil {
			t.Error(err)
		}
		waited <- exit
	}()
	var wg sync.WaitGroup
	for range 3 { // at once, and again
		wg.Go(func() {
			if err := p.Close(ctxT(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, pid := range []int{info.PID, grandchild, holder.PID} {
		if s, ok := statOf(pid); ok && !s.ended {
			t.Errorf("%d lives", pid)
		}
	}
	if exit := <-waited; exit.Code != -1 {
		t.Errorf("exit %+v", exit)
	}
	if left, _ := os.ReadDir(b.dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := p.Close(ctxT(t)); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := p.Info(ctxT(t)); !errors.Is(err, fault.NotFound) {
		t.Errorf("info: %v", err)
	}
	if panes, err := b.List(ctxT(t)); err != nil || len(panes) != 0 {
		t.Errorf("%v, %v", panes, err)
	}
}

func TestR16_HolderSignals(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	holder := holderOf(t, p)
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT} {
		unix.Kill(holder.PID, s)
	}
	if info := infoT(t, p); info.Dead {
		t.Errorf("info %+v", info)
	}
	unix.Kill(holder.PID, unix.SIGTERM)
	if err := awaitEnd(ctxT(t), holder); err != nil {
		t.Fatal(err)
	}
	// The holder is gone; the state file still knows the end.
	panes, err := b.List(ctxT(t))
	if err != nil || len(panes) != 1 {
		t.Fatalf("%v, %v", panes, err)
	}
	if info := infoT(t, panes[0]); !info.Dead || info.Exit.Signal != "hangup" || info.Exit.At.IsZero() {
		t.Errorf("info %+v", info)
	}
	if exit, err := panes[0].Wait(ctxT(t)); err != nil || exit.Signal != "hangup" {
		t.Errorf("wait %+v, %v", exit, err)
	}
}

func TestR16_DeadIsJudgedByStartTime(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	f := p.(*handle).files
	s, err := f.load()
	if err != nil {
		t.Fatal(err)
	}
	unix.Kill(s.Holder.PID, unix.SIGKILL)
	awaitEnd(ctxT(t), s.Holder)
	awaitEnd(ctxT(t), s.Child)
	// The pids were given to others: to this test, of all processes.
	s.Holder.PID, s.Child.PID = os.Getpid(), os.Getpid()
	if err := f.save(s); err != nil {
		t.Fatal(err)
	}
	panes, _ := b.List(ctxT(t))
	if info := infoT(t, panes[0]); !info.Dead {
		t.Errorf("info %+v", info)
	}
	if err := panes[0].Close(ctxT(t)); err != nil { // and this test must survive it
		t.Fatal(err)
	}
}

func TestR16_StateOfAnotherBoot(t *testing.T) {
	b := newBackend(t)
	self, _ := processOf(os.Getpid())
	f := files{dir: b.dir, gid: identity.NewGID()}
	s := state{Protocol: protocolVersion, GID: f.gid, Boot: "another", Holder: self, Child: self, Tags: map[string]string{"k": "v"}}
	if err := f.claim(&s); err != nil {
		t.Fatal(err)
	}
	panes, _ := b.List(ctxT(t))
	if info := infoT(t, panes[0]); !info.Dead || info.Tags["k"] != "v" {
		t.Errorf("info %+v", info)
	}
	if exit, err := panes[0].Wait(ctxT(t)); err != nil || exit.Code != -1 {
		t.Errorf("%+v, %v", exit, err)
	}
}

func TestR61_DamagedStateFiles(t *testing.T) {
	b := newBackend(t)
	gid := identity.NewGID()
	f := files{dir: b.dir, gid: gid}
	for _, text := range []string{"", "{", "null", `{"gid":"other"}`, strings.Repeat("x", 1<<20)} {
		if err := os.WriteFile(f.state(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		panes, err := b.List(ctxT(t))
		if err != nil || len(panes) != 1 {
			t.Fatalf("%.10q: %v, %v", text, panes, err)
		}
		if _, err := panes[0].Info(ctxT(t)); !errors.Is(err, fault.Failed) {
			t.Errorf("%.10q: %v", text, err)
		}
		if err := panes[0].Close(ctxT(t)); err != nil {
			t.Errorf("%.10q: %v", text, err)
		}
	}
	os.WriteFile(filepath.Join(b.dir, "notes.json"), []byte("{}"), 0o600)
	if panes, err := b.List(ctxT(t)); err != nil || len(panes) != 0 {
		t.Errorf("%v, %v", panes, err)
	}
}

func TestR46_FilesAreTheOwnersAlone(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	writeT(t, p, "a", "x")
	entries, err := os.ReadDir(b.dir)
	if err != nil || len(entries) != 4 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, _ := e.Info(); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	text, err := os.ReadFile(p.(*handle).files.state())
	if err != nil || strings.Contains(string(text), "PATH=") {
		t.Errorf("the environment is in the state file: %s, %v", text, err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := New(open, []string{"x"}, nil); !errors.Is(err, fault.Config) {
		t.Errorf("open directory: %v", err)
	}
}

func TestR46_SocketPathLength(t *testing.T) {
	base := testDir(t)
	name := func(n int) string { return filepath.Join(base, strings.Repeat("d", n-len(base)-1)) }
	for _, n := range []int{61, 62, 88} { // the gid fits in; the short name; the longest
		b := backendIn(t, name(n))
		p := spawnT(t, b, "cat")
		if sock := p.(*handle).files.socket(); len(sock) > maxSocket {
			t.Errorf("socket path of %d bytes", len(sock))
		}
		infoT(t, p)
		p.Close(ctxT(t))
	}
	if _, err := New(name(89), []string{"x"}, nil); !errors.Is(err, fault.Config) || fault.From(err).Hint == "" {
		t.Errorf("got %v", err)
	}
}

func TestR35_Tags(t *testing.T) {
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	for _, kv := range [][2]string{{"k", "v1"}, {"k", "v2"}, {"turns", "a\nb\x00c"}, {"profile", ""}} {
		if err := p.Tag(ctxT(t), kv[0], kv[1]); err != nil {
			t.Fatal(err)
		}
	}
	tags := infoT(t, p).Tags
	if len(tags) != 2 || tags["k"] != "v2" || tags["turns"] != "a\nb\x00c" {
		t.Errorf("tags %q", tags)
	}
	if err := p.Tag(ctxT(t), "big", strings.Repeat("x", maxTags)); err == nil {
		t.Error("no bound")
	}
	if err := p.Tag(ctxT(t), "big", strings.Repeat("x", maxTags-4)); !errors.Is(err, fault.Full) {
		t.Errorf("got %v", err)
	}
	if err := p.Tag(ctxT(t), "big", strings.Repeat("<", maxTags-100)); err != nil { // six times longer in JSON
		t.Fatal(err)
	}
	if got := infoT(t, p).Tags["big"]; len(got) != maxTags-100 {
		t.Errorf("%d bytes came back", len(got))
	}
}
