package login

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet/pkg/fault"
)

// fewer is how many iterations stand for the costly ones here: the race detector
// makes a hash ten times as slow.
const fewer = 40 * cheap

// fresh is an empty users' file to be.
func fresh(t *testing.T) (*Users, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	u, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if u.cost != costly {
		t.Fatalf("a chosen password is hashed %d times", u.cost)
	}
	u.cost = fewer
	return u, path
}

func add(t *testing.T, u *Users, name string) (password string) {
	t.Helper()
	password = Random()
	if _, err := u.AddRandom(name, password); err != nil {
		t.Fatal(err)
	}
	return password
}

func TestR53_PasswordsAreHashed(t *testing.T) {
	u, path := fresh(t)
	if u.Check("ann", "") || u.Check("", "") {
		t.Error("a login is good without a user")
	}
	isNew, err := u.Add("ann", "correct horse")
	if err != nil || !isNew {
		t.Fatalf("new: %v, %v", isNew, err)
	}
	made := add(t, u, "bob")
	if len(made) != 43 {
		t.Errorf("the random password has %d characters", len(made))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("correct horse")) || bytes.Contains(text, []byte(made)) {
		t.Error("the file holds a password")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for _, c := range []struct {
		name, password string
		good           bool
	}{
		{"ann", "correct horse", true}, {"ann", "correct horsf", false}, {"ann", "", false}, {"ann", made, false},
		{"bob", made, true}, {"bob", made + "x", false}, {"bob", "correct horse", false}, {"eve", made, false}, {"Ann", "correct horse", false},
	} {
		if got := u.Check(c.name, c.password); got != c.good {
			t.Errorf("%s with %q: %v", c.name, c.password, got)
		}
	}
	other, err := Open(path, nil)
	if err != nil || !other.Check("ann", "correct horse") || !other.Check("bob", made) {
		t.Errorf("another process: %v", err)
	}
}

// The file is read again at each login: what another process changes counts.
func TestR53_ChangesCountAtOnce(t *testing.T) {
	u, path := fresh(t)
	other, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	old := add(t, other, "ann")
	for range 2 { // hashed, then remembered
		if !u.Check("ann", old) {
			t.Fatal("refused")
		}
	}
	now := Random()
	isNew, err := other.AddRandom("ann", now)
	if err != nil || isNew {
		t.Fatalf("new again: %v, %v", isNew, err)
	}
	if u.Check("ann", old) || !u.Check("ann", now) {
		t.Error("the old password still counts")
	}
	add(t, other, "bob")
	if list, err := u.List(); err != nil || len(list) != 2 || list[0].Name != "ann" || list[1].Name != "bob" || list[0].Since.IsZero() {
		t.Errorf("%v, %v", list, err)
	}
	if gone, err := other.Remove("ann"); err != nil || gone.Name != "ann" {
		t.Fatalf("%v, %v", gone, err)
	}
	if u.Check("ann", now) {
		t.Error("a removed user logs in")
	}
	if _, err := u.Remove("ann"); !errors.Is(err, fault.NotFound) {
		t.Errorf("removed twice: %v", err)
	}
}

// A password that was right is not hashed again, a wrong one costs what an
// unknown user costs, and none of it shows in what is kept.
func TestR53_TheCostOfALogin(t *testing.T) {
	u, _ := fresh(t)
	if _, err := u.Add("ann", "correct horse"); err != nil {
		t.Fatal(err)
	}
	made := add(t, u, "bob")
	cost := func(name, password string) time.Duration {
		least := time.Hour // of a few, since the machine may be busy
		for range 5 {
			clear(u.good)
			start := time.Now()
			u.Check(name, password)
			least = min(least, time.Since(start))
		}
		return least
	}
	first := cost("ann", "correct horse")
	again := time.Hour
	for range 5 { // the first of them is hashed
		start := time.Now()
		u.Check("ann", "correct horse")
		again = min(again, time.Since(start))
	}
	if again > first/4 {
		t.Errorf("a known password takes %s, at first %s", again, first)
	}
	if quick := cost("bob", made); quick > first/4 {
		t.Errorf("a random password takes %s, a chosen one %s", quick, first)
	}
	for name, password := range map[string]string{"eve": "correct horse", "bob": made[1:], "ann": strings.Repeat("x", 2000)} {
		if d := cost(name, password); d < first/4 {
			t.Errorf("%s is refused within %s, a costly check takes %s", name, d, first)
		}
	}
	if kept := fmt.Sprintf("%v %s", u.good, u.good); strings.Contains(kept, "horse") || strings.Contains(kept, made) {
		t.Error("a password is kept")
	}
}

// Costly checks under way are bounded, and a login that is remembered or cheap
// does not wait for them.
func TestR61_AFloodOfWrongPasswords(t *testing.T) {
	u, _ := fresh(t)
	made := add(t, u, "bob")
	for range cap(u.gate) {
		u.gate <- struct{}{} // that many are being hashed
	}
	refused := make(chan bool, 1)
	go func() { refused <- u.Check("eve", "guess") }()
	for range 2 { // cheap, then remembered
		if !u.Check("bob", made) {
			t.Error("bob is refused")
		}
	}
	for range 3 { // longer than eve's check would take
		record{Salt: make([]byte, saltBytes), Iterations: fewer}.fits("guess")
	}
	select {
	case <-refused:
		t.Fatal("a costly check passed the gate")
	default:
	}
	for range cap(u.gate) {
		<-u.gate
	}
	if <-refused {
		t.Error("eve is let in")
	}
}

func TestWhatCanBeNoUser(t *testing.T) {
	u, path := fresh(t)
	if _, err := u.AddRandom("ann", "guest"); err == nil {
		t.Error("a chosen password passes for a random one")
	}
	for _, name := range []string{"", "-a", ".a", "a b", "a/b", "a@b", "a:b", "ä", "a\n", strings.Repeat("a", 65)} {
		if _, err := u.AddRandom(name, Random()); !errors.Is(err, fault.Usage) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	for _, password := range []string{"", strings.Repeat("x", mostPassword+1)} {
		if _, err := u.Add("ann", password); !errors.Is(err, fault.Usage) {
			t.Errorf("a password of %d bytes: %v", len(password), err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is there: %v", err)
	}
}

// A file that can't be trusted is refused when it is opened, and refuses
// everybody while the broker runs.
func TestR61_FilesThatAreRefused(t *testing.T) {
	u, path := fresh(t)
	made := add(t, u, "ann")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string { return strings.Replace(string(good), old, new, 1) }
	var logged bytes.Buffer
	running, err := Open(path, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil || !running.Check("ann", made) {
		t.Fatal(err)
	}
	one := string(good[bytes.Index(good, []byte("  {")):bytes.LastIndex(good, []byte("}\n ]"))])
	for name, c := range map[string]struct {
		text    string
		mode    os.FileMode
		message string
	}{
		"open to others": {string(good), 0o640, "has mode 0640"},
		"newer":          {replace(`"v": 1`, `"v": 2`), 0o600, "has the version 2"},
		"no version":     {replace(`"v": 1,`, ``), 0o600, "has the version 0"},
		"no JSON":        {replace(`{`, ``), 0o600, "is not JSON"},
		"unknown field":  {replace(`"salt"`, `"sald"`), 0o600, "a field that can't be read"},
		"twice":          {replace(one, one+"},\n"+one), 0o600, "ann is there twice"},
		"name":           {replace(`"ann"`, `"a nn"`), 0o600, "can't be the name"},
		"no iterations":  {replace(`"iterations": 1000`, `"iterations": 0`), 0o600, "can't be checked"},
		"for ever":       {replace(`"iterations": 1000`, `"iterations": 2000000000`), 0o600, "can't be checked"},
		"no hash":        {replace(`"hash": "`, `"hash": "AAAA`), 0o600, "can't be checked"},
		"large":          {string(good) + strings.Repeat(" ", mostBytes), 0o600, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chmod(path, c.mode)); err != nil {
				t.Fatal(err)
			}
			logged.Reset()
			running.broken = ""
			_, err := Open(path, nil)
			if !errors.Is(err, fault.Config) || !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %s", err, c.message)
			}
			if _, remembered := running.look("ann", nil); remembered || !strings.Contains(logged.String(), c.message) {
				t.Errorf("logged: %s", logged.String())
			}
			if _, err := u.AddRandom("bob", Random()); !errors.Is(err, fault.Config) {
				t.Errorf("a user was added: %v", err)
			}
		})
	}
	if err := errors.Join(os.WriteFile(path, good, 0o600), os.Chmod(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if !running.Check("ann", made) {
		t.Error("mended, it still refuses")
	}
}

// Edits of several processes at once lose none.
func TestEditsAtOnce(t *testing.T) {
	_, path := fresh(t)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			u, err := Open(path, nil)
			if err == nil {
				_, err = u.AddRandom(fmt.Sprintf("user-%d", i), Random())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	u, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := u.List(); err != nil || len(list) != 20 {
		t.Errorf("%d users, %v", len(list), err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("files %v, %v", left, err)
	}
}

// FuzzFile: no text of a file makes it panic, and what is accepted can be
// written and read again.
func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"v":1,"users":[{"name":"a","since":"2026-12-01T00:00:00Z","salt":"AAAAAAAAAAAAAAAAAAAAAA==","iterations":1000,"hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}]}`))
	f.Add([]byte(`{"v":1}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		records, err := parse("users", text)
		if err != nil {
			if !errors.Is(err, fault.Config) {
				t.Errorf("%T: %v", err, err)
			}
			return
		}
		if len(records) > mostUsers {
			t.Errorf("%d users", len(records))
		}
	})
}
