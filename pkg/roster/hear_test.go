package roster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// hears feeds everything recorded from host to r, again, and fails on any Do
// but a QUERY.
func hears(t *testing.T, s *sim, r *Roster, recorded []packet, host identity.Host) {
	t.Helper()
	for _, p := range recorded {
		if p.from.host != host {
			continue
		}
		dos, _ := hear(r, s.now, host, p.do)
		for _, do := range dos {
			if do.Kind == envelope.Presence {
				t.Errorf("a recording made us speak to all")
			}
		}
	}
}

// Everything that a host ever said is played again, to one who knew it, to one
// who gave it up, to one who removed it, and to one who never knew it.
func TestR29_RecordedPresenceRevivesNobody(t *testing.T) {
	s := newSim(t, 11)
	s.keep = true
	start(s, 4, 2)
	s.run(10*time.Second, nil)
	b, a := s.nodes[1], s.nodes[0]
	// b's second life, of which a hears nothing but presence that is withheld.
	s.kill(b)
	second := s.roster(b.host, 2, 2)
	second.LinkUp(s.now)
	var withheld []packet
	for at := s.now; at.Before(s.now.Add(20 * time.Second)); at = at.Add(100 * time.Millisecond) {
		if at.Equal(s.now.Add(5 * time.Second)) {
			if err := second.SetLocal(at, worker(b.host, 7)); err != nil {
				t.Fatal(err)
			}
		}
		dos, _ := second.Tick(at)
		for _, do := range dos {
			withheld = append(withheld, packet{from: b, do: do})
		}
	}
	if len(withheld) < 4 {
		t.Fatalf("only %d recordings of the second life", len(withheld))
	}
	v, _ := a.Host(b.host, s.now)
	heard := s.now.Add(-time.Duration(v.Heard))
	play := func(when string) {
		t.Helper()
		for range 3 {
			hears(t, s, a.Roster, s.record, b.host)
			hears(t, s, a.Roster, withheld, b.host)
		}
		v, known := a.Host(b.host, s.now)
		if known && v.State == Live && s.now.Sub(heard) > 16*time.Second {
			t.Errorf("%s: recordings revived the host: %+v", when, v)
		}
		if known && v.Incarnation != 1 {
			t.Errorf("%s: a recording made incarnation %d count", when, v.Incarnation)
		}
		if _, err := a.Resolve("worker-7", s.now); err == nil {
			t.Errorf("%s: a recording added an agent", when)
		}
	}
	play("known")
	s.run(20*time.Second, nil)
	play("silent for 10 s")
	if v, _ = a.Host(b.host, s.now); !s.now.Add(-time.Duration(v.Heard)).Equal(heard) {
		t.Error("recordings made the host look heard")
	}
	s.run(40*time.Second, nil)
	play("given up")
	s.run(50*time.Second, nil)
	play("given up, and asked")
	s.run(15*time.Minute, nil)
	play("removed")
	s.run(16*time.Minute, nil)
	play("removed, and asked")
	if a.state(b.host, s.now) != "absent" {
		t.Errorf("the removed host is %s", a.state(b.host, s.now))
	}
	fresh := s.add("newcomer", 1, 0)
	s.connect(fresh)
	hears(t, s, fresh.Roster, s.record, b.host)
	hears(t, s, fresh.Roster, withheld, b.host)
	s.run(17*time.Minute, nil)
	hears(t, s, fresh.Roster, s.record, b.host)
	if fresh.state(b.host, s.now) != "absent" {
		t.Error("a newcomer believed recordings")
	}
	// The real host is believed at once.
	b.Roster, b.dead = s.roster(b.host, 3, 2), false
	s.connect(b)
	s.run(18*time.Minute, func() bool { return a.state(b.host, s.now) == Live })
	if a.state(b.host, s.now) != Live {
		t.Error("the living host is not believed after all that")
	}
}

