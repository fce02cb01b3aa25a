package config

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

// Key is one row of the table of configuration keys.
type Key struct {
	// Path is where the key stands: broker.url. HOST and PROFILE stand for names
	// that the user chooses.
	Path string
	Type string
	// Default is how the default is written; empty for none.
	Default string
	Doc     string // one clause
	// Secret: the value is never shown.
	Secret bool

	set func(d *draft, name string, v value) error
	get func(d *draft, name string) string
}

// Variable is the environment variable that sets the key.
func (k Key) Variable() string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(k.Path, ".", "_"))
}

// draft is a configuration in the making: its named parts can be pointed at.
type draft struct {
	Config
	peers    map[identity.Host]*Peer
	profiles map[string]*Profile
}

// peer returns the peer of that name, new if need be.
func (d *draft) peer(name string) *Peer {
	host := identity.Host(name)
	if d.peers[host] == nil {
		d.peers[host] = &Peer{}
	}
	return d.peers[host]
}

// profile returns the profile of that name, new if need be.
func (d *draft) profile(name string) *Profile {
	if d.profiles[name] == nil {
		p := defaultProfile()
		d.profiles[name] = &p
	}
	return d.profiles[name]
}

// newDraft holds nothing but defaults.
func newDraft(dir string) *draft {
	d := &draft{Config: defaults(), peers: map[identity.Host]*Peer{}, profiles: map[string]*Profile{}}
	d.Dir, d.File, d.sources = dir, filepath.Join(dir, fileName), map[string]string{}
	return d
}

// key makes a row. at points at the field that the key sets.
func key[T any](path string, f form[T], doc string, at func(d *draft, name string) *T) Key {
	return Key{
		Path: path, Type: f.name, Doc: doc,
		set: func(d *draft, name string, v value) error {
			parsed, err := f.parse(v)
			if err == nil {
				*at(d, name) = parsed
			}
			return err
		},
		get: func(d *draft, name string) string { return f.show(*at(d, name)) },
	}
}

// day is the unit in which queues live.
const day = 24 * time.Hour

