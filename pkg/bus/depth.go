package bus

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
)

// Depth counts the messages that are ready in a queue. It fails with NoBroker
// while the consuming connection is not there, and with NotFound for a queue
// that is not.
func (b *Bus) Depth(ctx context.Context, queue string) (int, error) {
	b.wants.mu.Lock()
	conn := b.wants.conn
	b.wants.mu.Unlock()
	if conn == nil {
		return 0, noBroker("the connection is down")
	}
	type answer struct {
		messages int
		err      error
	}
	got := make(chan answer, 1)
	go func() { // ended by the broker's answer, or by the connection's end
		n, err := depth(conn, queue)
		got <- answer{n, err}
	}()
	select {
	case a := <-got:
		switch {
		case codeOf(a.err) == amqp.NotFound:
			return 0, fault.New(fault.NotFound, "no queue %s on the broker", queue)
		case a.err != nil:
			return 0, noBroker(b.broker.redact(a.err.Error()))
		}
		return a.messages, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("count the messages of %s: %w", queue, ctx.Err())
	}
}

// depth asks on a channel of its own, which a queue that is missing closes.
func depth(conn *amqp.Connection, queue string) (int, error) {
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	defer ch.Close() // closed already where the broker refused
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, err
}
