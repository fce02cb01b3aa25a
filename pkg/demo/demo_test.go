package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/trace"
)

// program is a stand-in for the binary: a shell that runs script.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fleet")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// temp is a directory whose path is short enough that a stage is made in it.
func temp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// aStage is a stage like one on which a player runs. The caller removes it.
func aStage(t *testing.T) stage {
	t.Helper()
	s, err := newStage(temp(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.pidFile(playerName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// starts starts a process on s that says in its log that it runs, and returns
// once it has said so.
func starts(t *testing.T, s stage, name, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script+"; echo up; while :; do sleep 1 3>&- & wait; done")
	if err := s.start(name, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(knock) {
		if text, _ := os.ReadFile(s.log(name)); strings.Contains(string(text), "up\n") {
			return cmd
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not run", name)
		}
	}
}

func gone(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", dir, err)
	}
}

func TestR54_StopRemovesWhatRuns(t *testing.T) {
	s := aStage(t)
	parts := map[string]*exec.Cmd{}
	for _, name := range []string{brokerName, alpha, commandName} {
		parts[name] = starts(t, s, name, ":")
		if pid, yes := s.running(name); !yes || pid != parts[name].Process.Pid {
			t.Errorf("%s: running says %d, %t, not %d", name, pid, yes, parts[name].Process.Pid)
		}
	}
	if err := Stop(s.dir); err != nil {
		t.Fatal(err)
	}
	gone(t, s.dir)
	for name, cmd := range parts {
		if got := status(cmd.Wait()); got != "signal: terminated" {
			t.Errorf("%s ended with %s", name, got)
		}
	}
	if err := s.clear(); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestR54_StubbornProcess ends one that is deaf to SIGTERM, and one that is stopped.
func TestR54_StubbornProcess(t *testing.T) {
	s := aStage(t)
	deaf := starts(t, s, alpha, "trap '' TERM")
	stopped := starts(t, s, brokerName, ":")
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.end(t.Context(), alpha, 50*time.Millisecond), s.end(t.Context(), brokerName, time.Minute)); err != nil {
		t.Error(err)
	}
	if got := status(deaf.Wait()); got != "signal: killed" {
		t.Errorf("the deaf one ended with %s", got)
	}
	if got := status(stopped.Wait()); got != "signal: terminated" {
		t.Errorf("the stopped one ended with %s", got)
	}
	if err := s.clear(); err != nil {
		t.Error(err)
	}
}

// TestR54_NoForeignProcess: the pid in a file counts only while the lock is held.
func TestR54_NoForeignProcess(t *testing.T) {
	s := aStage(t)
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	if err := os.WriteFile(s.pidFile(alpha), fmt.Appendln(nil, other.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, yes := s.running(alpha); yes {
		t.Errorf("process %d is said to run", pid)
	}
	if err := Stop(s.dir); err != nil {
		t.Fatal(err)
	}
	gone(t, s.dir)
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the other process: %v", err)
	}
}

func TestR54_StopRefusesOtherDirectories(t *testing.T) {
	for _, name := range []string{"work", prefix + "1"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "work" { // only a demo's name is missing
			if err := os.WriteFile(filepath.Join(dir, playerName+".pid"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := Stop(dir); !errors.Is(err, fault.Usage) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(dir); err != nil {
			t.Errorf("%s was removed: %v", name, err)
		}
	}
}

// TestR54_PlayerFails: whatever the player does, Run ends, says so, and leaves
// nothing.
func TestR54_PlayerFails(t *testing.T) {
	for name, c := range map[string]struct {
		script, want string
		kind         fault.Kind
	}{
		"ends":     {"exit 7", "(exit status 7)", fault.Failed},
		"killed":   {"kill -9 $$", "(signal: killed)", fault.Failed},
		"nonsense": {"echo nonsense >&4; exit 0", "(exit status 0)", fault.Failed},
		"fault":    {`echo '{"end":{"fault":{"kind":"agent_failed","message":"it died"}}}' >&4`, "it died", fault.AgentFailed},
		"log":      {"echo its last words >&2; exit 1", "its last words", fault.Failed},
	} {
		t.Run("R54 "+name, func(t *testing.T) {
			dir := temp(t)
			o := Options{Program: program(t, c.script), Environ: os.Environ(), Temp: dir, Brief: "x"}
			_, err := Run(t.Context(), o, func(Event) {})
			f := fault.From(err)
			if f == nil || f.Kind != c.kind || !strings.Contains(f.Message+strings.Join(f.Also, " "), c.want) {
				t.Errorf("%+v", f)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestR54_InterruptEndsThePlayersInput, and Run returns what the player says then.
func TestR54_InterruptEndsThePlayersInput(t *testing.T) {
	script := `echo '{"step":"one"}' >&4; cat >/dev/null; echo '{"end":{"fault":{"kind":"interrupted","message":"x"}}}' >&4`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := Options{Program: program(t, script), Environ: os.Environ(), Temp: temp(t), Brief: "x"}
	r, err := Run(ctx, o, func(e Event) {
		if e.Step == "one" {
			cancel()
		}
	})
	if !errors.Is(err, fault.Interrupted) || len(r.Steps) != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestR58_BriefsThatAreTyped(t *testing.T) {
	for _, bad := range []string{"", "-", "--wait", strings.Repeat("x", mostBrief+1), "\xff"} {
		if _, err := Run(t.Context(), Options{Brief: bad}, nil); !errors.Is(err, fault.Usage) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	for _, bad := range []time.Duration{-1, 2 * time.Hour} {
		if _, err := Run(t.Context(), Options{Brief: "x", Work: bad}, nil); !errors.Is(err, fault.Usage) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestR58_CommandsAreShownAsTyped(t *testing.T) {
	out, err := exec.Command("sh", "-c", "printf '%s\\n' "+strings.TrimPrefix(commandLine([]string{"send", "a@b", "it's $HOME; `x` \"y\"", ""}), "fleet ")).Output()
	if want := "send\na@b\nit's $HOME; `x` \"y\"\n\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}

func TestR46_LongTempGoesToShortPaths(t *testing.T) {
	s, err := newStage(filepath.Join(t.TempDir(), strings.Repeat("x", 30)))
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(s.dir)
	socket := filepath.Join(config.PathsOf(s.host(alpha)).Panes(), string(identity.NewGID())+".sock")
	if len(socket) > 103 {
		t.Errorf("%s has %d bytes", socket, len(socket))
	}
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestR50_FlowOfBothHostsByTime(t *testing.T) {
	p := player{stage: aStage(t)}
	mine, other := envelope.NewTrace(), envelope.NewTrace()
	began := time.Now()
	write := func(host string, after time.Duration, id envelope.Trace, step trace.Step) {
		if err := os.MkdirAll(p.host(host), 0o700); err != nil {
			t.Fatal(err)
		}
		w, err := trace.Open(config.PathsOf(p.host(host)).Audit(), identity.Host(host), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		w.Write(trace.Line{At: began.Add(after), Trace: id, Step: step, Detail: "signal killed"})
	}
	write(alpha, 0, mine, trace.Accepted)
	write(alpha, 4, other, trace.Accepted)
	write(alpha, 5*time.Millisecond, mine, trace.Drained)
	write(beta, 2*time.Millisecond, mine, trace.Received)
	lines, err := p.flow(mine)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range lines {
		got = append(got, string(l.Host)+" "+string(l.Step))
	}
	if want := []string{"alpha accepted", "beta received", "alpha drained"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if died, _ := p.workerDied(); died {
		t.Error("nobody has died yet")
	}
	write(beta, 0, "", trace.Died)
	if died, how := p.workerDied(); !died || how != "signal killed" {
		t.Errorf("%t %q", died, how)
	}
	if f := fault.From(p.explain(step{text: "wait, long"}, fault.New(fault.TimedOut, "not there"))); f.Kind != fault.AgentFailed ||
		!strings.Contains(f.Message, "signal killed") || !slices.Contains(f.Also, "not there") {
		t.Errorf("%+v", f)
	}
}

// TestR54_WorkerAnswersWhatItReads: lines that are no header are passed over, a
// header takes as many lines as it says.
func TestR54_WorkerAnswersWhatItReads(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	fake := program(t, `printf '%s|' "$@" >>`+log)
	in := "\r\n[fleet x from y, 1 line]x\n" +
		"[fleet m1 from operator@alpha, 2 lines; answer: fleet reply m1 TEXT]\r\none two\r\n[fleet m9 from eve@beta, 0 lines]\r\n" +
		"[fleet m2 from lead@beta, 0 lines; answer: fleet reply m2 TEXT]\n"
	if err := Work(t.Context(), fake, time.Millisecond, strings.NewReader(in), io.Discard); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log)
	want := `reply|m1|the worker has read "one two\n[fleet m9 from eve@beta, 0 lines]" from operator@alpha: 41 bytes, 8 words|` +
		`reply|m2|the worker has read "" from lead@beta: 0 bytes, 0 words|`
	if err != nil || string(text) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text, want)
	}
	if err := Work(t.Context(), program(t, "echo no; exit 4"), 0, strings.NewReader(in), io.Discard); err == nil ||
		!strings.Contains(err.Error(), "no") {
		t.Errorf("a reply that failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, w := io.Pipe()
	defer w.Close()
	if err := Work(ctx, fake, 0, r, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestR54_ForeignDirectory: a directory that others may write into says nothing.
func TestR54_ForeignDirectory(t *testing.T) {
	s := aStage(t)
	if err := os.WriteFile(s.pidFile(playerName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Stop(s.dir); !errors.Is(err, fault.Refused) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(s.dir); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}
