// Package powercut shows what a power cut can leave of the files in a directory:
// it records what a program does to them, and rebuilds them as a cut at any
// moment could have left them.
//
// A power cut keeps what was on the disk at the last fsync. Of what was written
// after it each piece may be there or not, in any order, and a write may be torn
// between two sectors. kill -9 shows nothing of that, because the system's cache
// outlives the process.
//
// It is for tests, and does not know what the files mean.
package powercut

// Kind says what an event was.
type Kind int

// The kinds. File and directory are those of the event.
const (
	Wrote       Kind = iota + 1 // Data to Off of the file
	Truncated                   // the file to Off bytes
	Allocated                   // the file is at least Off bytes long
	Synced                      // the file was brought to the disk
	SyncFailed                  // or was not, and the program was told
	Created                     // the file, empty
	Linked                      // the file has a second name, To
	Renamed                     // the file has another name, To
	Removed                     // the name is gone
	SyncedNames                 // the names in the directory were brought to the disk
	Said                        // Line on stdout
)

// Event is one call of the program, at the place where it ended; a write and a
// line on stdout count from where they began.
type Event struct {
	What  Kind
	File  string // name in the directory
	To    string // of Linked and Renamed
	Off   int64
	Data  []byte
	Line  string
	at    int // line of the log
	began int // line at which the call began
}

// onto applies what an event did to a file's content.
func (e Event) onto(b []byte) []byte {
	size := int(e.Off)
	switch e.What {
	case Wrote:
		size = max(len(b), size+len(e.Data))
	case Allocated:
		size = max(len(b), size)
	}
	if size > len(b) {
		b = append(b, make([]byte, size-len(b))...)
	}
	b = b[:size:size] // what was cut off is zero when the file grows again
	copy(b[min(int(e.Off), size):], e.Data)
	return b
}
