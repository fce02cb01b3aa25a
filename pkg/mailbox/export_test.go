package mailbox

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"

	"fleet/pkg/identity"
)

// DropSyncs makes commits return without bringing anything to the disk, for the
// test that shows that the power-cut test would notice.
func (s *Store) DropSyncs() { s.db.NoSync = true }

// PlantRow writes value under key in every bucket, and where gid's rows are
// looked for, beside all that checks rows.
func PlantRow(tx *Tx, gid identity.GID, key, value []byte) {
	u := uuid.MustParse(string(gid))
	seq := binary.BigEndian.AppendUint64(u[:], 1)
	seen := append(append(append(append([]byte(nil), u[:]...), u[:]...), u[:]...), 'h')
	table := Table("table")
	if tx.b.Bucket(table.bucket()) == nil {
		if _, err := tx.b.CreateBucket(table.bucket()); err != nil {
			panic(err)
		}
	}
	for _, bucket := range append(fixed[1:], table.bucket()) {
		for _, k := range [][]byte{key, u[:], seq, seen} {
			if err := tx.put(bucket, k, value); err != nil {
				panic(err)
			}
		}
	}
}

// ForgetAll forgets every id.
func ForgetAll(tx *Tx) { tx.forget(time.Now().Add(time.Hour), 10) }
