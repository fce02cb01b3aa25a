package roster

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

func TestR23_Resolve(t *testing.T) {
	s, a, b := pair(t)
	set := func(n *node, ag Agent) {
		t.Helper()
		if err := n.SetLocal(s.now, ag); err != nil {
			t.Fatal(err)
		}
	}
	eve := Agent{GID: "beef1111-7a55-4b1e-9c58-2d6f6f0c8f3a", Name: "eve", Role: Main, State: Idle}
	twin := Agent{GID: "beef2222-7a55-4b1e-9c58-2d6f6f0c8f3a", Name: "twin", Role: Worker, State: Busy}
	set(a, eve)
	set(a, twin)
	set(b, Agent{GID: "0abc3333-7a55-4b1e-9c58-2d6f6f0c8f3a", Name: "beef1", Role: Worker, State: Idle})
	set(b, Agent{GID: "0abc4444-7a55-4b1e-9c58-2d6f6f0c8f3a", Role: Worker, State: Idle})
	s.run(13*time.Second, nil)
	for address, want := range map[string]any{
		"eve":                                    eve.GID,
		"eve@" + string(a.host):                  eve.GID,
		"eve@" + string(b.host):                  fault.NotFound,
		"eve@nowhere":                            fault.NotFound,
		"nobody":                                 fault.NotFound,
		string(eve.GID):                          eve.GID,
		"BEEF1111":                               eve.GID,
		"beef1111-7a55-4b1e":                     eve.GID,
		"beef":                                   fault.Ambiguous,
		"bee":                                    fault.NotFound, // too short for an id, so a name
		"beef1":                                  fault.Ambiguous,
		"beef11":                                 eve.GID,
		"0abc4":                                  identity.GID("0abc4444-7a55-4b1e-9c58-2d6f6f0c8f3a"),
		"worker-0":                               fault.Ambiguous, // on both hosts
		"worker-0@host-001":                      gidOf("host-001", 0),
		"operator@host-000":                      identity.OperatorGID("host-000"),
		"operator@host-001":                      identity.OperatorGID("host-001"),
		"operator@nowhere":                       fault.NotFound,
		"":                                       fault.Usage,
		"two words":                              fault.Usage,
		"eve@" + "not.a.host":                    fault.Usage,
		"*@host-000":                             fault.Usage,
		strings.Repeat("x", 10e3):                fault.Usage,
		string(gidOf("x", 1)):                    fault.NotFound,
		string(identity.OperatorGID("host-001")): identity.OperatorGID("host-001"),
		"beef1111-7a55-4b1e-9c58-2d6f6f0c8f3a@host-000": fault.Usage,
	} {
		for _, n := range s.nodes {
			got, err := n.Resolve(address, s.now)
			switch want := want.(type) {
			case identity.GID:
				if err != nil || got.GID != want {
					t.Errorf("%s on %s: %s, %v", address, n.host, got.GID, err)
				}
			case fault.Kind:
				if !errors.Is(err, want) {
					t.Errorf("%s on %s: %v %v, want %s", address, n.host, got, err, want)
				}
			}
		}
	}
	_, err := a.Resolve("worker-0", s.now)
	f := fault.From(err)
	if len(f.Also) != 2 || !strings.Contains(f.Also[0], "worker-0@host-000") || f.Hint == "" {
		t.Errorf("the candidates are %v", f.Also)
	}
	// C55: what the roster shows can be used as it stands.
	for _, ag := range a.Agents(s.now) {
		if got, err := b.Resolve(ag.Address(), s.now); err != nil || got.GID != ag.GID {
			t.Errorf("address %s: %v", ag.Address(), err)
		}
	}
	a.RemoveLocal(s.now, eve.GID)
	if _, err := a.Resolve(string(eve.GID), s.now); !errors.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "host-000") {
		t.Errorf("a gone agent: %v", err)
	}
}

