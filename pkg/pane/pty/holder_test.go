//go:build linux

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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

func TestR16_GatewayKilledAndPaneAdopted(t *testing.T) {
	dir, gid := testDir(t), identity.NewGID()
	b := backendIn(t, dir) // the successor
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
	p := composer(t, b, words)
	writeT(t, p, "a", "one")
	if err := p.Tag(ctxT(t), "turn", "open"); err != nil {
		t.Fatal(err)
	}
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
	if info := infoT(t, q); !info.Dead || info.Exit.Code != -1 || info.Tags["profile"] != "test" || info.Tags["turn"] != "open" {
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
	t.Parallel() // it mostly waits
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
	t.Parallel() // it mostly waits
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	holder := holderOf(t, p)
	stop(t, holder)
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
	t.Parallel() // it mostly waits
	b := newBackend(t)
	p := spawnT(t, b, "cat")
	info, holder := infoT(t, p), holderOf(t, p)
	stop(t, holder)
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
	t.Parallel() // it mostly waits
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
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if exit, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !holder.lives() {
		t.Errorf("%+v, %v", exit, err)
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

func TestR16_ExitOutlivesHolder(t *testing.T) {
	b := newBackend(t)
	p := shell(t, b, "exit 7")
	if _, err := p.Wait(ctxT(t)); err != nil {
		t.Fatal(err)
	}
	unix.Kill(holderOf(t, p).PID, unix.SIGKILL)
	if err := awaitEnd(ctxT(t), holderOf(t, p)); err != nil {
		t.Fatal(err)
	}
	panes, err := b.List(ctxT(t))
	if err != nil || len(panes) != 1 {
		t.Fatalf("%v, %v", panes, err)
	}
	if info := infoT(t, panes[0]); !info.Dead || info.Exit.Code != 7 {
		t.Errorf("info %+v", info)
	}
	if exit, err := panes[0].Wait(ctxT(t)); err != nil || exit.Code != 7 {
		t.Errorf("%+v, %v", exit, err)
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
	// The pids were given to another, which leads a session too.
	bystander := exec.Command("sleep", "1000")
	bystander.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { bystander.Process.Kill(); bystander.Wait() }()
	s.Holder.PID, s.Child.PID = bystander.Process.Pid, bystander.Process.Pid
	s.Holder.Start-- // all of this happens within one tick of the clock
	s.Child.Start--
	if err := f.save(s); err != nil {
		t.Fatal(err)
	}
	panes, _ := b.List(ctxT(t))
	if info := infoT(t, panes[0]); !info.Dead {
		t.Errorf("info %+v", info)
	}
	if err := panes[0].Close(ctxT(t)); err != nil {
		t.Fatal(err)
	}
	if now, ok := statOf(bystander.Process.Pid); !ok || now.ended {
		t.Error("a bystander was killed")
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
