package topology_test

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

const gid identity.GID = "1f0c9a52-7a55-4b1e-9c58-2d6f6f0c8f3a"

var (
	rabbit = topology.DialectOf("RabbitMQ", "3.10.8")
	lavin  = topology.DialectOf("LavinMQ", "2.9.1")
)

func layout(t topology.QueueType) topology.Layout {
	return topology.Layout{Host: "alpha", Type: t, Limits: topology.DefaultLimits}
}

// queues are all queues of a host.
func queues(l topology.Layout, d topology.Dialect) []topology.Queue {
	return []topology.Queue{
		l.DLQ(d), l.Lock(), l.Control(d), l.Roster(), l.Inbox(d, gid, false, []string{"builders"}), l.Inbox(d, gid, true, nil),
	}
}

func everyLayout(f func(topology.Layout, topology.Dialect)) {
	for _, kind := range []topology.QueueType{topology.Classic, topology.Quorum} {
		for _, d := range []topology.Dialect{rabbit, lavin} {
			f(layout(kind), d)
		}
	}
}

func TestR1_Exchanges(t *testing.T) {
	want := []topology.Exchange{{Name: "bridge.dlx", Type: "fanout"}, {Name: "bridge.msg", Type: "topic"},
		{Name: "bridge.roster", Type: "topic"}, {Name: "bridge.control", Type: "direct"}}
	if got := topology.Exchanges(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestR1_NamesAndBindings(t *testing.T) {
	everyLayout(func(l topology.Layout, d topology.Dialect) {
		want := []struct {
			name     string
			bindings []topology.Binding
		}{
			{"bridge.dlq", []topology.Binding{{Exchange: "bridge.dlx"}}},
			{"live.alpha", nil},
			{"control.alpha", []topology.Binding{{Exchange: "bridge.control", Key: "alpha"}}},
			{"roster.alpha", []topology.Binding{{Exchange: "bridge.roster", Key: "roster.#"}}},
			{"agent.alpha." + string(gid) + ".inbox.v2", []topology.Binding{{Exchange: "bridge.msg", Key: string(gid)},
				{Exchange: "bridge.msg", Key: "broadcast.all"}, {Exchange: "bridge.msg", Key: "broadcast.builders"}}},
			{"agent.alpha." + string(gid) + ".inbox.v2", []topology.Binding{{Exchange: "bridge.msg", Key: string(gid)},
				{Exchange: "bridge.msg", Key: "broadcast.all"}}},
		}
		for i, q := range queues(l, d) {
			if q.Name != want[i].name || !reflect.DeepEqual(q.Bindings, want[i].bindings) {
				t.Errorf("%s on %s: got %s %v, want %+v", l.Type, d.Product, q.Name, q.Bindings, want[i])
			}
		}
	})
	if k := topology.LiveKey(gid); k != "live."+string(gid) {
		t.Errorf("live key %s", k)
	}
	if k := topology.RosterKey("alpha"); k != "roster.alpha" {
		t.Errorf("roster key %s", k)
	}
}

// A login may touch its own host's queues and no others: no name of one host
// is within the pattern of another, also if one name starts with the other.
func TestR3_NamesKeepHostsApart(t *testing.T) {
	pattern := func(h identity.Host) *regexp.Regexp {
		return regexp.MustCompile(`^(agent\.` + string(h) + `\..*|control\.` + string(h) + `|roster\.` + string(h) + `|live\.` + string(h) + `)$`)
	}
	for _, host := range []identity.Host{"alpha", "alpha-2", "a", "alph"} {
		l := layout(topology.Classic)
		l.Host = host
		for _, q := range queues(l, rabbit)[1:] {
			if !pattern(host).MatchString(q.Name) {
				t.Errorf("%s is outside its own host's pattern", q.Name)
			}
			for _, other := range []identity.Host{"alpha", "alpha-2", "a", "alph", "inbox"} {
				if other != host && pattern(other).MatchString(q.Name) {
					t.Errorf("%s of %s is within the pattern of %s", q.Name, host, other)
				}
			}
		}
	}
}

// The client library cuts a Go int to 32 bits, so every number is an int64.
func TestR1_ArgumentsAreInt64(t *testing.T) {
	everyLayout(func(l topology.Layout, d topology.Dialect) {
		l.Limits.InboxBytes, l.Limits.DLQBytes = 6<<30, 5<<30
		for _, q := range queues(l, d) {
			for name, v := range q.Args {
				switch v.(type) {
				case int64, string, bool:
				default:
					t.Errorf("%s: %s is a %T", q.Name, name, v)
				}
			}
		}
	})
	l := layout(topology.Classic)
	l.Limits.InboxBytes = 6 << 30
	if got := l.Inbox(rabbit, gid, true, nil).Args; got["x-max-length-bytes"] != int64(6<<30) || got["x-expires"] != int64(60*24*3600*1000) {
		t.Errorf("got %v", got)
	}
}

func TestR1_InboxArguments(t *testing.T) {
	l := layout(topology.Classic)
	l.Limits = topology.Limits{InboxMessages: 1, InboxBytes: 2, InboxTTL: 3 * time.Second, WorkerExpires: 4 * time.Second, PullerExpires: 5 * time.Second}
	want := map[string]any{
		"x-queue-type": "classic", "x-dead-letter-exchange": "bridge.dlx", "x-max-length": int64(1), "x-max-length-bytes": int64(2),
		"x-overflow": "reject-publish", "x-message-ttl": int64(3000), "x-expires": int64(4000),
	}
	q := l.Inbox(rabbit, gid, false, nil)
	if !reflect.DeepEqual(q.Args, want) || !q.Durable || q.Exclusive || q.AutoDelete || !q.LoneConsumer {
		t.Errorf("got %+v, want %v", q, want)
	}
	if got := l.Inbox(rabbit, gid, true, nil).Args["x-expires"]; got != int64(5000) {
		t.Errorf("a puller's inbox expires after %v", got)
	}
}

// The host's lock is exclusive to its connection, and goes with it.
func TestR7_LockQueue(t *testing.T) {
	q := layout(topology.Quorum).Lock()
	if !q.Exclusive || !q.AutoDelete || q.Durable || q.Args["x-queue-type"] != nil {
		t.Errorf("got %+v", q)
	}
}

// One consumer per durable queue: exclusive consume where the broker honours
// it, single active consumer on quorum queues, which ignore it.
func TestR7_OneConsumer(t *testing.T) {
	everyLayout(func(l topology.Layout, d topology.Dialect) {
		single := l.Type == topology.Quorum && d.Product == "RabbitMQ"
		for _, q := range []topology.Queue{l.Control(d), l.Inbox(d, gid, true, nil), l.Inbox(d, gid, false, nil)} {
			if _, has := q.Args["x-single-active-consumer"]; has != single || q.LoneConsumer == single {
				t.Errorf("%s on %s: %s: %v, lone %v", l.Type, d.Product, q.Name, q.Args, q.LoneConsumer)
			}
		}
	})
}

func TestR5_QueueTypeIsStatedButToLavinMQ(t *testing.T) {
	everyLayout(func(l topology.Layout, d topology.Dialect) {
		for _, q := range queues(l, d) {
			stated, has := q.Args["x-queue-type"]
			want := string(l.Type)
			if q.Name == topology.DLQ {
				want = "classic" // always
			}
			if expected := q.Durable && d.Product == "RabbitMQ"; has != expected || expected && stated != want {
				t.Errorf("%s on %s: %s states %v", l.Type, d.Product, q.Name, stated)
			}
		}
	})
}

func TestR1_DLQIsAlwaysTheSame(t *testing.T) {
	q := layout(topology.Quorum).DLQ(rabbit)
	if !reflect.DeepEqual(q, layout(topology.Classic).DLQ(rabbit)) {
		t.Error("the shared queue depends on a host's configuration of its own")
	}
	want := map[string]any{"x-queue-type": "classic", "x-max-length": int64(100_000), "x-max-length-bytes": int64(1 << 30), "x-overflow": "drop-head"}
	if !reflect.DeepEqual(q.Args, want) || !q.Durable || q.LoneConsumer {
		t.Errorf("got %+v", q)
	}
}

func TestR5_Dialect(t *testing.T) {
	for product, lavin := range map[string]bool{"RabbitMQ": false, "LavinMQ": true, "lavinmq": true, "": false, "fleet": false} {
		d := topology.DialectOf(product, "1")
		if d.NoQueueType != lavin || d.FullIsReturnedToo != lavin || d.Product != product || d.Version != "1" {
			t.Errorf("%q: %+v", product, d)
		}
	}
}

// A queue that expires drops its messages without dead-lettering them.
func TestR6_ExpiryIsMuchLongerThanTheTTL(t *testing.T) {
	l := topology.DefaultLimits
	if l.WorkerExpires < 2*l.InboxTTL || l.PullerExpires < 2*l.WorkerExpires {
		t.Errorf("got %+v", l)
	}
}

func TestLimitsOr(t *testing.T) {
	if got := (topology.Limits{}).Or(topology.DefaultLimits); got != topology.DefaultLimits {
		t.Errorf("got %+v", got)
	}
	own := topology.Limits{InboxMessages: 1, InboxBytes: 2, InboxTTL: 3, WorkerExpires: 4, PullerExpires: 5, DLQMessages: 6, DLQBytes: 7}
	if got := own.Or(topology.DefaultLimits); got != own {
		t.Errorf("got %+v", got)
	}
	v := reflect.ValueOf(own)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not tested", v.Type().Field(i).Name)
		}
	}
}

// Two calls share no table: a caller may add to what it got.
func TestQueuesAreFresh(t *testing.T) {
	l := layout(topology.Classic)
	groups := []string{"a"}
	q := l.Inbox(rabbit, gid, true, groups)
	q.Args["x-max-length"] = int64(7)
	q.Bindings[0].Key = "changed"
	again := l.Inbox(rabbit, gid, true, groups)
	if again.Args["x-max-length"] == int64(7) || again.Bindings[0].Key == "changed" {
		t.Error("a queue is shared")
	}
}

// No short string of the protocol is over its 255 bytes, at the longest names.
func TestR22_NamesFit(t *testing.T) {
	l := layout(topology.Classic)
	l.Host = identity.Host(strings.Repeat("h", 63))
	for _, q := range queues(l, rabbit) {
		keys := []string{q.Name, topology.RosterKey(l.Host), topology.LiveKey(gid)}
		for _, b := range q.Bindings {
			keys = append(keys, b.Exchange, b.Key)
		}
		if i := slices.IndexFunc(keys, func(s string) bool { return len(s) > 255 }); i >= 0 {
			t.Errorf("%s has %d bytes", keys[i], len(keys[i]))
		}
	}
}