// keys is the one table: what the file may hold, in the manual's order.
var keys = withDefaults([]Key{
	key("host", hostForm, "this host's name in the fleet, one DNS label",
		func(d *draft, _ string) *identity.Host { return &d.Host }),

	key("broker.url", urlForm, "where the AMQP broker is, amqps:// or amqp://; embedded: in the gateway itself; none: this host only",
		func(d *draft, _ string) *Secret { return &d.Broker.URL }),
	key("broker.queue_type", oneOf("quorum is for clustered RabbitMQ", topology.Classic, topology.Quorum), "type of the durable queues",
		func(d *draft, _ string) *topology.QueueType { return &d.Broker.QueueType }),
	// Below a second the client library would take the broker's own instead.
	key("broker.heartbeat", durations(time.Second, 10*time.Minute), "how often a quiet connection is tested",
		func(d *draft, _ string) *time.Duration { return &d.Broker.Heartbeat }),
	key("broker.allow_plaintext", boolForm, "allow amqp:// to a broker that is not on this machine, readable on the way",
		func(d *draft, _ string) *bool { return &d.Broker.AllowPlaintext }),
	key("broker.ca_file", fileForm, "PEM file with the authority that the broker's certificate is checked against",
		func(d *draft, _ string) *string { return &d.Broker.CAFile }),

	key("embedded.listen", listenForm, "addresses HOST:PORT of the embedded broker, beside its unix socket",
		func(d *draft, _ string) *[]string { return &d.Embedded.Listen }),
	key("embedded.certificate", fileForm, "PEM file with its TLS certificate, which a listener that other machines reach needs",
		func(d *draft, _ string) *string { return &d.Embedded.Certificate }),
	key("embedded.key", fileForm, "PEM file with the certificate's private key, mode 0600",
		func(d *draft, _ string) *string { return &d.Embedded.Key }),
	key("embedded.connections", counts(2, 100_000), "connections that it takes at once",
		func(d *draft, _ string) *int { return &d.Embedded.Connections }),
	key("embedded.queues", counts(1, 1_000_000), "queues that it holds",
		func(d *draft, _ string) *int { return &d.Embedded.Queues }),
	key("embedded.bytes", sizes[int64](1<<10, 1<<50), "bytes of messages that it stores before it blocks those who publish",
		func(d *draft, _ string) *int64 { return &d.Embedded.Bytes }),
	key("embedded.message_bytes", sizes[int64](1<<10, 128<<20), "largest message that it takes",
		func(d *draft, _ string) *int64 { return &d.Embedded.MessageBytes }),
	key("embedded.disk_free", sizes[int64](1, 1<<50), "bytes that stay free on its disk; below that it blocks those who publish",
		func(d *draft, _ string) *int64 { return &d.Embedded.DiskFree }),
	key("embedded.metrics", metricsForm, "loopback address HOST:PORT of its metrics for Prometheus; empty: none",
		func(d *draft, _ string) *string { return &d.Embedded.Metrics }),

	key("queues.inbox_messages", counts[int64](1, 1<<40), "messages that an inbox holds on the broker",
		func(d *draft, _ string) *int64 { return &d.Broker.Limits.InboxMessages }),
	key("queues.inbox_bytes", sizes[int64](1, 1<<50), "bytes that an inbox holds on the broker",
		func(d *draft, _ string) *int64 { return &d.Broker.Limits.InboxBytes }),
	key("queues.inbox_ttl", durations(time.Millisecond, 365*day), "how long a message rests before it is a dead letter",
		func(d *draft, _ string) *time.Duration { return &d.Broker.Limits.InboxTTL }),
	key("queues.worker_expires", durations(time.Millisecond, 365*day), "how long a worker's inbox stands without its gateway",
		func(d *draft, _ string) *time.Duration { return &d.Broker.Limits.WorkerExpires }),
	key("queues.puller_expires", durations(time.Millisecond, 365*day), "the same for a main, an orchestrator or an operator",
		func(d *draft, _ string) *time.Duration { return &d.Broker.Limits.PullerExpires }),
	key("queues.dlq_messages", counts[int64](1, 1<<40), "dead letters that the broker keeps",
		func(d *draft, _ string) *int64 { return &d.Broker.Limits.DLQMessages }),
	key("queues.dlq_bytes", sizes[int64](1, 1<<50), "bytes of dead letters that the broker keeps",
		func(d *draft, _ string) *int64 { return &d.Broker.Limits.DLQBytes }),

	key("peers.HOST.keys", publicKeysForm, "the public keys of another host, as its fleet key show prints them",
		func(d *draft, name string) *[]identity.PublicKey { return &d.peer(name).Keys }),

	key("profiles.PROFILE.command", commandForm, "program and arguments of the agent",
		func(d *draft, name string) *[]string { return &d.profile(name).Command }),
	key("profiles.PROFILE.dir", dirForm, "directory in which it starts; empty: the user's home",
		func(d *draft, name string) *string { return &d.profile(name).Dir }),
	secret(key("profiles.PROFILE.env", environmentForm, "environment variables that it gets besides",
		func(d *draft, name string) *map[string]string { return &d.profile(name).Env })),
	key("profiles.PROFILE.env_file", fileForm, "file of KEY=VALUE lines with further variables, mode 0600",
		func(d *draft, name string) *string { return &d.profile(name).EnvFile }),
	key("profiles.PROFILE.evidence", oneOf("this version proves an injection by typing only: evidence: none says that for this program it will do", EvidenceNone),
		"the weakest proof that counts as injected",
		func(d *draft, name string) *string { return &d.profile(name).Evidence }),
	key("profiles.PROFILE.when", oneOf("", WhenIdle, WhenAlways), "inject only when the agent is idle, or always",
		func(d *draft, name string) *When { return &d.profile(name).When }),
	key("profiles.PROFILE.ready.quiet", durations(0, 10*time.Minute), "a started agent is ready once it has printed nothing for this long",
		func(d *draft, name string) *time.Duration { return &d.profile(name).Ready.Quiet }),
	key("profiles.PROFILE.ready.timeout", durations(time.Millisecond, day), "after this the start has failed",
		func(d *draft, name string) *time.Duration { return &d.profile(name).Ready.Timeout }),
	key("profiles.PROFILE.groups", groupsForm, "groups whose broadcasts it gets",
		func(d *draft, name string) *[]string { return &d.profile(name).Groups }),
	key("profiles.PROFILE.role", oneOf("an agent that is started from a profile is a worker", RoleWorker), "what the agent is",
		func(d *draft, name string) *string { return &d.profile(name).Role }),

	key("mailbox.messages", counts(1, 1<<30), "messages that one agent's mailbox holds on this host",
		func(d *draft, _ string) *int { return &d.Mailbox.Messages }),
	key("mailbox.bytes", sizes[int64](1, 1<<50), "bytes that one agent's mailbox holds on this host",
		func(d *draft, _ string) *int64 { return &d.Mailbox.Bytes }),

	// RabbitMQ 4 takes no message over 16 MiB, and text may grow by half when encoded.
	key("limits.text_bytes", sizes(1, 10<<20), "longest text of a message",
		func(d *draft, _ string) *int { return &d.Limits.TextBytes }),

	key("roster.heartbeat", durations(10*time.Millisecond, time.Hour), "how often this host says that it is there, at the fastest",
		func(d *draft, _ string) *time.Duration { return &d.Roster.Heartbeat }),
	key("roster.forget", durations(10*time.Millisecond, 365*day), "how long a silent host stays in the roster",
		func(d *draft, _ string) *time.Duration { return &d.Roster.Forget }),

	key("bounds.receipt", durations(time.Millisecond, time.Hour), "how long a sender waits for the receipt before the outcome is unknown",
		func(d *draft, _ string) *time.Duration { return &d.Bounds.Receipt }),
	key("bounds.confirm", durations(time.Millisecond, time.Hour), "how long a publish waits for the broker's confirm",
		func(d *draft, _ string) *time.Duration { return &d.Bounds.Confirm }),
	key("bounds.reconnect", durations(10*time.Millisecond, time.Hour), "the longest pause between two tries to reach the broker",
		func(d *draft, _ string) *time.Duration { return &d.Bounds.Reconnect }),
	key("bounds.away", durations(time.Millisecond, 365*day), "how long a worker's host may be away before those who wait for its reply are told",
		func(d *draft, _ string) *time.Duration { return &d.Bounds.Away }),
	key("bounds.lease", durations(100*time.Millisecond, time.Hour), "how long a client may take to print messages and acknowledge them before others get them",
		func(d *draft, _ string) *time.Duration { return &d.Bounds.Lease }),
})

