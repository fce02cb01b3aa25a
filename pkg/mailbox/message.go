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

// MessageState says how far a message in a mailbox is.
type MessageState string

// The states. A message that was delivered is no longer in the mailbox.
const (
	Waiting MessageState = "waiting" // nobody has begun to deliver it
	Claimed MessageState = "claimed" // its delivery has begun, and must not begin a second time
)

// Message is one message in a mailbox.
type Message struct {
	// Seq orders messages by arrival. It grows over all mailboxes of the host and
	// is never given twice. Put sets it, and State and Size.
	Seq      uint64         `json:"-"`
	ID       envelope.ID    `json:"id"`
	Kind     envelope.Kind  `json:"kind"`
	From     identity.GID   `json:"from"`
	FromHost identity.Host  `json:"from_host"`
	Trace    envelope.Trace `json:"trace"`
	Re       envelope.ID    `json:"re,omitempty"`
	Digest   string         `json:"digest"`
	// Arrived is when this host got it; Put sets it where it is zero. Exp, unless
	// zero, is when the message becomes useless; mailbox does not act on it.
	Arrived time.Time    `json:"arrived"`
	Exp     time.Time    `json:"exp,omitzero"`
	State   MessageState `json:"state"`
	// Sealed is the message as it came; its bytes are stored apart.
	Sealed envelope.Sealed `json:"sealed"`
	Size   int             `json:"size"` // of the sealed bytes
}

// Stats sums up one mailbox.
type Stats struct {
	Count  int
	Bytes  int64     // of sealed bytes
	Oldest time.Time // arrival of the oldest message; zero without one
}

// Put stores m for agent gid unless it was seen before, and returns what is
// known of it: with New if it is stored now. Seen and mailbox are written in the
// same transaction, so no crash gives a message twice (R21).
//
// It fails with fault.Conflict if its id was seen with another digest (and
// returns what is known of that one), with fault.Full if the mailbox has no room
// or (a QuotaError) the sending host has used up its quota of remembered ids, and with
// fault.Usage if an id is not a UUID. It has then written nothing.
func (tx *Tx) Put(gid identity.GID, m Message) (Seen, error) {
	key, err := seenKey(gid, m.FromHost, m.From, m.ID)
	if err != nil {
		return Seen{}, err
	}
	known, ok, err := tx.seen(key)
	if err != nil {
		return Seen{}, err
	}
	if ok {
		if known.Digest != m.Digest {
			return known, fault.New(fault.Conflict, "message %s is known with other content", m.ID).
				WithHint("an id belongs to one message; leave out --id, or choose another")
		}
		return known, nil
	}
	m.Size = len(m.Sealed.Bytes)
	to := key[:gidBytes]
	sum, err := tx.sum(to)
	if err != nil {
		return Seen{}, err
	}
	if o := tx.store.options; sum.count+1 > uint64(o.MessagesMost) || sum.bytes+uint64(m.Size) > uint64(o.BytesMost) {
		return Seen{}, fault.New(fault.Full, "the mailbox of %s is full: %d messages, %d bytes", gid, sum.count, sum.bytes).
			WithHint("`fleet inbox` takes messages out of it")
	}
	if m.Arrived.IsZero() {
		m.Arrived = time.Now()
	}
	m.Arrived = m.Arrived.UTC()
	if m.Seq, err = tx.b.Bucket(inMessages).NextSequence(); err != nil {
		return Seen{}, err
	}
	known = Seen{Status: string(Waiting), At: m.Arrived, Digest: m.Digest, Seq: m.Seq}
	if err := tx.remember(key, known); err != nil {
		return Seen{}, err
	}
	m.State = Waiting
	if err := tx.putNew(to, m); err != nil {
		return Seen{}, err
	}
	known.New = true
	return known, tx.setSum(to, sum.count+1, sum.bytes+uint64(m.Size))
}

// putNew writes head and body of a new message.
func (tx *Tx) putNew(to []byte, m Message) error {
	key := messageKey(to, m.Seq)
	if err := tx.put(inBodies, key, m.Sealed.Bytes); err != nil {
		return err
	}
	return tx.putHead(key, m)
}

func (tx *Tx) putHead(key []byte, m Message) error {
	m.Sealed.Bytes = nil
	head, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return tx.put(inMessages, key, head)
}

// Claim takes a waiting message for delivery. After a crash it is still claimed,
// so that its delivery is not begun again (R10). It fails with fault.Conflict if
// the message is not waiting.
func (tx *Tx) Claim(gid identity.GID, seq uint64) error {
	return tx.change(gid, seq, Waiting, Claimed)
}

func (tx *Tx) change(gid identity.GID, seq uint64, from, to MessageState) error {
	m, key, ok, err := tx.head(gid, seq)
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.Conflict, "message %d is no longer in the mailbox of %s", seq, gid)
	}
	if m.State != from {
		return fault.New(fault.Conflict, "message %s is %s, not %s", m.ID, m.State, from)
	}
	m.State = to
	return tx.putHead(key, m)
}

// Remove takes a message out of the mailbox. That it was seen stays known.
// Removing what is gone is no error.
func (tx *Tx) Remove(gid identity.GID, seq uint64) error {
	m, key, ok, err := tx.head(gid, seq)
	if err != nil || !ok {
		return err
	}
	to := key[:gidBytes]
	sum, err := tx.sum(to)
	if err != nil {
		return err
	}
	for _, bucket := range [][]byte{inMessages, inBodies} {
		if err := tx.delete(bucket, key); err != nil {
			return err
		}
	}
	return tx.setSum(to, sum.count-min(1, sum.count), sum.bytes-min(uint64(m.Size), sum.bytes))
}

