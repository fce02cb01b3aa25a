//go:build linux && race

package pty

// raceEnabled: the race detector's memory is no measure.
const raceEnabled = true
