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

// Init makes what a host needs in dir, which it makes too (0700): fleet.yaml
// (0600, since the broker's URL may hold a password) and the host's key and
// secret. What stands is kept as it is; created lists the paths that are new.
// An empty host is DefaultHost, an empty brokerURL no broker. It fails with
// fault.Config, and writes nothing, where the file would not load.
func Init(dir string, host identity.Host, brokerURL string) (created []string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("make %s absolute: %w", dir, err)
	}
	if host == "" {
		host = DefaultHost()
	}
	text := []byte(template(host, brokerURL))
	r := newReader(dir)
	r.file(text)
	r.environment(os.Environ())
	r.finish()
	if err := r.fault(); err != nil {
		return nil, err
	}
	if created, err = MakeDir(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, fileName)
	switch err := writeNew(path, text); {
	case err == nil:
		created = append(created, path)
	case !errors.Is(err, fs.ErrExist):
		return created, fault.New(fault.Config, "can't write %s: %s", path, reason(err))
	}
	_, fresh, err := identity.Create(dir)
	if err != nil {
		return created, err
	}
	if fresh {
		created = append(created, filepath.Join(dir, "host.key"))
	}
	return created, nil
}

// MakeDir makes a host's directory, private to its owner, and returns the paths
// that are new. An empty one that stands is made private; one with files in it is
// left alone, because a wrong --dir must not lock others out of theirs. It fails
// with fault.Config, also where others may enter the directory.
func MakeDir(dir string) (created []string, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.New(fault.Config, "can't make %s: %s", dir, reason(err))
		}
		created = append(created, dir)
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) == 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return created, fault.New(fault.Config, "can't make %s private: %s", dir, reason(err))
		}
	}
	return created, checkDir(dir)
}

// template is the first fleet.yaml of a host. Its commented keys show their
// defaults; a test takes the comments off and loads it.
func template(host identity.Host, brokerURL string) string {
	url := "  url: none                # this host only; or embedded, or amqps://USER:PASSWORD@HOST/VHOST"
	switch brokerURL {
	case "", NoURL:
	case EmbeddedURL:
		url = "  url: embedded            # in the gateway itself; or amqps://USER:PASSWORD@HOST/VHOST, or none"
	default:
		url = "  url: " + quoted(brokerURL)
	}
	return strings.NewReplacer("@HOST@", string(host), "@URL@", url).Replace(`# The configuration of this host. Every key can also be set by a variable:
# broker.url by FLEET_BROKER_URL. The gateway checks it when it starts

host: @HOST@

broker:
@URL@
  # queue_type: classic      # or quorum, on clustered RabbitMQ
  # heartbeat: 5s
  # allow_plaintext: false   # true: amqp:// to another machine, readable on the way
  # ca_file: broker-ca.pem   # relative paths start in this file's directory

# The embedded broker. Programs of this user reach it by broker/broker.sock in
# this directory, others only where it listens.
# embedded:
#   listen: []               # [127.0.0.1:5672]; other machines: [HOST:5671] and TLS
#   certificate: broker.pem
#   key: broker.key
#   connections: 1000
#   queues: 50000
#   bytes: 8GiB
#   message_bytes: 16MiB
#   disk_free: 256MiB
#   metrics: 127.0.0.1:9419  # for Prometheus; without a line: none

# The hosts this one trusts. Make the lines with: fleet peer add HOST KEY
peers:
  # beta:
  #   keys: [ed25519:KEY]

# What agents this host can start. For example:
profiles:
  # shell:
  #   command: [bash, -i]
  #   dir: ~/work
  #   evidence: none         # a plain program: the terminal is the only proof
  #   when: idle             # or always
  #   groups: [builders]

# Caps of the queues on the broker. Change them before the queues exist.
# queues:
#   inbox_messages: 10000
#   inbox_bytes: 256MiB
#   inbox_ttl: 96h
#   worker_expires: 240h
#   puller_expires: 1440h

# mailbox:
#   messages: 10000
#   bytes: 256MiB

# limits:
#   text_bytes: 1MiB

# roster:
#   heartbeat: 5s
#   forget: 10m

# bounds:
#   receipt: 15s
#   confirm: 20s
`)
}

// quoted is s as a single-quoted YAML scalar.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
