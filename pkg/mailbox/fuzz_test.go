package mailbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
)

// FuzzR61_Rows reads a file whose rows are garbage: errors, no panic.
func FuzzR61_Rows(f *testing.F) {
	f.Add([]byte("0123456789abcdef\x00\x00\x00\x00\x00\x00\x00\x01"), []byte(`{"id":"x","state":"waiting","size":-1}`))
	f.Add([]byte{1}, []byte(`{"size":1e99}`))
	f.Add([]byte("0123456789abcdef"), []byte("12345678"))
	f.Add([]byte("x"), []byte(nil))
	s := openStore(f, mailbox.Options{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if len(key) == 0 || len(key) > 1000 {
			return
		}
		gid := identity.GID(fmt.Sprintf("%x", append(bytes.Clone(key), make([]byte, 16)...)[:16]))
		err := s.Write(context.Background(), func(tx *mailbox.Tx) error {
			mailbox.PlantRow(tx, gid, key, value)
			tx.Agents()
			tx.Stats(gid)
			tx.Room(gid)
			tx.Messages(gid, 0, 10)
			tx.Message(gid, 1)
			tx.Claim(gid, 1)
			tx.Remove(gid, 1)
			tx.DropAgent(gid)
			tx.Counter(string(key))
			m := message("m")
			m.FromHost = identity.Host(key)
			tx.Put(gid, m)
			tx.Seen(gid, "h", gid, envelope.ID(gid))
			tx.SetStatus(gid, "h", gid, envelope.ID(gid), "x")
			mailbox.Get[mailbox.Message](tx, "table", string(key))
			mailbox.Each(tx, "table", "", func(string, json.RawMessage) error { return nil })
			mailbox.ForgetAll(tx)
			return errors.New("leave the file as it was")
		})
		if err == nil {
			t.Error("the function's error got lost")
		}
	})
}
