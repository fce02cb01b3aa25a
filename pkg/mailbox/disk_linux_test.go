package mailbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleet/pkg/fault"
	"fleet/pkg/mailbox"
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

func TestR12a_FullDisk(t *testing.T) {
	dir := smallDisk(t)
	path, ballast := filepath.Join(dir, "mailbox"), filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 600<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, path, mailbox.Options{})
	try := func() error {
		m := message(strings.Repeat("x", 10<<10))
		return s.Write(t.Context(), func(tx *mailbox.Tx) error { _, err := tx.Put(alice, m); return err })
	}
	accepted := 0
	var err error
	for ; accepted < 100; accepted++ {
		if err = try(); err != nil {
			break
		}
	}
	if err == nil {
		t.Fatal("a full disk was not noticed")
	}
	if f := fault.From(err); f.Kind != fault.Failed || !strings.Contains(f.Message, path) || f.Hint == "" {
		t.Errorf("fault %#v", f)
	}
	failed := 1
	for range 5 { // another id falls on another page, which may just fit
		if try() == nil {
			accepted++
		} else {
			failed++
		}
	}
	if n := len(list(t, s, alice)); n != accepted {
		t.Errorf("%d messages are there, %d were accepted", n, accepted)
	}
	if c := s.Counts(); c.Failures != uint64(failed) {
		t.Errorf("counts %+v, want %d failures", c, failed)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := try(); err != nil {
			t.Fatalf("there is room again: %v", err)
		}
	}
	s.Close()
	if n := len(list(t, openAt(t, path, mailbox.Options{}), alice)); n != accepted+20 {
		t.Errorf("%d messages after opening again, want %d", n, accepted+20)
	}
}

// A gateway must start on a full disk, or nobody could drain it. Here the disk
// takes not one page.
func TestR12a_OpensOnAFullDiskAfterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	s := openAt(t, path, mailbox.Options{})
	put(t, s, alice, message("waits"))
	s.Close() // without its list of free pages, as after a crash
	cmd := powercut.Strace(t, filepath.Join(t.TempDir(), "log"), child(t, "count", path),
		"-e", "trace=pwrite64", "-e", "inject=pwrite64:error=ENOSPC")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "1\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
