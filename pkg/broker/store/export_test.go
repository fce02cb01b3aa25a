package store

import "errors"

// WithGarbage sets how much of the log may be dead.
func (o Options) WithGarbage(factor, slack int64) Options {
	o.garbage = garbage{factor, slack}
	return o
}

// Appended is the position after what was appended last.
func (s *Store) Appended() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.appended
}

// DurableOffset is up to where the active segment is durable.
func (s *Store) DurableOffset() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active == nil {
		return 0
	}
	return s.active.durable
}

// Crash ends the store as kill -9 does: what the flusher has not taken yet is
// gone.
func (s *Store) Crash() {
	s.mu.Lock()
	if s.failed == nil {
		s.failed = errors.New("crashed")
	}
	s.mu.Unlock()
	_ = s.Close()
}

// OpenFiles counts the files of segments that are open.
func (s *Store) OpenFiles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

const (
	OpenMost  = openMost
	RecordsAt = recordsAt
	CopyAt    = copyAt
)

// Dir is where the store is.
func (s *Store) Dir() string { return s.o.Dir }

// Dying counts the segments that wait to be deleted.
func (s *Store) Dying() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dying)
}

// Segment is a segment file with the records of the given kinds and payloads, all
// with the right checksums, and then whatever else.
func Segment(number uint32, rest []byte, records ...[]byte) []byte {
	const salt = 42
	b := header{number: number, salt: salt, lastSeq: 7}.image()
	for _, r := range records {
		if len(r) > 0 {
			b = appendRecord(b, salt, uint32(len(b)), kind(r[0]), r[1:], nil)
		}
	}
	return append(b, rest...)
}

// Kinds is how many kinds of records there are.
const Kinds = int(kinds)
