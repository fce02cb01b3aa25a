package mailbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
)

var (
	alice = identity.GID("0c6d0f2a-0a5e-4d8e-9d3f-3a7a5a0f0001")
	bob   = identity.GID("0c6d0f2a-0a5e-4d8e-9d3f-3a7a5a0f0002")
	carol = identity.GID("0c6d0f2a-0a5e-4d8e-9d3f-3a7a5a0f0003")
)

// openStore opens a mailbox in a directory of the test's own.
func openStore(t testing.TB, o mailbox.Options) *mailbox.Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "mailbox"), o)
}

func openAt(t testing.TB, path string, o mailbox.Options) *mailbox.Store {
	t.Helper()
	s, err := mailbox.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// message makes a message from carol on host alpha.
func message(text string) mailbox.Message {
	return mailbox.Message{
		ID: envelope.NewID(), Kind: envelope.Send, From: carol, FromHost: "alpha", Trace: envelope.NewTrace(),
		Digest: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Arrived: time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC),
		Sealed: envelope.Sealed{Bytes: []byte(text), Key: "key", Signature: "signature"},
	}
}

func write(t testing.TB, s *mailbox.Store, fn func(*mailbox.Tx) error) {
	t.Helper()
	if err := s.Write(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, s *mailbox.Store, fn func(*mailbox.Tx) error) {
	t.Helper()
	if err := s.Read(fn); err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, s *mailbox.Store, gid identity.GID, m mailbox.Message) (seen mailbox.Seen) {
	t.Helper()
	write(t, s, func(tx *mailbox.Tx) (err error) {
		seen, err = tx.Put(gid, m)
		return err
	})
	return seen
}

func list(t testing.TB, s *mailbox.Store, gid identity.GID) (found []mailbox.Message) {
	t.Helper()
	read(t, s, func(tx *mailbox.Tx) (err error) {
		found, err = tx.Messages(gid, 0, 1<<20)
		return err
	})
	return found
}

func stats(t testing.TB, s *mailbox.Store, gid identity.GID) (sum mailbox.Stats) {
	t.Helper()
	read(t, s, func(tx *mailbox.Tx) (err error) {
		sum, err = tx.Stats(gid)
		return err
	})
	return sum
}

func wantKind(t testing.TB, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want one of kind %s", err, kind)
	}
}

