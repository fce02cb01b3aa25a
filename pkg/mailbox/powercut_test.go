package mailbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"fleet/pkg/mailbox"
	"fleet/pkg/powercut"
)

// boxName is the mailbox's file in the directory that the work has for itself.
const boxName = "mailbox"

// traced lets a child do its work on a new mailbox under strace and returns what
// it did.
func traced(t *testing.T, mode, steps string, options ...string) []powercut.Event {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "box")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return powercut.Trace(t, dir, child(t, "work", filepath.Join(dir, boxName), mode, steps), options...)
}

// count counts the events of one kind.
func count(events []powercut.Event, what powercut.Kind) (n int) {
	for _, e := range events {
		if e.What == what {
			n++
		}
	}
	return n
}

// cuts plays the log, and at each of n moments spread over it, and just before
// and after fsyncs, opens what a cut leaves and checks it. It returns how many
// it checked and the first thing that was wrong. With writing it also writes to
// each file.
func cuts(t *testing.T, events []powercut.Event, n int, seed uint64, writing bool) (checked int, wrong error) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	chosen := powercut.Moments(random, events, n)
	dir := scratch(t)
	var d powercut.Disk
	var done [workers]int
	opened := false
	for i, e := range events {
		d.Step(e)
		if e.What == powercut.Said {
			var w, number int
			if e.Line == "open" {
				opened = true
			} else if _, err := fmt.Sscan(e.Line, &w, &number); err != nil || w >= workers {
				t.Fatalf("the work said %q", e.Line)
			} else {
				done[w] = number
			}
		}
		if !chosen[i] {
			continue
		}
		checked++
		image, there := d.Cut(random)[boxName]
		if err := afterCut(filepath.Join(dir, fmt.Sprint(i)), image, there, opened, done, writing); err != nil {
			return checked, fmt.Errorf("cut after event %d of %d: %w", i, len(events), err)
		}
	}
	return checked, nil
}

// scratch is a directory in memory where there is one: what these tests write
// needs no disk.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fleet-mailbox-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func afterCut(path string, image []byte, there, opened bool, done [workers]int, writing bool) error {
	if !there && opened {
		return fmt.Errorf("the file is gone")
	}
	if there {
		if err := os.WriteFile(path, image, 0o600); err != nil {
			return err
		}
		defer os.Remove(path)
	}
	s, err := mailbox.Open(path, mailbox.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := check(s, done); err != nil || !writing {
		return err
	}
	for range 2 {
		m := message("after the cut")
		if err := s.Write(context.Background(), func(tx *mailbox.Tx) error { _, err := tx.Put(alice, m); return err }); err != nil {
			return err
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	if s, err = mailbox.Open(path, mailbox.Options{}); err != nil {
		return fmt.Errorf("after writing: %w", err)
	}
	defer s.Close()
	return check(s, done)
}

// seedOf is the test's seed: FLEET_TEST_SEED, or the time. It chooses the cuts
// and what they leave; the log is another in each run.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("FLEET_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FLEET_TEST_SEED=%d", seed)
	return seed
}

// cutCount keeps a test in the order of seconds.
const cutCount = 150

func TestR12_PowerCut(t *testing.T) {
	seed := seedOf(t)
	events := traced(t, "plain", "40")
	syncs := count(events, powercut.Synced)
	checked, wrong := cuts(t, events, cutCount, seed, true)
	if wrong != nil {
		t.Fatal(wrong)
	}
	t.Logf("%d cuts of a log with %d fsyncs", checked, syncs)

	// The check has teeth: on a disk that forgets that it was told to keep the
	// pages before the head that names them, it finds damage.
	t.Run("head before pages", func(t *testing.T) {
		heads := int64(2 * os.Getpagesize())
		var lying []powercut.Event
		for i, e := range events {
			next := slices.IndexFunc(events[i+1:], func(e powercut.Event) bool { return e.What == powercut.Wrote })
			if e.What == powercut.Synced && next >= 0 && events[i+1+next].Off < heads {
				continue
			}
			lying = append(lying, e)
		}
		if len(events)-len(lying) < syncs/3 {
			t.Fatalf("only %d of %d fsyncs come before a head", len(events)-len(lying), syncs)
		}
		if _, wrong := cuts(t, lying, cutCount, seed, false); wrong == nil {
			t.Error("not noticed")
		} else {
			t.Log(wrong)
		}
	})
}

// Without fsync acknowledged facts are lost, and the check says so.
func TestR12_PowerCutWithoutFsync(t *testing.T) {
	seed := seedOf(t)
	if _, wrong := cuts(t, traced(t, "nosync", "30"), cutCount, seed, false); wrong == nil {
		t.Error("not noticed")
	} else {
		t.Log(wrong)
	}
}

// An fsync that fails leaves the commit undone, and the file good: what follows
// builds on it, and survives a power cut.
func TestR10_FailedFsync(t *testing.T) {
	seed := seedOf(t)
	for _, when := range []string{"6+5", "7+4"} {
		t.Run(when, func(t *testing.T) {
			events := traced(t, "stubborn", "30", "-e", "inject=fdatasync:error=EIO:when="+when)
			failed := count(events, powercut.SyncFailed)
			if failed == 0 {
				t.Fatal("no fsync has failed")
			}
			checked, wrong := cuts(t, events, cutCount/2, seed, true)
			if wrong != nil {
				t.Fatal(wrong)
			}
			t.Logf("%d cuts of a log in which %d fsyncs failed", checked, failed)
		})
	}
}

func TestR12_Kill9(t *testing.T) {
	random := rand.New(rand.NewPCG(seedOf(t), 2))
	for range 5 {
		path := filepath.Join(t.TempDir(), "mailbox")
		cmd := child(t, "work", path, "plain", "100000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		want := 50 + random.IntN(300)
		var said bytes.Buffer
		if _, err := io.CopyN(&said, out, int64(want*6)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&said, out); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		var done [workers]int
		for line := range bytes.Lines(said.Bytes()) {
			var w, number int
			if _, err := fmt.Sscanf(string(line), "%d %d\n", &w, &number); err == nil {
				done[w] = number
			}
		}
		if err := check(openAt(t, path, mailbox.Options{}), done); err != nil {
			t.Fatal(err)
		}
	}
}
