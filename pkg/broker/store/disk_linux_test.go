package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleet/pkg/broker/store"
	"fleet/pkg/fault"
	"fleet/pkg/powercut"
)

// smallDisk mounts a disk of one MiB for the time of the test.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("fleet", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("can't mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A disk on which no segment fits is used to its end; then the store fails, says
// so once, and keeps what it has confirmed.
func TestR53_FullDisk(t *testing.T) {
	dir := filepath.Join(smallDisk(t), "store")
	failed := make(chan error, 2)
	s, _ := opened(t, store.Options{Dir: dir, Failed: func(err error) { failed <- err }})
	m := store.Message{Body: make([]byte, 10<<10)}
	confirmed, err := uint64(0), error(nil)
	var refs []store.Ref
	for ; confirmed < 1000; confirmed++ {
		ref, _ := s.Append(confirmed+1, m, inOne, true)
		if err = s.Sync(t.Context()); err != nil {
			break
		}
		refs = append(refs, ref)
	}
	if confirmed < 90 || confirmed > 101 {
		t.Errorf("%d messages of 10 KiB on 1 MiB", confirmed)
	}
	for _, err := range []error{err, <-failed, s.Sync(t.Context())} {
		if f := fault.From(err); f == nil || f.Kind != fault.Failed || !strings.Contains(f.Message, dir) || !strings.Contains(f.Message, "no space left") || f.Hint == "" {
			t.Errorf("fault %#v", f)
		}
	}
	for range 10 {
		if ref, at := s.Append(confirmed+9, m, inOne, true); ref != (store.Ref{}) || at <= s.Appended() {
			t.Error("a store that has failed appends")
		}
	}
	for _, ref := range refs {
		reads(t, s, ref, m)
	}
	if err := s.Close(); err == nil || len(failed) > 0 {
		t.Errorf("close: %v; told %d times more", err, len(failed))
	}
	// It opens on the full disk, and works again when there is room.
	s, r := opened(t, store.Options{Dir: dir})
	if uint64(r.Messages) < confirmed || uint64(r.Messages) > confirmed+1 || r.Damaged != 0 {
		t.Errorf("%d messages are there, %d were confirmed, damaged %d", r.Messages, confirmed, r.Damaged)
	}
	for _, it := range r.Queues[1] {
		reads(t, s, it.Ref, m)
	}
	closed(t, s)
	if err := syscall.Mount("fleet", filepath.Dir(dir), "tmpfs", syscall.MS_REMOUNT, "size=2m"); err != nil {
		t.Fatal(err)
	}
	s, r = opened(t, store.Options{Dir: dir})
	for seq := range uint64(20) {
		s.Append(r.LastSeq+1+seq, m, inOne, true)
	}
	synced(t, s)
	closed(t, s)
	if _, again := opened(t, store.Options{Dir: dir}); again.Messages != r.Messages+20 {
		t.Errorf("%d messages, want 20 more than %d", again.Messages, r.Messages)
	}
}

// The last bytes of a full disk may do for what closing writes, or not.
func TestR53_ClosesOnAFullDisk(t *testing.T) {
	for spare := range 3 {
		dir := smallDisk(t)
		s, _ := opened(t, store.Options{Dir: dir})
		s.Append(1, content(1), inOne, true)
		synced(t, s)
		ballast := make([]byte, 1<<20)
		_ = os.WriteFile(filepath.Join(dir, "ballast"), ballast[:len(ballast)-spare*4096], 0o600) // until it is full
		_ = s.Close()
		if _, r := opened(t, store.Options{Dir: dir}); r.Messages != 1 || r.Damaged != 0 {
			t.Errorf("%d messages, damaged %d", r.Messages, r.Damaged)
		}
	}
}

// After a write or an fsync that failed nothing is confirmed any more; what was
// confirmed before is there, and the store goes on where it stood when it is
// opened again.
func TestR53_FailedWrite(t *testing.T) {
	for _, inject := range []string{
		"fdatasync:error=EIO:when=20+", "fdatasync:error=EIO:when=1+", "fdatasync:error=EIO:when=20",
		"pwrite64:error=EIO:when=30", "pwrite64:error=ENOSPC:when=50", "fsync:error=EIO:when=5", "fsync:error=EIO:when=6",
	} {
		t.Run(inject, func(t *testing.T) {
			dir := t.TempDir()
			call, _, _ := strings.Cut(inject, ":")
			cmd := powercut.Strace(t, filepath.Join(t.TempDir(), "log"), child(t, "fail", dir), "-e", "trace="+call, "-e", "inject="+inject)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var n int
			var dropped, never, told bool
			var more int
			if _, err := fmt.Sscan(string(out), &n, &dropped, &never, &told, &more); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !dropped || !never || !told || more != 0 {
				t.Errorf("dropped %t, its position never durable %t, told what Close says %t, told %d times more", dropped, never, told, more)
			}
			s, r := opened(t, store.Options{Dir: dir, SegmentBytes: 32 << 10})
			if int(r.Messages) < n || int(r.Messages) > n+1 || r.Damaged != 0 {
				t.Errorf("%d messages, %d were confirmed, damaged %d", r.Messages, n, r.Damaged)
			}
			if _, err := found(s, r); err != nil {
				t.Error(err)
			}
			t.Logf("%d confirmed", n)
		})
	}
}
