package mailbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt trusts its file: over a damaged page it panics, in part in goroutines of
// its own, reads beyond the end of its map, or gives a page away twice. So the
// file is checked before bbolt works with it, by reading and not through the
// map: every page that the newest transaction reaches lies within the file, has
// the form it should have, is reached once, and holds its keys in order.
//
// The layout is that of bbolt's file version 2 (its internal/common: meta.go,
// page.go, bucket.go), in the machine's own byte order.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	metaBytes   = 64 // of a head, the last 8 its checksum
	pageHead    = 16 // id (8), flags (2), number of elements (2), overflow pages (4)
	elementSize = 16
	noFreelist  = ^uint64(0)

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketRow    = 0x01 // flag of an element that is a bucket
	bucketHead   = 16   // root page (8), sequence (8); an inline page follows where root is 0

	// depthMost is far beyond the depth of a tree that fits on a disk.
	depthMost = 40
)

var order = binary.NativeEndian

// checker checks one file.
type checker struct {
	file  io.ReaderAt
	page  int64    // bytes in a page
	pages uint64   // number of pages that the newest transaction knows
	used  []uint64 // one bit for each page that was reached
}

// check says what is wrong with the bbolt file that file holds, of size bytes.
func check(file io.ReaderAt, size int64) error {
	c := checker{file: file}
	root, freelist, err := c.head(size)
	if err != nil {
		return err
	}
	c.used = make([]uint64, c.pages/64+1)
	if err := c.tree(root, nil, nil, 0); err != nil {
		return err
	}
	if freelist == noFreelist {
		return nil
	}
	return c.free(freelist)
}

// head reads the newest of the two heads that is whole.
func (c *checker) head(size int64) (root, freelist uint64, err error) {
	newest := make([]byte, 0, metaBytes)
	c.page = int64(os.Getpagesize())
	for _, at := range []int64{0, 1} {
		m := make([]byte, metaBytes)
		if _, err := c.file.ReadAt(m, at*c.page+pageHead); err != nil {
			return 0, 0, errors.New("it is too short")
		}
		sum := fnv.New64a()
		sum.Write(m[:metaBytes-8])
		if order.Uint32(m) != boltMagic || order.Uint32(m[4:]) != boltVersion || order.Uint64(m[metaBytes-8:]) != sum.Sum64() {
			continue
		}
		c.page = int64(order.Uint32(m[8:])) // where the second head is, if the first is whole
		if len(newest) == 0 || order.Uint64(m[48:]) > order.Uint64(newest[48:]) {
			newest = m
		}
	}
	if len(newest) == 0 {
		return 0, 0, errors.New("neither of its heads is whole")
	}
	c.page = int64(order.Uint32(newest[8:]))
	c.pages = order.Uint64(newest[40:])
	if c.page < 1024 || c.pages > uint64(size/c.page) {
		return 0, 0, fmt.Errorf("it has %d bytes of %d pages", size, c.pages)
	}
	return order.Uint64(newest[16:]), order.Uint64(newest[32:]), nil
}

// node is one page with its overflow, or the page inside an inline bucket.
type node struct {
	id    uint64
	flags uint16
	count int
	start int64 // where it begins in the file
	size  int64
	first []byte // its beginning: a page, or all of an inline page
}

// load reads the page id, and notes that it was reached.
func (c *checker) load(id uint64) (node, error) {
	if id < 2 || id >= c.pages {
		return node{}, fmt.Errorf("page %d of %d is reached", id, c.pages)
	}
	n := node{start: int64(id) * c.page, first: make([]byte, c.page)}
	if _, err := c.file.ReadAt(n.first, n.start); err != nil {
		return n, fmt.Errorf("page %d: %w", id, err)
	}
	n.id, n.flags, n.count = order.Uint64(n.first), order.Uint16(n.first[8:]), int(order.Uint16(n.first[10:]))
	overflow := uint64(order.Uint32(n.first[12:]))
	if n.id != id || id+overflow >= c.pages {
		return n, fmt.Errorf("page %d says that it is page %d with %d more", id, n.id, overflow)
	}
	n.size = int64(overflow+1) * c.page
	for p := id; p <= id+overflow; p++ {
		if c.used[p/64]&(1<<(p%64)) != 0 {
			return n, fmt.Errorf("page %d is reached twice", p)
		}
		c.used[p/64] |= 1 << (p % 64)
	}
	return n, nil
}

// bytes reads size bytes of n from at.
func (c *checker) bytes(n node, at, size int64) ([]byte, error) {
	if at < 0 || size < 0 || at+size > n.size {
		return nil, fmt.Errorf("page %d: an element ends outside of it", n.id)
	}
	if at+size <= int64(len(n.first)) {
		return n.first[at : at+size], nil
	}
	b := make([]byte, size)
	if _, err := c.file.ReadAt(b, n.start+at); err != nil {
		return nil, fmt.Errorf("page %d: %w", n.id, err)
	}
	return b, nil
}

