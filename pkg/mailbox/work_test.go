package mailbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
)

// The work that is cut off: several workers, each with a mailbox and rows of its
// own, each doing a script of steps that depends on nothing but its number and
// says "worker step" once a step is on the disk. What a file may hold after a
// cut is then known exactly: of each worker the state after the last step that
// it has acknowledged, or after the one that it had begun.
const workers = 5

const (
	left  = mailbox.Table("left")
	right = mailbox.Table("right")
)

func workerGID(w int) identity.GID {
	return identity.GID(fmt.Sprintf("11111111-1111-4111-8111-%012d", w))
}

// state is what one worker has brought about.
type state struct {
	messages []kept
	row      int      // value of both rows, left and right
	statuses []string // of all messages ever put
}

type kept struct {
	n       int // number of the message among all of the worker's
	claimed bool
}

// step is one step of a script, as it changes the model and as it changes the
// mailbox. Each is one transaction of several writes.
type step struct {
	model func(*state)
	apply func(*mailbox.Tx) error
}

// plan is the step that a worker with state st takes next.
func plan(w, number int, st *state) step {
	gid := workerGID(w)
	random := rand.New(rand.NewPCG(uint64(w), uint64(number)))
	pick := random.IntN(10)
	rows := func(tx *mailbox.Tx) error {
		return errors.Join(mailbox.Set(tx, left, string(gid), number), mailbox.Set(tx, right, string(gid), number))
	}
	switch {
	case pick < 5 || len(st.messages) == 0:
		n := len(st.statuses)
		return step{
			model: func(st *state) {
				st.messages = append(st.messages, kept{n: n})
				st.statuses = append(st.statuses, "waiting")
			},
			apply: func(tx *mailbox.Tx) error { _, err := tx.Put(gid, workMessage(w, n)); return err },
		}
	case pick < 7:
		i := random.IntN(len(st.messages))
		if st.messages[i].claimed {
			i = 0
		}
		m := st.messages[i]
		return step{
			model: func(st *state) { st.messages[i].claimed = true; st.statuses[m.n] = "claimed" },
			apply: func(tx *mailbox.Tx) error {
				seq, err := find(tx, gid, i)
				if !m.claimed {
					err = errors.Join(err, tx.Claim(gid, seq))
				}
				return errors.Join(err, tx.SetStatus(gid, "alpha", carol, workID(w, m.n), "claimed"))
			},
		}
	case pick < 9:
		i := random.IntN(len(st.messages))
		m := st.messages[i]
		return step{
			model: func(st *state) {
				st.messages = append(st.messages[:i:i], st.messages[i+1:]...)
				st.statuses[m.n] = "done"
				st.row = number
			},
			apply: func(tx *mailbox.Tx) error {
				seq, err := find(tx, gid, i)
				return errors.Join(err, tx.Remove(gid, seq), tx.SetStatus(gid, "alpha", carol, workID(w, m.n), "done"), rows(tx))
			},
		}
	default:
		return step{model: func(st *state) { st.row = number }, apply: rows}
	}
}

func find(tx *mailbox.Tx, gid identity.GID, i int) (uint64, error) {
	heads, err := tx.Heads(gid, 0, i+1)
	if err == nil && len(heads) <= i {
		err = fmt.Errorf("%d messages, want number %d", len(heads), i)
	}
	if err != nil {
		return 0, err
	}
	return heads[i].Seq, nil
}

func workID(w, n int) envelope.ID { return envelope.DeriveID(string(workerGID(w)), strconv.Itoa(n)) }

// workMessage has a body that its id determines: mostly short, some of several
// pages, few large.
func workMessage(w, n int) mailbox.Message {
	id := workID(w, n)
	seed := sha256.Sum256([]byte(id))
	size := int(seed[0])
	switch {
	case seed[1] < 8:
		size = 200_000
	case seed[1] < 64:
		size *= 64
	}
	body := bytes.Repeat(seed[:], size/len(seed)+1)
	return mailbox.Message{
		ID: id, Kind: envelope.Send, From: carol, FromHost: "alpha", Digest: fmt.Sprintf("%x", seed),
		Sealed: envelope.Sealed{Bytes: body, Key: "key", Signature: "signature"},
	}
}

// work runs the scripts on a new mailbox. mode "nosync" leaves out the fsyncs,
// "stubborn" tries a step again when its write has failed.
func work(path, mode, steps string) error {
	most, err := strconv.Atoi(steps)
	if err != nil {
		return err
	}
	s, err := mailbox.Open(path, mailbox.Options{})
	if err != nil {
		return err
	}
	if mode == "nosync" {
		s.DropSyncs()
	}
	fmt.Println("open")
	var all sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		all.Go(func() {
			var st state
			for number := range most {
				next := plan(w, number, &st)
				err := s.Write(context.Background(), next.apply)
				for tries := 0; mode == "stubborn" && errors.Is(err, fault.Failed) && tries < 20; tries++ {
					err = s.Write(context.Background(), next.apply)
				}
				if err != nil {
					errs[w] = fmt.Errorf("step %d: %w", number, err)
					return
				}
				next.model(&st)
				fmt.Fprintf(os.Stdout, "%d %d\n", w, number+1)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// check says whether s holds, for each worker, the state after done[w] steps or
// after one more, and nothing half.
func check(s *mailbox.Store, done [workers]int) error {
	return s.Read(func(tx *mailbox.Tx) error {
		for w := range workers {
			var st state
			for number := range done[w] {
				plan(w, number, &st).model(&st)
			}
			err := compare(tx, w, st)
			if err == nil {
				continue
			}
			plan(w, done[w], &st).model(&st)
			if next := compare(tx, w, st); next != nil {
				return fmt.Errorf("worker %d has acknowledged %d steps: %w; and as after the next: %w", w, done[w], err, next)
			}
		}
		return nil
	})
}

// compare says whether the mailbox and the rows of worker w are exactly st.
func compare(tx *mailbox.Tx, w int, st state) error {
	gid := workerGID(w)
	messages, err := tx.Messages(gid, 0, 1<<20)
	if err != nil {
		return err
	}
	if len(messages) != len(st.messages) {
		return fmt.Errorf("%d messages, want %d", len(messages), len(st.messages))
	}
	var size int64
	for i, m := range messages {
		want := workMessage(w, st.messages[i].n)
		size += int64(len(want.Sealed.Bytes))
		if m.ID != want.ID || !bytes.Equal(m.Sealed.Bytes, want.Sealed.Bytes) || (m.State == mailbox.Claimed) != st.messages[i].claimed {
			return fmt.Errorf("message %d is another, is %s, or has other bytes", i, m.State)
		}
	}
	sum, err := tx.Stats(gid)
	if err != nil || sum.Count != len(messages) || sum.Bytes != size {
		return fmt.Errorf("stats %+v, want %d messages, %d bytes; %v", sum, len(messages), size, err)
	}
	for n, status := range st.statuses {
		if known, ok := tx.Seen(gid, "alpha", carol, workID(w, n)); !ok || known.Status != status {
			return fmt.Errorf("message %d has status %q, want %q", n, known.Status, status)
		}
	}
	if _, ok := tx.Seen(gid, "alpha", carol, workID(w, len(st.statuses))); ok {
		return errors.New("an id is seen before its message came")
	}
	for _, table := range []mailbox.Table{left, right} {
		if n, _, err := mailbox.Get[int](tx, table, string(gid)); err != nil || n != st.row {
			return fmt.Errorf("row of %s is %d, want %d; %v", table, n, st.row, err)
		}
	}
	return nil
}
