//go:build linux

package pty

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/pane"
)

func TestR35_SpawnSetsUpTheProgram(t *testing.T) {
	t.Parallel() // it mostly waits
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
