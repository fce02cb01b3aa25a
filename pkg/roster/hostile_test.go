package roster

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

func TestR61_HostileEntries(t *testing.T) {
	s, a, b := pair(t)
	rec := a.records[b.host]
	good := rowOf(worker(b.host, 50))
	bad := map[string]row{
		"escape in the name":    {GID: gidOf(b.host, 60), Name: "\x1b]0;x\a", Role: Worker, State: Idle},
		"name like a gid":       {GID: gidOf(b.host, 61), Name: string(gidOf(b.host, 61)), Role: Worker, State: Idle},
		"no gid":                {Name: "nobody", Role: Worker, State: Idle},
		"gid in capitals":       {GID: identity.GID(strings.ToUpper(string(gidOf(b.host, 62)))), Role: Worker, State: Idle},
		"unknown role":          {GID: gidOf(b.host, 63), Role: "king", State: Idle},
		"state of two words":    {GID: gidOf(b.host, 64), Role: Worker, State: "very busy"},
		"bad group":             {GID: gidOf(b.host, 65), Role: Worker, State: Idle, Groups: []string{"*"}},
		"too many groups":       {GID: gidOf(b.host, 66), Role: Worker, State: Idle, Groups: strings.Split(strings.Repeat("g ", 99)+"g", " ")},
		"negative count":        {GID: gidOf(b.host, 67), Role: Worker, State: Idle, Undrained: -1},
		"name taken":            {GID: gidOf(b.host, 68), Name: "worker-0", Role: Worker, State: Idle},
		"worker named operator": {GID: gidOf(b.host, 69), Name: Operator, Role: Worker, State: Idle},
		"operator by a new id":  {GID: gidOf(b.host, 70), Name: Operator, Role: Operator, State: Idle},
		"operator of a":         {GID: identity.OperatorGID(a.host), Name: Operator, Role: Operator, State: Idle},
		"a's agent":             {GID: gidOf(a.host, 0), Name: "mine", Role: Worker, State: Idle},
	}
	for name, one := range bad {
		before := len(rec.agents)
		p := presence{Is: isChange, Inc: rec.inc, Seq: rec.seq + 1, From: rec.rv, RV: rec.rv + 1,
			Hash: strings.Repeat("1", 16), Up: []row{one, good}}
		good.Undrained++
		_, err := a.HearPresence(s.now, b.host, encode(p))
		var w Warnings
		if !errors.As(err, &w) || len(w) != 1 {
			t.Errorf("%s: %v", name, err)
		} else if strings.ContainsAny(err.Error(), "\x1b\a") {
			t.Errorf("%s: raw bytes in the warning", name)
		}
		if wantMore := before == 2; wantMore && len(rec.agents) != 3 || !wantMore && len(rec.agents) != before {
			t.Errorf("%s: %d agents, then %d", name, before, len(rec.agents))
		}
		if got := rec.agents[good.GID]; got == nil || got.Undrained != good.Undrained-1 {
			t.Errorf("%s: the good entry beside it was left out", name)
		}
	}
	if h, _ := a.Owner(gidOf(a.host, 0)); h != a.host {
		t.Errorf("R19: %s now owns an agent of %s", h, a.host)
	}
}

func TestR61_BodiesThatAreNone(t *testing.T) {
	s, a, b := pair(t)
	huge := json.RawMessage(`{"is":"beat","hash":"` + strings.Repeat("0", 2<<20) + `"}`)
	for _, body := range []json.RawMessage{nil, huge, json.RawMessage(`{}`), json.RawMessage(`[]`), json.RawMessage(`{"is":"beat"}`),
		json.RawMessage(`{"is":"beat","hash":"0000000000000000","every_ms":-1}`), json.RawMessage(`{"is":7}`),
		json.RawMessage(`{"is":"change","hash":"0000000000000000","from":5,"rv":9}`)} {
		if _, err := a.HearPresence(s.now, b.host, body); !isMalformed(err) {
			t.Errorf("PRESENCE %.60s: %v", body, err)
		}
		if _, err := a.HearQuery(s.now, b.host, envelope.NewID(), body); !isMalformed(err) {
			t.Errorf("QUERY %.60s: %v", body, err)
		}
	}
}

func isMalformed(err error) bool {
	var w Warnings
	return errors.As(err, &w) && w[0].Kind == Malformed
}

func TestR61_Bounds(t *testing.T) {
	now := epoch
	r := New(Self{Host: "here", Incarnation: 1}, Options{MaxHosts: 5, MaxAgents: 10, MaxTotal: 15, MaxRemember: 4})
	r.LinkUp(now)
	r.Tick(now)
	over := 0
	note := func(err error) {
		var w Warnings
		if errors.As(err, &w) && w[0].Kind == OverLimit {
			over++
		}
	}
	for i := range 10 {
		host := hostName(i)
		_, err := r.HearPresence(now, host, encode(presence{Is: isBeat, Inc: 1, Seq: 1, Hash: strings.Repeat("0", 16), EveryMS: 5000}))
		note(err)
		for range 100 {
			now = now.Add(50 * time.Millisecond)
			dos, _ := r.Tick(now)
			for _, do := range dos {
				if do.Kind != envelope.Query || do.To != host {
					continue
				}
				st := state{About: About, Inc: 1, Seq: 1, Hash: strings.Repeat("0", 16), EveryMS: 48 * 3600 * 1000, Parts: 1}
				for j := range 30 {
					st.Rows = append(st.Rows, rowOf(worker(host, j)))
				}
				_, err := r.HearState(now, host, do.ID, encode(st))
				note(err)
			}
		}
	}
	if n := len(r.Hosts(now)); n != 5 {
		t.Errorf("%d hosts, want 5", n)
	}
	if n := len(r.Agents(now)); n > 15 {
		t.Errorf("%d agents, want at most 15", n)
	}
	if over < 7 {
		t.Errorf("only %d warnings over limits", over)
	}
	if v, _ := r.Host(hostName(0), now); time.Duration(v.Interval) > time.Hour || v.Agents != 10 {
		t.Errorf("bounds of one host: %+v", v)
	}
	// A host that churns forgets its own oldest, and no other's.
	rec := r.records[hostName(0)]
	for j := range 10 {
		r.drop(rec, gidOf(hostName(0), j), now)
	}
	if len(rec.tombs) != 4 {
		t.Errorf("%d tombs, want 4", len(rec.tombs))
	}
	if _, ok := r.Owner(gidOf(hostName(0), 0)); ok {
		rec := r.owners[keyOf(gidOf(hostName(0), 0))]
		t.Errorf("a tomb beyond the bound: %+v", rec)
	}
	if _, ok := r.Owner(gidOf(hostName(1), 0)); !ok {
		t.Error("another host's agent lost its owner")
	}
}