// A host that was given up speaks again in the same life: it counts after an
// answer, not after a heartbeat.
func TestR29_AgedHostMustAnswer(t *testing.T) {
	s := newSim(t, 12)
	start(s, 4, 2)
	s.run(10*time.Second, nil)
	a, b := s.nodes[0], s.nodes[1]
	s.cut(b, true)
	s.run(40*time.Second, nil)
	if a.state(b.host, s.now) != Unknown {
		t.Fatal("not given up")
	}
	s.heal(b, true)
	s.drop = func(from *node, do Do) bool { return from == b && do.Kind == envelope.State }
	s.run(55*time.Second, nil)
	if a.state(b.host, s.now) != Unknown {
		t.Error("heartbeats alone revived the host")
	}
	s.drop = nil
	s.run(3*time.Minute, nil)
	if a.state(b.host, s.now) != Live {
		t.Error("an answer did not revive the host")
	}
}

// pair is two rosters that know each other, at 10 s, with everything recorded.
func pair(t *testing.T) (s *sim, a, b *node) {
	s = newSim(t, 13)
	s.keep = true
	start(s, 2, 2)
	s.run(10*time.Second, nil)
	if !s.complete(2) {
		t.Fatal("the two do not know each other")
	}
	return s, s.nodes[0], s.nodes[1]
}

func TestR29_StateCountsOnlyForTheOpenQuery(t *testing.T) {
	s, a, b := pair(t)
	var answer Do
	for _, p := range s.record {
		if p.do.Kind == envelope.State && p.from == b {
			answer = p.do
		}
	}
	fresh := s.roster(a.host, 2, 0)
	fresh.LinkUp(s.now)
	fresh.Tick(s.now)
	beat := presence{Is: isBeat, Inc: 1, Seq: 99, Hash: strings.Repeat("0", 16), EveryMS: 5000, TS: s.now.UnixMilli()}
	if _, err := fresh.HearPresence(s.now, b.host, encode(beat)); err != nil {
		t.Fatal(err)
	}
	var ask Do
	for range 200 {
		s.now = s.now.Add(10 * time.Millisecond)
		dos, _ := fresh.Tick(s.now)
		for _, do := range dos {
			if do.Kind == envelope.Query {
				ask = do
			}
		}
		if ask.ID != "" {
			break
		}
	}
	if ask.To != b.host {
		t.Fatal("no query to the unknown host")
	}
	for name, c := range map[string]struct {
		from identity.Host
		re   envelope.ID
	}{
		"a recorded answer":          {b.host, answer.Re},
		"an answer to nothing":       {b.host, ""},
		"an answer of somebody else": {"mallory", ask.ID},
	} {
		if _, err := fresh.HearState(s.now, c.from, c.re, answer.Body); err != nil {
			t.Error(name, err)
		}
		if _, ok := fresh.Host(b.host, s.now); ok {
			t.Errorf("%s was believed", name)
		}
	}
	if _, err := fresh.HearState(s.now, b.host, ask.ID, answer.Body); err != nil {
		t.Fatal(err)
	}
	if v, ok := fresh.Host(b.host, s.now); !ok || v.State != Live || v.Agents != 2 {
		t.Errorf("the answer to the open query was not believed: %+v", v)
	}
	// The second copy of it is not an answer to anything any more.
	if _, err := fresh.HearState(s.now.Add(time.Hour), b.host, ask.ID, answer.Body); err != nil {
		t.Error(err)
	}
	if v, _ := fresh.Host(b.host, s.now.Add(time.Hour)); v.State == Live {
		t.Error("an answer counted twice")
	}
}

func TestR29_OneQueryAtATime(t *testing.T) {
	r := New(Self{Host: "here", Incarnation: 1}, Options{})
	now := epoch
	r.LinkUp(now)
	open := map[identity.Host]envelope.ID{}
	asked := map[identity.Host]int{}
	most := 0
	for step := range 600 {
		now = now.Add(100 * time.Millisecond)
		if step%10 == 0 {
			for i := range 200 {
				beat := presence{Is: isBeat, Inc: 1, Seq: uint64(step), Hash: strings.Repeat("0", 16), EveryMS: 5000}
				if _, err := r.HearPresence(now, hostName(i), encode(beat)); err != nil {
					t.Fatal(err)
				}
			}
		}
		dos, _ := r.Tick(now)
		burst := 0
		for _, do := range dos {
			if do.Kind == envelope.Query {
				burst++
				asked[do.To]++
				open[do.To] = do.ID
			}
		}
		most = max(most, burst)
	}
	if most > slots {
		t.Errorf("%d queries at once", most)
	}
	if len(asked) != 200 {
		t.Errorf("%d of 200 hosts were asked", len(asked))
	}
	for host, n := range asked {
		if n > 8 {
			t.Errorf("%s was asked %d times in a minute without answering", host, n)
		}
	}
}

