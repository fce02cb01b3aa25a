package store

import (
	"fmt"
	"testing"
)

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	s, r, err := Open(Options{Dir: dir, SegmentBytes: 20000})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%+v\n", r)
	var refs []Ref
	for i := range 100 {
		ref, _ := s.Append(uint64(i+1), Message{"x", "k", []byte("props"), make([]byte, 512)}, []Place{{1, 0, true}, {2, 5, i%2 == 0}}, true)
		refs = append(refs, ref)
	}
	s.Put("a", []byte("b"))
	s.Remove(refs[3], 1, 4, true)
	b := s.Load(refs[5])
	if m, err := b.Read(); err != nil || len(m.Body) != 512 || m.Key != "k" {
		t.Fatal(m, err)
	}
	b.Release()
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%+v\n", s.Usage())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, r, err = Open(Options{Dir: dir, SegmentBytes: 20000})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(len(r.Queues[1]), len(r.Queues[2]), r.Definitions, r.LastSeq, r.Damaged, r.Segments, s.Usage())
	for _, it := range r.Queues[1] {
		b := s.Load(it.Ref)
		if m, err := b.Read(); err != nil || len(m.Body) != 512 || m.Key != "k" {
			t.Fatal(m, err)
		}
		b.Release()
		s.Remove(it.Ref, 1, it.Seq, true)
	}
	for _, it := range r.Queues[2] {
		s.Remove(it.Ref, 2, it.Seq, true)
	}
	s.Sync(t.Context())
	fmt.Println(s.Usage())
	s.Close()
}
