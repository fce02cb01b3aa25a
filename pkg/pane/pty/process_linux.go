package pty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lineBytes is how long a line the terminal takes in canonical mode, without
// its newline (N_TTY_BUF_SIZE less one place; drivers/tty/n_tty.c).
const lineBytes = 4095

// bootID changes with each start of the kernel.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})

// statOf reads /proc/PID/stat (proc_pid_stat(5)).
func statOf(pid int) (stat, bool) {
	if pid <= 0 {
		return stat{}, false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	return parseStat(pid, text)
}

// parseStat reads the fields after the command's name, which may hold anything,
// parentheses too.
func parseStat(pid int, text []byte) (stat, bool) {
	end := bytes.LastIndexByte(text, ')')
	fields := bytes.Fields(text[end+1:])
	if end < 0 || len(fields) < 20 {
		return stat{}, false
	}
	session, err1 := strconv.Atoi(string(fields[3]))
	threads, err2 := strconv.Atoi(string(fields[17]))
	start, err3 := strconv.ParseUint(string(fields[19]), 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return stat{}, false
	}
	// A process whose first thread has ended while others run also shows as Z.
	ended := fields[0][0] == 'X' || fields[0][0] == 'Z' && threads <= 1
	return stat{process: process{PID: pid, Start: start}, session: session, ended: ended}, true
}

// sessionMembers are the live processes of a session.
func sessionMembers(session int) []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var members []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, ok := statOf(pid); ok && s.session == session && !s.ended {
			members = append(members, s.process)
		}
	}
	return members
}

// open returns a pidfd of p, or unix.ESRCH where p is gone. The start time is
// read after the descriptor is held, so the number can't change hands between.
func (p process) open() (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, err
	}
	if !p.lives() {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// signal sends sig to p and to nobody else. A process that is gone is no error.
func (p process) signal(sig unix.Signal) {
	if fd, err := p.open(); err == nil {
		unix.PidfdSendSignal(fd, sig, nil, 0)
		unix.Close(fd)
	} else if errors.Is(err, unix.ENOSYS) && p.lives() {
		unix.Kill(p.PID, sig)
	}
}

// awaitEnd blocks until p has ended or ctx has; it holds no thread. It returns
// nil when p has ended.
func awaitEnd(ctx context.Context, p process) error {
	if p.PID <= 0 {
		return nil
	}
	fd, err := p.open()
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return pollEnd(ctx, p)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return pollEnd(ctx, p)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return pollEnd(ctx, p)
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil || p.lives() {
		return pollEnd(ctx, p)
	}
	return nil
}

// peerUID is the user at the other end of a unix socket.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(ctlErr, err); err != nil {
		return -1, fmt.Errorf("read peer credentials: %w", err)
	}
	return int(cred.Uid), nil
}

// canonical says whether the terminal behind master edits lines. On Linux a
// master answers with its slave's settings.
func canonical(master syscall.RawConn) (bool, error) {
	var t *unix.Termios
	var err error
	ctlErr := master.Control(func(fd uintptr) { t, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err = errors.Join(ctlErr, err); err != nil {
		return false, fmt.Errorf("read terminal settings: %w", err)
	}
	return t.Lflag&unix.ICANON != 0, nil
}

// unread is how many typed bytes the program has not read yet, as far as the
// terminal knows; ok is false where that can't be told. What was typed lies in a
// first buffer until a kernel worker moves it to the one that TIOCINQ counts, on
// a busy machine for long; a poll of the slave waits for that worker (n_tty_poll
// in drivers/tty/n_tty.c).
func unread(master syscall.RawConn) (n int, ok bool) {
	master.Control(func(fd uintptr) {
		flags := unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NONBLOCK
		slave, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.TIOCGPTPEER, uintptr(flags))
		if errno != 0 {
			return
		}
		defer unix.Close(int(slave))
		unix.Poll([]unix.PollFd{{Fd: int32(slave), Events: unix.POLLIN}}, 0)
		var err error
		n, err = unix.IoctlGetInt(int(slave), unix.TIOCINQ)
		ok = err == nil
	})
	return n, ok
}

// openFiles lists this process's descriptors.
func openFiles() []int { return listFDs("/proc/self/fd") }

// unmapIdle lets go of the program's own pages. Its start touches most of a
// large program, a holder goes on with little of it, and what it needs again
// comes back from the page cache. Only pages that nobody can have changed are
// let go: a mapping that is written to, or has private pages, stays.
func unmapIdle() {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	var start, end uint64 // of the mapping that the lines are about; 0: stays
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) >= 6 && !strings.HasSuffix(fields[0], ":") { // its head: addresses, rights, offset, device, inode
			start, end = 0, 0
			if !strings.Contains(fields[1], "w") && fields[4] != "0" {
				fmt.Sscanf(fields[0], "%x-%x", &start, &end)
			}
		} else if fields[0] == "Anonymous:" && fields[1] == "0" && end > start {
			unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED)
		}
	}
}
