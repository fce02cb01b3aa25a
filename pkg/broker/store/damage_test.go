package store_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fleet/pkg/broker/store"
)

// short is a message of some 60 bytes with a seq in it.
func short(seq uint64) store.Message {
	return store.Message{Exchange: "exchange", Key: "key", Body: fmt.Appendf(nil, "this is message %d", seq)}
}

// images are the files of a directory.
func images(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(name)] = b
	}
	return all
}

// survivors opens what is in images, reads every message, and returns the seqs;
// then it appends a message, lets the store crash, and makes sure that nothing
// else has changed when it is opened again.
func survivors(t testing.TB, dir string, images map[string][]byte) (seqs []uint64, damaged int) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	restore(t, dir, images)
	o := store.Options{Dir: dir, SegmentBytes: 16 << 10}
	read := func() (*store.Store, []uint64, *store.Recovered) {
		s, r, err := store.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		var seqs []uint64
		for _, it := range r.Queues[1] {
			reads(t, s, it.Ref, short(it.Seq))
			seqs = append(seqs, it.Seq)
		}
		return s, seqs, r
	}
	s, seqs, r := read()
	next := r.LastSeq + 1
	s.Append(next, short(next), inOne, true)
	synced(t, s)
	s.Crash()
	s, again, _ := read()
	closed(t, s)
	if !slices.Equal(again, append(slices.Clone(seqs), next)) {
		t.Fatalf("it held %v, and after message %d: %v", seqs, next, again)
	}
	return seqs, r.Damaged
}

