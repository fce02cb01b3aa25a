package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/bus/proxy"
	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/identity"
	"fleet/pkg/roster"
	"fleet/pkg/topology"
	"fleet/pkg/trace"
)

// brokerURL is the first of FLEET_TEST_BROKERS ("name=url,..."); without one the
// test is skipped, or fails where one is required.
func brokerURL(t testing.TB) string {
	t.Helper()
	_, url, ok := strings.Cut(strings.Split(os.Getenv("FLEET_TEST_BROKERS"), ",")[0], "=")
	if ok {
		return url
	}
	if os.Getenv("FLEET_TEST_REQUIRE_BROKER") != "" {
		t.Fatal("FLEET_TEST_BROKERS names no broker; .ci/test starts one")
	}
	t.Skip("needs a broker: FLEET_TEST_BROKERS")
	return ""
}

// fleet is many hosts in one process, each with all of a gateway that speaks of
// presence: its own connections, queues, key and roster. They have no sockets,
// mailboxes or panes.
type fleet struct {
	t     testing.TB
	hosts []*Gateway
	end   context.CancelFunc
	ended sync.WaitGroup
}

// newFleet makes n hosts that trust each other. The prefix keeps their names
// apart from those of other runs on the same broker.
func newFleet(t testing.TB, url string, n, agentsEach int, heartbeat time.Duration) *fleet {
	t.Helper()
	f := &fleet{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	f.end = cancel
	t.Cleanup(f.stop)
	prefix := strings.ToLower(fmt.Sprintf("p%x", time.Now().UnixNano()&0xffffff))
	peers := map[identity.Host]config.Peer{}
	for i := range n {
		signer, err := identity.NewSigner(nil)
		if err != nil {
			t.Fatal(err)
		}
		host := identity.Host(fmt.Sprintf("%s-%d", prefix, i))
		g := &Gateway{version: "test", log: slog.New(slog.DiscardHandler), now: time.Now, ctx: ctx, incarnation: 1, signer: signer,
			agents: newAgents(), live: newQueue[live]()}
		g.cfg = config.Config{Host: host, Limits: envelope.DefaultLimits, Roster: config.Roster{Heartbeat: heartbeat, Forget: time.Hour}}
		g.layout = topology.Layout{Host: host, Type: topology.Classic, Limits: topology.DefaultLimits}
		g.layout.Limits.InboxTTL, g.layout.Limits.PullerExpires = time.Minute, 5*time.Minute // what is left on a shared broker goes
		g.sends = &sends{g: g, active: map[string]*sending{}}
		if g.audit, err = trace.Open(filepath.Join(t.TempDir(), "audit"), host, g.log); err != nil {
			t.Fatal(err)
		}
		peers[host] = config.Peer{Keys: []identity.PublicKey{signer.Public()}}
		f.hosts = append(f.hosts, g)
	}
	for i, g := range f.hosts {
		g.cfg.Peers = peers
		g.keys = g.cfg.Keyring(g.signer.Public())
		g.who = newPresence(g)
		for j := range agentsEach {
			g.who.update(api.Agent{GID: identity.NewGID(), Name: fmt.Sprintf("worker-%d-%d", i, j), Role: api.Worker, State: "idle"})
		}
		g.connect(url)
	}
	return f
}

func (g *Gateway) connect(url string) {
	g.bus = bus.New(bus.Config{URL: url, Layout: g.layout, Heartbeat: 10 * time.Second, Name: "presence " + string(g.cfg.Host), Log: g.log})
	g.attachHost()
}

// stop ends every host.
func (f *fleet) stop() {
	f.end()
	f.ended.Wait()
}

// start runs every host.
func (f *fleet) start() {
	for _, g := range f.hosts {
		f.ended.Go(func() { _ = g.bus.Run(g.ctx) }) // nil by contract
		f.ended.Go(func() { g.who.run(g.ctx) })
	}
}

// complete says how many agents host g knows to be on live hosts.
func complete(g *Gateway) int {
	n := 0
	for _, h := range g.who.roster.Hosts(time.Now()) {
		if h.State != roster.Unknown {
			n += h.Agents
		}
	}
	return n
}

// awaitView waits until every host sees want agents.
func (f *fleet) awaitView(want int, bound time.Duration) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	for _, g := range f.hosts {
		for {
			changed := g.who.changed.next()
			if complete(g) == want {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				f.t.Fatalf("after %s host %s sees %d of %d agents; its link: %s %s %v", bound, g.cfg.Host, complete(g), want,
					g.bus.State().Link, g.bus.State().Reason, g.bus.State().Unserved)
			}
		}
	}
}

// TestP5_FleetOnABroker starts hosts x agents on one broker at once and waits for
// everybody's complete view. The time is a figure for BenchmarkP5_ColdStart; this
// asserts that the view comes, at a size that the race detector can bear.
func TestP5_FleetOnABroker(t *testing.T) {
	broker := brokerURL(t)
	const hosts, agentsEach = 12, 20
	f := newFleet(t, broker, hosts, agentsEach, 5*time.Second)
	f.start()
	f.awaitView(hosts*agentsEach, 2*time.Minute)
}

