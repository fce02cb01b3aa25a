package mailbox_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleet/pkg/fault"
	"fleet/pkg/mailbox"
)

// goodFile is a file with messages short and long, removed ones, rows, and a
// list of free pages.
func goodFile(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "good")
	s := openAt(t, path, mailbox.Options{})
	for i := range 60 {
		size := 10
		if i%10 == 0 {
			size = 3000
		}
		seq := put(t, s, alice, message(strings.Repeat(fmt.Sprint(i), size))).Seq
		write(t, s, func(tx *mailbox.Tx) error {
			if i%3 == 0 {
				return tx.Remove(alice, seq)
			}
			return mailbox.Set(tx, facts, fmt.Sprint(i), strings.Repeat("row", i))
		})
	}
	s.Close()
	openAt(t, path, mailbox.Options{}).Close() // writes the list down
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// useFile opens content as a mailbox in dir, reads all of it and writes to it. The
// file is refused, or a row is, or all is well; nothing panics.
func useFile(t testing.TB, dir string, content []byte) (refused bool) {
	t.Helper()
	path := filepath.Join(dir, "mailbox")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := mailbox.Open(path, mailbox.Options{})
		if err != nil {
			wantKind(t, err, fault.Config)
			return true
		}
		read(t, s, func(tx *mailbox.Tx) error {
			tx.Messages(alice, 0, 1<<20)
			tx.Stats(alice)
			tx.Agents()
			mailbox.Each(tx, facts, "", func(string, json.RawMessage) error { return nil })
			return nil
		})
		for _, fn := range []func(*mailbox.Tx) error{
			func(tx *mailbox.Tx) error { _, err := tx.Put(alice, message(strings.Repeat("x", 9000))); return err },
			func(tx *mailbox.Tx) error { return tx.Remove(alice, 2) },
			set("after"),
			func(tx *mailbox.Tx) error { mailbox.ForgetAll(tx); return nil },
		} {
			_ = s.Write(context.Background(), fn)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return false
}

func TestR61_FlippedBytes(t *testing.T) {
	seed := seedOf(t)
	random := rand.New(rand.NewPCG(seed, 3))
	good := goodFile(t)
	dir := scratch(t)
	if useFile(t, dir, good) {
		t.Fatal("a good file is refused")
	}
	page := os.Getpagesize()
	refused := 0
	const rounds = 400
	for range rounds {
		b := append([]byte(nil), good...)
		for range 1 + random.IntN(3) {
			at := random.IntN(len(b))
			if random.IntN(3) > 0 { // heads and elements of pages are where it hurts
				at = at/page*page + random.IntN(128)
			}
			b[at] ^= byte(1 << random.IntN(8))
		}
		if useFile(t, dir, b) {
			refused++
		}
	}
	t.Logf("%d of %d refused", refused, rounds)
	if refused == 0 || refused == rounds {
		t.Errorf("%d of %d refused", refused, rounds)
	}
}

// FuzzR61_File overwrites a piece of a good file.
func FuzzR61_File(f *testing.F) {
	good := goodFile(f)
	f.Add(uint32(8), []byte{1})
	f.Add(uint32(2*4096+10), binary.NativeEndian.AppendUint16(nil, 0xffff))
	f.Fuzz(func(t *testing.T, at uint32, piece []byte) {
		b := append([]byte(nil), good...)
		copy(b[int(at)%len(b):], piece)
		useFile(t, scratch(t), b)
	})
}
