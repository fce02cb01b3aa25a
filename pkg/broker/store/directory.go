package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
)

// passing is how long a lock may be held by nobody who keeps it.
const passing = 500 * time.Millisecond

// hold opens the directory, made if it is missing, and locks it for this
// process. The lock is the kernel's and ends with the process, however it ends.
func hold(path string) (*os.File, error) {
	if path == "" {
		return nil, fault.New(fault.Config, "the broker's store has no directory").WithHint("set where the broker keeps its data")
	}
	if err := makeDir(path); err != nil {
		return nil, fault.New(fault.Config, "can't make the broker's store %s: %s", path, reason(err)).
			WithHint("choose a directory that can be written")
	}
	d, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Config, "can't open the broker's store %s: %s", path, reason(err)).
			WithHint("choose a directory that can be read and written")
	}
	// A process that is just being started has all descriptors up to its exec, also
	// the one that held the lock of a store closed a moment ago.
	for deadline := time.Now().Add(passing); ; time.Sleep(10 * time.Millisecond) {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
	}
	_ = d.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fault.New(fault.Refused, "another broker has the store %s open", path).
			WithHint("end it, or give this one a directory of its own")
	}
	return nil, fault.New(fault.Config, "can't lock the broker's store %s: %s", path, reason(err)).
		WithHint("choose a directory on a disk of this machine")
}

// makeDir makes a directory and those above it, and brings their names to the
// disk: a log is no use when its directory is gone after a power cut.
func makeDir(path string) error {
	path = filepath.Clean(path)
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return unix.ENOTDIR
		}
		return nil
	}
	above := filepath.Dir(path)
	if above != path {
		if err := makeDir(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := os.Open(above)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// numbers lists the segments in the directory, ascending.
func (s *Store) numbers() ([]uint32, error) {
	entries, err := os.ReadDir(s.o.Dir)
	if err != nil {
		return nil, err
	}
	var found []uint32
	for _, e := range entries {
		text, ok := strings.CutSuffix(e.Name(), ".log")
		n, err := strconv.ParseUint(text, 10, 32)
		if ok && err == nil && n > 0 && fileName(uint32(n)) == e.Name() {
			found = append(found, uint32(n))
		}
	}
	slices.Sort(found)
	return found, nil
}