// Messages returns up to most messages of gid with a Seq greater than after, in
// order of arrival, with their bytes. Heads is the same without them.
func (tx *Tx) Messages(gid identity.GID, after uint64, most int) ([]Message, error) {
	return tx.list(gid, after, most, true)
}

// Heads is Messages without Sealed.Bytes; Size says how many there are.
func (tx *Tx) Heads(gid identity.GID, after uint64, most int) ([]Message, error) {
	return tx.list(gid, after, most, false)
}

func (tx *Tx) list(gid identity.GID, after uint64, most int, whole bool) ([]Message, error) {
	to, err := gidKey(gid)
	if err != nil {
		return nil, err
	}
	var found []Message
	c := tx.b.Bucket(inMessages).Cursor()
	k, v := c.Seek(messageKey(to, after))
	if bytes.Equal(k, messageKey(to, after)) {
		k, v = c.Next()
	}
	for ; bytes.HasPrefix(k, to) && len(found) < most; k, v = c.Next() {
		m, err := tx.decode(k, v, whole)
		if err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return found, nil
}

// Message returns one message; ok is false if it is not in the mailbox.
func (tx *Tx) Message(gid identity.GID, seq uint64) (m Message, ok bool, err error) {
	m, key, ok, err := tx.head(gid, seq)
	if err != nil || !ok {
		return Message{}, false, err
	}
	m.Sealed.Bytes = bytes.Clone(tx.b.Bucket(inBodies).Get(key))
	return m, true, nil
}

// head returns a message without its bytes, and its key.
func (tx *Tx) head(gid identity.GID, seq uint64) (m Message, key []byte, ok bool, err error) {
	to, err := gidKey(gid)
	if err != nil {
		return m, nil, false, err
	}
	key = messageKey(to, seq)
	v := tx.b.Bucket(inMessages).Get(key)
	if v == nil {
		return m, key, false, nil
	}
	m, err = tx.decode(key, v, false)
	return m, key, err == nil, err
}

func (tx *Tx) decode(key, v []byte, whole bool) (m Message, err error) {
	if len(key) != gidBytes+8 {
		return m, unreadable("messages", nil)
	}
	if err := json.Unmarshal(v, &m); err != nil {
		return m, unreadable("messages", err)
	}
	m.Seq = binary.BigEndian.Uint64(key[gidBytes:])
	m.Sealed.Bytes = nil
	if whole {
		m.Sealed.Bytes = bytes.Clone(tx.b.Bucket(inBodies).Get(key))
	}
	return m, nil
}

// Stats sums up the mailbox of gid, in time that does not grow with it.
func (tx *Tx) Stats(gid identity.GID) (Stats, error) {
	to, err := gidKey(gid)
	if err != nil {
		return Stats{}, err
	}
	sum, err := tx.sum(to)
	if err != nil {
		return Stats{}, err
	}
	stats := Stats{Count: int(sum.count), Bytes: int64(sum.bytes)}
	oldest, err := tx.list(gid, 0, 1, false)
	if err == nil && len(oldest) == 1 {
		stats.Oldest = oldest[0].Arrived
	}
	return stats, err
}

// Room says how many more messages, and bytes of them, the mailbox of gid takes.
func (tx *Tx) Room(gid identity.GID) (messages int, size int64, err error) {
	to, err := gidKey(gid)
	if err != nil {
		return 0, 0, err
	}
	sum, err := tx.sum(to)
	o := tx.store.options
	return max(0, o.MessagesMost-int(sum.count)), max(0, o.BytesMost-int64(sum.bytes)), err
}

// Agents lists the agents that have a mailbox: those that got a message and were
// not dropped since.
func (tx *Tx) Agents() ([]identity.GID, error) {
	var agents []identity.GID
	err := tx.b.Bucket(inStats).ForEach(func(k, _ []byte) error {
		u, err := uuid.FromBytes(k)
		if err != nil {
			return unreadable("stats", err)
		}
		agents = append(agents, identity.GID(u.String()))
		return nil
	})
	return agents, err
}

// DropAgent ends the mailbox of gid. It fails with fault.Conflict while messages
// are in it: the caller first says what becomes of them. What gid has seen stays
// known until it ages away.
func (tx *Tx) DropAgent(gid identity.GID) error {
	to, err := gidKey(gid)
	if err != nil {
		return err
	}
	if k, _ := tx.b.Bucket(inMessages).Cursor().Seek(to); bytes.HasPrefix(k, to) {
		return fault.New(fault.Conflict, "the mailbox of %s is not empty", gid)
	}
	return tx.delete(inStats, to)
}

// gidBytes is the length of an agent's id in keys.
const gidBytes = len(uuid.UUID{})

// gidKey is gid as it stands in keys. It fails with fault.Usage.
func gidKey(gid identity.GID) ([]byte, error) {
	u, err := uuid.Parse(string(gid))
	if err != nil {
		return nil, fault.New(fault.Usage, "%q is not an agent id", string(gid))
	}
	return u[:], nil
}

func messageKey(to []byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(to), seq)
}

// sum is a row of stats.
type sum struct{ count, bytes uint64 }

func (tx *Tx) sum(to []byte) (s sum, err error) {
	v := tx.b.Bucket(inStats).Get(to)
	if v == nil {
		return s, nil
	}
	if len(v) != 16 {
		return s, unreadable("stats", nil)
	}
	return sum{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}

func (tx *Tx) setSum(to []byte, count, size uint64) error {
	return tx.put(inStats, to, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, count), size))
}
