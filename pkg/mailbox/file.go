package mailbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"fleet/pkg/fault"
)

// format is the version that this build writes and reads.
const format = 1

// lockWait is how long Open waits for another process to let go of the file: a
// gateway that is just ending, not one that runs.
const lockWait = time.Second

// The fixed buckets (see the package comment).
var (
	inFleet    = []byte("fleet")
	inMessages = []byte("messages")
	inBodies   = []byte("bodies")
	inStats    = []byte("stats")
	inSeen     = []byte("seen")
	inAges     = []byte("ages")
	inPeers    = []byte("peers")
	inCounters = []byte("counters")

	fixed      = [][]byte{inFleet, inMessages, inBodies, inStats, inSeen, inAges, inPeers, inCounters}
	versionKey = []byte("version")
)

// prepare makes the file where it is missing, and finds out whether it can be
// used. What it maps it lets go of again: pages that bbolt has touched in its
// walk would otherwise count as the gateway's memory.
func prepare(path string, log *slog.Logger) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = create(path); err == nil {
			info, err = os.Stat(path)
		}
	}
	if err != nil {
		return fmt.Errorf("open mailbox file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fault.New(fault.Config, "the mailbox file %s is not a regular file", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		log.Warn("others could read the mailbox file; its mode is 0600 again", "path", path, "mode", info.Mode().Perm())
		if err := os.Chmod(path, 0o600); err != nil {
			return fmt.Errorf("open mailbox file: %w", err)
		}
	}
	if info.Size() < 2*int64(os.Getpagesize()) {
		return damaged(path, "it is too short") // bbolt would begin a new one in place
	}
	db, file, err := bolt(path, bbolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	if info, err = file.Stat(); err == nil { // it may have grown before it was ours
		if err = check(file, info.Size()); err != nil {
			err = damaged(path, err.Error())
		} else {
			err = inspect(db, path)
		}
	}
	if closeErr := db.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	// The file lacks the list of its free pages (see open). bbolt finds them by a
	// walk and writes the list down; if it can't (a full disk), open walks.
	if db, _, err = bolt(path, bbolt.Options{}); err == nil {
		return db.Close()
	}
	if errors.Is(err, fault.HostHeld) || errors.Is(err, fault.Config) {
		return err
	}
	return nil
}

// open opens a file that prepare has found good.
func open(path string) (*bbolt.DB, *os.File, error) {
	// The list of free pages is not written with each commit: after a large
	// mailbox was drained it is megabytes.
	return bolt(path, bbolt.Options{NoFreelistSync: true})
}

// bolt opens the file with bbolt, and turns what bbolt says into faults.
func bolt(path string, o bbolt.Options) (db *bbolt.DB, file *os.File, err error) {
	o.Timeout = lockWait
	o.FreelistType = bbolt.FreelistMapType
	o.NoStatistics = true
	o.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag&^os.O_CREATE, mode)
		file = f
		return f, err
	}
	db, err = bbolt.Open(path, 0o600, &o)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, nil, fault.New(fault.HostHeld, "another gateway has the mailbox file %s open", path).
			WithHint("one gateway serves a host; `fleet gateway status` shows it")
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum):
		return nil, nil, damaged(path, err.Error())
	case err != nil:
		return nil, nil, fmt.Errorf("open mailbox file: %w", err)
	}
	return db, file, nil
}

// inspect checks the version and that nothing is missing.
func inspect(db *bbolt.DB, path string) error {
	return db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(inFleet)
		if b == nil {
			return damaged(path, "it has no version")
		}
		version, err := strconv.ParseUint(string(b.Get(versionKey)), 10, 31)
		if err != nil || version == 0 {
			return damaged(path, "it has no version")
		}
		if version > format {
			return fault.New(fault.Config, "the mailbox file %s has format %d, this fleet reads %d", path, version, format).
				WithHint("use the fleet that wrote it, or a newer one")
		}
		for _, name := range fixed {
			if tx.Bucket(name) == nil {
				return damaged(path, "it has no "+string(name))
			}
		}
		return nil
	})
}

func damaged(path, how string) error {
	return fault.New(fault.Config, "the mailbox file %s is damaged: %s", path, how).
		WithHint("restore it, or move it away: the gateway then begins an empty one, and what waited in it is lost")
}

// create makes the file under another name and links it into place when it is
// whole and on the disk, so that a crash leaves either no file or a good one.
func create(path string) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // 0600 by contract
	if err != nil {
		return err
	}
	temp := f.Name()
	defer os.Remove(temp)
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bbolt.Open(temp, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoStatistics: true})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range fixed {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return tx.Bucket(inFleet).Put(versionKey, []byte(strconv.Itoa(format)))
	})
	if closeErr := db.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	// Link refuses an existing file: two makers agree on one.
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(dir)
}

// syncDir brings the names in dir to the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// head reads bbolt's two meta pages, which name the newest transaction.
func (s *Store) head() ([]byte, error) {
	b := make([]byte, s.headBytes)
	if _, err := s.file.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("read the head: %w", err)
	}
	return b, nil
}

// heal undoes a commit that failed after bbolt had written its meta page, which
// happens when the last fsync fails. The page is then in the system's cache, so
// that the commit, though reported as failed, counts; and the disk may never get
// it, so that the next commit would overwrite pages that the disk's newest state
// needs. The old head is written again and brought to the disk, and bbolt is
// made to forget what it has in memory. Until that works no group is run.
func (s *Store) heal() error {
	if s.before == nil {
		return nil
	}
	s.dbLock.Lock()
	defer s.dbLock.Unlock()
	if s.db != nil {
		if len(s.before) > 0 {
			now, err := s.head()
			if err != nil {
				return err
			}
			if bytes.Equal(now, s.before) {
				s.before = nil
				return nil
			}
			if _, err := s.file.WriteAt(s.before, 0); err != nil {
				return fmt.Errorf("put the head back: %w", err)
			}
			if err := s.file.Sync(); err != nil {
				return fmt.Errorf("put the head back: %w", err)
			}
		}
		err := s.db.Close()
		s.db, s.file = nil, nil
		if err != nil {
			return fmt.Errorf("close the mailbox file: %w", err)
		}
	}
	db, file, err := open(s.path)
	if err != nil {
		return err
	}
	s.db, s.file, s.before = db, file, nil
	return nil
}
