package roster

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// FuzzR61_Hear feeds bodies to the three Hear methods of a roster that knows
// the sender, with the open query's id where there is one, and checks what must
// always hold.
func FuzzR61_Hear(f *testing.F) {
	hash := strings.Repeat("0", 16)
	one := rowOf(worker("peer", 1))
	for _, seed := range []any{
		presence{Is: isBeat, Inc: 1, Seq: 9, RV: 1, Hash: hash, EveryMS: 5000, TS: 1},
		presence{Is: isBeat, Inc: 2, Seq: 1, Hash: hash, EveryMS: 1 << 62, TS: 1 << 62},
		presence{Is: isChange, Inc: 1, Seq: 9, From: 0, RV: 1, Hash: hash, Up: []row{one, one}, Gone: []identity.GID{one.GID}},
		presence{Is: isLeave, Inc: 1, Seq: 10},
		query{About: About, Inc: 1, RV: 1, Hash: hash},
		state{About: About, Inc: 1, Hash: hash, EveryMS: 5000, Parts: 1, Rows: []row{one}},
		state{About: About, Inc: 3, Hash: hash, EveryMS: 5000, Parts: 2, Part: 1, Rows: []row{one}},
		state{About: About, Inc: 1, Hash: hash, EveryMS: 5000, Same: true},
	} {
		f.Add([]byte(encode(seed)), []byte(encode(seed)), uint8(0), int64(1000))
	}
	f.Fuzz(func(t *testing.T, first, second []byte, kinds uint8, ms int64) {
		now := epoch
		r := New(Self{Host: "here", Incarnation: 1}, Options{MaxAgents: 20, MaxTotal: 20, MaxHosts: 3, MaxRemember: 20,
			Rand: rand.New(rand.NewPCG(1, 1))})
		if err := r.SetLocal(now, worker("here", 0)); err != nil {
			t.Fatal(err)
		}
		r.LinkUp(now)
		open := envelope.ID("")
		tick := func() {
			dos, next := r.Tick(now)
			if !next.After(now) {
				t.Fatal("Tick spins")
			}
			for _, do := range dos {
				if do.Kind == envelope.Query {
					open = do.ID
				}
			}
		}
		tick()
		beat := presence{Is: isBeat, Inc: 1, Seq: 1, Hash: hash, EveryMS: 5000}
		for i, body := range [][]byte{encode(beat), nil, encode(state{About: About, Inc: 1, Hash: hash, EveryMS: 5000, Parts: 1}), first, second, first} {
			kind := kinds >> (2 * max(0, i-3)) & 3
			switch {
			case i == 0:
				kind = 0
			case i == 1:
				now = now.Add(time.Second)
				tick()
				continue
			case i == 2:
				kind = 2
			}
			hearAny(r, now, kind, open, body)
			now = now.Add(time.Duration(uint64(ms)%(20*60*1000)) * time.Millisecond)
			tick()
			check(t, r, now)
		}
	})
}

func hearAny(r *Roster, now time.Time, kind uint8, open envelope.ID, body json.RawMessage) {
	var dos []Do
	var err error
	switch kind {
	case 0:
		_, err = r.HearPresence(now, "peer", body)
	case 1:
		dos, err = r.HearQuery(now, "peer", envelope.NewID(), body)
	case 2:
		_, err = r.HearState(now, "peer", open, body)
	default:
		_, err = r.HearPresence(now, "here", body)
	}
	for _, do := range dos {
		if len(do.Body) == 0 || do.Re == "" {
			panic("an answer without body or re")
		}
	}
	if err != nil && (err.Error() == "" || strings.ContainsAny(err.Error(), "\x00\x07\x1b\n")) {
		panic("a warning that can't be printed: " + err.Error())
	}
}

// check says what must hold whatever was heard.
func check(t *testing.T, r *Roster, now time.Time) {
	t.Helper()
	remote := 0
	for host, rec := range r.records {
		if rec != r.here {
			remote += len(rec.agents)
		}
		names := 0
		for gid, e := range rec.agents {
			if e.GID != gid || e.Host != host || e.fields() != nil {
				t.Fatalf("an agent that should not stand: %+v", e)
			}
			if o := r.owners[keyOf(gid)]; o.rec != rec || o.buried != 0 {
				t.Fatalf("agent %s of %s is owned by %+v", gid, host, o)
			}
			if e.Name != "" {
				names++
				if rec.names[e.Name] != gid {
					t.Fatalf("name %s leads to %s, not %s", e.Name, rec.names[e.Name], gid)
				}
			}
		}
		if names != len(rec.names) {
			t.Fatalf("%d names of %d agents with one", len(rec.names), names)
		}
		if rec.known && rec != r.here && (rec.every < shortestBeat || rec.every > longestBeat) {
			t.Fatalf("interval %s", rec.every)
		}
	}
	if remote != r.remote || remote > 20 || len(r.records) > 3 {
		t.Fatalf("%d remote agents, counted %d, %d hosts", remote, r.remote, len(r.records))
	}
	if _, err := json.Marshal(r.Changes(0, now)); err != nil {
		t.Fatal(err)
	}
	if a, ok := r.here.agents[gidOf("here", 0)]; !ok || a.State != Idle {
		t.Fatal("a peer changed an agent of ours")
	}
}
