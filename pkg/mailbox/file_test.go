package mailbox_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	"fleet/pkg/fault"
	"fleet/pkg/mailbox"
)

func TestR45_ModeOfTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	defer syscall.Umask(syscall.Umask(0))
	openAt(t, path, mailbox.Options{}).Close()
	mode := func() fs.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if mode() != 0o600 {
		t.Errorf("mode %o", mode())
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	openAt(t, path, mailbox.Options{})
	if mode() != 0o600 {
		t.Errorf("mode %o after it was opened again", mode())
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestR7_FileIsHeldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	s := openAt(t, path, mailbox.Options{})
	_, err := mailbox.Open(path, mailbox.Options{})
	wantKind(t, err, fault.HostHeld)
	if !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name the file: %v", err)
	}
	s.Close()
	openAt(t, path, mailbox.Options{})
}

// Several that find no file agree on one, and all but one are told.
func TestR7_MadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	var all sync.WaitGroup
	var mu sync.Mutex // guards opened
	var opened []*mailbox.Store
	for range 4 {
		all.Go(func() {
			s, err := mailbox.Open(path, mailbox.Options{})
			if err != nil {
				if !errors.Is(err, fault.HostHeld) {
					t.Error(err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, s)
		})
	}
	all.Wait()
	if len(opened) != 1 {
		t.Errorf("%d have opened it", len(opened))
	}
	for _, s := range opened {
		s.Close()
	}
}

func TestR16_DamagedFile(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole")
	s := openAt(t, whole, mailbox.Options{})
	for i := range 200 {
		put(t, s, alice, message(strings.Repeat(fmt.Sprint(i), 100)))
	}
	s.Close()
	openAt(t, whole, mailbox.Options{}).Close() // with its list of free pages
	good, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(name string, change func(*bbolt.Tx) error) []byte {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(change), db.Close()); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	overwrite := func(from, to int) []byte {
		b := slices.Clone(good)
		for i := from; i < to; i++ {
			b[i] = 0xa5
		}
		return b
	}
	page := os.Getpagesize() // and bbolt's
	noFreelist := slices.Clone(good)
	for at := 2 * page; at < len(good); at += page {
		if noFreelist[at+8] == 0x10 { // bbolt's flag of a list of free pages
			noFreelist[at+8] = 0xff
		}
	}
	inline := slices.Clone(good)
	for at := range inline {
		if bytes.HasPrefix(inline[at:], []byte("version1")) { // the row after its element, in a bucket inside a page
			binary.NativeEndian.PutUint32(inline[at-12:], 1<<30)
		}
	}
	version := func(v string) func(*bbolt.Tx) error {
		return func(tx *bbolt.Tx) error { return tx.Bucket([]byte("fleet")).Put([]byte("version"), []byte(v)) }
	}
	for name, content := range map[string][]byte{
		"empty":          {},
		"text":           []byte(strings.Repeat("not a mailbox\n", 2000)),
		"both heads":     overwrite(0, 2*page),
		"half of it":     good[:len(good)/2],
		"a few pages":    good[:5*page],
		"no pages":       good[:2*page],
		"pages":          overwrite(2*page, len(good)),
		"free pages":     noFreelist,
		"inline bucket":  inline,
		"no version":     edit("a", func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("fleet")) }),
		"odd version":    edit("b", version("one")),
		"newer version":  edit("c", version("2")),
		"bucket missing": edit("d", func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("seen")) }),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mailbox")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first has let go of the lock
				_, err := mailbox.Open(path, mailbox.Options{})
				wantKind(t, err, fault.Config)
				if !strings.Contains(err.Error(), path) || fault.From(err).Hint == "" {
					t.Errorf("no path or no hint: %#v", err)
				}
			}
		})
	}
	t.Run("one head", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "mailbox")
		if err := os.WriteFile(path, overwrite(0, 512), 0o600); err != nil {
			t.Fatal(err)
		}
		openAt(t, path, mailbox.Options{}) // a torn head is what a power cut leaves
	})
	t.Run("directory", func(t *testing.T) {
		_, err := mailbox.Open(t.TempDir(), mailbox.Options{})
		wantKind(t, err, fault.Config)
	})
	t.Run("no directory", func(t *testing.T) {
		_, err := mailbox.Open(filepath.Join(t.TempDir(), "none", "mailbox"), mailbox.Options{})
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	})
}

// A panic of a write function, and the end of its goroutine, must end the
// process and not the writer alone, or everybody would wait for ever.
func TestR16_PanicIsLoud(t *testing.T) {
	for name, want := range map[string]string{"panic": "planted panic", "goexit": "a write function ended the writer"} {
		t.Run(name, func(t *testing.T) {
			out, err := child(t, name, filepath.Join(t.TempDir(), "mailbox")).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// What waits in the mailbox is not loaded by Open, after a crash either.
func TestP4_OpenLoadsNothing(t *testing.T) {
	const n, size = 10_000, 2048
	path := filepath.Join(t.TempDir(), "mailbox")
	s := openAt(t, path, mailbox.Options{})
	for start := 0; start < n; start += 1000 {
		write(t, s, func(tx *mailbox.Tx) error {
			for range 1000 {
				if _, err := tx.Put(alice, message(strings.Repeat("x", size))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	open := func(t *testing.T, path string) {
		heap, resident := memory(t)
		s, err := mailbox.Open(path, mailbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		heap2, resident2 := memory(t)
		t.Logf("heap +%d KiB, resident +%d KiB with %d messages of %d bytes", (heap2-heap)>>10, (resident2-resident)>>10, n, size)
		if heap2-heap > 2<<20 || resident2-resident > 8<<20 {
			t.Error("too much")
		}
		if got := stats(t, s, alice).Count; got != n {
			t.Errorf("%d messages", got)
		}
	}
	crashed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := path + "-crashed"
	if err := os.WriteFile(copied, crashed, 0o600); err != nil {
		t.Fatal(err)
	}
	crashed = nil
	s.Close()
	t.Run("closed", func(t *testing.T) { open(t, path) })
	t.Run("crashed", func(t *testing.T) { open(t, copied) })
}

// memory returns the live heap and the pages of files that are mapped in.
func memory(t *testing.T) (heap, mapped int64) {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Skipf("can't tell the resident memory: %v", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "RssFile: %d kB", &mapped); err == nil {
			return int64(m.HeapAlloc), mapped << 10
		}
	}
	t.Skip("the kernel does not tell the resident memory")
	return 0, 0
}
