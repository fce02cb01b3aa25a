// Package login keeps a broker's users in a file of hashed passwords and says
// whether a login is good.
//
// The file is read again at each login, so whoever may write it may change the
// users of a broker that runs. The package knows no connection and no
// permissions: a user may do everything that the broker does. It never keeps,
// logs or shows a password.
package login

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"fleet/pkg/fault"
)

const (
	// costly is how often a password that a person chose is hashed: 0.1 s of a
	// core, the figure that OWASP gives for PBKDF2-HMAC-SHA256 in 2023.
	costly = 600_000
	// cheap is enough for a random password of 256 bits, which no number of
	// guesses finds.
	cheap = 1_000
	// mostIterations bounds what a file may ask for.
	mostIterations = 10_000_000

	// mostPassword is the longest password in bytes.
	mostPassword = 1024
	// mostUsers bounds the file.
	mostUsers = 1000

	saltBytes, hashBytes = 16, sha256.Size
)

// validName says whether a user may be called so: no character is one that a URL
// or a shell would need quoted. (A regular expression would cost every command of
// the program its compilation.)
func validName(name string) bool {
	for i, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return name != "" && len(name) <= 64
}

// User is what may be shown of one.
type User struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since"` // when the password was set
}

// Users are those of one file. All methods are safe for concurrent use, also by
// several processes.
type Users struct {
	path string
	log  *slog.Logger
	cost int           // iterations that a refusal takes, and a chosen password gets
	key  [32]byte      // of what is remembered; this process's alone
	gate chan struct{} // bounds the costly checks under way

	mu      sync.Mutex // guards all below
	text    []byte     // what the file held when it was last read
	records map[string]record
	good    map[string][]byte // by user: the MAC of the last password that was right
	broken  string            // why the file can't be read, as logged
}

// Open reads the users' file; one that is missing holds no user. It fails with
// fault.Config where the file is malformed, or readable by others. A nil log is
// none.
func Open(path string, log *slog.Logger) (*Users, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	u := &Users{path: path, log: log, cost: costly, gate: make(chan struct{}, max(1, runtime.NumCPU()/2))}
	rand.Read(u.key[:]) //nolint:errcheck // see Random
	u.mu.Lock()
	defer u.mu.Unlock()
	return u, u.refresh()
}

// refresh reads the file, and forgets what is remembered if it has changed. It
// is called with mu held.
func (u *Users) refresh() error {
	text, err := readFile(u.path)
	if err != nil {
		return err
	}
	if u.records != nil && bytes.Equal(text, u.text) {
		return nil
	}
	records, err := parse(u.path, text)
	if err != nil {
		return err
	}
	u.text, u.records, u.good = text, records, map[string][]byte{}
	return nil
}

// Check says whether the user has this password. It blocks for the time that
// hashing takes (0.1 s of a core and longer while others wait for theirs), but
// for a password that was right before, and for one that Random made. A
// refusal costs the same whether there is such a user or not. A file that can't
// be read refuses everybody, and is logged.
func (u *Users) Check(name, password string) bool {
	mac := hmac.New(sha256.New, u.key[:])
	mac.Write([]byte(password))
	sum := mac.Sum(nil)
	r, remembered := u.look(name, sum)
	if remembered {
		return true
	}
	done := 0
	if r.Iterations <= cheap {
		if r.fits(password) {
			u.remember(name, r, sum)
			return true
		}
		done = r.Iterations
	}
	u.gate <- struct{}{}
	defer func() { <-u.gate }()
	// Another may have found it right while this one waited: after a restart all
	// clients come at once, often with the same password.
	if r, remembered = u.look(name, sum); remembered {
		return true
	}
	if r.Iterations > cheap && r.fits(password) {
		u.remember(name, r, sum)
		return true
	}
	if r.Iterations > cheap {
		done = r.Iterations
	}
	if done < u.cost {
		record{Salt: make([]byte, saltBytes), Iterations: u.cost - done}.fits(password)
	}
	return false
}

