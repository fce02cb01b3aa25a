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
)

// A power cut keeps what was on the disk at the last fsync. Of what was written
// after it each piece may be there or not, in any order, and a write may be torn
// between two sectors. kill -9 shows nothing of that, because the system's cache
// outlives the process; so the work is done under strace, and the disk rebuilt
// from the log as a cut at any moment could have left it.

// disk is the mailbox file as the log shows it.
type disk struct {
	synced  []byte  // certain
	pending []event // written, truncated, but not brought to the disk yet
	linked  bool    // the file has its name
	named   bool    // and the name is certain
}

// step follows one event of the log.
func (d *disk) step(e event) {
	switch e.what {
	case wrote, truncated:
		d.pending = append(d.pending, e)
	case synced:
		// Only what was written before the fsync began is certain.
		rest := slices.IndexFunc(d.pending, func(p event) bool { return p.at > e.began })
		if rest < 0 {
			rest = len(d.pending)
		}
		for _, p := range d.pending[:rest] {
			d.synced = p.onto(d.synced)
		}
		d.pending = slices.Clone(d.pending[rest:])
	case linked:
		d.linked = true
	case syncedDir:
		d.named = d.linked
	}
}

// onto applies a write or a truncation to a file's content.
func (e event) onto(b []byte) []byte {
	size := int(e.off)
	if e.what == wrote {
		size = max(len(b), size+len(e.data))
	}
	if size > len(b) {
		b = append(b, make([]byte, size-len(b))...)
	}
	b = b[:size]
	copy(b[min(int(e.off), size):], e.data)
	return b
}

// cut is the file as a power cut may leave it; there is false if there is none.
func (d *disk) cut(random *rand.Rand) (b []byte, there bool) {
	if !d.linked || !d.named && random.IntN(2) == 0 {
		return nil, false
	}
	const sector = 512
	b = bytes.Clone(d.synced)
	keep := random.Float64()
	for _, i := range random.Perm(len(d.pending)) {
		p := d.pending[i]
		switch {
		case random.Float64() > keep:
		case p.what == truncated || random.IntN(3) > 0:
			b = p.onto(b)
		default:
			for from := 0; from < len(p.data); from += sector {
				if random.IntN(2) == 0 {
					piece := p.data[from:min(from+sector, len(p.data))]
					b = event{what: wrote, off: p.off + int64(from), data: piece}.onto(b)
				}
			}
		}
	}
	return b, true
}

// cuts plays the log, and at each of n moments spread over it, and just before
// and after fsyncs, opens what a cut leaves and checks it. It returns how many
// it checked and the first thing that was wrong. With writing it also writes to
// each file.
func cuts(t *testing.T, events []event, n int, seed uint64, writing bool) (checked int, wrong error) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	chosen := make(map[int]bool)
	for range n {
		i := random.IntN(len(events))
		if random.IntN(2) == 0 { // the moments about an fsync are the telling ones
			for i < len(events)-1 && events[i].what != synced {
				i++
			}
			i -= random.IntN(2)
		}
		chosen[i] = true
	}
	dir := scratch(t)
	var d disk
	var done [workers]int
	opened := false
	for i, e := range events {
		d.step(e)
		if e.what == said {
			var w, number int
			if e.line == "open" {
				opened = true
			} else if _, err := fmt.Sscan(e.line, &w, &number); err != nil || w >= workers {
				t.Fatalf("the work said %q", e.line)
			} else {
				done[w] = number
			}
		}
		if !chosen[i] {
			continue
		}
		checked++
		if err := afterCut(filepath.Join(dir, fmt.Sprint(i)), &d, random, opened, done, writing); err != nil {
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

func afterCut(path string, d *disk, random *rand.Rand, opened bool, done [workers]int, writing bool) error {
	image, there := d.cut(random)
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
	syncs := 0
	for _, e := range events {
		if e.what == synced {
			syncs++
		}
	}
	checked, wrong := cuts(t, events, cutCount, seed, true)
	if wrong != nil {
		t.Fatal(wrong)
	}
	t.Logf("%d cuts of a log with %d fsyncs", checked, syncs)

	// The check has teeth: on a disk that forgets that it was told to keep the
	// pages before the head that names them, it finds damage.
	t.Run("head before pages", func(t *testing.T) {
		heads := int64(2 * os.Getpagesize())
		var lying []event
		for i, e := range events {
			next := slices.IndexFunc(events[i+1:], func(e event) bool { return e.what == wrote })
			if e.what == synced && next >= 0 && events[i+1+next].off < heads {
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
			failed := 0
			for _, e := range events {
				if e.what == syncFailed {
					failed++
				}
			}
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
