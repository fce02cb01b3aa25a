package bus

import (
	"context"
	"fmt"
	"sync"
)

// Publish puts m into the publish window, in the order of the calls. It blocks
// while the window is full, until ctx ends. It fails at once with
// fault.NoBroker (or HostHeld, or Config) while the link is not Up, and with
// fault.Usage if the broker could not take m in any case. An error means that m
// was not published and will not be.
func (b *Bus) Publish(ctx context.Context, m Message) (*Publication, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	state, left := b.board.leaving()
	if state.Link != Up {
		return nil, state.Err
	}
	select {
	case b.intake.places <- struct{}{}:
	case <-left:
		return nil, b.refusal()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a place in the publish window: %w", ctx.Err())
	}
	p := newPublication(m)
	if !b.intake.put(p) {
		return nil, b.refusal()
	}
	return p, nil
}

// refusal is why the link has just been lost, even if it is back already.
func (b *Bus) refusal() error {
	if err := b.State().Err; err != nil {
		return err
	}
	return noBroker("the link was lost a moment ago")
}

// intake is the way into the window: a place first, then the message. The
// publisher takes several at a time, which a channel handed over one by one
// would not let it.
type intake struct {
	places chan struct{} // one in it for each undecided message
	wake   chan struct{} // cap 1: the publisher has something to look at

	mu     sync.Mutex // guards below
	queue  []*Publication
	closed bool
}

func newIntake(window int) *intake {
	return &intake{places: make(chan struct{}, window), wake: make(chan struct{}, 1)}
}

func (i *intake) nudge() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// put says false after close.
func (i *intake) put(p *Publication) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	i.queue = append(i.queue, p)
	i.nudge()
	return true
}

// take empties the queue.
func (i *intake) take() []*Publication {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := i.queue
	i.queue = nil
	return all
}

func (i *intake) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
}