func TestR23_NameIsUniqueOnItsHost(t *testing.T) {
	s, a, _ := pair(t)
	double := worker(a.host, 9)
	double.Name = "worker-0"
	if err := a.SetLocal(s.now, double); !errors.Is(err, fault.Refused) {
		t.Errorf("a taken name: %v", err)
	}
	a.RemoveLocal(s.now, gidOf(a.host, 0))
	if err := a.SetLocal(s.now, double); err != nil {
		t.Errorf("a name that became free: %v", err)
	}
}

func TestR19_OwnerIsTheFirstHost(t *testing.T) {
	s := newSim(t, 20)
	start(s, 3, 2)
	s.run(10*time.Second, nil)
	a, b, c := s.nodes[0], s.nodes[1], s.nodes[2]
	mine := gidOf(a.host, 1)
	// b claims an agent of a, while it lives and after it is gone.
	steal := worker(a.host, 1)
	steal.Name = "stolen"
	if err := b.SetLocal(s.now, steal); !errors.Is(err, fault.Conflict) {
		t.Errorf("claimed: %v", err)
	}
	b.put(b.here, Agent{GID: mine, Name: "stolen", Role: Worker, Host: b.host, State: Idle})
	b.change(mine, false, s.now)
	for _, when := range []string{"while it lives", "after its removal"} {
		s.run(s.now.Sub(epoch)+5*time.Second, nil)
		if h, ok := c.Owner(mine); !ok || h != a.host {
			t.Errorf("%s: the owner is %q", when, h)
		}
		if _, err := c.Resolve("stolen", s.now); err == nil {
			t.Errorf("%s: the second claimant's entry stands", when)
		}
		if !c.warnings.Alarm() {
			t.Errorf("%s: no alarm", when)
		}
		c.warnings = nil
		a.RemoveLocal(s.now, mine)
		s.run(s.now.Sub(epoch)+2*time.Second, nil)
		b.put(b.here, Agent{GID: mine, Name: "stolen", Role: Worker, Host: b.host, State: Busy})
		b.change(mine, false, s.now)
	}
	// The owner may announce it again.
	if err := a.SetLocal(s.now, worker(a.host, 1)); err != nil {
		t.Errorf("the owner can't announce its agent again: %v", err)
	}
	// Past the longest time a message can rest, the id is free.
	later := s.now.Add(16 * 24 * time.Hour)
	c.drop(c.records[a.host], gidOf(a.host, 0), s.now)
	c.prune(later)
	if _, ok := c.Owner(gidOf(a.host, 0)); ok {
		t.Error("a tomb outlived its time")
	}
}

func TestR19_OperatorBelongsToItsHost(t *testing.T) {
	s := newSim(t, 21)
	start(s, 2, 1)
	s.run(10*time.Second, nil)
	a, b := s.nodes[0], s.nodes[1]
	// b claims the operator's id of a host that nobody knows yet.
	stolen := identity.OperatorGID("late")
	b.put(b.here, Agent{GID: stolen, Name: "thief", Role: Worker, Host: b.host, State: Idle})
	b.change(stolen, false, s.now)
	s.run(12*time.Second, nil)
	if h, _ := a.Owner(stolen); h != b.host {
		t.Fatalf("owner %q", h)
	}
	late := s.add("late", 1, 0)
	if err := late.SetLocal(s.now, Agent{GID: stolen, Name: Operator, Role: Operator, State: Idle}); err != nil {
		t.Fatal(err)
	}
	s.connect(late)
	s.run(20*time.Second, nil)
	if h, _ := a.Owner(stolen); h != "late" {
		t.Errorf("the operator of late belongs to %q", h)
	}
	if !a.warnings.Alarm() {
		t.Error("no alarm")
	}
	if got, err := a.Resolve("operator@late", s.now); err != nil || got.Host != "late" {
		t.Errorf("operator@late: %v %v", got, err)
	}
}

