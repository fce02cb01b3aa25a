package broker_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
)

// patience bounds each wait of a scenario; none is expected to last so long.
const patience = 20 * time.Second

// scene is one scenario being played against one broker. What its client sees
// goes into lines, in which names read as the scenario calls them.
type scene struct {
	at    party
	site  site   // whose party it is, if the operator takes part
	space string // before each name, so that scenarios don't meet
	ctx   context.Context

	mu     sync.Mutex
	lines  []string // guarded by mu, as are all below
	broken string   // why the scenario came to no end
	names  []string
	conns  []*connection
	undo   []func()
}

// transcript is what the client of a scene saw.
type transcript struct {
	lines  []string
	broken string // why it has no end; empty for one that has
}

func (t transcript) String() string { return strings.Join(t.lines, "\n") }

// play plays a scenario against a broker to its end, and removes what it left.
func play(at party, script func(*scene)) transcript {
	ctx, cancel := context.WithTimeout(context.Background(), 6*patience)
	defer cancel()
	s := &scene{at: at, space: random(4) + ".", ctx: ctx}
	var over sync.WaitGroup
	over.Go(func() { script(s) }) // broke ends this goroutine alone
	over.Wait()
	s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	return transcript{s.lines, s.broken}
}

// leave ends connections and removes everything that has a name.
func (s *scene) leave() {
	for _, f := range s.undo {
		f()
	}
	for _, c := range s.conns {
		_ = c.CloseDeadline(time.Now().Add(patience))
	}
	conn, err := s.at.dial("", s.at.config())
	if err != nil {
		return
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return
	}
	for _, name := range s.names {
		if _, err := ch.QueueDelete(name, false, false, false); err != nil {
			return
		}
		if err := ch.ExchangeDelete(name, false, false); err != nil {
			return
		}
	}
}

// atEnd runs f when the scenario is over.
func (s *scene) atEnd(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = append(s.undo, f)
}

// name is the real name of a queue or exchange.
func (s *scene) name(of string) string {
	if of == "" {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, s.space+of)
	return s.space + of
}

// say notes a line.
func (s *scene) say(format string, args ...any) {
	line := s.plain(fmt.Sprintf(format, args...))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

// broke ends the scenario: it can't go on. It does not return.
func (s *scene) broke(format string, args ...any) {
	s.say("BROKEN: "+format, args...)
	s.mu.Lock()
	s.broken = s.lines[len(s.lines)-1]
	s.mu.Unlock()
	runtime.Goexit()
}

// need ends the scenario if something failed that is only its preparation.
func (s *scene) need(what string, err error) {
	if err != nil {
		s.broke("%s: %v", what, err)
	}
}

var (
	vhostName  = regexp.MustCompile(`vhost '[^']*'`)
	serverName = regexp.MustCompile(`amq\.gen-[-\w]+`)
	socketName = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	frameText  = regexp.MustCompile(`(FRAME_ERROR|UNEXPECTED_FRAME)\b.*`)
)

// plain takes out of a text what must differ: the names' prefix, the virtual
// host, names made by the server, ports; and what is said of a malformed frame,
// which in RabbitMQ are terms of its language.
func (s *scene) plain(text string) string {
	text = strings.ReplaceAll(text, s.space, "")
	text = vhostName.ReplaceAllString(text, "vhost '/'")
	text = serverName.ReplaceAllString(text, "amq.gen-*")
	text = frameText.ReplaceAllString(text, "$1 ...")
	return socketName.ReplaceAllString(text, "127.0.0.1:*")
}

// eventually asks until it is so, or breaks the scenario.
func (s *scene) eventually(what string, so func() bool) {
	over := time.Now().Add(patience)
	for !so() {
		if time.Now().After(over) {
			s.broke("%s: not within %s", what, patience)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// receive takes a value, or breaks the scenario.
func receive[T any](s *scene, what string, from <-chan T) (T, bool) {
	select {
	case v, open := <-from:
		return v, open
	case <-time.After(patience):
		s.broke("%s: not within %s", what, patience)
		panic("unreachable")
	}
}

func random(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}
