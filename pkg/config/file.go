package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fleet/pkg/fault"
)

// writeNew writes a new 0600 file, whole or not at all; fs.ErrExist where one
// stands.
func writeNew(path string, text []byte) error {
	temp, err := writeBeside(path, text)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	// Link refuses an existing name, also one that appeared a moment ago.
	return os.Link(temp, path)
}

// replace writes text over the file at path, whole or not at all, and keeps
// mode and owner. A symbolic link stays one.
func replace(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temp, err := writeBeside(path, text)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // gone already where all went well
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		if err := os.Chown(temp, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if err := os.Chmod(temp, info.Mode().Perm()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// writeBeside writes text to a new 0600 file in path's directory and on to the
// disk.
func writeBeside(path string, text []byte) (temp string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600 by contract
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return f.Name(), err
}

// How long an edit waits for another one, which takes milliseconds.
const (
	editBound = 10 * time.Second
	editPoll  = 5 * time.Millisecond
)

// editing runs f while no other edit of files in dir does. The lock is the
// kernel's and on the directory itself, so that none is left behind and the
// file may be replaced under it.
func editing(dir string, f func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return fault.New(fault.Config, "can't open %s: %s", dir, reason(err))
	}
	defer d.Close() // and with it the lock
	for end := time.Now().Add(editBound); ; time.Sleep(editPoll) {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f()
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("lock %s: %w", dir, err)
		}
		if time.Now().After(end) {
			return fault.New(fault.TimedOut, "another command has been editing %s for %s", filepath.Join(dir, fileName), editBound)
		}
	}
}
