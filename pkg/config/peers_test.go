package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// edited runs f on a file with text and returns the text afterwards.
func edited(t *testing.T, text string, f func(path string) error) (string, error) {
	t.Helper()
	path := filepath.Join(home(t, text), fileName)
	err := f(path)
	after, readErr := os.ReadFile(path)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(after), err
}

func TestR43_AddPeerKeepsTheFile(t *testing.T) {
	k := [4]string{1: testKey(t, 1).String(), 2: testKey(t, 2).String(), 3: testKey(t, 3).String()}
	fill := strings.NewReplacer("K1", k[1], "K2", k[2], "K3", k[3]).Replace
	for _, c := range []struct{ name, before, after string }{
		{"comments only", "# mine\n", "# mine\npeers:\n  beta:\n    keys: [K1]\n"},
		{"no peers", "host: a\n\n# end\n", "host: a\n\n# end\npeers:\n  beta:\n    keys: [K1]\n"},
		{"no line end", "host: a", "host: a\npeers:\n  beta:\n    keys: [K1]\n"},
		{"empty peers", "peers: # the others\n  # none yet\n\nhost: a\n", "peers: # the others\n  beta:\n    keys: [K1]\n  # none yet\n\nhost: a\n"},
		{"braces", "peers: {} # the others\nhost: a\n", "peers:  # the others\n  beta:\n    keys: [K1]\nhost: a\n"},
		{"null", "peers: ~\n", "peers:\n  beta:\n    keys: [K1]\n"},
		{"block", "# 1\npeers:\n    # 2\n    gamma: # 3\n        keys:\n            - K2 # 4\n\n    # 5\n\n# 6\nhost: a # 7\n",
			"# 1\npeers:\n    # 2\n    gamma: # 3\n        keys:\n            - K2 # 4\n    beta:\n      keys: [K1]\n\n    # 5\n\n# 6\nhost: a # 7\n"},
		{"at the end", "peers:\n  gamma: {keys: [K2]}\n# end", "peers:\n  gamma: {keys: [K2]}\n  beta:\n    keys: [K1]\n# end\n"},
		{"second key, lines", "peers:\n  beta:\n    keys:\n    - K2 # old\n  gamma: {keys: [K3]}\n", "peers:\n  beta:\n    keys:\n    - K2 # old\n    - K1\n  gamma: {keys: [K3]}\n"},
		{"second key, brackets", "peers:\n  beta:\n    keys: [K2] # old\nhost: a\n", "peers:\n  beta:\n    keys: [K2, K1] # old\nhost: a\n"},
		{"second key, braces", "peers:\n  beta: {keys: ['K2']} # old\n", "peers:\n  beta: {keys: [K2, K1]} # old\n"},
		{"all in braces", "peers: {gamma: {keys: [K3]}, beta: {keys: [K2]}} # x\nhost: a\n", "peers: {gamma: {keys: [K3]}, beta: {keys: [K2, K1]}} # x\nhost: a\n"},
		{"new in braces", "peers: {gamma: {keys: [K3]}}\n", "peers: {gamma: {keys: [K3]}, beta: {keys: [K1]}}\n"},
		{"brackets over lines", "peers:\n  beta:\n    keys: [\n      K2,\n    ]\nhost: a\n", "peers:\n  beta:\n    keys: [K2, K1]\nhost: a\n"},
		{"without keys", "peers:\n  beta:\n  gamma: {keys: [K3]}\n", "peers:\n  beta:\n    keys: [K1]\n  gamma: {keys: [K3]}\n"},
		{"empty list", "peers:\n  beta:\n    keys: []\n", "peers:\n  beta:\n    keys: [K1]\n"},
		{"there already", "peers: {beta: {keys: [K1]}}", "peers: {beta: {keys: [K1]}}"},
		{"CRLF", "host: a\r\npeers:\r\n  gamma:\r\n    keys: [K2]\r\n", "host: a\r\npeers:\r\n  gamma:\r\n    keys: [K2]\r\n  beta:\r\n    keys: [K1]\r\n"},
		{"indented", "  host: a\n  peers:\n    gamma: {keys: [K2]}\n", "  host: a\n  peers:\n    gamma: {keys: [K2]}\n    beta:\n      keys: [K1]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := edited(t, fill(c.before), func(path string) error { return AddPeer(path, "beta", testKey(t, 1)) })
			if err != nil || got != fill(c.after) {
				t.Fatalf("%v\ngot:\n%s\nwant:\n%s", err, got, fill(c.after))
			}
			again, err := edited(t, got, func(path string) error { return AddPeer(path, "beta", testKey(t, 1)) })
			if err != nil || again != got {
				t.Errorf("a second time: %v\n%s", err, again)
			}
		})
	}
}

