package roster

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// The simulation: rosters that exchange their Do's in virtual time through a
// broker that delays, drops and duplicates.

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

type node struct {
	*Roster
	host identity.Host
	up   bool // its packets pass
	dead bool // it neither hears nor ticks
	// What the broker moved for it.
	sent, got           int
	sentBytes, gotBytes int
	queries             int
	events              []Event
	warnings            Warnings
}

type packet struct {
	at    time.Time
	order int
	from  *node
	to    *node
	do    Do
}

type packets []packet

func (p packets) Len() int { return len(p) }
func (p packets) Less(i, j int) bool {
	if p[i].at.Equal(p[j].at) {
		return p[i].order < p[j].order
	}
	return p[i].at.Before(p[j].at)
}
func (p packets) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *packets) Push(x any)   { *p = append(*p, x.(packet)) }
func (p *packets) Pop() any {
	old := *p
	last := old[len(old)-1]
	*p = old[:len(old)-1]
	return last
}

type sim struct {
	t       testing.TB
	now     time.Time
	rand    *rand.Rand
	nodes   []*node
	byHost  map[identity.Host]*node
	flying  packets
	order   int
	latency time.Duration
	jitter  time.Duration
	loss    float64
	copies  float64
	record  []packet // everything published, if keep
	keep    bool
	poll    time.Duration
	drop    func(from *node, do Do) bool
}

func newSim(t testing.TB, seed uint64) *sim {
	return &sim{t: t, now: epoch, rand: rand.New(rand.NewPCG(seed, 1)), byHost: map[identity.Host]*node{},
		latency: 2 * time.Millisecond, jitter: 3 * time.Millisecond}
}

func (s *sim) add(host identity.Host, inc uint64, agents int) *node {
	n := &node{host: host}
	n.Roster = s.roster(host, inc, agents)
	s.nodes = append(s.nodes, n)
	s.byHost[host] = n
	return n
}

func (s *sim) roster(host identity.Host, inc uint64, agents int) *Roster {
	r := New(Self{Host: host, Incarnation: inc, Version: "1.2.3", Profiles: []string{"claude", "codex"}},
		Options{Rand: rand.New(rand.NewPCG(s.rand.Uint64(), 2))})
	for i := range agents {
		if err := r.SetLocal(s.now, worker(host, i)); err != nil {
			s.t.Fatal(err)
		}
	}
	return r
}

// worker is the i-th agent of host; the same i gives the same gid.
func worker(host identity.Host, i int) Agent {
	return Agent{GID: gidOf(host, i), Name: fmt.Sprintf("worker-%d", i), Role: Worker, State: Idle,
		Profile: "claude", Groups: []string{"builders"}, Since: epoch}
}

func gidOf(host identity.Host, i int) identity.GID {
	return identity.GID(envelope.DeriveID(string(host), fmt.Sprint(i)))
}

func (s *sim) connect(n *node) {
	n.up = true
	n.LinkUp(s.now)
}

// cut stops n's packets; told says whether it notices.
func (s *sim) cut(n *node, told bool) {
	n.up = false
	if told {
		n.LinkDown(s.now)
	}
}

func (s *sim) heal(n *node, told bool) {
	n.up = true
	if told {
		n.LinkUp(s.now)
	}
}

func (s *sim) kill(n *node) { n.up, n.dead = false, true }

func (s *sim) publish(from *node, dos []Do) {
	for _, do := range dos {
		if !from.up {
			continue
		}
		if s.keep {
			s.record = append(s.record, packet{at: s.now, from: from, do: do})
		}
		from.sent++
		from.sentBytes += wireBytes(do)
		if do.Kind == envelope.Query {
			from.queries++
		}
		if s.drop != nil && s.drop(from, do) {
			continue
		}
		if do.To != "" {
			if to := s.byHost[do.To]; to != nil {
				s.send(from, to, do)
			}
			continue
		}
		for _, to := range s.nodes {
			s.send(from, to, do)
		}
	}
}

func (s *sim) send(from, to *node, do Do) {
	n := 1
	if s.loss > 0 && s.rand.Float64() < s.loss {
		n = 0
	} else if s.copies > 0 && s.rand.Float64() < s.copies {
		n = 2
	}
	for range n {
		s.order++
		at := s.now.Add(s.latency + time.Duration(s.rand.Int64N(int64(s.jitter)+1)))
		heap.Push(&s.flying, packet{at: at, order: s.order, from: from, to: to, do: do})
	}
}

