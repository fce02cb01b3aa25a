package login

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"fleet/pkg/fault"
)

// formatVersion is the file's: 1 since 2026-12.
const formatVersion = 1

// mostBytes bounds the file; a user takes 200.
const mostBytes = 1 << 20

// record is one user in the file.
type record struct {
	User
	// Salt, Iterations and Hash are PBKDF2-HMAC-SHA256's.
	Salt       []byte `json:"salt"`
	Iterations int    `json:"iterations"`
	Hash       []byte `json:"hash"`
}

// document is the whole file.
type document struct {
	Version int      `json:"v"`
	Users   []record `json:"users"`
}

// readFile returns the file's text, none where it is missing. It fails with
// fault.Config for one that others can read.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe of that name must not block
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.New(fault.Config, "can't read the broker's users: %v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, fault.New(fault.Config, "%s is not a file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fault.New(fault.Config, "%s has mode %04o, so others can read it", path, mode).WithHint("chmod 600 %s", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	if err != nil {
		return nil, fault.New(fault.Config, "can't read the broker's users: %v", err)
	}
	return text, nil
}

// parse reads the file's text. It fails with fault.Config.
func parse(path string, text []byte) (map[string]record, error) {
	records := map[string]record{}
	if len(bytes.TrimSpace(text)) == 0 {
		return records, nil
	}
	damaged := func(why string) error {
		return fault.New(fault.Config, "%s is damaged: %s", path, why).
			WithHint("restore it, or move it away and make the users again with `fleet broker user add`")
	}
	if len(text) > mostBytes {
		return nil, damaged("it is too large")
	}
	var head struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, damaged("it is not JSON")
	}
	if head.Version != formatVersion {
		return nil, fault.New(fault.Config, "%s has the version %d, this fleet reads %d", path, head.Version, formatVersion).
			WithHint("a newer fleet has written it: use that")
	}
	var d document
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, damaged("it has a field that can't be read")
	}
	for _, r := range d.Users {
		_, twice := records[r.Name]
		switch {
		case !validName(r.Name):
			return nil, damaged(fmt.Sprintf("%.64q can't be the name of a user", r.Name))
		case twice:
			return nil, damaged("the user " + r.Name + " is there twice")
		case len(r.Salt) < saltBytes || len(r.Salt) > 64 || len(r.Hash) != hashBytes || r.Iterations < cheap || r.Iterations > mostIterations:
			return nil, damaged("the password of " + r.Name + " can't be checked")
		case len(records) == mostUsers:
			return nil, damaged("it has too many users")
		}
		records[r.Name] = r
	}
	return records, nil
}

// How long an edit waits for another one, which takes milliseconds.
const (
	editBound = 10 * time.Second
	editPoll  = 5 * time.Millisecond
)

// edit changes the file, alone among all processes, whole or not at all. The
// lock is the kernel's and on the directory, because the file is replaced.
func (u *Users) edit(change func(map[string]record) error) error {
	dir := filepath.Dir(u.path)
	d, err := os.Open(dir)
	if err != nil {
		return fault.New(fault.Config, "can't write the broker's users: %v", err)
	}
	defer d.Close() // and with it the lock
	for end := time.Now().Add(editBound); ; time.Sleep(editPoll) {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("lock %s: %w", dir, err)
		}
		if time.Now().After(end) {
			return fault.New(fault.TimedOut, "another command has been changing %s for %s", u.path, editBound)
		}
	}
	text, err := readFile(u.path)
	if err != nil {
		return err
	}
	records, err := parse(u.path, text)
	if err != nil {
		return err
	}
	if err := change(records); err != nil {
		return err
	}
	if err := write(u.path, d, records); err != nil {
		return fault.New(fault.Config, "can't write the broker's users: %v", err)
	}
	return nil
}

// write replaces the file and has it on the disk when it returns.
func write(path string, dir *os.File, records map[string]record) error {
	d := document{Version: formatVersion, Users: []record{}}
	for _, r := range records {
		d.Users = append(d.Users, r)
	}
	slices.SortFunc(d.Users, func(a, b record) int { return strings.Compare(a.Name, b.Name) })
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".users-*") // 0600 by contract
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already where all went well
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = dir.Sync()
	}
	return err
}
