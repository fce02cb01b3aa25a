package roster

import (
	"fmt"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

func hostName(i int) identity.Host { return identity.Host(fmt.Sprintf("host-%03d", i)) }

// start connects n hosts within a second of each other.
func start(s *sim, hosts, agents int) {
	for i := range hosts {
		s.add(hostName(i), 1, agents)
	}
	for i, n := range s.nodes {
		s.run(time.Duration(i)*time.Second/time.Duration(hosts), nil)
		s.connect(n)
	}
}

func TestR29_P5_HundredHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred hosts")
	}
	hosts := 100
	if racing {
		hosts = 30
	}
	s := newSim(t, 1)
	s.poll = 50 * time.Millisecond
	start(s, hosts, 100)
	connected := s.now
	s.run(s.now.Sub(epoch)+2*5*time.Second, func() bool { return s.flying.Len() == 0 && s.complete(100) })
	if !s.complete(100) {
		t.Fatalf("the view is not complete two heartbeats after the last host came (%d agents on the first)",
			s.nodes[0].remoteAgents())
	}
	t.Logf("complete %s after the last host came", s.now.Sub(connected))

	// Settle, then count.
	s.run(60*time.Second, nil)
	for _, n := range s.nodes {
		n.sent, n.got, n.sentBytes, n.gotBytes, n.queries = 0, 0, 0, 0, 0
	}
	s.run(160*time.Second, nil)
	deliveries := 0
	for _, n := range s.nodes {
		deliveries += n.got
		if perSecond := (n.sentBytes + n.gotBytes) / 100; perSecond > 10<<10 {
			t.Errorf("%s moves %d bytes a second in the steady state", n.host, perSecond)
		}
		if n.queries > 0 {
			t.Errorf("%s still asks in the steady state: %d queries", n.host, n.queries)
		}
	}
	t.Logf("%d deliveries/s in all; the first host: %d B/s, %.2f messages/s in, %.2f out",
		deliveries/100, (s.nodes[0].sentBytes+s.nodes[0].gotBytes)/100, float64(s.nodes[0].got)/100, float64(s.nodes[0].sent)/100)
	if deliveries/100 > 1050 {
		t.Errorf("%d deliveries a second", deliveries/100)
	}
	if !s.complete(100) {
		t.Error("the view is not complete in the steady state")
	}
}

func TestR29_LossyBroker(t *testing.T) {
	seeds := uint64(5)
	if racing {
		seeds = 1
	}
	for seed := range seeds {
		s := newSim(t, seed)
		s.poll = 100 * time.Millisecond
		s.loss, s.copies, s.jitter = 0.2, 0.2, 200*time.Millisecond
		start(s, 12, 20)
		// Everybody changes something each second for a minute.
		for i := range 60 {
			s.run(time.Duration(i+1)*time.Second, nil)
			for _, n := range s.nodes {
				a := worker(n.host, s.rand.IntN(20))
				a.State = []string{Idle, Busy}[i%2]
				a.Since = s.now
				if err := n.SetLocal(s.now, a); err != nil {
					t.Fatal(err)
				}
			}
		}
		// Then the broker gets better and all must agree.
		s.loss = 0
		s.run(3*time.Minute, func() bool { return s.now.Sub(epoch) > 90*time.Second && s.agree() })
		if !s.agree() {
			t.Fatalf("seed %d: the views differ after repair", seed)
		}
	}
}

// agree says whether all views show the same agents in the same states.
func (s *sim) agree() bool {
	want := fmt.Sprint(s.nodes[0].Agents(s.now))
	for _, n := range s.nodes[1:] {
		if fmt.Sprint(n.Agents(s.now)) != want {
			return false
		}
	}
	return true
}

func TestR29_LostDeltaIsRepaired(t *testing.T) {
	s := newSim(t, 3)
	start(s, 3, 5)
	s.run(8*time.Second, nil)
	lost := 0
	s.drop = func(_ *node, do Do) bool {
		if do.Kind == envelope.Presence && kindOf(do) == isChange {
			lost++
			return true
		}
		return false
	}
	a, b := s.nodes[0], s.nodes[1]
	s.nodes[0].RemoveLocal(s.now, gidOf(a.host, 1))
	s.run(10*time.Second, nil)
	s.drop = nil
	s.run(20*time.Second, func() bool { _, err := b.Resolve("worker-1@"+string(a.host), s.now); return err != nil })
	if lost == 0 {
		t.Fatal("no delta was lost")
	}
	if _, err := b.Resolve("worker-1@"+string(a.host), s.now); err == nil {
		t.Error("the removed agent is still there after a lost delta")
	}
}

