package mailbox

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// Seen is what a host remembers of a message for one recipient.
type Seen struct {
	New    bool      `json:"-"`      // Put has stored it just now
	Status string    `json:"status"` // what a retry is answered with: SetStatus, at first "waiting"
	At     time.Time `json:"at"`     // its first arrival
	Digest string    `json:"digest"`
	Seq    uint64    `json:"seq"` // the message's, which may be gone from the mailbox
}

// Seen says whether message id of agent from on fromHost was seen for gid, and
// what is known of it. A row that can't be read counts as seen, with status
// "unknown", because its message must not be taken as new.
func (tx *Tx) Seen(gid identity.GID, fromHost identity.Host, from identity.GID, id envelope.ID) (Seen, bool) {
	key, err := seenKey(gid, fromHost, from, id)
	if err != nil {
		return Seen{}, false // no message with such an id was ever stored
	}
	known, ok, err := tx.seen(key)
	if err != nil {
		tx.store.options.Log.Error("what is known of a message can't be read", "id", id, "err", err)
		return Seen{Status: "unknown"}, true
	}
	return known, ok
}

// SetStatus changes the status with which a known message is answered later. One
// that was forgotten meanwhile is no error.
func (tx *Tx) SetStatus(gid identity.GID, fromHost identity.Host, from identity.GID, id envelope.ID, status string) error {
	key, err := seenKey(gid, fromHost, from, id)
	if err != nil {
		return err
	}
	known, ok, err := tx.seen(key)
	if err != nil || !ok {
		return err
	}
	known.Status = status
	return tx.putSeen(key, known)
}

func (tx *Tx) seen(key []byte) (known Seen, ok bool, err error) {
	v := tx.b.Bucket(inSeen).Get(key)
	if v == nil {
		return known, false, nil
	}
	if err := json.Unmarshal(v, &known); err != nil {
		return known, true, unreadable("seen", err)
	}
	return known, true, nil
}

// QuotaError is the fault.Full of a sending host that has used up its quota of
// remembered ids: the mailbox itself has room for others.
type QuotaError struct{ *fault.Fault }

// Unwrap makes fault.From find the fault.
func (e QuotaError) Unwrap() error { return e.Fault }

// remember adds a row, its place in the order of ages and its part of the
// sending host's quota. It fails with fault.Full before it has written.
func (tx *Tx) remember(key []byte, known Seen) error {
	host := key[seenHost:]
	n, err := tx.count(inPeers, host)
	if err != nil {
		return err
	}
	if n >= uint64(tx.store.options.SeenMost) {
		return QuotaError{fault.New(fault.Full, "host %s has sent %d messages within %s, more than this host remembers of one", host, n, tx.store.options.Memory).
			WithHint("they are accepted again as the oldest age away")}
	}
	if err := tx.putSeen(key, known); err != nil {
		return err
	}
	ages := tx.b.Bucket(inAges)
	ages.FillPercent = 0.95 // keys only grow
	if err := tx.put(inAges, ageKey(known.At, key), nil); err != nil {
		return err
	}
	return tx.setCount(inPeers, host, n+1)
}

func (tx *Tx) putSeen(key []byte, known Seen) error {
	v, err := json.Marshal(known)
	if err != nil {
		return err
	}
	return tx.put(inSeen, key, v)
}

// forget removes up to most of the rows that arrived before limit, the oldest
// first.
func (tx *Tx) forget(limit time.Time, most int) (n int, err error) {
	end := ageKey(limit, nil)
	c := tx.b.Bucket(inAges).Cursor()
	for ; n < most; n++ {
		k, _ := c.First() // a cursor does not survive a deletion
		if k == nil || bytes.Compare(k, end) >= 0 {
			return n, nil
		}
		age := bytes.Clone(k)
		if err := tx.delete(inAges, age); err != nil {
			return n, err
		}
		if len(age) <= 8+seenHost {
			continue // nothing that this package wrote
		}
		key := age[8:]
		if err := tx.delete(inSeen, key); err != nil {
			return n, err
		}
		count, err := tx.count(inPeers, key[seenHost:])
		if err != nil {
			return n, err
		}
		if err := tx.setCount(inPeers, key[seenHost:], count-min(1, count)); err != nil {
			return n, err
		}
	}
	return n, nil
}

// seenHost is where the sending host begins in a key of seen.
const seenHost = 3 * gidBytes

// seenKey is the key of R21's triple for one recipient. It fails with
// fault.Usage.
func seenKey(gid identity.GID, fromHost identity.Host, from identity.GID, id envelope.ID) ([]byte, error) {
	key := make([]byte, 0, seenHost+len(fromHost))
	for _, g := range []identity.GID{gid, from} {
		k, err := gidKey(g)
		if err != nil {
			return nil, err
		}
		key = append(key, k...)
	}
	u, err := uuid.Parse(string(id))
	if err != nil {
		return nil, fault.New(fault.Usage, "%q is not a message id", string(id))
	}
	if fromHost == "" {
		return nil, fault.New(fault.Usage, "message %s names no sending host", id)
	}
	key = append(key, u[:]...)
	return append(key, fromHost...), nil
}

// ageKey orders rows of seen by arrival. Times before 1970 count as 1970.
func ageKey(at time.Time, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(max(0, at.UnixMilli()))), key...)
}
