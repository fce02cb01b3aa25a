package gateway

import (
	"context"
	"sync"
)

// queue hands values from any goroutine to one. It is unbounded, so that nobody
// who puts ever waits for the owner: what bounds it is what the putters may have
// under way (the broker's prefetch, the callers of the socket).
type queue[T any] struct {
	mu    sync.Mutex // guards items
	items []T
	wake  chan struct{} // holds a token while items may be non-empty
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) put(v T) {
	q.mu.Lock()
	q.items = append(q.items, v)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns everything that is there, waiting for something until ctx ends.
func (q *queue[T]) take(ctx context.Context) []T {
	for {
		q.mu.Lock()
		items := q.items
		q.items = nil
		q.mu.Unlock()
		if len(items) > 0 {
			return items
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// signal tells any number of waiters that something has changed: each takes the
// channel, looks, and waits for its close.
type signal struct {
	mu sync.Mutex // guards ch
	ch chan struct{}
}

// next is closed at the next fire.
func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
