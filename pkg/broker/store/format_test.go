package store_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fleet/pkg/broker/store"
	"fleet/pkg/fault"
)

// Files of a later format, and files that are somebody else's, are refused, and
// no file of the directory is touched.
func TestR53_ForeignFiles(t *testing.T) {
	files, _ := wounded(t)
	const last = "00000003.log"
	future := bytes.Clone(files[last])
	for _, at := range []int{0, store.CopyAt} {
		binary.LittleEndian.PutUint32(future[at+8:], 2)
	}
	big := bytes.Repeat([]byte("some other program's log\n"), 1000)
	for name, c := range map[string]struct {
		add  map[string][]byte
		says string
	}{
		"later format":    {map[string][]byte{last: future}, "has format 2, this fleet reads 1"},
		"somebody else's": {map[string][]byte{"00000004.log": big}, "is not a part of a broker's store"},
		"short":           {map[string][]byte{"00000004.log": big[:100]}, "is not a part of a broker's store"},
		"another number":  {map[string][]byte{"00000004.log": files[last]}, "is not a part of a broker's store"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before := maps.Clone(files)
			// One that would be put aside comes first.
			before["00000002.log"] = append(make([]byte, store.RecordsAt), files["00000002.log"][store.RecordsAt:]...)
			maps.Copy(before, c.add)
			restore(t, dir, before)
			_, _, err := store.Open(store.Options{Dir: dir})
			if f := fault.From(err); f == nil || f.Kind != fault.Config || !strings.Contains(f.Message, c.says) || f.Hint == "" {
				t.Errorf("fault %#v", f)
			}
			if !maps.EqualFunc(before, images(t, dir), bytes.Equal) {
				t.Error("files have changed")
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != len(before) {
				t.Errorf("%d files, want %d; %v", len(entries), len(before), err)
			}
			// The directory is free again.
			for name := range before {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			opened(t, store.Options{Dir: dir})
		})
	}
}

// Names that are not a segment's are none of the store's business.
func TestR53_OtherNames(t *testing.T) {
	files, refs := wounded(t)
	dir := t.TempDir()
	restore(t, dir, files)
	restore(t, dir, map[string][]byte{"1.log": nil, "00000000.log": nil, "000000002.log": nil, "README": nil, "99999999999.log": nil, "users.json": nil})
	if _, r := opened(t, store.Options{Dir: dir}); int(r.Messages) != len(refs) || r.Damaged != 0 {
		t.Errorf("%d messages of %d, damaged %d", r.Messages, len(refs), r.Damaged)
	}
}

// A crash may come while a segment is made. It then never had a record.
func TestR53_UnbornSegment(t *testing.T) {
	files, refs := wounded(t)
	whole := files["00000003.log"][:store.RecordsAt]
	half := append(bytes.Clone(whole[:store.CopyAt]), make([]byte, 12<<10)...)
	for name, image := range map[string][]byte{
		"empty": {}, "zeros": make([]byte, 16<<10), "few zeros": make([]byte, 100), "short": whole[:600],
		"one header": half, "second header": append(make([]byte, store.CopyAt), whole[store.CopyAt:]...),
	} {
		t.Run(name, func(t *testing.T) {
			before := maps.Clone(files)
			image := bytes.Clone(image)
			for _, at := range []int{0, store.CopyAt} { // with the right number
				if len(image) >= at+48 && image[at] != 0 {
					if at == 0 {
						image[12] = 99 // and so with a wrong checksum
					} else {
						clear(image[at : at+20])
					}
				}
			}
			before["00000004.log"] = image
			got, damaged := survivors(t, filepath.Join(scratch(t), "unborn"), before)
			if len(got) != len(refs) || damaged != 0 {
				t.Errorf("%d messages of %d, damaged %d", len(got), len(refs), damaged)
			}
		})
	}
	t.Run("alone", func(t *testing.T) {
		got, damaged := survivors(t, filepath.Join(scratch(t), "unborn"), map[string][]byte{"00000001.log": make([]byte, 16<<10)})
		if len(got) != 0 || damaged != 0 {
			t.Errorf("%d messages, damaged %d", len(got), damaged)
		}
	})
}

// The last seq and the number of the last segment are known though everything was
// removed.
func TestR53_NothingIsUsedTwice(t *testing.T) {
	dir := t.TempDir()
	number, seq := uint32(0), uint64(0)
	for range 5 {
		s, r := opened(t, small(dir))
		if r.LastSeq != seq {
			t.Fatalf("last seq %d, want %d", r.LastSeq, seq)
		}
		for range 200 {
			seq++
			ref, _ := s.Append(seq, content(seq), inOne, true)
			if ref.Segment < number {
				t.Fatalf("segment %d after %d", ref.Segment, number)
			}
			number = ref.Segment
			s.Remove(ref, 1, seq, true)
		}
		closed(t, s)
	}
	if number < 5 {
		t.Errorf("only %d segments", number)
	}
	if n := len(images(t, dir)); n != 1 {
		t.Errorf("%d files are left", n)
	}
}

// That holds even when no record of a message is left in the log.
func TestR53_LastSeqOfAnEmptyLog(t *testing.T) {
	dir := t.TempDir()
	s, _ := opened(t, small(dir))
	for seq := range uint64(100) {
		ref, _ := s.Append(seq+1, content(seq+1), []store.Place{{Queue: 1}}, false)
		s.Remove(ref, 1, seq+1, false)
	}
	s.Put("definition", make([]byte, 30_000))
	s.Put("definition", make([]byte, 30_000))
	closed(t, s)
	if n := len(images(t, dir)); n != 1 {
		t.Errorf("%d files are left", n)
	}
	if _, r := opened(t, small(dir)); r.LastSeq != 100 || r.Damaged != 0 {
		t.Errorf("last seq %d, damaged %d", r.LastSeq, r.Damaged)
	}
}

// A segment that is empty is not deleted before there is the next one, which knows
// the last seq.
func TestR53_ASegmentOutlivesItsLack(t *testing.T) {
	dir := t.TempDir()
	block, blocked, failed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	o := small(dir)
	var once sync.Once
	o.Durable = func(store.Position) {
		once.Do(func() { close(blocked) })
		<-block
	}
	o.Failed = func(err error) { failed <- err }
	s, _ := opened(t, o)
	ref, _ := s.Append(1, content(1), inOne, true)
	s.Remove(ref, 1, 1, false)
	<-blocked
	// The flusher stands just before it deletes what is superfluous.
	next := filepath.Join(dir, "00000002.log")
	if err := os.Mkdir(next, 0o700); err != nil { // so that the next segment can't be made
		t.Fatal(err)
	}
	s.Append(2, store.Message{Body: make([]byte, 40_000)}, inOne, true)
	close(block)
	<-failed
	_ = s.Close() // has failed
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	if _, r := opened(t, small(dir)); r.LastSeq != 1 {
		t.Errorf("last seq %d", r.LastSeq)
	}
}

// One process has a store, and another learns so at once.
func TestR53_TwoProcesses(t *testing.T) {
	dir := t.TempDir()
	cmd := child(t, "hold", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatal(line, err)
	}
	_, _, err = store.Open(store.Options{Dir: dir})
	if f := fault.From(err); f == nil || f.Kind != fault.Refused || !strings.Contains(f.Message, dir) || f.Hint == "" {
		t.Errorf("fault %#v", f)
	}
	in.Close()
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	s, _ := opened(t, store.Options{Dir: dir})
	if _, _, err := store.Open(store.Options{Dir: dir}); !errors.Is(err, fault.Refused) {
		t.Errorf("in one process: %v", err)
	}
	closed(t, s)
	opened(t, store.Options{Dir: dir})
}

func TestR53_NoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file, filepath.Join(file, "below")} {
		_, _, err := store.Open(store.Options{Dir: dir})
		if f := fault.From(err); f == nil || f.Kind != fault.Config || f.Hint == "" {
			t.Errorf("%q: %#v", dir, f)
		}
	}
}
