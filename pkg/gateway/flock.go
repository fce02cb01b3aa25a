package gateway

import (
	"os"

	"golang.org/x/sys/unix"
)

// flock locks f for this process, or fails at once. The lock ends with the
// process, however it ends.
func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
