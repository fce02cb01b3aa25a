package pty

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// process is one process beyond doubt: a pid is used again, a pid with its
// start time is not, within one run of the kernel.
type process struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"` // the system's own unit
}

// processOf is the process that has pid now.
func processOf(pid int) (process, bool) {
	s, ok := statOf(pid)
	return s.process, ok
}

// lives says whether p runs or is stopped. A zombie does not live: under an
// init that reaps nothing it would stand for ever.
func (p process) lives() bool {
	s, ok := statOf(p.PID)
	return ok && s.process == p && !s.ended
}

// stat is what the kernel says about a process.
type stat struct {
	process
	session int
	ended   bool // a zombie, or dead
}

// members are the live processes of the session that p leads or led. They are
// found also when p itself is gone: a session's number is not given to a new
// process while the session has a member.
func (p process) members() []process {
	if p.PID <= 0 {
		return nil
	}
	if now, ok := statOf(p.PID); ok && now.process != p {
		return nil // the number was given away, so none of ours is left
	}
	return sessionMembers(p.PID)
}

// The steps of ending a session, and how long each may take. An agent gets the
// time to save its work after the hang-up.
var endSteps = []struct {
	signal unix.Signal
	grace  time.Duration
}{
	{unix.SIGHUP, 2 * time.Second},
	{unix.SIGTERM, 2 * time.Second},
	{unix.SIGKILL, 5 * time.Second},
}

// endSession ends everything in leader's session: hang-up, terminate, kill. It
// returns whether nothing is left. When ctx ends it goes on with the kill at
// once, because half an end is worse than a rude one.
func endSession(ctx context.Context, leader process) bool {
	for _, step := range endSteps {
		left := leader.members()
		for _, m := range left {
			m.signal(step.signal)
			m.signal(unix.SIGCONT) // a stopped process takes no other signal
		}
		if len(left) == 0 {
			return true
		}
		if step.signal == unix.SIGKILL {
			ctx = context.WithoutCancel(ctx)
		}
		if awaitEmpty(ctx, leader, step.grace) {
			return true
		}
	}
	return false
}

// awaitEmpty waits until leader's session is empty, for at most grace.
func awaitEmpty(ctx context.Context, leader process, grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	// Most often the leader is all there is, and its end needs no polling.
	awaitEnd(ctx, leader)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if len(leader.members()) == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// pollEnd is awaitEnd without help from the kernel.
func pollEnd(ctx context.Context, p process) error {
	for wait := 5 * time.Millisecond; p.lives(); wait = min(2*wait, 500*time.Millisecond) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	return nil
}