func TestR29_Unroutable(t *testing.T) {
	s := newSim(t, 14)
	start(s, 1, 0)
	a := s.nodes[0]
	s.run(6*time.Second, nil)
	beat := presence{Is: isBeat, Inc: 1, Seq: 1, Hash: strings.Repeat("0", 16), EveryMS: 5000}
	queries := 0
	var last time.Time
	for i := range 600 {
		s.now = s.now.Add(100 * time.Millisecond)
		beat.Seq++
		if i%50 == 0 {
			if _, err := a.HearPresence(s.now, "ghost", encode(beat)); err != nil {
				t.Fatal(err)
			}
		}
		dos, _ := a.Tick(s.now)
		for _, do := range dos {
			if do.Kind == envelope.Query {
				queries++
				if gap := s.now.Sub(last); gap < time.Second {
					t.Errorf("asked again after %s", gap)
				}
				last = s.now
				a.HearUnroutable(s.now, "ghost", do.ID)
			}
		}
	}
	if queries < 2 || queries > 8 {
		t.Errorf("%d queries to a host without a queue in a minute", queries)
	}
}

func TestR29_TwoIncarnationsAlarm(t *testing.T) {
	s, a, b := pair(t)
	alarms := 0
	seq := uint64(100)
	for i := range 20 {
		s.run(10*time.Second+time.Duration(i+1)*3*time.Second, nil)
		seq++
		older := presence{Is: isBeat, Inc: 0, Seq: seq, Hash: strings.Repeat("0", 16), EveryMS: 5000, TS: s.now.UnixMilli()}
		_, err := a.HearPresence(s.now, b.host, encode(older))
		var w Warnings
		if errors.As(err, &w) && w.Alarm() {
			alarms++
			if w[0].Kind != TwoIncarnations {
				t.Errorf("alarm %v", w)
			}
		}
	}
	if alarms == 0 || alarms > 3 {
		t.Errorf("%d alarms over a minute of two lives", alarms)
	}
	if v, _ := a.Host(b.host, s.now); v.Incarnation != 1 || v.State != Live {
		t.Errorf("the accepted life suffered: %+v", v)
	}
}

func TestR29_SecondGatewayAsUs(t *testing.T) {
	s, a, _ := pair(t)
	other := presence{Is: isBeat, Inc: 1, Seq: 1 << 40, Hash: strings.Repeat("0", 16), EveryMS: 5000}
	_, err := a.HearPresence(s.now, a.host, encode(other))
	var w Warnings
	if !errors.As(err, &w) || !w.Alarm() {
		t.Errorf("no alarm: %v", err)
	}
	if _, err = a.HearPresence(s.now, a.host, encode(other)); err != nil {
		t.Errorf("the alarm repeats at once: %v", err)
	}
}

func TestR29_HeartbeatSizeIsConstant(t *testing.T) {
	size := func(agents int) int {
		s := newSim(t, 15)
		r := s.roster("here", 1, agents)
		r.LinkUp(epoch)
		r.Tick(epoch)
		dos, _ := r.Tick(epoch.Add(2 * time.Second))
		for i := 3; len(dos) == 0 && i < 20; i++ {
			dos, _ = r.Tick(epoch.Add(time.Duration(i) * time.Second))
		}
		if len(dos) != 1 || kindOf(dos[0]) != isBeat {
			t.Fatalf("%d agents: not one heartbeat but %d messages", agents, len(dos))
		}
		return len(dos[0].Body)
	}
	none, many := size(0), size(10_000)
	t.Logf("%d and %d bytes", none, many)
	// The count and the version are written in decimal.
	if many-none > 30 || many > 300 {
		t.Errorf("a heartbeat has %d bytes without agents and %d with 10,000", none, many)
	}
}

