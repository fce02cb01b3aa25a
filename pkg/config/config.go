// Package config reads fleet.yaml and the FLEET_* variables once into one
// value, says where a host's files live, and edits the peers in the file.
//
// Flag beats environment beats file beats default. Every key is strict: what is
// unknown, misplaced or of the wrong type is a fault that names file, line and
// the likely remedy; nothing is dropped silently. The one table in keys.go
// lists each key with its type, default and meaning.
//
// It does not know what the values are used for, holds no private key, and
// starts nothing.
package config

import (
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

// Config is the whole configuration of one host. It is read once and never
// changes; maps in it are shared and must not be written.
type Config struct {
	Dir      string // FLEET_DIR, absolute
	File     string // fleet.yaml in Dir; it may be missing
	Host     identity.Host
	Broker   Broker
	Embedded Embedded
	Peers    map[identity.Host]Peer // never holds Host itself
	Profiles map[string]Profile
	Mailbox  MailboxLimits
	Limits   envelope.Limits
	Roster   Roster
	Bounds   Bounds

	// sources says where each value that is not a default was set, by key path.
	sources map[string]string
}

// Broker says how the host's gateway reaches the AMQP broker.
type Broker struct {
	URL            Secret // empty: no broker, this host only; see Embedded
	QueueType      topology.QueueType
	Limits         topology.Limits // caps of the durable queues; no field is zero
	Heartbeat      time.Duration
	AllowPlaintext bool   // amqp:// to a host that is not loopback
	CAFile         string // PEM, absolute; empty: the system's authorities
}

// Embedded says whether the gateway is to run a broker of its own.
func (b Broker) Embedded() bool { return b.URL.text == EmbeddedURL }

// Embedded sets the broker that fleet brings along, which `fleet broker run` or a
// gateway whose broker.url is EmbeddedURL runs. No limit is zero.
type Embedded struct {
	Listen []string // HOST:PORT of each TCP listener, port 0 for a free one; empty: the unix socket alone
	// Certificate and Key are PEM files for TLS on every TCP listener, absolute;
	// both empty: no TLS.
	Certificate, Key string
	Connections      int
	Queues           int
	Bytes            int64  // stored; above it publishers are blocked
	MessageBytes     int64  // largest body
	DiskFree         int64  // that must stay free on the file system
	Metrics          string // loopback HOST:PORT for Prometheus; empty: none
}

// Peer is another host that is trusted by its keys.
type Peer struct {
	Keys []identity.PublicKey // one, or several while keys are rotated
}

// Profile is a kind of agent that this host can start.
type Profile struct {
	Command []string          // program and arguments; never empty
	Dir     string            // where it starts, absolute; empty: the user's home
	Env     map[string]string // added to the agent's environment
	EnvFile string            // KEY=VALUE lines, absolute, mode 0600; see Environ
	// Evidence is the weakest proof of an injection that counts as injected.
	Evidence string
	When     When
	Ready    Ready
	Groups   []string
	Role     string
}

// When says whether a text may be injected into an agent that is busy.
type When string

// The policies.
const (
	WhenIdle   When = "idle"
	WhenAlways When = "always"
)

// EvidenceNone accepts an injection that nothing but the terminal's having taken
// the bytes speaks for: right for a plain program without hooks or composer
// (R38).
const EvidenceNone = "none"

// RoleWorker is the role of agents that messages are injected into.
const RoleWorker = "worker"

// Ready says when a started agent counts as ready (R40).
type Ready struct {
	Quiet   time.Duration // it has printed nothing for this long
	Timeout time.Duration // after this the start has failed
}

// MailboxLimits cap one agent's mailbox; a full one leaves the rest on the
// broker (R11).
type MailboxLimits struct {
	Messages int
	Bytes    int64
}

// Roster sets the pace at which hosts hear of each other (R29).
type Roster struct {
	Heartbeat time.Duration // the fastest; it slows as hosts grow
	Forget    time.Duration // how long a silent host is shown as unknown
}

// Bounds limit how long anything is waited for.
type Bounds struct {
	Receipt time.Duration // a sender waits for INJECTED before it says unknown (R10a)
	Confirm time.Duration // a publish waits for the broker's confirm
	// Reconnect is the longest pause between two tries to reach the broker. Many
	// gateways at a short one would delay a broker that is just starting.
	Reconnect time.Duration
	// Away is how long the host of a worker may be away before those who wait
	// for its reply are told: a dead gateway can say nothing itself (R24).
	Away time.Duration
	// Lease is how long a client may take to print messages and acknowledge them
	// before others get them.
	Lease time.Duration
}

// defaults is the configuration of a host whose file is empty.
func defaults() Config {
	return Config{
		Host: DefaultHost(),
		Broker: Broker{
			QueueType: topology.Classic,
			Limits:    topology.DefaultLimits,
			// Short enough that a dead link is noticed while somebody waits, long
			// enough for a loaded machine.
			Heartbeat: 5 * time.Second,
		},
		Embedded: Embedded{Connections: 1000, Queues: 50_000, Bytes: 8 << 30, MessageBytes: 16 << 20, DiskFree: 256 << 20},
		Mailbox:  MailboxLimits{Messages: 10_000, Bytes: 256 << 20},
		Limits:   envelope.DefaultLimits,
		Roster:   Roster{Heartbeat: 5 * time.Second, Forget: 10 * time.Minute},
		Bounds: Bounds{Receipt: 15 * time.Second, Confirm: 20 * time.Second, Reconnect: 30 * time.Second,
			Away: time.Minute, Lease: 20 * time.Second},
	}
}

// defaultProfile is what a profile states nothing of. Command and Evidence have
// no default: a guess at either would be a guess at whether messages arrive.
func defaultProfile() Profile {
	return Profile{
		When: WhenIdle,
		Role: RoleWorker,
		// A start-up screen that pauses for less than this is still starting.
		Ready: Ready{Quiet: 500 * time.Millisecond, Timeout: 30 * time.Second},
	}
}

// Keyring finds the host that a key belongs to, among the peers and this host's
// own key.
func (c Config) Keyring(own identity.PublicKey) envelope.Keyring {
	ring := keyring{own.ID(): {c.Host, own}}
	for host, peer := range c.Peers {
		for _, key := range peer.Keys {
			if _, taken := ring[key.ID()]; !taken {
				ring[key.ID()] = holder{host, key}
			}
		}
	}
	return ring
}

type holder struct {
	host identity.Host
	key  identity.PublicKey
}

type keyring map[identity.KeyID]holder

// Find is envelope.Keyring's.
func (r keyring) Find(id identity.KeyID) (identity.Host, identity.PublicKey, bool) {
	h, ok := r[id]
	return h.host, h.key, ok
}