func TestC31_LookingKeepsNobodyFresh(t *testing.T) {
	s := newSim(t, 22)
	start(s, 4, 1)
	s.run(10*time.Second, nil)
	a, b := s.nodes[0], s.nodes[1]
	s.kill(b)
	s.run(50*time.Second, nil)
	first, _ := a.Host(b.host, s.now)
	for i := range 10 {
		s.run(50*time.Second+time.Duration(i+1)*10*time.Second, nil)
		v, _ := a.Host(b.host, s.now)
		a.Hosts(s.now)
		a.Agents(s.now)
		if v.State != Unknown || !v.Since.Equal(first.Since) {
			t.Errorf("sweep %d: %s since %s", i, v.State, v.Since)
		}
		if want := first.Heard + Seconds(time.Duration(i+1)*10*time.Second); v.Heard != want {
			t.Errorf("sweep %d: heard %v ago, want %v", i, time.Duration(v.Heard), time.Duration(want))
		}
	}
}

func TestC30_ViewsAgree(t *testing.T) {
	s := newSim(t, 23)
	start(s, 4, 2)
	s.run(10*time.Second, nil)
	a := s.nodes[0]
	s.kill(s.nodes[1])
	for i := range 300 {
		s.run(10*time.Second+time.Duration(i)*100*time.Millisecond, nil)
		states := map[identity.Host]string{}
		for _, v := range a.Hosts(s.now) {
			states[v.Host] = v.State
			if one, _ := a.Host(v.Host, s.now); one.State != v.State {
				t.Fatalf("Host and Hosts differ: %s, %s", one.State, v.State)
			}
		}
		for _, ag := range a.Agents(s.now) {
			one, err := a.Resolve(ag.Address(), s.now)
			if err != nil || one.State != ag.State || (ag.State == Unknown) != (states[ag.Host] == Unknown) {
				t.Fatalf("agent %s: %s, %s, its host %s", ag.Address(), ag.State, one.State, states[ag.Host])
			}
		}
	}
}

func TestC54_JSON(t *testing.T) {
	s, a, b := pair(t)
	main := Agent{GID: "beef1111-7a55-4b1e-9c58-2d6f6f0c8f3a", Name: "eve", Role: Main, State: Busy,
		Groups: []string{"z", "a", "a"}, Since: epoch, Undrained: 3, UndrainedOldest: epoch.Add(time.Second)}
	if err := b.SetLocal(s.now, main); err != nil {
		t.Fatal(err)
	}
	s.run(12*time.Second, nil)
	got, err := a.Resolve("eve", s.now)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"gid":"beef1111-7a55-4b1e-9c58-2d6f6f0c8f3a","name":"eve","role":"main","host":"host-001","state":"busy",` +
		`"groups":["a","z"],"since":"2026-11-30T12:00:00Z","undrained":3,"undrained_oldest":"2026-11-30T12:00:01Z"}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	v, _ := a.Host(b.host, s.now)
	if text, err = json.Marshal(v); err != nil || !strings.Contains(string(text), `"skew_seconds":`) {
		t.Errorf("%s %v", text, err)
	}
	var back HostView
	if err := json.Unmarshal(text, &back); err != nil || back.Host != v.Host {
		t.Errorf("%+v %v", back, err)
	}
}

func TestR29_SkewIsShownAndJudgesNobody(t *testing.T) {
	s, a, b := pair(t)
	rec := a.records[b.host]
	ahead := 3 * time.Hour
	for i := range 40 {
		s.run(10*time.Second+time.Duration(i)*time.Second, nil)
		// The broker delays it by up to 400 ms.
		delay := time.Duration(i%5) * 100 * time.Millisecond
		p := presence{Is: isBeat, Inc: rec.inc, Seq: rec.seq + 1, RV: rec.rv, Hash: rec.hash, EveryMS: 5000,
			TS: s.now.Add(ahead - delay).UnixMilli()}
		if _, err := a.HearPresence(s.now, b.host, encode(p)); err != nil && i > 5 {
			t.Logf("%v", err)
		}
	}
	v, _ := a.Host(b.host, s.now)
	if off := time.Duration(v.Skew) - ahead; off < -50*time.Millisecond || off > 50*time.Millisecond {
		t.Errorf("skew %s, want %s", time.Duration(v.Skew), ahead)
	}
	if v.State != Live {
		t.Errorf("a host with a wrong clock is %s", v.State)
	}
}