// look finds a user's record, the zero one for nobody, and says whether the
// password with this MAC is known to be right.
func (u *Users) look(name string, sum []byte) (record, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.refresh(); err != nil {
		if text := err.Error(); text != u.broken {
			u.broken = text
			u.log.Error("nobody can log in: the users' file can't be read", "err", text)
		}
		return record{}, false
	}
	u.broken = ""
	return u.records[name], hmac.Equal(u.good[name], sum)
}

// remember notes that a password was right, unless the user has changed since.
func (u *Users) remember(name string, r record, sum []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now, ok := u.records[name]; ok && bytes.Equal(now.Hash, r.Hash) {
		u.good[name] = sum
	}
}

// fits says whether the password is the record's, in constant time after the
// hashing. The zero record fits none.
func (r record) fits(password string) bool {
	if r.Iterations == 0 {
		return false
	}
	if len(password) > mostPassword {
		password = "" // what is too long to be set costs as much as what is wrong
	}
	hash, err := pbkdf2.Key(sha256.New, password, r.Salt, r.Iterations, hashBytes)
	return err == nil && password != "" && subtle.ConstantTimeCompare(hash, r.Hash) == 1
}

// List lists the users by name.
func (u *Users) List() ([]User, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.refresh(); err != nil {
		return nil, err
	}
	list := make([]User, 0, len(u.records))
	for _, r := range u.records {
		list = append(list, r.User)
	}
	slices.SortFunc(list, func(a, b User) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Add gives the user this password, and says whether the user is new. It fails
// with fault.Usage for a name or password that can't be one, and with
// fault.Config where the file can't be read or written.
func (u *Users) Add(name, password string) (fresh bool, err error) {
	switch {
	case password == "":
		return false, fault.New(fault.Usage, "the password is empty")
	case len(password) > mostPassword:
		return false, fault.New(fault.Usage, "the password has %d bytes, more than %d", len(password), mostPassword)
	}
	return u.set(name, password, u.cost)
}

// AddRandom gives the user a password that Random has made, and fails as Add
// does. Such a password is hashed quickly, because nobody guesses it.
func (u *Users) AddRandom(name, password string) (fresh bool, err error) {
	if raw, err := base64.RawURLEncoding.DecodeString(password); err != nil || len(raw) != randomBytes {
		return false, fmt.Errorf("a random password has %d bytes", randomBytes)
	}
	return u.set(name, password, cheap)
}

// randomBytes is what a random password is made of.
const randomBytes = 32

// Random is a password of 256 bits that needs no quoting in a URL or a shell.
func Random() string {
	raw := make([]byte, randomBytes)
	rand.Read(raw) //nolint:errcheck // it never fails: a system without randomness ends the program
	return base64.RawURLEncoding.EncodeToString(raw)
}

func (u *Users) set(name, password string, iterations int) (fresh bool, err error) {
	if !validName(name) {
		return false, fault.New(fault.Usage, "%q can't be the name of a user", name).
			WithHint("up to 64 letters, digits, dots, hyphens and underscores, a letter or digit first")
	}
	r := record{User: User{Name: name, Since: time.Now().UTC().Truncate(time.Second)}, Salt: make([]byte, saltBytes), Iterations: iterations}
	rand.Read(r.Salt) //nolint:errcheck // see Random
	if r.Hash, err = pbkdf2.Key(sha256.New, password, r.Salt, iterations, hashBytes); err != nil {
		return false, fmt.Errorf("hash the password: %w", err)
	}
	err = u.edit(func(records map[string]record) error {
		_, stands := records[name]
		fresh = !stands
		if fresh && len(records) >= mostUsers {
			return fault.New(fault.Refused, "there are %d users, which is the most", mostUsers).WithHint("`fleet broker user remove` makes room")
		}
		records[name] = r
		return nil
	})
	return fresh && err == nil, err
}

// Remove takes the user away, whom it returns; connections that stand are not
// ended. It fails with fault.NotFound.
func (u *Users) Remove(name string) (gone User, err error) {
	err = u.edit(func(records map[string]record) error {
		r, ok := records[name]
		if !ok {
			return fault.New(fault.NotFound, "there is no user %q", name).WithHint("`fleet broker user list` lists the users")
		}
		delete(records, name)
		gone = r.User
		return nil
	})
	return gone, err
}
