// Package topology is what stands on the broker: the name, kind and arguments
// of every exchange, queue and binding, as data.
//
// It does not talk to a broker. What differs between brokers is a Dialect,
// chosen once from what the broker says of itself.
package topology

import (
	"strings"
	"time"

	"fleet/pkg/identity"
)

// The exchanges (R1).
const (
	Messages    = "bridge.msg"
	RosterTopic = "bridge.roster"
	Control     = "bridge.control"
	DeadLetters = "bridge.dlx"
)

// DLQ is the queue of dead letters.
const DLQ = "bridge.dlq"

// layoutVersion ends the name of every queue whose arguments may change between
// releases: a broker refuses to redeclare a queue with others (R4).
const layoutVersion = ".v2"

// Exchange is one exchange to declare. All are durable.
type Exchange struct {
	Name string
	Type string // topic, direct or fanout
}

// Binding routes Key of Exchange into a queue.
type Binding struct {
	Exchange string
	Key      string
}

// Queue is one queue to declare. Numbers in Args are int64: the client library
// cuts an int to 32 bits.
type Queue struct {
	Name       string
	Durable    bool
	Exclusive  bool // to its connection
	AutoDelete bool
	Args       map[string]any
	Bindings   []Binding
	// LoneConsumer asks for an exclusive consumer. It is false where the queue's
	// own arguments see to that (quorum: single active consumer).
	LoneConsumer bool
}

// Route says where a message is published.
type Route struct {
	Exchange   string
	Key        string
	Mandatory  bool
	Persistent bool
	TTL        time.Duration // 0: none
}

// QueueType is the type of the durable queues (R5).
type QueueType string

// The types.
const (
	Classic QueueType = "classic"
	Quorum  QueueType = "quorum"
)

// Dialect is what one make of broker wants differently.
type Dialect struct {
	Product string // as the broker names itself
	Version string
	// NoQueueType: the broker has one type of queue and compares every argument,
	// so the type is not stated (LavinMQ).
	NoQueueType bool
	// FullIsReturnedToo: a full queue answers with a return and a nack, so a
	// return means "no such queue" only when the confirm is an ack (LavinMQ).
	FullIsReturnedToo bool
}

// DialectOf chooses the dialect from the broker's server properties.
func DialectOf(product, version string) Dialect {
	d := Dialect{Product: product, Version: version}
	if strings.EqualFold(product, "LavinMQ") {
		d.NoQueueType = true
		d.FullIsReturnedToo = true
	}
	return d
}

// Limits are the caps of the durable queues. A zero value takes the default.
type Limits struct {
	InboxMessages int64
	InboxBytes    int64
	InboxTTL      time.Duration // how long a message rests before it is dead-lettered
	WorkerExpires time.Duration // how long an inbox without its gateway stands
	PullerExpires time.Duration
	DLQMessages   int64
	DLQBytes      int64
}

// DefaultLimits lets a host be away over a long weekend without losing a brief.
// The expiries are much longer than the TTL, because an expiring queue drops its
// messages without dead-lettering them (R6).
var DefaultLimits = Limits{
	InboxMessages: 10_000,
	InboxBytes:    256 << 20,
	InboxTTL:      4 * 24 * time.Hour,
	WorkerExpires: 10 * 24 * time.Hour,
	PullerExpires: 60 * 24 * time.Hour,
	DLQMessages:   100_000,
	DLQBytes:      1 << 30,
}

// Or fills zero fields of l from d.
func (l Limits) Or(d Limits) Limits {
	pick := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	pick(&l.InboxMessages, d.InboxMessages)
	pick(&l.InboxBytes, d.InboxBytes)
	pick((*int64)(&l.InboxTTL), int64(d.InboxTTL))
	pick((*int64)(&l.WorkerExpires), int64(d.WorkerExpires))
	pick((*int64)(&l.PullerExpires), int64(d.PullerExpires))
	pick(&l.DLQMessages, d.DLQMessages)
	pick(&l.DLQBytes, d.DLQBytes)
	return l
}

// Layout makes the queues of one host.
type Layout struct {
	Host   identity.Host
	Type   QueueType
	Limits Limits
}

// Exchanges are the shared exchanges, the dead letters' first, because queues
// refer to it.
func Exchanges() []Exchange {
	return []Exchange{
		{DeadLetters, "fanout"},
		{Messages, "topic"},
		{RosterTopic, "topic"},
		{Control, "direct"},
	}
}

