package login

import (
	"path/filepath"
	"testing"
	"time"
)

// TestR53_ManyLoginsAtOnce has all clients of a restarted broker come at once with
// one chosen password: it is hashed about once, not once for each of them, which
// would take minutes.
func TestR53_ManyLoginsAtOnce(t *testing.T) {
	const clients = 1000
	path := filepath.Join(t.TempDir(), "users")
	u, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Add("guest", "chosen"); err != nil {
		t.Fatal(err)
	}
	if u, err = Open(path, nil); err != nil { // as after a restart
		t.Fatal(err)
	}
	checked := make(chan bool, clients)
	for range clients {
		go func() { checked <- u.Check("guest", "chosen") }() // ends with the check
	}
	late := time.After(time.Minute)
	for i := range clients {
		select {
		case ok := <-checked:
			if !ok {
				t.Fatal("the right password is refused")
			}
		case <-late:
			t.Fatalf("%d of %d logins were checked within a minute", i, clients)
		}
	}
}