// tree checks the tree under page id, whose keys lie in [low, high); nil is no
// bound.
func (c *checker) tree(id uint64, low, high []byte, depth int) error {
	if depth > depthMost {
		return fmt.Errorf("page %d lies too deep", id)
	}
	n, err := c.load(id)
	if err != nil {
		return err
	}
	switch n.flags {
	case leafPage:
		return c.leaf(n, low, high, depth)
	case branchPage:
		return c.branch(n, low, high, depth)
	}
	return fmt.Errorf("page %d has type %x", id, n.flags)
}

func (c *checker) branch(n node, low, high []byte, depth int) error {
	if n.count == 0 {
		return fmt.Errorf("page %d has no branches", n.id)
	}
	var key []byte
	var child uint64
	for i := range n.count {
		at := int64(pageHead + i*elementSize)
		e, err := c.bytes(n, at, elementSize) // pos (4), key (4), page (8)
		if err != nil {
			return err
		}
		next, err := c.bytes(n, at+int64(order.Uint32(e)), int64(order.Uint32(e[4:])))
		if err != nil {
			return err
		}
		if err := inOrder(n, i, key, next, low, high); err != nil {
			return err
		}
		if i > 0 {
			if err := c.tree(child, key, next, depth+1); err != nil {
				return err
			}
		}
		key, child = next, order.Uint64(e[8:])
	}
	return c.tree(child, key, high, depth+1)
}

func (c *checker) leaf(n node, low, high []byte, depth int) error {
	var last []byte
	for i := range n.count {
		at := int64(pageHead + i*elementSize)
		e, err := c.bytes(n, at, elementSize) // flags (4), pos (4), key (4), value (4)
		if err != nil {
			return err
		}
		at += int64(order.Uint32(e[4:]))
		keySize, valueSize := int64(order.Uint32(e[8:])), int64(order.Uint32(e[12:]))
		key, err := c.bytes(n, at, keySize)
		if err != nil {
			return err
		}
		if at+keySize+valueSize > n.size {
			return fmt.Errorf("page %d: a value ends outside of it", n.id)
		}
		if err := inOrder(n, i, last, key, low, high); err != nil {
			return err
		}
		last = key
		if order.Uint32(e)&bucketRow == 0 {
			continue
		}
		value, err := c.bytes(n, at+keySize, valueSize)
		if err != nil {
			return err
		}
		if err := c.bucket(n, value, depth); err != nil {
			return err
		}
	}
	return nil
}

// bucket checks the tree of a bucket that a row of n holds.
func (c *checker) bucket(n node, value []byte, depth int) error {
	if len(value) < bucketHead {
		return fmt.Errorf("page %d: a bucket has %d bytes", n.id, len(value))
	}
	if root := order.Uint64(value); root != 0 {
		return c.tree(root, nil, nil, depth+1)
	}
	inline := value[bucketHead:]
	if len(inline) < pageHead {
		return fmt.Errorf("page %d: an inline bucket has %d bytes", n.id, len(value))
	}
	in := node{
		id: order.Uint64(inline), flags: order.Uint16(inline[8:]), count: int(order.Uint16(inline[10:])),
		size: int64(len(inline)), first: inline,
	}
	if in.id != 0 || in.flags != leafPage || depth > depthMost {
		return fmt.Errorf("page %d: an inline bucket has type %x", n.id, in.flags)
	}
	return c.leaf(in, nil, nil, depth+1)
}

// inOrder says whether key, the element i of n, follows last and lies in
// [low, high).
func inOrder(n node, i int, last, key, low, high []byte) error {
	switch {
	case len(key) == 0,
		i > 0 && bytes.Compare(last, key) >= 0,
		low != nil && bytes.Compare(key, low) < 0,
		high != nil && bytes.Compare(key, high) >= 0:
		return fmt.Errorf("page %d: key %d is out of order", n.id, i)
	}
	return nil
}

// free checks the list of free pages: ascending, and none of them reached.
func (c *checker) free(id uint64) error {
	n, err := c.load(id)
	if err != nil {
		return err
	}
	if n.flags != freelistPage {
		return fmt.Errorf("page %d has type %x and should list the free pages", id, n.flags)
	}
	at, count := int64(pageHead), int64(n.count)
	if n.count == 0xffff { // the number does not fit, and comes first
		b, err := c.bytes(n, at, 8)
		if err != nil {
			return err
		}
		at += 8
		if order.Uint64(b) > c.pages {
			return fmt.Errorf("page %d lists more pages than there are", id)
		}
		count = int64(order.Uint64(b))
	}
	list, err := c.bytes(n, at, 8*count)
	if err != nil {
		return err
	}
	last := uint64(1)
	for ; len(list) > 0; list = list[8:] {
		p := order.Uint64(list)
		if p <= last || p >= c.pages || c.used[p/64]&(1<<(p%64)) != 0 {
			return fmt.Errorf("page %d lists page %d as free", id, p)
		}
		last = p
	}
	return nil
}