func TestR43_RemovePeer(t *testing.T) {
	k := [4]string{1: testKey(t, 1).String(), 2: testKey(t, 2).String(), 3: testKey(t, 3).String()}
	fill := strings.NewReplacer("K1", k[1], "K2", k[2], "K3", k[3]).Replace
	whole := func(path string) error { return RemovePeer(path, "beta") }
	one := func(path string) error { return RemovePeerKey(path, "beta", testKey(t, 1)) }
	for _, c := range []struct {
		name, before, after string
		f                   func(string) error
	}{
		{"last", "peers:\n  beta:\n    keys: [K1]\n\n# end\nhost: a\n", "peers:\n\n# end\nhost: a\n", whole},
		{"first", "peers:\n  # b\n  beta:\n    keys:\n      - K1\n      - K2\n  # g\n  gamma: {keys: [K3]}\n", "peers:\n  # b\n  # g\n  gamma: {keys: [K3]}\n", whole},
		{"braces over lines", "peers:\n  beta: {\n    keys: [\n      K1\n    ]\n  }\n\n  gamma: {keys: [K3]}\n", "peers:\n\n  gamma: {keys: [K3]}\n", whole},
		{"all in braces", "peers: {beta: {keys: [K1]}, gamma: {keys: [K3]}}\n", "peers: {gamma: {keys: [K3]}}\n", whole},
		{"without keys", "peers:\n  beta:\nhost: a\n", "peers:\nhost: a\n", whole},
		{"key of lines", "peers:\n  beta:\n    keys:\n    - K1 # old\n    - K2 # new\n", "peers:\n  beta:\n    keys:\n    - K2 # new\n", one},
		{"key in brackets", "peers:\n  beta:\n    keys: [K1, K2] # x\n", "peers:\n  beta:\n    keys: [K2] # x\n", one},
		{"last key", "peers:\n  beta:\n    keys: [K1] # x\n  gamma: {keys: [K3]}\n", "peers:\n  gamma: {keys: [K3]}\n", one},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := edited(t, fill(c.before), c.f)
			if err != nil || got != fill(c.after) {
				t.Fatalf("%v\ngot:\n%s\nwant:\n%s", err, got, fill(c.after))
			}
			again, err := edited(t, got, c.f)
			if !errors.Is(err, fault.NotFound) || again != got {
				t.Errorf("a second time: %v\n%s", err, again)
			}
		})
	}
}

// What can't be edited safely is left alone.
func TestR43_EditRefuses(t *testing.T) {
	k1, k2 := testKey(t, 1).String(), testKey(t, 2).String()
	for _, c := range []struct {
		name, before, message string
		kind                  fault.Kind
	}{
		{"comment in brackets", "peers:\n  beta:\n    keys: [ # old\n      " + k2 + "]\n", "laid out in a way", fault.Config},
		{"flow root", "{host: a}\n", "laid out in a way", fault.Config},
		{"end marker", "host: a\n...\n", "laid out in a way", fault.Config},
		{"broken", "host: a\nbrokr: {}\n", "fleet.yaml:2: unknown key brokr", fault.Config},
		{"bad value", "host: ä # ö\n", "fleet.yaml:1: host: ", fault.Config},
		{"not YAML", "peers: [\n", "fleet.yaml:1: it is not YAML", fault.Config},
		{"another's key", "peers:\n  gamma: {keys: [" + k1 + "]}\n", "is gamma's already", fault.Conflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := edited(t, c.before, func(path string) error { return AddPeer(path, "beta", testKey(t, 1)) })
			if !errors.Is(err, c.kind) || !strings.Contains(fault.From(err).Message, c.message) || got != c.before {
				t.Errorf("%v; the file is now\n%s", err, got)
			}
		})
	}
	err := AddPeer(filepath.Join(home(t, ""), fileName), "beta", testKey(t, 1))
	expect(t, err, "there is no ", "fleet init")
}

func TestR43_EditKeepsModeAndLink(t *testing.T) {
	real, dir := home(t, "host: a\n"), home(t, "")
	target, link := filepath.Join(real, fileName), filepath.Join(dir, fileName)
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(target, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := AddPeer(link, "beta", testKey(t, 1)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is now %v (%v)", info.Mode(), err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file is now %v (%v)", info.Mode(), err)
	}
	for _, d := range []string{real, dir} {
		if entries, _ := os.ReadDir(d); len(entries) != 1 {
			t.Errorf("left behind: %v", entries)
		}
	}
}

// Commands that edit at the same time lose nothing.
func TestR43_ConcurrentEdits(t *testing.T) {
	dir := home(t, "# mine\nhost: a\n")
	path := filepath.Join(dir, fileName)
	const n = 20
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		key := testKey(t, byte(i+1))
		wg.Go(func() { errs[i] = AddPeer(path, identity.Host(fmt.Sprintf("h%d", i)), key) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	c, err := load(dir, nil)
	if err != nil || len(c.Peers) != n {
		t.Errorf("%d peers, %v", len(c.Peers), err)
	}
}

// FuzzEdit: whatever the file, an edit that succeeds has done what was asked
// and nothing else, and one that fails has done nothing.
func FuzzEdit(f *testing.F) {
	k1, k2 := testKey(f, 1), testKey(f, 2)
	for _, s := range []string{
		"", "# c\n", "host: a", "peers:\n", "peers: {}\n", "peers:\n  beta: {keys: [" + k2.String() + "]}\n",
		"peers:\n  beta:\n    keys:\n    - " + k2.String() + "\n# x\nhost: a\n", "peers: {beta: {keys: ['" + k2.String() + "']}}\n", withKeys(f, full),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		before := newReader("/x")
		before.file(text)
		if before.fault() != nil {
			return
		}
		for _, wanted := range [][]identity.PublicKey{{k1}, {k2, k1}, nil} {
			out, ok := setPeer(text, "beta", wanted)
			if !ok {
				continue
			}
			fresh := newReader("/x")
			fresh.file(text)
			if verifyEdit(fresh, out, "beta", wanted) != nil {
				continue
			}
			// Every line of the old text that is neither the peer's nor in brackets
			// is still there.
			for line := range strings.Lines(string(text)) {
				if l := strings.TrimSpace(line); strings.HasPrefix(l, "#") && !strings.Contains(string(out), l) {
					t.Errorf("the comment %q is gone from\n%s\nnow\n%s", l, text, out)
				}
			}
		}
	})
}
