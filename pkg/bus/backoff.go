package bus

import (
	"context"
	"math/rand/v2"
	"time"
)

// stable is how long a connection must have lasted for the next failure to
// count as the first.
const stable = 30 * time.Second

// backoff spreads the tries of many gateways after a broker's restart: full
// jitter over a doubling bound.
type backoff struct {
	first, most time.Duration
	n           int
}

// next is the wait before the next try.
func (b *backoff) next() time.Duration {
	bound := b.first << min(b.n, 20)
	if bound > b.most || bound <= 0 {
		bound = b.most
	}
	b.n++
	return rand.N(bound + 1)
}

func (b *backoff) reset() { b.n = 0 }

// between is a random duration in [low, high].
func between(low, high time.Duration) time.Duration {
	return low + rand.N(high-low+1)
}

// pause waits for d. It says false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
