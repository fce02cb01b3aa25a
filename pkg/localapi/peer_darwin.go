package localapi

import (
	"net"

	"golang.org/x/sys/unix"
)

// credentials asks the kernel which process connected (LOCAL_PEERPID and
// LOCAL_PEERCRED, unix(4)).
func credentials(c net.Conn) (pid, uid int, err error) {
	err = withFD(c, func(fd int) error {
		var err error
		if pid, err = unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID); err != nil {
			return err
		}
		cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if err == nil {
			uid = int(cred.Uid)
		}
		return err
	})
	return pid, uid, err
}
