package localapi

import (
	"net"

	"golang.org/x/sys/unix"
)

// credentials asks the kernel which process connected (SO_PEERCRED, unix(7)).
func credentials(c net.Conn) (pid, uid int, err error) {
	err = withFD(c, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			pid, uid = int(cred.Pid), int(cred.Uid)
		}
		return err
	})
	return pid, uid, err
}