func TestR29_DeltaTravelsWithinASecond(t *testing.T) {
	s := newSim(t, 3)
	start(s, 3, 2)
	s.run(8*time.Second, nil)
	a, b := s.nodes[0], s.nodes[1]
	queries := b.queries
	changed := s.now
	for i := range 50 {
		if err := a.SetLocal(s.now, worker(a.host, 10+i)); err != nil {
			t.Fatal(err)
		}
	}
	sent := a.sent
	s.run(20*time.Second, func() bool { _, err := b.Resolve("worker-59@"+string(a.host), s.now); return err == nil })
	if took := s.now.Sub(changed); took > 1200*time.Millisecond {
		t.Errorf("a new agent took %s to be seen", took)
	}
	if a.sent-sent > 2 {
		t.Errorf("50 changes at once cost %d messages", a.sent-sent)
	}
	if b.queries != queries {
		t.Error("a delta in sequence caused a query")
	}
}

func TestR29_DeadHostAges(t *testing.T) {
	for _, hosts := range []int{2, 3, 10} {
		t.Run(fmt.Sprint(hosts, "_hosts"), func(t *testing.T) {
			s := newSim(t, 4)
			start(s, hosts, 3)
			s.run(10*time.Second, nil)
			dead := s.nodes[1]
			s.kill(dead)
			watch := s.nodes[0]
			v, _ := watch.Host(dead.host, s.now)
			heard := s.now.Add(-time.Duration(v.Heard))
			s.run(40*time.Second, func() bool { return watch.happened(HostUnknown) > 0 })
			if silence := s.now.Sub(heard); silence < 15*time.Second || silence > 23*time.Second {
				t.Errorf("given up after %s of silence", silence)
			}
			s.run(40*time.Second, nil)
			if got := watch.state(dead.host, s.now); got != Unknown {
				t.Errorf("the dead host is %s", got)
			}
			if got := watch.happened(HostUnknown); got != 1 {
				t.Errorf("%d hosts given up, want 1", got)
			}
			a, err := watch.Resolve("worker-1@"+string(dead.host), s.now)
			if err != nil || a.State != Unknown {
				t.Errorf("its agent: %v %v", a.State, err)
			}
			s.run(40*time.Second+11*time.Minute, nil)
			if got := watch.state(dead.host, s.now); got != "absent" {
				t.Errorf("the dead host is %s after ten minutes", got)
			}
			if got := watch.happened(HostRemoved); got != 1 {
				t.Errorf("%d hosts removed, want 1", got)
			}
			if owner, ok := watch.Owner(gidOf(dead.host, 1)); !ok || owner != dead.host {
				t.Errorf("the owner of a removed agent is %q", owner)
			}
		})
	}
}

// All peers die in one instant: the own heartbeat still comes back, so it is
// they who are gone, and they are given up, one interval later.
func TestR29_AllPeersDie(t *testing.T) {
	s := newSim(t, 5)
	start(s, 9, 1)
	s.run(10*time.Second, nil)
	for _, n := range s.nodes[1:] {
		s.kill(n)
	}
	s.run(60*time.Second, nil)
	n := s.nodes[0]
	if n.happened(LinkDoubted) == 0 || n.happened(LinkProven) == 0 {
		t.Error("the own link was not doubted first")
	}
	if got := n.happened(HostUnknown); got != 8 {
		t.Errorf("%d of 8 dead hosts given up", got)
	}
}

// The own link is cut and nobody says so: no heartbeat of our own comes back.
func TestR14_R29_C29_OwnLinkIsBlamed(t *testing.T) {
	for _, told := range []bool{false, true} {
		t.Run(fmt.Sprint("told_", told), func(t *testing.T) {
			s := newSim(t, 6)
			s.keep = true
			start(s, 9, 2)
			s.run(10*time.Second, nil)
			n := s.nodes[0]
			s.cut(n, told)
			if told && n.count(Unknown, s.now) != 8 {
				t.Error("R14: remote hosts do not read unknown while the link is down")
			}
			s.run(20*time.Minute, nil)
			for _, p := range s.record {
				// A recording of our own heartbeat proves nothing about the link.
				if p.from == n && p.at.Before(epoch.Add(10*time.Second)) {
					_, _ = hear(n.Roster, s.now, n.host, p.do)
				}
			}
			s.run(30*time.Minute, nil)
			if got := n.happened(HostUnknown) + n.happened(HostRemoved); got != 0 {
				t.Errorf("%d verdicts on others while the own link was cut", got)
			}
			if n.count(Unknown, s.now) != 8 {
				t.Error("R14: remote hosts do not read unknown behind a cut link")
			}
			if got := s.nodes[1].happened(HostUnknown); got != 1 {
				t.Errorf("the others gave up %d hosts, want the one that is cut off", got)
			}
			s.heal(n, told)
			healed := s.now
			s.run(30*time.Minute+12*time.Second, func() bool { return s.complete(2) })
			if !s.complete(2) {
				t.Fatalf("C29: the roster is not complete again")
			}
			t.Logf("complete %s after the cut", s.now.Sub(healed))
			s.run(33*time.Minute, nil)
			if got := n.happened(HostUnknown); got != 0 {
				t.Errorf("%d hosts given up after the link came back", got)
			}
		})
	}
}