func TestR29_Changes(t *testing.T) {
	s := newSim(t, 24)
	start(s, 4, 3)
	a, b := s.nodes[0], s.nodes[1]
	seen := map[identity.GID]Agent{}
	hosts := map[identity.Host]string{}
	at := uint64(0)
	follow := func() {
		c := a.Changes(at, s.now)
		if c.Whole {
			clear(seen)
			clear(hosts)
		}
		for _, g := range c.Gone {
			delete(seen, g)
		}
		for _, h := range c.GoneHosts {
			delete(hosts, h)
		}
		for _, h := range c.Hosts {
			hosts[h.Host] = h.State
		}
		for _, ag := range c.Agents {
			seen[ag.GID] = ag
		}
		at = c.Version
	}
	check := func(when string) {
		t.Helper()
		follow()
		want := a.Agents(s.now)
		if len(want) != len(seen) {
			t.Errorf("%s: %d agents by changes, %d by view", when, len(seen), len(want))
		}
		for _, ag := range want {
			if fmt.Sprint(seen[ag.GID]) != fmt.Sprint(ag) {
				t.Errorf("%s: %v by changes, %v by view", when, seen[ag.GID], ag)
			}
		}
		for _, h := range a.Hosts(s.now) {
			if hosts[h.Host] != h.State {
				t.Errorf("%s: host %s is %s by changes, %s by view", when, h.Host, hosts[h.Host], h.State)
			}
		}
		if len(hosts) != len(a.Hosts(s.now)) {
			t.Errorf("%s: %d hosts by changes", when, len(hosts))
		}
	}
	check("at the start")
	s.run(10*time.Second, nil)
	check("complete")
	quiet := a.Version()
	s.run(30*time.Second, nil)
	if a.Version() != quiet {
		t.Error("the version grows while nothing changes")
	}
	b.RemoveLocal(s.now, gidOf(b.host, 1))
	if err := b.SetLocal(s.now, worker(b.host, 8)); err != nil {
		t.Fatal(err)
	}
	s.run(33*time.Second, nil)
	check("a delta")
	s.kill(b)
	s.run(70*time.Second, nil)
	check("an unknown host")
	s.run(12*time.Minute, nil)
	check("a removed host")
	a.RemoveLocal(s.now, gidOf(a.host, 1))
	for i := range 3 * mostGone {
		if err := a.SetLocal(s.now, worker(a.host, 100+i)); err != nil {
			t.Fatal(err)
		}
		a.RemoveLocal(s.now, gidOf(a.host, 100+i))
	}
	check("more changes than are remembered")
}

func TestR29_UnchangedRowIsNoNews(t *testing.T) {
	s, a, _ := pair(t)
	again := worker(a.host, 0)
	again.Undrained, again.UndrainedOldest = 2, epoch
	if err := a.SetLocal(s.now, again); err != nil {
		t.Fatal(err)
	}
	s.run(10500*time.Millisecond, nil)
	sent, version := a.sent, a.Version()
	again.Since = time.Time{}
	for i := range 100 {
		again.UndrainedOldest = epoch.Add(time.Duration(i) * time.Millisecond)
		if err := a.SetLocal(s.now.Add(time.Second), again); err != nil {
			t.Fatal(err)
		}
	}
	if a.Version() != version {
		t.Error("the same row again is a change")
	}
	s.run(11*time.Second, nil)
	if a.sent > sent+1 {
		t.Errorf("it cost %d messages", a.sent-sent)
	}
}
