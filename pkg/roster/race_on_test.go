//go:build race

package roster

// The simulation has one goroutine, so the race detector only makes it slow.
const racing = true
