package store_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"fleet/pkg/broker/store"
	"fleet/pkg/powercut"
)

// What was confirmed is there after kill -9, in order, and whatever else is there
// is what the next operations have led to.
func TestR53_KillNine(t *testing.T) {
	seed := seedOf(t)
	random := rand.New(rand.NewPCG(seed, 2))
	rounds := 200
	if testing.Short() {
		rounds = 30
	}
	dir := t.TempDir()
	st, last := newState(), &store.Recovered{}
	confirmed, kept, messages := 0, 0, 0
	for round := range rounds {
		script := seed + uint64(round)
		durable := killed(t, dir, script, random.IntN(40))
		s, r, err := store.Open(small(dir))
		if err != nil {
			t.Fatal(err)
		}
		got, err := found(s, r)
		n := 0
		if err == nil {
			n, err = match(st, newScript(script, last), got, durable, durable+4*window)
		}
		if err != nil {
			t.Fatalf("round %d, %d operations were confirmed: %v", round, durable, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		last = r
		confirmed, kept, messages = confirmed+durable, kept+n, messages+int(r.Messages)
	}
	t.Logf("%d rounds of kill -9: %d operations confirmed, %d kept; %d messages read again, none missing", rounds, confirmed, kept, messages)
	if confirmed < rounds {
		t.Error("next to nothing was confirmed")
	}
}

// killed lets a child work, kills it after it has said some lines, and returns
// how many operations it has called durable.
func killed(t *testing.T, dir string, script uint64, lines int) (durable int) {
	t.Helper()
	cmd := child(t, "script", dir, strconv.FormatUint(script, 10), "1000000")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	for said := 0; ; said++ {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			break // what the pipe held when the child died is read too
		} else if err != nil {
			t.Fatal(err)
		}
		if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			durable = n
		}
		if said == lines {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || complaints.Len() > 0 {
		t.Fatalf("the child was not killed: %v\n%s", err, &complaints)
	}
	return durable
}

// powerTrace lets a child do its script on what is in images, and returns what it
// did.
func powerTrace(t *testing.T, images map[string][]byte, script uint64, steps int) []powercut.Event {
	t.Helper()
	dir := t.TempDir()
	restore(t, dir, images)
	return powercut.Trace(t, dir, child(t, "script", dir, strconv.FormatUint(script, 10), strconv.Itoa(steps)))
}

func restore(t testing.TB, dir string, images map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, image := range images {
		if err := os.WriteFile(filepath.Join(dir, name), image, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// scratch is a directory in memory where there is one: what these tests write
// needs no disk.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fleet-store-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// outage is a script, and the power cuts that it suffers.
type outage struct {
	script uint64
	steps  int
	images map[string][]byte // what there was before
	events []powercut.Event
}

// cuts plays the outage's events, and at n moments opens what a cut leaves and
// checks it. It returns what one of them has left, how many it checked, how many
// operations were kept in all, and the first thing that was wrong.
func (o outage) cuts(t *testing.T, random *rand.Rand, n int) (left map[string][]byte, checked, kept int, wrong error) {
	t.Helper()
	chosen := powercut.Moments(random, o.events, n)
	dir := scratch(t)
	base, last := o.base(t, filepath.Join(dir, "base"))
	var d powercut.Disk
	d.Load(o.images)
	durable := 0
	for i, e := range o.events {
		d.Step(e)
		if e.What == powercut.Said {
			if n, err := strconv.Atoi(e.Line); err == nil {
				durable = n
			}
		}
		if !chosen[i] {
			continue
		}
		checked++
		images := d.Cut(random)
		n, err := o.afterCut(t, filepath.Join(dir, fmt.Sprint(i)), images, base, last, durable)
		if err != nil {
			return nil, checked, kept, fmt.Errorf("cut after event %d of %d, %d operations were durable: %w", i, len(o.events), durable, err)
		}
		kept += n
		if checked == n/2 || left == nil {
			left = images
		}
	}
	return left, checked, kept, nil
}

// base is the state that the script began with.
func (o outage) base(t *testing.T, dir string) (*state, *store.Recovered) {
	t.Helper()
	restore(t, dir, o.images)
	s, r, err := store.Open(small(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	st, err := found(s, r)
	if err != nil {
		t.Fatal(err)
	}
	return st, r
}

func (o outage) afterCut(t *testing.T, dir string, images map[string][]byte, base *state, last *store.Recovered, durable int) (int, error) {
	t.Helper()
	defer os.RemoveAll(dir)
	restore(t, dir, images)
	s, r, err := store.Open(small(dir))
	if err != nil {
		return 0, err
	}
	defer s.Close()
	got, err := found(s, r)
	if err != nil {
		return 0, err
	}
	st := newState()
	for sp, expires := range base.spots {
		st.set(sp, expires)
	}
	for key, value := range base.defs {
		st.define(key, value)
	}
	n, err := match(st, newScript(o.script, last), got, durable, o.steps)
	if err != nil {
		return 0, err
	}
	return n, goOn(s, dir, st, r)
}

// goOn writes to a store that has survived, and lets it crash: what was there and
// what was written is there, and nothing else comes back.
func goOn(s *store.Store, dir string, st *state, r *store.Recovered) error {
	seq := r.LastSeq
	for range 3 {
		seq++
		s.Append(seq, content(seq), []store.Place{{Queue: 1, Durable: true}}, true)
		st.set(spot{1, seq}, 0)
	}
	if err := s.Sync(context.Background()); err != nil {
		return err
	}
	s.Crash()
	s, r, err := store.Open(small(dir))
	if err != nil {
		return err
	}
	defer s.Close()
	got, err := found(s, r)
	if err == nil {
		err = st.differs(got)
	}
	if err != nil {
		return fmt.Errorf("after writing: %w", err)
	}
	return nil
}

func TestR53_PowerCut(t *testing.T) {
	seed := seedOf(t)
	random := rand.New(rand.NewPCG(seed, 1))
	// Each outage but the first begins with what a cut of the one before has left, so
	// that recovery itself is cut off too.
	outages, each, steps := 4, 50, 1500
	if testing.Short() {
		outages, each = 2, 25
	}
	var images map[string][]byte
	checked, kept, syncs, removed := 0, 0, 0, 0
	var all []outage
	for i := range outages {
		o := outage{script: seed + uint64(i), steps: steps, images: images}
		o.events = powerTrace(t, images, o.script, steps)
		for _, e := range o.events {
			switch e.What {
			case powercut.Synced:
				syncs++
			case powercut.Removed:
				removed++
			}
		}
		left, n, k, wrong := o.cuts(t, random, each)
		if wrong != nil {
			t.Fatalf("outage %d: %v", i, wrong)
		}
		checked, kept, images = checked+n, kept+k, left
		all = append(all, o)
	}
	t.Logf("%d power cuts of logs with %d fsyncs and %d deleted segments: %d operations kept, none missing", checked, syncs, removed, kept)
	if removed == 0 {
		t.Error("no segment was deleted")
	}
	// The check has teeth: a disk that forgets what it was told to keep is noticed.
	for name, forgets := range map[string]func(powercut.Event) bool{
		"no fsync at all":    func(e powercut.Event) bool { return e.What == powercut.Synced },
		"no fsync of names":  func(e powercut.Event) bool { return e.What == powercut.SyncedNames },
		"every fourth fsync": everyFourth(powercut.Synced),
	} {
		t.Run(name, func(t *testing.T) {
			lying := all[0]
			lying.events = nil
			for _, e := range all[0].events {
				if !forgets(e) {
					lying.events = append(lying.events, e)
				}
			}
			if _, _, _, wrong := lying.cuts(t, random, 60); wrong == nil {
				t.Error("not noticed")
			} else {
				t.Log(wrong)
			}
		})
	}
}

func everyFourth(what powercut.Kind) func(powercut.Event) bool {
	n := 0
	return func(e powercut.Event) bool {
		if e.What != what {
			return false
		}
		n++
		return n%4 == 0
	}
}

// After a failed fsync the system's cache holds what the disk does not, and calls
// it written. What recovery has read is on the disk nevertheless before anything
// builds on it.
func TestR53_RecoveredIsWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	s, _ := opened(t, small(dir))
	s.Append(1, short(1), inOne, true)
	synced(t, s)
	safe := s.DurableOffset()
	s.Append(2, short(2), inOne, false)
	written(s)
	s.Append(3, short(3), inOne, false)
	written(s)
	s.Crash()
	cached := images(t, dir)
	const name = "00000001.log"
	var d powercut.Disk
	d.Load(map[string][]byte{name: append(bytes.Clone(cached[name][:safe]), make([]byte, int64(len(cached[name]))-safe)...)})
	for _, e := range powerTrace(t, cached, 1, 0) {
		d.Step(e)
	}
	got, damaged := survivors(t, filepath.Join(scratch(t), "again"), d.Cut(rand.New(rand.NewPCG(1, 1))))
	if len(got) != 3 || damaged != 0 {
		t.Errorf("messages %v, damaged %d", got, damaged)
	}
}