// A crash may leave any part of what was written after the last fsync. Whole
// records at the beginning count, and nothing after them ever does.
func TestR53_TornTail(t *testing.T) {
	dir := t.TempDir()
	s, _ := opened(t, store.Options{Dir: dir, SegmentBytes: 16 << 10})
	var ends []int
	for seq := range uint64(5) {
		ref, _ := s.Append(seq+1, short(seq+1), inOne, false)
		ends = append(ends, int(ref.Offset+ref.Length))
	}
	written(s)
	s.Crash()
	image := images(t, dir)["00000001.log"]
	random := rand.New(rand.NewPCG(seedOf(t), 1))
	scratch := filepath.Join(scratch(t), "torn")
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := store.RecordsAt; at < ends[len(ends)-1]; at += step {
		var want []uint64
		for i, end := range ends {
			if at >= end {
				want = append(want, uint64(i+1))
			}
		}
		garbage := bytes.Clone(image)
		for i := at; i < len(garbage); i++ {
			garbage[i] = byte(random.Uint32())
		}
		hole := bytes.Clone(image) // what follows is whole again
		for i := at; i < min(at+8, ends[len(ends)-1]); i++ {
			hole[i] ^= 0x55
		}
		zeros := append(bytes.Clone(image[:at]), make([]byte, len(image)-at)...)
		for how, torn := range map[string][]byte{"cut off": image[:at], "zeros": zeros, "garbage": garbage, "hole": hole} {
			got, damaged := survivors(t, scratch, map[string][]byte{"00000001.log": torn})
			// Padding is nothing: a record without it is whole.
			if !slices.Equal(got, want) && !(len(got) == len(want)+1 && ends[len(want)]-at < 8) {
				t.Errorf("%s at %d: messages %v, want %v", how, at, got, want)
			}
			if damaged != 0 {
				t.Errorf("%s at %d: a torn tail is called damage", how, at)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// wounded is a log of three segments, all durable, with where its messages lie.
func wounded(t *testing.T) (files map[string][]byte, refs map[uint64]store.Ref) {
	dir := t.TempDir()
	s, _ := opened(t, store.Options{Dir: dir, SegmentBytes: 16 << 10})
	refs = map[uint64]store.Ref{}
	for seq := uint64(1); len(refs) == 0 || refs[seq-1].Segment < 3 || refs[seq-1].Offset < 10_000; seq++ {
		refs[seq], _ = s.Append(seq, short(seq), inOne, true)
		synced(t, s)
	}
	closed(t, s)
	return images(t, dir), refs
}

// Damage to what was durable costs the message that it hits, and no other: in a
// segment that is full as in the last one.
func TestR53_Damage(t *testing.T) {
	files, refs := wounded(t)
	random := rand.New(rand.NewPCG(seedOf(t), 1))
	dir := filepath.Join(scratch(t), "damage")
	all := slices.Sorted(maps.Keys(refs))
	flips := 300
	if testing.Short() {
		flips = 50
	}
	for range flips {
		segment := uint32(1 + random.IntN(3))
		name := fmt.Sprintf("%08d.log", segment)
		end := bytes.LastIndexFunc(files[name], func(r rune) bool { return r != 0 })
		at, length := random.IntN(end), 1
		switch random.IntN(4) {
		case 0: // the headers
			at = random.IntN(2)*store.CopyAt + random.IntN(48)
		case 1: // a sector
			at, length = at&^511, 512
		}
		hurt := bytes.Clone(files[name])
		for i := at; i < min(at+length, end); i++ {
			hurt[i] ^= 1 << random.IntN(8)
		}
		images := maps.Clone(files)
		images[name] = hurt
		got, damaged := survivors(t, dir, images)
		hit := 0
		for _, seq := range all {
			ref := refs[seq]
			hits := ref.Segment == segment && at < int(ref.Offset+ref.Length) && at+length > int(ref.Offset)
			if hits {
				hit++
			}
			if !hits && !slices.Contains(got, seq) {
				t.Fatalf("%d bytes at %d of %s have cost message %d at %+v; damaged %d", length, at, name, seq, ref, damaged)
			}
		}
		// Damage that reaches to the last byte, the mark of the close with it, looks like a
		// torn tail.
		last := segment == 3 && at+length >= end
		if lost := len(all) - len(got); lost > hit || lost > 0 && damaged == 0 && !last {
			t.Fatalf("%d bytes at %d of %s hit %d messages, %d are lost, damaged is %d", length, at, name, hit, lost, damaged)
		}
	}
}

// A segment whose two headers are gone is put aside, and the others are read.
func TestR53_LostSegment(t *testing.T) {
	files, refs := wounded(t)
	for segment := uint32(1); segment <= 3; segment++ {
		name := fmt.Sprintf("%08d.log", segment)
		var want []uint64
		for seq := uint64(1); seq <= uint64(len(refs)); seq++ {
			if refs[seq].Segment != segment {
				want = append(want, seq)
			}
		}
		t.Run("zeroed "+name, func(t *testing.T) {
			dir := filepath.Join(scratch(t), "lost")
			images := maps.Clone(files)
			images[name] = append(make([]byte, store.RecordsAt), files[name][store.RecordsAt:]...)
			if got, damaged := survivors(t, dir, images); !slices.Equal(got, want) || damaged == 0 {
				t.Errorf("messages %v, want %v, damaged %d", got, want, damaged)
			}
			if aside, err := os.ReadFile(filepath.Join(dir, name+".damaged")); err != nil || !bytes.Equal(aside, images[name]) {
				t.Errorf("it is not put aside: %v", err)
			}
		})
		t.Run("missing "+name, func(t *testing.T) {
			images := maps.Clone(files)
			delete(images, name)
			got, damaged := survivors(t, filepath.Join(scratch(t), "lost"), images)
			// That the first or the last ones are missing can't be known.
			if !slices.Equal(got, want) || damaged == 0 && segment == 2 {
				t.Errorf("messages %v, want %v, damaged %d", got, want, damaged)
			}
		})
	}
}

// What a client sends as a body is not taken for records, though it be a piece of
// the log.
func TestR53_RecordsInABody(t *testing.T) {
	files, _ := wounded(t)
	dir := t.TempDir()
	s, _ := opened(t, store.Options{Dir: dir})
	ref, _ := s.Append(1, store.Message{Body: files["00000001.log"]}, inOne, true)
	synced(t, s)
	inner, _ := s.Append(2, store.Message{Body: []byte("inner")}, []store.Place{{Queue: 9, Durable: true}}, true)
	synced(t, s)
	s.Append(3, store.Message{Body: []byte("outer")}, inOne, true)
	synced(t, s)
	closed(t, s)
	// The inner message's own bytes are copied into the first one's body, whose
	// header is then destroyed: recovery looks for records in the body.
	image := images(t, dir)["00000001.log"]
	record := image[inner.Offset : inner.Offset+inner.Length]
	for at := int(ref.Offset) + 64; at < int(ref.Offset+ref.Length)-len(record)-8; at += 8 {
		copy(image[at:], record)
	}
	image[ref.Offset] ^= 0xff
	restore(t, dir, map[string][]byte{"00000001.log": image})
	_, r := opened(t, store.Options{Dir: dir})
	if len(r.Queues[9]) != 1 || len(r.Queues[1]) != 1 || r.Damaged != 1 {
		t.Errorf("recovered %+v, damaged %d", r.Queues, r.Damaged)
	}
}

// A message that is damaged while the store is open is an error for who reads it.
func TestR53_DamageWhileOpen(t *testing.T) {
	dir := t.TempDir()
	s, _ := opened(t, store.Options{Dir: dir})
	ref, _ := s.Append(1, short(1), inOne, true)
	after, _ := s.Append(2, short(2), inOne, true)
	synced(t, s)
	f, err := os.OpenFile(filepath.Join(dir, "00000001.log"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff}, int64(ref.Offset)+30); err != nil {
		t.Fatal(err)
	}
	b := s.Load(ref)
	defer b.Release()
	if _, err := b.Read(); err == nil {
		t.Error("a damaged message is read")
	}
	if _, err := s.Move(1, ref, inOne); err == nil {
		t.Error("a damaged message is moved")
	}
	if u := s.Usage(); u.LivePlaces != 2 {
		t.Errorf("%d places", u.LivePlaces)
	}
	reads(t, s, after, short(2))
}
