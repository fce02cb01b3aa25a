package pty

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// lineBytes is how long a line the terminal takes in canonical mode, without
// its newline (MAX_CANON is 1024).
const lineBytes = 1023

// zombie is SZOMB of sys/proc.h.
const zombie = 5

// bootID changes with each start of the kernel.
var bootID = sync.OnceValue(func() string {
	tv, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return ""
	}
	return strconv.FormatInt(tv.Sec, 10)
})

func statOf(pid int) (stat, bool) {
	if pid <= 0 {
		return stat{}, false
	}
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(k.Proc.P_pid) != pid {
		return stat{}, false
	}
	return statFrom(k), true
}

// statFrom takes the process group for the session: the system does not tell
// a session's number, and what an agent starts without job control stays in
// its group.
func statFrom(k *unix.KinfoProc) stat {
	start := uint64(k.Proc.P_starttime.Sec)*1_000_000 + uint64(k.Proc.P_starttime.Usec)
	return stat{process: process{PID: int(k.Proc.P_pid), Start: start},
		session: int(k.Eproc.Pgid), ended: k.Proc.P_stat == zombie}
}

// sessionMembers are the live processes of a process group.
func sessionMembers(session int) []process {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", session)
	if err != nil {
		return nil
	}
	var members []process
	for i := range all {
		if s := statFrom(&all[i]); !s.ended {
			members = append(members, s.process)
		}
	}
	return members
}

// signal sends sig to p. A process that is gone is no error.
func (p process) signal(sig unix.Signal) {
	if p.lives() {
		unix.Kill(p.PID, sig)
	}
}

// awaitEnd blocks until p has ended or ctx has. It returns nil when p has ended.
func awaitEnd(ctx context.Context, p process) error { return pollEnd(ctx, p) }

// peerUID is the user at the other end of a unix socket.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Xucred
	ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	})
	if err = errors.Join(ctlErr, err); err != nil {
		return -1, fmt.Errorf("read peer credentials: %w", err)
	}
	return int(cred.Uid), nil
}

// canonical says whether the terminal behind master edits lines.
func canonical(master syscall.RawConn) (bool, error) {
	var t *unix.Termios
	var err error
	ctlErr := master.Control(func(fd uintptr) { t, err = unix.IoctlGetTermios(int(fd), unix.TIOCGETA) })
	if err = errors.Join(ctlErr, err); err != nil {
		return false, fmt.Errorf("read terminal settings: %w", err)
	}
	return t.Lflag&unix.ICANON != 0, nil
}

// unread can't be told on this system.
func unread(syscall.RawConn) (n int, ok bool) { return 0, false }

// openFiles lists this process's descriptors.
func openFiles() []int { return listFDs("/dev/fd") }

// unmapIdle has no counterpart here.
func unmapIdle() {}