// BenchmarkP5_ColdStart is SPEC §10's P5: 100 hosts x 100 agents on one broker,
// in one process, from a cold start of all of them to the complete view of the
// last. The ratio is to two heartbeats, which the interval of a fleet of that
// size makes 20 s.
func BenchmarkP5_ColdStart(b *testing.B) {
	broker := brokerURL(b)
	const hosts, agentsEach = 100, 100
	var took time.Duration
	for b.Loop() {
		f := newFleet(b, broker, hosts, agentsEach, 5*time.Second)
		began := time.Now()
		f.start()
		f.awaitView(hosts*agentsEach, 5*time.Minute)
		took += time.Since(began)
		f.stop()
	}
	interval := max(5*time.Second, time.Duration(hosts*hosts)*time.Millisecond)
	each := took / time.Duration(b.N)
	b.ReportMetric(each.Seconds(), "s/view")
	b.ReportMetric(each.Seconds()/(2*interval).Seconds(), "ratio")
}

// TestR29_OwnLinkCutAgesNobody cuts one host's link for several heartbeats: its
// view of the others must not call any of them silent, and be whole again soon.
func TestR29_OwnLinkCutAgesNobody(t *testing.T) {
	broker := brokerURL(t)
	const hosts, each, heartbeat = 6, 5, 500 * time.Millisecond
	f := newFleet(t, broker, hosts, each, heartbeat)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p, err := proxy.New(ctx, "127.0.0.1:0", proxyTarget(t, broker))
	if err != nil {
		t.Fatal(err)
	}
	cut := f.hosts[0]
	cut.connect(p.URL(broker))
	f.start()
	f.awaitView(hosts*each, time.Minute)

	p.Refuse(true)
	p.Cut()
	awaitLink(t, cut, func(l bus.Link) bool { return l != bus.Up })
	<-time.After(5 * heartbeat) // the very thing that is tested: silence for longer than three heartbeats
	cut.who.roster.Tick(time.Now())
	for _, h := range cut.who.roster.Hosts(time.Now()) {
		if h.Why == roster.WhySilent || h.Why == roster.WhyLeft {
			t.Errorf("%s is called %s, although the own link is down", h.Host, h.Why)
		}
	}
	p.Refuse(false)
	f.awaitView(hosts*each, time.Minute)
}

func proxyTarget(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func awaitLink(t *testing.T, g *Gateway, is func(bus.Link) bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		changed := g.bus.Changed()
		if is(g.bus.State().Link) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("the link stays %s", g.bus.State().Link)
		}
	}
}

// TestP5_HeartbeatSizeIsConstant compares what a host with no agents publishes
// as a heartbeat with what one with 10,000 does.
func TestP5_HeartbeatSizeIsConstant(t *testing.T) {
	size := func(agents int) int {
		r := roster.New(roster.Self{Host: "alpha", Incarnation: 1, Version: "test"}, roster.Options{})
		now := time.Now()
		r.LinkUp(now)
		for i := range agents {
			if err := r.SetLocal(now, roster.Agent{GID: identity.NewGID(), Name: fmt.Sprintf("w%d", i), Role: roster.Worker, State: roster.Idle}); err != nil {
				t.Fatal(err)
			}
		}
		// The changes go out first; the heartbeats after them are what is measured.
		last := 0
		for range 60 {
			do, next := r.Tick(now)
			for _, d := range do {
				if d.Kind == envelope.Presence {
					last = len(d.Body)
				}
			}
			now = next.Add(time.Millisecond)
		}
		return last
	}
	none, many := size(0), size(10_000)
	t.Logf("a heartbeat's body has %d bytes with no agent and %d with 10,000", none, many)
	if many > none+40 || many > 512 { // the counters have more digits
		t.Errorf("a heartbeat grows with the agents: %d bytes with none, %d with 10,000", none, many)
	}
}

// TestR19_MintedIDs: an id proves sender, recipient and host, and nothing else.
func TestR19_MintedIDs(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := identity.Create(dir); err != nil {
		t.Fatal(err)
	}
	tokens, err := identity.LoadTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{tokens: tokens}
	a, b, c := identity.NewGID(), identity.NewGID(), identity.NewGID()
	seen := map[envelope.ID]bool{}
	for range 10_000 {
		id := g.mintID(a, b, "beta")
		if seen[id] {
			t.Fatalf("%s was minted twice", id)
		}
		seen[id] = true
		if parsed, ok := envelope.ParseID(string(id)); !ok || parsed != id {
			t.Fatalf("%s is not a message id", id)
		}
		if !g.minted(id, a, b, "beta") {
			t.Fatalf("%s is not known again", id)
		}
	}
	id := g.mintID(a, b, "beta")
	for name, wrong := range map[string]bool{
		"other recipient": g.minted(id, a, c, "beta"),
		"other sender":    g.minted(id, c, b, "beta"),
		"other host":      g.minted(id, a, b, "gamma"),
		"foreign id":      g.minted(envelope.NewID(), a, b, "beta"),
		"no id":           g.minted("x", a, b, "beta"),
	} {
		if wrong {
			t.Errorf("%s: accepted", name)
		}
	}
}