// secret marks a row whose value is never shown.
func secret(k Key) Key {
	k.Secret = true
	return k
}

// withDefaults fills in how each default is written.
func withDefaults(table []Key) []Key {
	d := newDraft("/")
	for i, k := range table {
		table[i].Default = k.get(d, "")
	}
	table[0].Default = "first label of the machine's name"
	return table
}

// Keys lists every configuration key in the manual's order.
func Keys() []Key { return slices.Clone(keys) }

var hostForm = scalar("host", identity.ParseHost, func(h identity.Host) string { return string(h) })

var urlForm = scalar("url", parseBrokerURL, func(s Secret) string {
	switch s.text {
	case "":
		return NoURL
	case EmbeddedURL:
		return EmbeddedURL
	}
	return s.String()
})

var listenForm = form[[]string]{
	name: "list of addresses",
	parse: func(v value) ([]string, error) {
		return v.words(func(w string) error { return CheckAddress(w) })
	},
	show: func(list []string) string { return strings.Join(list, " ") },
}

var metricsForm = scalar("address", func(w string) (string, error) {
	if w == "" {
		return "", nil
	}
	if err := CheckAddress(w); err != nil {
		return "", err
	}
	if host, _, err := net.SplitHostPort(w); err != nil || reachable(host) {
		return "", &misfit{message: w + " can be reached from other machines, and metrics have no password", hint: "127.0.0.1:PORT"}
	}
	return w, nil
}, asIs)

