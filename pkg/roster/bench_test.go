package roster

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// BenchmarkP7_Tick is one second of a gateway with 1,000 idle agents and 20
// peers: the Ticks that it asks for.
func BenchmarkP7_Tick(b *testing.B) {
	s := newSim(b, 30)
	start(s, 20, 10)
	n := s.nodes[0]
	for i := range 1000 {
		if err := n.SetLocal(s.now, worker(n.host, 1000+i)); err != nil {
			b.Fatal(err)
		}
	}
	s.run(20*time.Second, nil)
	// Peers stay alive without being simulated.
	for _, rec := range n.records {
		rec.every = longestBeat
		rec.heard = s.now.Add(1e6 * time.Hour)
	}
	now := s.now
	b.ReportAllocs()
	for b.Loop() {
		end := now.Add(time.Second)
		for next := n.Next(); next.Before(end); next = n.Next() {
			n.Tick(next)
		}
		now = end
	}
}

// BenchmarkP1_Resolve is what each send asks of the roster of 100 hosts.
func BenchmarkP1_Resolve(b *testing.B) {
	r := big(100, 100)
	for _, address := range []string{string(gidOf(hostName(50), 50)), "worker-50@host-050", "nobody"} {
		b.Run(address[:4], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = r.Resolve(address, epoch)
			}
		})
	}
}

// big is a roster that knows hosts with agents each.
func big(hosts, agents int) *Roster {
	r := New(Self{Host: "here", Incarnation: 1}, Options{})
	r.LinkUp(epoch)
	for i := range hosts {
		rec := r.record(hostName(i))
		rec.known = true
		rec.heard, rec.every = epoch, 10*time.Second
		for j := range agents {
			a := worker(rec.host, j)
			a.Name = fmt.Sprint("worker-", j)
			r.put(rec, a)
		}
	}
	return r
}

func TestP4_MemoryOfAnAgent(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	r := big(10, 1000)
	used := float64(heap()-before) / 10_000
	t.Logf("%.0f bytes an agent", used)
	if used > 1024 {
		t.Errorf("an agent needs %.0f bytes", used)
	}
	runtime.KeepAlive(r)
}
