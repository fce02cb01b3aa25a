package roster

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// lone is a roster with its link up and nobody known.
func lone(t *testing.T) *Roster {
	t.Helper()
	r := New(Self{Host: "here", Incarnation: 1}, Options{})
	r.LinkUp(epoch)
	r.Tick(epoch)
	return r
}

var zeroHash = strings.Repeat("0", 16)

// asked makes r ask host and returns the query's id.
func asked(t *testing.T, r *Roster, host identity.Host, beat presence, now time.Time) (envelope.ID, time.Time) {
	t.Helper()
	if _, err := r.HearPresence(now, host, encode(beat)); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		dos, _ := r.Tick(now)
		for _, do := range dos {
			if do.Kind == envelope.Query && do.To == host {
				return do.ID, now
			}
		}
	}
	t.Fatal("no query within ten seconds")
	return "", now
}

func names(r *Roster, now time.Time) []string {
	var n []string
	for _, a := range r.Agents(now) {
		n = append(n, a.Name)
	}
	return n
}

func TestR29_AnswerInParts(t *testing.T) {
	r := lone(t)
	r.opt.MaxAgents = 3 // so that a part that counts twice crowds another out
	beat := presence{Is: isBeat, Inc: 1, Seq: 1, RV: 4, Hash: zeroHash, EveryMS: 5000}
	id, now := asked(t, r, "peer", beat, epoch)
	part := func(i, parts int, rv uint64) []byte {
		st := state{About: About, Inc: 1, Seq: 1, RV: rv, Hash: zeroHash, EveryMS: 5000, Part: i, Parts: parts,
			Rows: []row{rowOf(worker("peer", i))}}
		if i == 1 {
			st.Profiles = []string{"claude"}
		}
		return encode(st)
	}
	for _, i := range []int{2, 0, 2, 0} {
		if _, err := r.HearState(now, "peer", id, part(i, 3, 4)); err != nil {
			t.Fatal(err)
		}
		if len(r.Agents(now)) != 0 {
			t.Fatal("a part counted alone")
		}
	}
	if _, err := r.HearState(now, "peer", id, part(1, 3, 4)); err != nil {
		t.Fatal(err)
	}
	if got := names(r, now); !slices.Equal(got, []string{"worker-0", "worker-1", "worker-2"}) {
		t.Errorf("agents %v", got)
	}
	if v, _ := r.Host("peer", now); !slices.Equal(v.Profiles, []string{"claude"}) {
		t.Errorf("profiles %v", v.Profiles)
	}
	// Parts of two versions are no answer.
	beat.Seq, beat.RV = 2, 5
	id, now = asked(t, r, "peer", beat, now.Add(2*time.Second))
	if _, err := r.HearState(now, "peer", id, part(0, 2, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.HearState(now, "peer", id, part(1, 2, 6)); !isMalformed(err) {
		t.Errorf("parts of two versions: %v", err)
	}
	if len(r.Agents(now)) != 3 {
		t.Error("parts of two versions were taken")
	}
}

// Who asks is there, and is asked at once: newcomers need not wait for each
// other's next heartbeat.
func TestR29_WhoAsksIsAsked(t *testing.T) {
	r := lone(t)
	now := epoch.Add(time.Second)
	if _, err := r.HearQuery(now, "peer", envelope.NewID(), encode(query{About: About})); err != nil {
		t.Fatal(err)
	}
	dos, _ := r.Tick(now)
	for _, do := range dos {
		if do.Kind == envelope.Query && do.To == "peer" {
			return
		}
	}
	t.Errorf("a newcomer's question is not met by one: %v", dos)
}

// A delta and an answer travel through different queues.
func TestR29_DeltaOvertakesAnswer(t *testing.T) {
	r := lone(t)
	id, now := asked(t, r, "peer", presence{Is: isBeat, Inc: 1, Seq: 1, RV: 1, Hash: zeroHash, EveryMS: 5000}, epoch)
	st := state{About: About, Inc: 1, Seq: 1, RV: 1, Hash: zeroHash, EveryMS: 5000, Parts: 1, Rows: []row{rowOf(worker("peer", 1))}}
	if _, err := r.HearState(now, "peer", id, encode(st)); err != nil {
		t.Fatal(err)
	}
	// A rumour of a later life makes it ask again, and meanwhile a delta comes.
	id, now = asked(t, r, "peer", presence{Is: isBeat, Inc: 2, Seq: 1, Hash: zeroHash, EveryMS: 5000}, now.Add(2*time.Second))
	delta := presence{Is: isChange, Inc: 1, Seq: 2, From: 1, RV: 2, Hash: strings.Repeat("1", 16), Up: []row{rowOf(worker("peer", 2))}}
	if _, err := r.HearPresence(now, "peer", encode(delta)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.HearState(now, "peer", id, encode(st)); err != nil {
		t.Fatal(err)
	}
	if got := names(r, now); !slices.Equal(got, []string{"worker-1", "worker-2"}) {
		t.Errorf("agents %v: an older answer undid a delta", got)
	}
}

// Names change hands within one delta, whatever the order of its rows.
func TestR29_NamesChangeHands(t *testing.T) {
	s, a, b := pair(t)
	one, two := worker(a.host, 0), worker(a.host, 1)
	a.RemoveLocal(s.now, two.GID)
	one.Name = "elsewhere"
	if err := a.SetLocal(s.now, one); err != nil {
		t.Fatal(err)
	}
	two.Name = "worker-0"
	if err := a.SetLocal(s.now, two); err != nil {
		t.Fatal(err)
	}
	one.Name = "worker-1"
	if err := a.SetLocal(s.now, one); err != nil {
		t.Fatal(err)
	}
	s.run(12*time.Second, nil)
	for name, want := range map[string]identity.GID{"worker-0": two.GID, "worker-1": one.GID} {
		got, err := b.Resolve(name+"@"+string(a.host), s.now)
		if err != nil || got.GID != want {
			t.Errorf("%s is %s, %v", name, got.GID, err)
		}
	}
	if len(b.warnings) > 0 {
		t.Errorf("warnings: %v", b.warnings)
	}
}

// Recordings of a higher incarnation, from before a boot counter was lost, cost
// ever fewer questions.
func TestR29_RumoursAreFollowedEverMoreSlowly(t *testing.T) {
	s, a, b := pair(t)
	before := a.queries
	for i := range 120 {
		s.run(10*time.Second+time.Duration(i+1)*500*time.Millisecond, nil)
		rumour := presence{Is: isBeat, Inc: 9, Seq: uint64(i), Hash: zeroHash, EveryMS: 5000}
		if _, err := a.HearPresence(s.now, b.host, encode(rumour)); err != nil && !strings.Contains(err.Error(), "at once") {
			t.Fatal(err)
		}
	}
	if n := a.queries - before; n < 2 || n > 8 {
		t.Errorf("%d questions over a minute of rumours", n)
	}
	if v, _ := a.Host(b.host, s.now); v.Incarnation != 1 || v.State != Live {
		t.Errorf("the living host suffered: %+v", v)
	}
}

// Who is there travels within a second; what they do, in a fleet of a hundred,
// as seldom as heartbeats.
func TestR29_ActivityIsCoalescedInALargeFleet(t *testing.T) {
	for _, hosts := range []int{2, 100} {
		r := big(hosts-1, 1)
		now := epoch.Add(time.Second)
		if err := r.SetLocal(now, worker("here", 0)); err != nil {
			t.Fatal(err)
		}
		deltas := 0
		for i := range 300 {
			now = now.Add(100 * time.Millisecond)
			a := worker("here", 0)
			a.State = []string{Idle, Busy}[i%2]
			if err := r.SetLocal(now, a); err != nil {
				t.Fatal(err)
			}
			dos, _ := r.Tick(now)
			for _, do := range dos {
				if kindOf(do) == isChange {
					deltas++
				}
			}
		}
		if hosts == 2 && (deltas < 20 || deltas > 32) || hosts == 100 && (deltas < 2 || deltas > 5) {
			t.Errorf("%d hosts: %d deltas in 30 s of change", hosts, deltas)
		}
		// A new agent does not wait for that.
		if err := r.SetLocal(now, worker("here", 1)); err != nil {
			t.Fatal(err)
		}
		if next := r.Next(); next.Sub(now) > time.Second {
			t.Errorf("%d hosts: a new agent waits %s", hosts, next.Sub(now))
		}
	}
}

// What one deed changes in several rows, one after the other, is one delta.
func TestR29_ChangesAreGathered(t *testing.T) {
	r := big(1, 1)
	r.Tick(epoch)
	now := epoch.Add(5 * time.Second)
	deltas := 0
	for i := range 150 {
		now = now.Add(10 * time.Millisecond)
		if i < 5 {
			if err := r.SetLocal(now, worker("here", i)); err != nil {
				t.Fatal(err)
			}
		}
		dos, _ := r.Tick(now)
		for _, do := range dos {
			if kindOf(do) == isChange {
				deltas++
			}
		}
	}
	if deltas != 1 {
		t.Errorf("five changes within 50 ms made %d deltas", deltas)
	}
}

// Views and inputs may meet: run with -race.
func TestViewsFromOtherGoroutines(t *testing.T) {
	s, a, b := pair(t)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		// Ends when stop is closed.
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a.Agents(epoch)
				a.Hosts(epoch)
				a.Changes(1, epoch)
				_, _ = a.Resolve("worker-0@"+string(b.host), epoch)
				a.Owner(gidOf(b.host, 0))
				a.Next()
				a.Version()
			}
		})
	}
	for i := range 50 {
		if err := b.SetLocal(s.now, worker(b.host, 10+i)); err != nil {
			t.Fatal(err)
		}
		s.run(10*time.Second+time.Duration(i)*300*time.Millisecond, nil)
	}
	close(stop)
	readers.Wait()
}