func TestR10_MessageSurvivesReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	s := openAt(t, path, mailbox.Options{})
	want := message(strings.Repeat("x", 3<<19)) // the largest: 1.5 MiB
	want.Re, want.Exp = envelope.NewID(), want.Arrived.Add(time.Hour)
	seen := put(t, s, alice, want)
	put(t, s, bob, message("other"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got := list(t, openAt(t, path, mailbox.Options{}), alice)
	want.Seq, want.State, want.Size = seen.Seq, mailbox.Waiting, 3<<19
	if len(got) != 1 || !bytes.Equal(got[0].Sealed.Bytes, want.Sealed.Bytes) {
		t.Fatalf("%d messages, or other bytes", len(got))
	}
	got[0].Sealed.Bytes, want.Sealed.Bytes = nil, nil
	if fmt.Sprint(got[0]) != fmt.Sprint(want) {
		t.Fatalf("got  %v\nwant %v", got[0], want)
	}
}

func TestR10_ClaimedOnce(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	seq := put(t, s, alice, message("brief")).Seq
	claim := func(tx *mailbox.Tx) error { return tx.Claim(alice, seq) }
	write(t, s, claim)
	wantKind(t, s.Write(t.Context(), claim), fault.Conflict)
	if m := list(t, s, alice)[0]; m.State != mailbox.Claimed || string(m.Sealed.Bytes) != "brief" {
		t.Fatalf("claimed message is %+v", m)
	}
	t.Run("gone", func(t *testing.T) {
		remove := func(tx *mailbox.Tx) error { return tx.Remove(alice, seq) }
		write(t, s, remove)
		write(t, s, remove)
		wantKind(t, s.Write(t.Context(), claim), fault.Conflict)
		if got := stats(t, s, alice); got != (mailbox.Stats{}) {
			t.Fatalf("stats of an empty mailbox: %+v", got)
		}
	})
	t.Run("of another", func(t *testing.T) {
		seq := put(t, s, alice, message("hers")).Seq
		wantKind(t, s.Write(t.Context(), func(tx *mailbox.Tx) error { return tx.Claim(bob, seq) }), fault.Conflict)
	})
}

func TestR21_SeenOnce(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	m := message("once")
	first := put(t, s, alice, m)
	if !first.New || first.Status != "waiting" || first.Seq == 0 {
		t.Fatalf("first: %+v", first)
	}
	t.Run("again", func(t *testing.T) {
		again := m
		again.Arrived = again.Arrived.Add(time.Minute)
		first.New = false
		if known := put(t, s, alice, again); known != first {
			t.Fatalf("known %+v, want %+v", known, first)
		}
	})
	t.Run("other digest", func(t *testing.T) {
		other := m
		other.Digest = "another"
		var known mailbox.Seen
		err := s.Write(t.Context(), func(tx *mailbox.Tx) (err error) {
			known, err = tx.Put(alice, other)
			return err
		})
		wantKind(t, err, fault.Conflict)
		if known != first {
			t.Fatalf("known %+v, want %+v", known, first)
		}
	})
	t.Run("after it is gone", func(t *testing.T) {
		write(t, s, func(tx *mailbox.Tx) error {
			return errors.Join(tx.Remove(alice, first.Seq), tx.SetStatus(alice, m.FromHost, m.From, m.ID, "injected:none"))
		})
		if known := put(t, s, alice, m); known.New || known.Status != "injected:none" {
			t.Fatalf("known: %+v", known)
		}
		if n := len(list(t, s, alice)); n != 0 {
			t.Fatalf("%d messages", n)
		}
	})
	t.Run("per recipient, sender and host", func(t *testing.T) {
		fromBob, fromBeta := m, m
		fromBob.From, fromBeta.FromHost = bob, "beta"
		if !put(t, s, bob, m).New || !put(t, s, alice, fromBob).New || !put(t, s, alice, fromBeta).New {
			t.Fatal("known, though of another")
		}
	})
	t.Run("two in one group", func(t *testing.T) {
		m := message("twice")
		write(t, s, func(tx *mailbox.Tx) error {
			a, errA := tx.Put(carol, m)
			b, errB := tx.Put(carol, m)
			if !a.New || b.New {
				t.Errorf("new: %t, %t", a.New, b.New)
			}
			return errors.Join(errA, errB)
		})
	})
}

func TestR21_Prune(t *testing.T) {
	s := openStore(t, mailbox.Options{Memory: time.Hour, SeenMost: 1600})
	start := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	var ids []envelope.ID
	write(t, s, func(tx *mailbox.Tx) error {
		for i := range 1600 {
			m := message("m")
			m.Arrived = start.Add(time.Duration(i) * time.Second)
			ids = append(ids, m.ID)
			if _, err := tx.Put(alice, m); err != nil {
				return err
			}
		}
		return nil
	})
	over := message("over the quota")
	wantKind(t, s.Write(t.Context(), func(tx *mailbox.Tx) error { _, err := tx.Put(alice, over); return err }), fault.Full)
	beta := message("of another host")
	beta.FromHost = "beta"
	put(t, s, alice, beta)

	removed, err := s.Prune(start.Add(time.Hour + 1500*time.Second))
	if err != nil || removed != 1500 {
		t.Fatalf("removed %d, %v", removed, err)
	}
	read(t, s, func(tx *mailbox.Tx) error {
		for i, id := range ids {
			if _, ok := tx.Seen(alice, "alpha", carol, id); ok != (i >= 1500) {
				t.Fatalf("message %d known: %t", i, ok)
			}
		}
		return nil
	})
	if n := len(list(t, s, alice)); n != 1601 {
		t.Fatalf("pruning has left %d messages of 1601", n)
	}
	put(t, s, alice, over) // the quota is free again
	write(t, s, func(tx *mailbox.Tx) error { return tx.SetStatus(alice, "alpha", carol, ids[0], "late") })
	read(t, s, func(tx *mailbox.Tx) error {
		if _, ok := tx.Seen(alice, "alpha", carol, ids[0]); ok {
			t.Error("SetStatus has brought a forgotten id back")
		}
		return nil
	})
}

func TestR11_Full(t *testing.T) {
	s := openStore(t, mailbox.Options{MessagesMost: 3, BytesMost: 100})
	try := func(gid identity.GID, size int) error {
		return s.Write(t.Context(), func(tx *mailbox.Tx) error {
			_, err := tx.Put(gid, message(strings.Repeat("x", size)))
			return err
		})
	}
	room := func() (n int, size int64) {
		read(t, s, func(tx *mailbox.Tx) (err error) { n, size, err = tx.Room(alice); return err })
		return n, size
	}
	for range 2 {
		if err := try(alice, 40); err != nil {
			t.Fatal(err)
		}
	}
	if n, size := room(); n != 1 || size != 20 {
		t.Fatalf("room for %d messages, %d bytes", n, size)
	}
	wantKind(t, try(alice, 21), fault.Full)
	if err := try(alice, 20); err != nil {
		t.Fatal(err)
	}
	wantKind(t, try(alice, 0), fault.Full)
	if err := try(bob, 90); err != nil {
		t.Fatalf("one full mailbox stops another: %v", err)
	}
	known := message("known")
	write(t, s, func(tx *mailbox.Tx) error {
		first, err := tx.Heads(alice, 0, 1)
		return errors.Join(err, tx.Remove(alice, first[0].Seq))
	})
	known.Sealed.Bytes = nil
	put(t, s, alice, known)
	if put(t, s, alice, known).New {
		t.Fatal("stored twice")
	}
	if got := stats(t, s, alice); got.Count != 3 || got.Bytes != 60 || !got.Oldest.Equal(known.Arrived) {
		t.Fatalf("stats %+v", got)
	}
}

func TestR10_OrderAndCursor(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	var want []string
	for i := range 20 {
		put(t, s, alice, message(fmt.Sprint(i)))
		put(t, s, bob, message("other"))
		want = append(want, fmt.Sprint(i))
	}
	var got []string
	read(t, s, func(tx *mailbox.Tx) error {
		for after := uint64(0); ; {
			page, err := tx.Messages(alice, after, 7)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, m := range page {
				got = append(got, string(m.Sealed.Bytes))
			}
			after = page[len(page)-1].Seq
		}
	})
	if !slices.Equal(got, want) {
		t.Fatalf("got %v", got)
	}
	read(t, s, func(tx *mailbox.Tx) error {
		heads, err := tx.Heads(alice, 0, 1)
		whole, ok, err2 := tx.Message(alice, heads[0].Seq)
		if heads[0].Sealed.Bytes != nil || heads[0].Size != 1 || !ok || string(whole.Sealed.Bytes) != "0" {
			t.Errorf("head %+v, whole %+v", heads[0], whole)
		}
		_, ok, err3 := tx.Message(bob, heads[0].Seq)
		if ok {
			t.Error("bob reads a message of alice")
		}
		return errors.Join(err, err2, err3)
	})
}

func TestR16_AgentsAndDrop(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	m := message("waits")
	seq := put(t, s, alice, m).Seq
	put(t, s, bob, message("waits too"))
	drop := func(tx *mailbox.Tx) error { return tx.DropAgent(alice) }
	wantKind(t, s.Write(t.Context(), drop), fault.Conflict)
	write(t, s, func(tx *mailbox.Tx) error { return tx.Remove(alice, seq) })
	write(t, s, drop)
	read(t, s, func(tx *mailbox.Tx) error {
		agents, err := tx.Agents()
		if !slices.Equal(agents, []identity.GID{bob}) {
			t.Errorf("agents %v", agents)
		}
		if _, ok := tx.Seen(alice, m.FromHost, m.From, m.ID); !ok {
			t.Error("a dropped agent's messages are forgotten")
		}
		return err
	})
	if put(t, s, bob, message("later")).Seq <= seq {
		t.Error("a sequence number was given twice")
	}
}

func TestR16_Rows(t *testing.T) {
	type turn struct{ State string }
	const turns, empty = mailbox.Table("turns"), mailbox.Table("empty")
	path := filepath.Join(t.TempDir(), "mailbox")
	s := openAt(t, path, mailbox.Options{})
	write(t, s, func(tx *mailbox.Tx) error {
		for _, key := range []string{"a/1", "a/2", "a/3", "b/1"} {
			if err := mailbox.Set(tx, turns, key, turn{key}); err != nil {
				return err
			}
		}
		return mailbox.Delete(tx, empty, "none")
	})
	// A table may be changed while it is walked.
	write(t, s, func(tx *mailbox.Tx) error {
		return mailbox.Each(tx, turns, "a/", func(key string, v turn) error {
			if key == "a/2" {
				return mailbox.Delete(tx, turns, key)
			}
			return mailbox.Set(tx, turns, key, turn{v.State + "!"})
		})
	})
	s.Close()
	s = openAt(t, path, mailbox.Options{})
	var got []string
	read(t, s, func(tx *mailbox.Tx) error {
		collect := func(key string, v turn) error { got = append(got, key+"="+v.State); return nil }
		if _, ok, err := mailbox.Get[turn](tx, empty, "none"); ok || err != nil {
			t.Errorf("a row of an empty table: %t, %v", ok, err)
		}
		if _, ok, err := mailbox.Get[turn](tx, turns, "a/2"); ok || err != nil {
			t.Errorf("a deleted row: %t, %v", ok, err)
		}
		_, _, err := mailbox.Get[int](tx, turns, "a/1")
		wantKind(t, err, fault.Config)
		return errors.Join(mailbox.Each(tx, empty, "", collect), mailbox.Each(tx, turns, "", collect))
	})
	if want := []string{"a/1=a/1!", "a/3=a/3!", "b/1=b/1"}; !slices.Equal(got, want) {
		t.Fatalf("rows %v, want %v", got, want)
	}
}

// A walk that removes what it sees misses nothing, also where the rows were
// written in the same transaction.
func TestR16_EachWhileDeleting(t *testing.T) {
	const table, n = mailbox.Table("table"), 1000
	s := openStore(t, mailbox.Options{})
	visited := 0
	write(t, s, func(tx *mailbox.Tx) error {
		for i := range n {
			if err := mailbox.Set(tx, table, fmt.Sprintf("%04d", i), i); err != nil {
				return err
			}
		}
		return mailbox.Each(tx, table, "", func(key string, v int) error {
			if v != visited {
				return fmt.Errorf("row %d comes as number %d", v, visited)
			}
			visited++
			return mailbox.Delete(tx, table, key)
		})
	})
	read(t, s, func(tx *mailbox.Tx) error {
		return mailbox.Each(tx, table, "", func(key string, _ int) error { return fmt.Errorf("%s is left", key) })
	})
	if visited != n {
		t.Errorf("%d rows visited of %d", visited, n)
	}
}

func TestR16_CounterSurvives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mailbox")
	for want := uint64(1); want < 4; want++ {
		s := openAt(t, path, mailbox.Options{})
		write(t, s, func(tx *mailbox.Tx) error {
			n, err := tx.Counter("boot")
			if n != want {
				t.Errorf("counter %d, want %d", n, want)
			}
			return err
		})
		s.Close()
	}
}

func TestR61_IllFormedIDs(t *testing.T) {
	s := openStore(t, mailbox.Options{})
	for name, spoil := range map[string]func(*mailbox.Message){
		"id":   func(m *mailbox.Message) { m.ID = "x" },
		"from": func(m *mailbox.Message) { m.From = "" },
		"host": func(m *mailbox.Message) { m.FromHost = "" },
	} {
		t.Run(name, func(t *testing.T) {
			m := message("bad")
			spoil(&m)
			wantKind(t, s.Write(t.Context(), func(tx *mailbox.Tx) error { _, err := tx.Put(alice, m); return err }), fault.Usage)
			read(t, s, func(tx *mailbox.Tx) error {
				if _, ok := tx.Seen(alice, m.FromHost, m.From, m.ID); ok {
					t.Error("seen")
				}
				return nil
			})
		})
	}
	wantKind(t, s.Read(func(tx *mailbox.Tx) error { _, err := tx.Stats("alice"); return err }), fault.Usage)
}