func TestR29_ProfilesTravel(t *testing.T) {
	s, a, b := pair(t)
	if v, _ := b.Host(a.host, s.now); strings.Join(v.Profiles, " ") != "claude codex" {
		t.Errorf("profiles are %v", v.Profiles)
	}
	for _, p := range s.record {
		if kindOf(p.do) == isBeat && !strings.Contains(string(p.do.Body), `"profiles":["claude","codex"]`) {
			t.Errorf("a heartbeat without profile names: %s", p.do.Body)
		}
	}
	names := []string{"NOT A NAME"}
	for i := range 100 {
		names = append(names, fmt.Sprintf("profile-%02d", i))
	}
	a.SetProfiles(s.now, names)
	s.run(12*time.Second, nil)
	if v, _ := b.Host(a.host, s.now); len(v.Profiles) != 100 {
		t.Errorf("%d of 100 profiles arrived", len(v.Profiles))
	}
	s.run(30*time.Second, nil)
	last := s.record[len(s.record)-1]
	for _, p := range s.record {
		if p.from == a && kindOf(p.do) == isBeat {
			last = p
		}
	}
	if len(last.do.Body) > 300 {
		t.Errorf("many profiles make a heartbeat of %d bytes", len(last.do.Body))
	}
	if v, _ := b.Host(a.host, s.now); len(v.Profiles) != 100 {
		t.Errorf("%d profiles are left", len(v.Profiles))
	}
}

func TestR29_SizesOfDeltasAndAnswers(t *testing.T) {
	s, a, b := pair(t)
	for i := range 5000 {
		if err := a.SetLocal(s.now, worker(a.host, 100+i)); err != nil {
			t.Fatal(err)
		}
	}
	from := len(s.record)
	s.run(14*time.Second, nil)
	if b.remoteAgents() != 5002 {
		t.Fatalf("%d agents arrived", b.remoteAgents())
	}
	deltas := 0
	for _, p := range s.record[from:] {
		if kindOf(p.do) == isChange {
			deltas++
			if len(p.do.Body) > 64<<10 {
				t.Errorf("a delta of %d bytes", len(p.do.Body))
			}
		}
	}
	if deltas < 5 {
		t.Errorf("only %d deltas", deltas)
	}
	c := s.add("newcomer", 1, 0)
	from = len(s.record)
	s.connect(c)
	s.run(20*time.Second, nil)
	if c.remoteAgents() != 5004 {
		t.Errorf("the newcomer has %d agents", c.remoteAgents())
	}
	parts := 0
	for _, p := range s.record[from:] {
		if p.do.Kind == envelope.State && p.from == a {
			parts++
			if len(p.do.Body) > 256<<10 {
				t.Errorf("a STATE of %d bytes", len(p.do.Body))
			}
		}
	}
	if parts < 2 {
		t.Errorf("5,000 agents came in %d parts", parts)
	}
	t.Logf("%d deltas, %d parts", deltas, parts)
}

func TestR29_QueriesAreAnsweredWithinABudget(t *testing.T) {
	s, a, b := pair(t)
	answered := 0
	for range 100 {
		dos, _ := a.HearQuery(s.now, b.host, envelope.NewID(), encode(query{About: About}))
		answered += len(dos)
	}
	if answered < 1 || answered > 4 {
		t.Errorf("%d of 100 queries at once were answered", answered)
	}
	dos, _ := a.HearQuery(s.now.Add(2*time.Second), b.host, envelope.NewID(), encode(query{About: About}))
	if len(dos) != 1 {
		t.Error("a later query is not answered")
	}
	// Who has the version gets the short answer.
	q := query{About: About, Inc: 1, RV: a.rv, Hash: a.hash}
	dos, _ = a.HearQuery(s.now.Add(9*time.Second), b.host, envelope.NewID(), encode(q))
	if len(dos) != 1 || strings.Contains(string(dos[0].Body), "worker-0") {
		t.Errorf("not the short answer: %v", dos)
	}
}