func (s *sim) deliver(p packet) {
	if !p.to.up || p.to.dead {
		return
	}
	p.to.got++
	p.to.gotBytes += wireBytes(p.do)
	dos, err := hear(p.to.Roster, s.now, p.from.host, p.do)
	if err != nil {
		p.to.warnings = append(p.to.warnings, err.(Warnings)...)
	}
	s.publish(p.to, dos)
}

// hear hands do to r as a gateway would.
func hear(r *Roster, now time.Time, from identity.Host, do Do) ([]Do, error) {
	switch do.Kind {
	case envelope.Presence:
		return r.HearPresence(now, from, do.Body)
	case envelope.Query:
		return r.HearQuery(now, from, do.ID, do.Body)
	default:
		return r.HearState(now, from, do.Re, do.Body)
	}
}

// run lets time pass until the given moment after the epoch, or until done,
// which is asked every s.poll.
func (s *sim) run(until time.Duration, done func() bool) {
	end := epoch.Add(until)
	ask := s.now
	for {
		at := end
		if len(s.flying) > 0 && s.flying[0].at.Before(at) {
			at = s.flying[0].at
		}
		for _, n := range s.nodes {
			if next := n.Next(); !n.dead && next.Before(at) {
				at = next
			}
		}
		if !at.Before(end) {
			s.now = end
			return
		}
		s.now = later(s.now, at)
		for len(s.flying) > 0 && !s.flying[0].at.After(s.now) {
			s.deliver(heap.Pop(&s.flying).(packet))
		}
		for _, n := range s.nodes {
			if n.dead || n.Next().After(s.now) {
				continue
			}
			dos, next := n.Tick(s.now)
			if !next.After(s.now) {
				s.t.Fatalf("%s: Tick at %s wants to be called again at once", n.host, s.now.Sub(epoch))
			}
			s.publish(n, dos)
			n.events = append(n.events, n.Events()...)
		}
		if done != nil && !s.now.Before(ask) {
			if ask = s.now.Add(s.poll); done() {
				return
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// complete says whether every living node sees every agent of the others alive.
func (s *sim) complete(agents int) bool {
	living := 0
	for _, n := range s.nodes {
		if !n.dead {
			living++
		}
	}
	for _, n := range s.nodes {
		if n.dead {
			continue
		}
		if n.remoteAgents() != (living-1)*agents || n.count(Live, s.now) != living-1 {
			return false
		}
	}
	return true
}

func (n *node) remoteAgents() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.remote
}

// count counts the hosts in a state.
func (n *node) count(state string, now time.Time) int {
	c := 0
	for _, h := range n.Hosts(now) {
		if h.State == state {
			c++
		}
	}
	return c
}

func (n *node) happened(kind EventKind) int {
	n.events = append(n.events, n.Events()...)
	c := 0
	for _, e := range n.events {
		if e.Kind == kind {
			c++
		}
	}
	return c
}

func (n *node) state(host identity.Host, now time.Time) string {
	v, ok := n.Host(host, now)
	if !ok {
		return "absent"
	}
	return v.State
}

// overhead is what sealing and AMQP add to a body: measured on an envelope, and
// 200 bytes for method, routing key, properties and frames.
var overhead = func() int {
	signer, err := identity.NewSigner(nil)
	if err != nil {
		panic(err)
	}
	body := encode(query{About: About})
	e := envelope.Envelope{Kind: envelope.Presence, From: identity.OperatorGID("host-042"), FromHost: "host-042",
		To: "broadcast.all", Trace: envelope.NewTrace(), Body: body}
	e, sealed, err := envelope.Seal(e, signer, envelope.DefaultLimits)
	if err != nil {
		panic(err)
	}
	headers := len(envelope.HeaderKey) + len(sealed.Key) + len(envelope.HeaderSignature) + len(sealed.Signature) +
		len(envelope.HeaderTrace) + len(e.Trace.Parent(e.ID))
	return len(sealed.Bytes) - len(body) + headers + 200
}()

func wireBytes(do Do) int { return len(do.Body) + overhead }
