package mailbox

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"
)

// Table names a set of rows that belongs to another room. The room chooses keys
// and types; a key is not empty and has at most 32 KiB.
type Table string

// bucket is the table's; nil in a transaction while the table has no row yet.
func (t Table) bucket() []byte { return []byte("rows." + t) }

// Get returns the row of t at key; ok is false if there is none. It fails with
// fault.Config if the row is not a T.
func Get[T any](tx *Tx, t Table, key string) (v T, ok bool, err error) {
	b := tx.b.Bucket(t.bucket())
	if b == nil {
		return v, false, nil
	}
	raw := b.Get([]byte(key))
	if raw == nil {
		return v, false, nil
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, false, unreadable(string(t), err)
	}
	return v, true, nil
}

// Set writes the row of t at key.
func Set[T any](tx *Tx, t Table, key string, v T) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a row of %s: %w", t, err)
	}
	if tx.b.Bucket(t.bucket()) == nil {
		tx.dirty, tx.wrote = true, true
		if _, err := tx.b.CreateBucket(t.bucket()); err != nil {
			return fmt.Errorf("make table %s: %w", t, err)
		}
	}
	return tx.put(t.bucket(), []byte(key), raw)
}

// Delete removes the row of t at key. Removing what is gone is no error.
func Delete(tx *Tx, t Table, key string) error {
	if b := tx.b.Bucket(t.bucket()); b == nil || b.Get([]byte(key)) == nil {
		return nil
	}
	return tx.delete(t.bucket(), []byte(key))
}

// Each calls fn for every row of t whose key begins with prefix, in the order of
// keys, until fn fails, and returns that error. fn may change the table; whether
// it then sees a row that it added depends on its key. It fails with
// fault.Config at a row that is not a T.
func Each[T any](tx *Tx, t Table, prefix string, fn func(key string, v T) error) error {
	b := tx.b.Bucket(t.bucket())
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for k, raw := c.Seek([]byte(prefix)); bytes.HasPrefix(k, []byte(prefix)) && k != nil; k, raw = following(c, k, tx) {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			return unreadable(string(t), err)
		}
		k = bytes.Clone(k) // what fn writes may move it
		if err := fn(string(k), v); err != nil {
			return err
		}
	}
	return nil
}

// following is the row after key. Where rows may have changed since, the cursor
// is of no use and the place is looked for again.
func following(c *bbolt.Cursor, key []byte, tx *Tx) (k, v []byte) {
	if !tx.b.Writable() {
		return c.Next()
	}
	k, v = c.Seek(key)
	if bytes.Equal(k, key) {
		k, v = c.Next()
	}
	return k, v
}

// Counter adds one to the counter of that name and returns it; the first call
// returns 1.
func (tx *Tx) Counter(name string) (uint64, error) {
	n, err := tx.count(inCounters, []byte(name))
	if err != nil {
		return 0, err
	}
	return n + 1, tx.setCount(inCounters, []byte(name), n+1)
}

func (tx *Tx) count(bucket, key []byte) (uint64, error) {
	v := tx.b.Bucket(bucket).Get(key)
	if v == nil {
		return 0, nil
	}
	if len(v) != 8 {
		return 0, unreadable(string(bucket), nil)
	}
	return binary.BigEndian.Uint64(v), nil
}

func (tx *Tx) setCount(bucket, key []byte, n uint64) error {
	return tx.put(bucket, key, binary.BigEndian.AppendUint64(nil, n))
}

// put and delete are the only ways in which a transaction changes a row: the
// writer must know who has written.
func (tx *Tx) put(bucket, key, value []byte) error {
	tx.dirty, tx.wrote = true, true
	tx.bytes += len(key) + len(value)
	if err := tx.b.Bucket(bucket).Put(key, value); err != nil {
		return fmt.Errorf("write a row of %s: %w", bucket, err)
	}
	return nil
}

func (tx *Tx) delete(bucket, key []byte) error {
	tx.dirty, tx.wrote = true, true
	if err := tx.b.Bucket(bucket).Delete(key); err != nil {
		return fmt.Errorf("remove a row of %s: %w", bucket, err)
	}
	return nil
}