// After a cut that was noticed, each host has one interval of its own to be
// heard, also when most have been.
func TestR29_OneIntervalAfterLinkUp(t *testing.T) {
	r := big(8, 1)
	r.Tick(epoch)
	r.LinkDown(epoch.Add(time.Second))
	up := epoch.Add(10 * time.Minute)
	r.LinkUp(up)
	for i := range 6 {
		rec := r.records[hostName(i)]
		beat := presence{Is: isBeat, Seq: 1, Hash: zeroHash, EveryMS: 10_000}
		if _, err := r.HearPresence(up, rec.host, encode(beat)); err != nil {
			t.Fatal(err)
		}
	}
	unknown := func() int {
		n := 0
		for _, e := range r.Events() {
			if e.Kind == HostUnknown {
				n++
			}
		}
		return n
	}
	for at := up; at.Before(up.Add(10 * time.Second)); at = at.Add(time.Second) {
		r.Tick(at)
		if n := unknown(); n > 0 {
			t.Fatalf("%d hosts given up %s after the link came back", n, at.Sub(up))
		}
	}
	r.Tick(up.Add(10 * time.Second))
	if n := unknown(); n != 2 {
		t.Errorf("%d hosts given up after an interval, want the 2 that are silent", n)
	}
}

// A host restarts while the others' links are fine.
func TestR29_Restart(t *testing.T) {
	s := newSim(t, 7)
	start(s, 4, 3)
	s.run(10*time.Second, nil)
	n := s.nodes[2]
	n.Roster = s.roster(n.host, 2, 1)
	s.connect(n)
	s.run(13*time.Second, nil)
	v, _ := s.nodes[0].Host(n.host, s.now)
	if v.Incarnation != 2 || v.Agents != 1 || v.State != Live {
		t.Errorf("after a restart: %+v", v)
	}
	for _, o := range s.nodes {
		if o.warnings.Alarm() {
			t.Errorf("%s: alarm over a restart: %v", o.host, o.warnings)
		}
	}
}

func TestR29_Leave(t *testing.T) {
	s := newSim(t, 8)
	start(s, 3, 1)
	s.run(10*time.Second, nil)
	n := s.nodes[1]
	s.publish(n, n.Leave(s.now))
	s.run(10100*time.Millisecond, nil)
	v, _ := s.nodes[0].Host(n.host, s.now)
	if v.State != Unknown || v.Why != WhyLeft {
		t.Errorf("after leaving: %s, %s", v.State, v.Why)
	}
	if s.nodes[0].happened(HostLeft) != 1 {
		t.Error("no event")
	}
	s.run(30*time.Second, nil)
	if got := n.sent; got == 0 || n.Version() == 0 {
		t.Error("nothing was sent at all")
	}
	n.LinkUp(s.now)
	s.run(35*time.Second, nil)
	if got := s.nodes[0].state(n.host, s.now); got != Live {
		t.Errorf("a host that came back is %s", got)
	}
}

func TestR29_IntervalGrowsWithHosts(t *testing.T) {
	for _, c := range []struct {
		hosts int
		want  time.Duration
	}{{1, 5 * time.Second}, {70, 5 * time.Second}, {100, 10 * time.Second}, {1000, 1000 * time.Second}} {
		r := New(Self{Host: "here", Incarnation: 1}, Options{})
		for i := 1; i < c.hosts; i++ {
			r.record(hostName(i)).known = true
		}
		if got := r.interval(); got != c.want {
			t.Errorf("%d hosts: interval %s, want %s", c.hosts, got, c.want)
		}
	}
}
