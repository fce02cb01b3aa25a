package gateway

import (
	"context"

	"fleet/pkg/topology"
)

// letters watches how full the queue of dead letters is: at its cap the oldest
// are dropped, so it warns from 80 % on (R1).
type letters struct {
	g   *Gateway
	due chan struct{} // cap 1: a letter was added
}

func newLetters(g *Gateway) *letters { return &letters{g: g, due: make(chan struct{}, 1)} }

// added has the queue looked at. It does not block.
func (l *letters) added() {
	select {
	case l.due <- struct{}{}:
	default:
	}
}

// run looks after letters were added, until ctx ends.
func (l *letters) run(ctx context.Context) {
	near := false
	for {
		select {
		case <-l.due:
		case <-ctx.Done():
			return
		}
		n, err := l.g.bus.Depth(ctx, topology.DLQ)
		if err != nil {
			l.g.log.Debug("can't count the dead letters", "err", err)
			continue
		}
		most := l.g.cfg.Broker.Limits.DLQMessages
		was := near
		near = int64(n)*5 >= most*4
		if near && !was {
			l.g.log.Warn("the queue of dead letters is nearly full; at its cap the oldest are dropped",
				"queue", topology.DLQ, "messages", n, "cap", most)
		}
	}
}
