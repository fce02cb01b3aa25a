//go:build !linux

package store

import "os"

// preallocate makes the file size bytes long, all zeros.
func preallocate(f *os.File, size int64) error { return f.Truncate(size) }

// datasync brings the file's data to the disk.
func datasync(f *os.File) error { return f.Sync() }
