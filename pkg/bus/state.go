package bus

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

// Link says whether messages can pass.
type Link string

// The links, from worst to best.
const (
	Down    Link = "down"    // no connection, or not yet ready on it
	Held    Link = "held"    // another connection has the host's lock queue
	Blocked Link = "blocked" // the broker takes no publishes now; what arrives still arrives
	Up      Link = "up"
)

// State is what is known of the link at one moment. Reason and Err never hold
// credentials.
type State struct {
	Link       Link
	Since      time.Time // of this Link
	Reason     string    // for people; empty while all is well
	Err        error     // a fault: NoBroker, HostHeld or Config; nil while Up
	Dialect    topology.Dialect
	Reconnects int64     // connections made anew, of both
	HadHost    bool      // this Bus has held the host's lock at some time
	HeldSince  time.Time // since when the lock is another's; zero while it is not
	// Unserved lists attached, unpaused queues without a consumer, each with the
	// reason where there is one. The link may be Up all the same: one queue in a
	// stranger's hand does not stop the others.
	Unserved map[string]string
}

// State returns the state of the moment.
func (b *Bus) State() State { return b.board.state() }

// Changed returns a channel that is closed at the next change of the state. To
// wait without missing one, call Changed first, then State, then wait.
func (b *Bus) Changed() <-chan struct{} {
	b.board.mu.Lock()
	defer b.board.mu.Unlock()
	return b.board.changed
}

// board is where the owners of the two connections write what they see and
// everybody reads it.
type board struct {
	mu      sync.Mutex // guards all below
	changed chan struct{}
	left    chan struct{} // closed when the link leaves Up; new at the next Up
	last    State

	// The consuming side.
	held, ready   bool
	consumeReason string
	consumeErr    error
	readyAgain    chan struct{} // closed while ready

	// The publishing side.
	publishing    bool
	blocked       string // why, while it is
	publishReason string
	publishErr    error

	ended    bool
	unserved map[string]string
	dialled  map[string]bool // connections that have stood at some time
}

func newBoard() *board {
	left := make(chan struct{})
	close(left)
	return &board{
		changed:       make(chan struct{}),
		left:          left,
		readyAgain:    make(chan struct{}),
		consumeReason: "not connected yet",
		last:          State{Link: Down, Since: time.Now(), Reason: "not connected yet", Err: noBroker("not connected yet")},
		unserved:      map[string]string{},
		dialled:       map[string]bool{},
	}
}

func noBroker(reason string) error {
	return fault.New(fault.NoBroker, "the broker is out of reach: %s", reason).
		WithHint("`fleet gateway status` shows the link; broker.url in fleet.yaml names the broker")
}

func (b *board) state() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.last
	s.Unserved = maps.Clone(b.unserved)
	return s
}

// leaving returns the present state and a channel that is closed once the link
// is no longer Up.
func (b *board) leaving() (State, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.left
}

// readiness is closed while the consuming side stands.
func (b *board) readiness() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readyAgain
}

// update changes the facts by set and derives the state from them.
func (b *board) update(set func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	set()
	b.derive()
}

// derive is called with mu held.
func (b *board) derive() {
	link, reason, err := b.judge()
	if link != b.last.Link {
		b.last.Since = time.Now()
		if b.last.Link == Up {
			close(b.left)
		}
		if link == Up {
			b.left = make(chan struct{})
		}
	}
	b.last.Link, b.last.Reason, b.last.Err = link, reason, err
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) judge() (Link, string, error) {
	switch {
	case b.ended:
		return Down, "the gateway is closing", noBroker("the gateway is closing")
	case b.held:
		return Held, b.consumeReason, b.consumeErr
	case !b.ready:
		return Down, b.consumeReason, orNoBroker(b.consumeErr, b.consumeReason)
	case !b.publishing:
		return Down, b.publishReason, orNoBroker(b.publishErr, b.publishReason)
	case b.blocked != "":
		reason := "the broker takes no messages now (resource alarm): " + b.blocked
		return Blocked, reason, fault.New(fault.NoBroker, "%s", reason).
			WithHint("free memory or disk on the broker")
	}
	return Up, b.troubles(), nil
}

func orNoBroker(err error, reason string) error {
	if err != nil {
		return err
	}
	return noBroker(reason)
}

// troubles joins what is wrong with single queues.
func (b *board) troubles() string {
	var lines []string
	for name, why := range b.unserved {
		if why != "" {
			lines = append(lines, name+": "+why)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func (b *board) consumeDown(reason string, err error) {
	b.update(func() { b.unready(); b.held = false; b.consumeReason, b.consumeErr = reason, err })
}

func (b *board) consumeHeld(reason string, err error) {
	b.update(func() {
		b.unready()
		b.held, b.consumeReason, b.consumeErr = true, reason, err
		if b.last.HeldSince.IsZero() {
			b.last.HeldSince = time.Now()
		}
	})
}

// consumeLocked notes that the host's lock is ours.
func (b *board) consumeLocked() {
	b.update(func() {
		b.last.HadHost, b.last.HeldSince = true, time.Time{}
		b.held, b.consumeReason, b.consumeErr = false, "declaring queues", nil
	})
}

func (b *board) consumeReady() {
	b.update(func() {
		if !b.ready {
			b.ready = true
			close(b.readyAgain)
		}
		b.consumeReason = ""
		if !b.publishing {
			b.publishReason = "opening the connection to publish on"
		}
	})
}

// unready is called within update.
func (b *board) unready() {
	if b.ready {
		b.ready = false
		b.readyAgain = make(chan struct{})
	}
}

func (b *board) publishDown(reason string, err error) {
	b.update(func() { b.publishing, b.blocked, b.publishReason, b.publishErr = false, "", reason, err })
}

func (b *board) publishUp() {
	b.update(func() { b.publishing, b.publishReason, b.publishErr = true, "", nil })
}

// publishBlocked notes an alarm; an empty reason ends it.
func (b *board) publishBlocked(reason string) {
	b.update(func() { b.blocked = reason })
}

func (b *board) dialect(d topology.Dialect) { b.update(func() { b.last.Dialect = d }) }

// connected counts a connection that stands.
func (b *board) connected(role string) {
	b.update(func() {
		if b.dialled[role] {
			b.last.Reconnects++
		}
		b.dialled[role] = true
	})
}

func (b *board) end() { b.update(func() { b.unready(); b.ended = true }) }

// serve notes whether an attached queue has its consumer, and why not.
func (b *board) serve(name string, served bool, why string) {
	b.update(func() {
		if served {
			delete(b.unserved, name)
		} else {
			b.unserved[name] = why
		}
	})
}
