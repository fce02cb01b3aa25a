package broker_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet/pkg/broker"
)

// unmeasured is the transcript of a LavinMQ that nobody has looked at.
const unmeasured = "unmeasured"

// TestR5_LavinMQAnswers plays the scenarios against an embedded broker that
// gives LavinMQ's answers, and compares with what was measured of LavinMQ 2.9.1:
// a scenario's own lines, or RabbitMQ's where the two do not differ. Only rows
// with a number were measured, and those that have lines of their own.
func TestR5_LavinMQAnswers(t *testing.T) {
	lavin, rabbit := embedded(t, broker.LavinMQ), embedded(t, broker.RabbitMQ)
	eachRow(t, func(row scenario) bool {
		return row.lavin != unmeasured && (row.lavin != "" || strings.HasPrefix(row.row, "B"))
	}, func(t *testing.T, row scenario) {
		var got, same transcript
		var both sync.WaitGroup
		both.Go(func() { got = play(lavin, row.play) })
		if row.lavin == "" {
			both.Go(func() { same = play(rabbit, row.play) })
		}
		both.Wait()
		want := linesOf(row.lavin)
		if row.lavin == "" {
			want = asLavin(same.lines)
		}
		if got.broken != "" || same.broken != "" {
			t.Errorf("the scenario has no end: %s %s", got.broken, same.broken)
		}
		want = deviate(t, lavinDeviations, row.row, want)
		if d := difference(want, shorten(got.lines, want)); d != "" {
			t.Errorf("- LavinMQ 2.9.1, + embedded:\n%s", d)
		}
	})
}

// errorText is what comes behind a reply code.
var errorText = regexp.MustCompile(`\b((?:ch|conn|channel\.close|connection\.close) \d+) .*`)

// asLavin is what LavinMQ's client sees where RabbitMQ's sees these lines: texts
// of its own, and 32 bits in x-death.
func asLavin(lines []string) []string {
	var all []string
	for _, line := range lines {
		line = strings.ReplaceAll(line, "{count:int64(", "{count:int32(")
		all = append(all, errorText.ReplaceAllString(line, "$1 ..."))
	}
	return all
}

// shorten cuts off the texts that nobody expects: where the line in want ends
// in "...".
func shorten(lines, want []string) []string {
	var all []string
	for i, line := range lines {
		if i < len(want) {
			if start, open := strings.CutSuffix(want[i], "..."); open && strings.HasPrefix(line, start) {
				line = want[i]
			}
		}
		all = append(all, line)
	}
	return all
}

// linesOf takes the lines of an indented text.
func linesOf(text string) []string {
	var all []string
	for line := range strings.Lines(strings.TrimSpace(text)) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// TestR5_LavinMQLowDisk is row R02 of LavinMQ: it refuses publishes and new
// queues one by one, and blocks nobody.
func TestR5_LavinMQLowDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	wide := start(t, broker.Options{Dir: dir})
	got := play(party{"embedded", wide.url}, func(s *scene) {
		s.space = "" // the queue stays for the next
		_, ch := dial(t, wide.url)
		declare(t, ch, "stored", nil)
		c := s.confirming()
		c.publish(post{key: "stored", body: "m1"})
	})
	if got.String() != "publish m1: ack" {
		t.Fatal(got)
	}
	wide.stop(t)
	narrow := start(t, broker.Options{Dir: dir, Answers: broker.LavinMQ, Limits: broker.Limits{DiskFree: 1 << 60}})
	for over := time.Now().Add(patience); !narrow.Stats().Blocked; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(over) {
			t.Fatal("the disk is never low")
		}
	}
	got = play(party{"embedded", narrow.url}, func(s *scene) {
		ch := s.confirming()
		ch.publish(post{key: "stored", body: "m2"})
		ch = s.channel()
		ch.says("declare a queue", declared{}.on(ch, s.name("q")))
		ch = s.channel()
		ch.says("declare the old one", declared{}.on(ch, "stored"))
		ch.consume("c", "stored", nil).next()
	})
	want := `
		publish m2: ch 406 PRECONDITION_FAILED - Server low on disk space
		declare a queue: ch 406 PRECONDITION_FAILED - Server low on disk space
		declare the old one: ok
		c gets m1`
	if d := difference(linesOf(want), got.lines); d != "" {
		t.Errorf("- LavinMQ 2.9.1, + embedded:\n%s", d)
	}
}

// TestR5_LavinMQRestart is row R03 of LavinMQ: a restart keeps everything, and
// says of nothing that it was delivered before.
func TestR5_LavinMQRestart(t *testing.T) {
	at := newEmbeddedSite(t).(*embeddedSite)
	if err := at.close(); err != nil {
		t.Fatal(err)
	}
	at.options.Answers = broker.LavinMQ
	if err := at.open(); err != nil {
		t.Fatal(err)
	}
	got := playAt(at, outage{"R03/restart", func(s *scene, at site) {
		ch, holder := s.confirming(), s.channel()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1")
		ch.publish(post{key: q, body: "m2", transient: true})
		holder.get(q)
		s.restart(at.restart)
		holder.conn.dies("a client")
		s.channel().drain(q)
	}})
	want := `
		publish m1: ack
		publish m2: ack
		get from q: m1, 1 left
		a client: conn 320 CONNECTION_FORCED - Broker shutdown
		q holds [m1 m2]`
	d := difference(deviate(t, lavinDeviations, "R03/restart", linesOf(want)), got.lines)
	if d != "" || got.broken != "" {
		t.Errorf("- LavinMQ 2.9.1, + embedded:\n%s%s", d, got.broken)
	}
}
