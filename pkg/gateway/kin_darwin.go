package gateway

import "golang.org/x/sys/unix"

// kin is a process's parent and session (sysctl kern.proc.pid, getsid(2)).
func kin(pid int) (parent, session int, err error) {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0, 0, err
	}
	session, err = unix.Getsid(pid)
	return int(p.Eproc.Ppid), session, err
}