// boolForm takes true and false only: YAML's yes, on and y are a known trap.
var boolForm = scalar("true or false", func(w string) (bool, error) {
	if w != "true" && w != "false" {
		return false, &misfit{message: quote(w) + " is neither true nor false"}
	}
	return w == "true", nil
}, strconv.FormatBool)

// fileForm is a path that the reader makes absolute (see draft.finish).
var fileForm = scalar("file", func(w string) (string, error) { return w, nil }, asIs)

// dirForm is absolute or under ~, so that it means the same wherever the
// gateway was started.
var dirForm = scalar("directory", func(w string) (string, error) {
	rest, tilde := strings.CutPrefix(w, "~")
	if tilde && (rest == "" || rest[0] == '/') {
		home, err := passwdHome()
		if err != nil {
			return "", err
		}
		return filepath.Join(home, rest), nil
	}
	if w != "" && !filepath.IsAbs(w) {
		return "", &misfit{message: quote(w) + " is not an absolute path", hint: "start it with / or ~/"}
	}
	return w, nil
}, asIs)

// publicKeysForm never quotes what it refuses: somebody may have pasted the
// wrong half of a key.
var publicKeysForm = form[[]identity.PublicKey]{
	name: "list of keys",
	parse: func(v value) ([]identity.PublicKey, error) {
		var list []identity.PublicKey
		_, err := v.words(func(w string) error {
			k, err := identity.ParsePublicKey(w)
			if err != nil {
				return &misfit{message: "it holds something that is not a public key",
					hint: "a key is one word that starts with ed25519: and is printed by fleet key show"}
			}
			if slices.ContainsFunc(list, func(o identity.PublicKey) bool { return o.ID() == k.ID() }) {
				return &misfit{message: "the key " + k.String() + " is listed twice"}
			}
			list = append(list, k)
			return nil
		})
		return list, err
	},
	show: func(list []identity.PublicKey) string {
		words := make([]string, len(list))
		for i, k := range list {
			words[i] = k.String()
		}
		return strings.Join(words, " ")
	},
}

var commandForm = form[[]string]{
	name: "list of words",
	parse: func(v value) ([]string, error) {
		words, err := v.words(nil)
		if err == nil && (len(words) == 0 || words[0] == "") {
			return nil, &misfit{message: "it names no program"}
		}
		return words, err
	},
	show: showWords,
}

var groupsForm = form[[]string]{
	name: "list of names",
	parse: func(v value) ([]string, error) {
		return v.words(func(w string) error {
			if w == "all" {
				return &misfit{message: "every agent is in the group all without saying so"}
			}
			return identity.CheckName(w)
		})
	},
	show: showWords,
}

// showWords writes a list so that its elements can be told apart.
func showWords(words []string) string {
	shown := make([]string, len(words))
	for i, w := range words {
		shown[i] = quote(w)
	}
	return strings.Join(shown, " ")
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// environmentForm never shows or quotes a value (R31).
var environmentForm = form[map[string]string]{
	name: "section of variables",
	parse: func(v value) (map[string]string, error) {
		pairs, err := v.pairs()
		if err != nil {
			return nil, err
		}
		env := make(map[string]string, len(pairs))
		for _, p := range pairs {
			if !variableName.MatchString(p.name) {
				return nil, &misfit{line: p.line, message: quote(p.name) + " can't be the name of a variable"}
			}
			w, err := p.value.word()
			if err != nil {
				m := *asMisfit(err)
				m.line, m.message = p.line, p.name+": "+m.message
				return nil, &m
			}
			env[p.name] = w
		}
		return env, nil
	},
	show: func(env map[string]string) string {
		names := make([]string, 0, len(env))
		for name := range env {
			names = append(names, name)
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	},
}

// passwdHome is the home directory that the passwd database states for this
// process's user. $HOME is not asked: cron and sudo set it to other things, and
// a command must find the gateway of its own user everywhere (R46, R58).
func passwdHome() (string, error) { return homeOf(os.Getuid()) }

func homeOf(uid int) (string, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil || !filepath.IsAbs(u.HomeDir) {
		return "", &misfit{message: "the passwd database has no home directory for user " + strconv.Itoa(uid),
			hint: "set FLEET_DIR to an absolute path"}
	}
	return u.HomeDir, nil
}