// liveTTL bounds what waits in the live queue while its gateway is busy.
const liveTTL = 2 * time.Minute

// rosterCap bounds the roster queue: losing heartbeats is harmless, and a lost
// change is noticed by its gap.
const rosterCap = 10_000

// DLQ is the shared queue of dead letters: always classic, capped, the oldest
// dropped first.
func (l Layout) DLQ(d Dialect) Queue {
	return Queue{
		Name:    DLQ,
		Durable: true,
		Args: l.typed(d, Classic, map[string]any{
			"x-max-length":       l.Limits.DLQMessages,
			"x-max-length-bytes": l.Limits.DLQBytes,
			"x-overflow":         "drop-head",
		}),
		Bindings: []Binding{{DeadLetters, ""}},
	}
}

// Lock is the queue live.<host>: it takes live messages, and being exclusive to
// one connection it is the host's lock (R7). An agent's live key is bound while
// the agent is there.
func (l Layout) Lock() Queue {
	return Queue{
		Name:       "live." + string(l.Host),
		Exclusive:  true,
		AutoDelete: true,
		Args:       map[string]any{"x-message-ttl": liveTTL.Milliseconds()},
	}
}

// LiveKey is the routing key of live messages to an agent.
func LiveKey(gid identity.GID) string { return "live." + string(gid) }

// RosterKey is the routing key of a host's presence.
func RosterKey(host identity.Host) string { return "roster." + string(host) }

// Control is the queue of requests to the host's gateway.
func (l Layout) Control(d Dialect) Queue {
	q := Queue{
		Name:    "control." + string(l.Host),
		Durable: true,
		Args: l.typed(d, l.Type, map[string]any{
			"x-dead-letter-exchange": DeadLetters,
			"x-message-ttl":          l.Limits.InboxTTL.Milliseconds(),
			"x-expires":              l.Limits.PullerExpires.Milliseconds(),
		}),
		Bindings: []Binding{{Control, string(l.Host)}},
	}
	return l.alone(d, q)
}

// Roster is the queue in which the gateway hears the others.
func (l Layout) Roster() Queue {
	return Queue{
		Name:       "roster." + string(l.Host),
		Exclusive:  true,
		AutoDelete: true,
		Args: map[string]any{
			"x-max-length":  int64(rosterCap),
			"x-overflow":    "drop-head",
			"x-message-ttl": liveTTL.Milliseconds(),
		},
		Bindings: []Binding{{RosterTopic, "roster.#"}},
	}
}

// Inbox is an agent's durable queue. A puller (main, orchestrator, operator)
// has it longer without its gateway than a worker.
func (l Layout) Inbox(d Dialect, gid identity.GID, puller bool, groups []string) Queue {
	expires := l.Limits.WorkerExpires
	if puller {
		expires = l.Limits.PullerExpires
	}
	bindings := []Binding{{Messages, string(gid)}, {Messages, "broadcast.all"}}
	for _, g := range groups {
		bindings = append(bindings, Binding{Messages, "broadcast." + g})
	}
	q := Queue{
		Name:    "agent." + string(l.Host) + "." + string(gid) + ".inbox" + layoutVersion,
		Durable: true,
		Args: l.typed(d, l.Type, map[string]any{
			"x-dead-letter-exchange": DeadLetters,
			"x-max-length":           l.Limits.InboxMessages,
			"x-max-length-bytes":     l.Limits.InboxBytes,
			"x-overflow":             "reject-publish",
			"x-message-ttl":          l.Limits.InboxTTL.Milliseconds(),
			"x-expires":              expires.Milliseconds(),
		}),
		Bindings: bindings,
	}
	return l.alone(d, q)
}

// typed states the queue's type, always, because a broker's default may be
// another one; except to a broker that has no types.
func (l Layout) typed(d Dialect, t QueueType, args map[string]any) map[string]any {
	if !d.NoQueueType {
		args["x-queue-type"] = string(t)
	}
	return args
}

// alone sees to one consumer (R7): an exclusive one on classic queues; on quorum
// queues, which ignore that, by single active consumer.
func (l Layout) alone(d Dialect, q Queue) Queue {
	if l.Type == Quorum && !d.NoQueueType {
		q.Args["x-single-active-consumer"] = true
		return q
	}
	q.LoneConsumer = true
	return q
}
