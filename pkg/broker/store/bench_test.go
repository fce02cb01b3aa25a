package store_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleet/pkg/broker/store"
)

// BenchmarkAppend appends messages of 512 bytes that must be durable, with so many
// under way at once. ratio is appends per second by what the disk allows without
// any of this, one append and one fsync each, both in the same run.
func BenchmarkAppend(b *testing.B) {
	perAppend := appendSpeed(b)
	for _, under := range []int{1, 50, 1000} {
		b.Run(fmt.Sprint(under), func(b *testing.B) {
			durable := make(chan store.Position, 1)
			s, _ := opened(b, store.Options{Dir: b.TempDir(), Durable: func(upTo store.Position) {
				select {
				case <-durable: // replaced by a later one
				default:
				}
				durable <- upTo
			}})
			m := store.Message{Exchange: "bridge.msg", Key: "host.agent", Properties: make([]byte, 40), Body: make([]byte, 512)}
			waiting := make([]store.Position, 0, under)
			b.SetBytes(512)
			b.ResetTimer()
			for i := range uint64(b.N) {
				_, at := s.Append(i+1, m, inOne, true)
				waiting = append(waiting, at)
				for len(waiting) == under {
					upTo := <-durable
					n := 0
					for n < len(waiting) && waiting[n] <= upTo {
						n++
					}
					waiting = append(waiting[:0], waiting[n:]...)
				}
			}
			synced(b, s)
			perOne := b.Elapsed() / time.Duration(b.N)
			b.ReportMetric(float64(perAppend)/float64(perOne), "ratio")
			b.ReportMetric(float64(b.N)/float64(s.Usage().Fsyncs), "appends/fsync")
		})
	}
}

// appendSpeed is the time of one append of 512 bytes with its fsync.
func appendSpeed(b *testing.B) time.Duration {
	f, err := os.Create(filepath.Join(b.TempDir(), "append"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	const rounds = 1000
	start := time.Now()
	for range rounds {
		if _, err := f.Write(make([]byte, 512)); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start) / rounds
}

// A million messages are there again within seconds, and cost little more memory
// than the list of them.
func TestR53_MillionMessages(t *testing.T) {
	if testing.Short() || raceOn {
		t.Skip("takes half a GiB, and is about time and memory")
	}
	dir := t.TempDir()
	cmd := child(t, "million", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	} else {
		t.Logf("filled: %s", out)
	}
	out, err := child(t, "count", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var messages, resident int64
	var seconds float64
	if _, err := fmt.Sscan(string(out), &messages, &seconds, &resident); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d messages recovered in %.2f s, at most %d MiB resident", messages, seconds, resident>>20)
	if messages != million || seconds > 10 || resident > 100<<20 {
		t.Error("that is not enough, too slow or too large")
	}
}

const million = 1_000_000

// millionChild appends a million messages of 512 bytes.
func millionChild(args []string) error {
	s, _, err := store.Open(store.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	began := time.Now()
	m := store.Message{Exchange: "bridge.msg", Key: "host.agent", Properties: make([]byte, 40), Body: make([]byte, 512)}
	for i := range uint64(million) {
		s.Append(i+1, m, inOne, true)
		for s.Backlog() > 4<<20 {
			runtime.Gosched()
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	fmt.Println(time.Since(began).Round(time.Millisecond), peak()>>20, "MiB")
	return nil
}

// countChild opens a store and says what it found, how long it took, and the most
// memory that it had.
func countChild(args []string) error {
	_, r, err := store.Open(store.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	fmt.Println(r.Messages, r.Elapsed.Seconds(), peak())
	return nil
}

// peak is the most bytes that this process has had in memory, as far as the system
// tells.
func peak() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		if text, ok := strings.CutPrefix(string(line), "VmHWM:"); ok {
			fields := bufio.NewScanner(strings.NewReader(text))
			fields.Split(bufio.ScanWords)
			fields.Scan()
			kib, _ := strconv.ParseInt(fields.Text(), 10, 64)
			return kib << 10
		}
	}
	return 0
}
