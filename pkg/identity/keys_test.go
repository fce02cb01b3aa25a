package identity_test

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

func create(t *testing.T, dir string) *identity.Signer {
	t.Helper()
	s, _, err := identity.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestR43_CreateOnceAndKeep(t *testing.T) {
	dir := t.TempDir()
	first, created, err := identity.Create(dir)
	if err != nil || !created {
		t.Fatalf("%v, created %v", err, created)
	}
	again, created, err := identity.Create(dir)
	if err != nil || created || again.Public().ID() != first.Public().ID() {
		t.Errorf("a second time: %v, created %v", err, created)
	}
	loaded, err := identity.LoadSigner(dir)
	if err != nil || loaded.Public().ID() != first.Public().ID() {
		t.Errorf("loaded another key: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("in the directory: %v", entries)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", e.Name(), info.Mode().Perm())
		}
	}
}

// Commands that start at the same time agree on one key.
func TestR43_ConcurrentCreate(t *testing.T) {
	dir := t.TempDir()
	const n = 16
	ids, fresh := make([]identity.KeyID, n), make([]bool, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			s, created, err := identity.Create(dir)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i], fresh[i] = s.Public().ID(), created
		})
	}
	wg.Wait()
	for i := range n {
		if ids[i] != ids[0] {
			t.Fatalf("two keys: %s and %s", ids[0], ids[i])
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestR43_FilesOfOthersAreRefused(t *testing.T) {
	for _, file := range []string{"host.key", "host.secret"} {
		for _, mode := range []os.FileMode{0o644, 0o640, 0o604, 0o660, 0o601} {
			dir := t.TempDir()
			create(t, dir)
			path := filepath.Join(dir, file)
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			err := load(dir, file)
			if !errors.Is(err, fault.Config) || !strings.Contains(fault.From(err).Hint, "chmod 600 "+path) {
				t.Errorf("%s with mode %o: %+v", file, mode, err)
			}
		}
	}
}

// load loads what is in one of the two files.
func load(dir, file string) error {
	if file == "host.key" {
		_, err := identity.LoadSigner(dir)
		return err
	}
	_, err := identity.LoadTokens(dir)
	return err
}

func TestDamagedFiles(t *testing.T) {
	prefix := map[string]string{"host.key": "fleet-ed25519-seed:", "host.secret": "fleet-secret:"}
	seed := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for file, p := range prefix {
		other := prefix["host.key"]
		if file == "host.key" {
			other = prefix["host.secret"]
		}
		for name, text := range map[string]string{
			"empty": "", "no prefix": seed, "other prefix": other + seed, "short": p + seed[:40], "not base64": p + "!" + seed[1:],
			"long": p + base64.StdEncoding.EncodeToString(make([]byte, 33)), "two lines": p + seed + "\n" + p + seed,
		} {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			err := load(dir, file)
			if !errors.Is(err, fault.Config) || strings.Contains(fault.From(err).Message, seed[:20]) {
				t.Errorf("%s, %s: %v", file, name, err)
			}
		}
		if err := load(t.TempDir(), file); !errors.Is(err, fault.Config) || !strings.Contains(fault.From(err).Hint, "fleet init") {
			t.Errorf("%s missing: %v", file, err)
		}
		// A file edited by hand may have lost or gained a line end.
		for _, end := range []string{"", "\n", "\r\n"} {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, file), []byte(p+seed+end), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := load(dir, file); err != nil {
				t.Errorf("%s with end %q: %v", file, end, err)
			}
		}
	}
}

func TestCreateReportsWhatItCantDo(t *testing.T) {
	if _, _, err := identity.Create(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing directory is no error")
	}
}

func TestR15_Tokens(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	create(t, dir)
	create(t, elsewhere)
	tokens, err := identity.LoadTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	gid, other := identity.NewGID(), identity.NewGID()
	token := tokens.For(gid)
	if got, err := tokens.Check(token); err != nil || got != gid {
		t.Errorf("%s, %v", got, err)
	}
	again, err := identity.LoadTokens(dir)
	if err != nil || again.For(gid) != token {
		t.Errorf("another token after a restart: %v", err)
	}
	foreign, err := identity.LoadTokens(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	_, mac, _ := strings.Cut(token, ".")
	bad := []string{"", ".", token[:len(token)-1], token + "A", string(gid), string(gid) + ".", "." + mac, string(other) + "." + mac,
		foreign.For(gid), token + "\n", " " + token, strings.Repeat("x", 1<<16), string(gid) + ".." + mac}
	for i := range token {
		flipped := []byte(token)
		flipped[i] ^= 1
		bad = append(bad, string(flipped))
	}
	for _, b := range bad {
		got, err := tokens.Check(b)
		if !errors.Is(err, fault.Refused) || got != "" {
			t.Errorf("%.120q speaks for %q (%v)", b, got, err)
		}
		if err != nil && len(b) > 30 && strings.Contains(err.Error(), b) {
			t.Errorf("the refusal repeats the token")
		}
	}
}
