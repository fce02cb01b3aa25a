package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"fleet/pkg/broker/login"
	"fleet/pkg/fault"
)

// ownName is the user that a broker without users makes itself.
const ownName = "fleet"

// hold takes the directory's lock. It is the kernel's and ends with the process,
// however that ends; the file says who it is, for people.
func (b *Broker) hold() (*os.File, error) {
	f, err := os.OpenFile(b.Files.lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.New(fault.Config, "can't open %s: %v", b.Files.lock(), reason(err))
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		const most = 100 // bytes
		text, _ := io.ReadAll(io.LimitReader(f, most))
		f.Close()
		who := "another process"
		if pid, command, ok := strings.Cut(strings.TrimSpace(string(text)), " "); ok {
			who = fmt.Sprintf("process %s (%s)", pid, command)
		}
		return nil, fault.New(fault.Refused, "%s runs the broker in %s already", who, b.Dir).
			WithHint("end it; or share it: listen on a port there (embedded.listen), and set broker.url here to what %s holds", b.URL())
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d %s\n", os.Getpid(), b.opts.Command)
	}
	if err != nil {
		f.Close()
		return nil, fault.New(fault.Config, "can't lock %s: %v", b.Files.lock(), reason(err))
	}
	return f, nil
}

// ownUser makes the broker's own user where there is no user yet. Its password is
// written down first: a user whose password nobody has ever seen would be in the
// way for good.
func (b *Broker) ownUser() error {
	list, err := b.users.List()
	if err != nil || len(list) > 0 {
		return err
	}
	password := login.Random()
	if err := write(b.Files.password(), password+"\n"); err != nil {
		return err
	}
	_, err = b.users.AddRandom(ownName, password)
	return err
}

// writeURL writes the URL of the first TCP listener, if the own user is there and
// still has the password that it was made with; else it sees to it that none
// stands.
func (b *Broker) writeURL() error {
	if err := os.Remove(b.URL()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Config, "can't remove %s: %v", b.URL(), reason(err))
	}
	if len(b.tcp) == 0 {
		return nil
	}
	text, err := os.ReadFile(b.Files.password())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.New(fault.Config, "can't read %s: %v", b.Files.password(), reason(err))
	}
	password := strings.TrimSpace(string(text))
	if !b.users.Check(ownName, password) {
		return nil
	}
	port := strconv.Itoa(b.tcp[0].Addr().(*net.TCPAddr).Port)
	u := url.URL{Scheme: "amqp", User: url.UserPassword(ownName, password), Host: net.JoinHostPort(b.names[0], port),
		Path: "//", RawPath: "/%2f"}
	if b.encrypted {
		u.Scheme = "amqps"
	}
	if err := write(b.URL(), u.String()+"\n"); err != nil {
		return err
	}
	b.urlFile = b.URL()
	return nil
}

// write replaces a file, whole or not at all, mode 0600.
func write(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600 by contract
	if err != nil {
		return fault.New(fault.Config, "can't write %s: %v", path, reason(err))
	}
	defer os.Remove(f.Name()) // gone already where all went well
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fault.New(fault.Config, "can't write %s: %v", path, reason(err))
	}
	return nil
}
