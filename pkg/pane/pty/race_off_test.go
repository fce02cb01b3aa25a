//go:build linux && !race

package pty

const raceEnabled = false
