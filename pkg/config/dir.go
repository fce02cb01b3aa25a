package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// fileName is the configuration file in a host's directory.
const fileName = "fleet.yaml"

// mostSocketPath is the longest path of a unix socket, in bytes: macOS takes 104
// with the closing NUL, Linux 108.
const mostSocketPath = 103

// FindDir is the host's directory, absolute: FLEET_DIR, else .fleet under home.
// It fails with fault.Config where neither is known.
func FindDir(getenv func(string) string, home func() (string, error)) (string, error) {
	if dir := getenv("FLEET_DIR"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("make FLEET_DIR absolute: %w", err)
		}
		return abs, nil
	}
	h, err := home()
	if err != nil {
		m := asMisfit(err)
		return "", fault.New(fault.Config, "%s", m.message).WithHint("%s", m.hint)
	}
	return filepath.Join(h, ".fleet"), nil
}

// Paths says where a host's files live.
type Paths struct{ dir string }

// Paths are c's.
func (c Config) Paths() Paths { return Paths{c.Dir} }

// Socket is the gateway's unix socket; its path is short enough for one.
func (p Paths) Socket() string { return filepath.Join(p.dir, "gateway.sock") }

// Lock is the file that the gateway locks, and that holds its process id.
func (p Paths) Lock() string { return filepath.Join(p.dir, "gateway.lock") }

// Mailbox is the host's one durable file.
func (p Paths) Mailbox() string { return filepath.Join(p.dir, "mailbox.db") }

// Audit is the current audit log; rotated ones lie beside it.
func (p Paths) Audit() string { return filepath.Join(p.dir, "audit.jsonl") }

// Log is where a gateway without a terminal logs.
func (p Paths) Log() string { return filepath.Join(p.dir, "gateway.log") }

// Panes is the directory of the pty backend.
func (p Paths) Panes() string { return filepath.Join(p.dir, "panes") }

// Spool is the directory of texts too long to type.
func (p Paths) Spool() string { return filepath.Join(p.dir, "spool") }

// Broker is the directory of the embedded broker. The user's other programs find
// its URL there, too.
func (p Paths) Broker() string { return filepath.Join(p.dir, "broker") }

// checkDir sees to it that dir is there, is nobody else's business (R46), and
// leaves room for the socket's name.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.Config, "there is no directory %s", dir).WithHint("fleet init makes it")
	case err != nil:
		return fault.New(fault.Config, "can't look at %s: %s", dir, reason(err))
	case !info.IsDir():
		return fault.New(fault.Config, "%s is not a directory", dir)
	case info.Mode().Perm()&0o077 != 0:
		return fault.New(fault.Config, "%s has mode %04o, so other users can reach the gateway", dir, info.Mode().Perm()).
			WithHint("chmod 700 %s", dir)
	}
	if socket := (Paths{dir}).Socket(); len(socket) > mostSocketPath {
		return fault.New(fault.Config, "the socket's path %s has %d bytes, a unix socket takes %d", socket, len(socket), mostSocketPath).
			WithHint("choose a shorter FLEET_DIR")
	}
	return nil
}

// DefaultHost is the first label of the machine's name, lower-cased and made
// valid; "host" where nothing of it is left.
func DefaultHost() identity.Host {
	name, err := os.Hostname()
	if err != nil {
		name = ""
	}
	return hostFrom(name)
}

func hostFrom(name string) identity.Host {
	label, _, _ := strings.Cut(strings.ToLower(name), ".")
	label = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, label)
	const most = 63
	label = strings.Trim(label[:min(len(label), most)], "-")
	if label == "" {
		return "host"
	}
	return identity.Host(label)
}
