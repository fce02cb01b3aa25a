package bus

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// drain brings a queue nearer to its deletion (R6): unbound, so that nothing
// new comes; consumed, because basic.get is refused on some queues; seen empty;
// its consumer cancelled; seen empty again, with nothing out; deleted. It says
// when to look again.
func (g *group) drain(m *member, w wish) time.Duration {
	if err := g.declare(m, true); err != nil {
		return g.fail(m, err)
	}
	if !m.unbound {
		if err := unbind(g.desk, m.queue); err != nil {
			return g.fail(m, err)
		}
		m.unbound = true
	}
	if g.line != nil && g.line.outstanding(m.queue.Name) > 0 {
		return drainLook
	}
	if m.tag == "" && w.reading {
		return drainLook // the reader hands over what was prefetched, and wakes us
	}
	left, err := g.count(m)
	switch {
	case codeOf(err) == amqp.NotFound:
		g.deleted(m)
		return touchMost
	case err != nil:
		return g.fail(m, err)
	case left > 0 && m.tag == "":
		return min(g.consume(m), drainLook)
	case left > 0:
		return drainLook
	case m.tag != "":
		g.cancel(m)
		return drainLook
	}
	err = g.desk.ask(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(m.queue.Name, false, false, false)
		return err
	})
	if err != nil && codeOf(err) != amqp.NotFound {
		return g.fail(m, fmt.Errorf("delete queue %s: %w", m.queue.Name, err))
	}
	g.deleted(m)
	return touchMost
}

// count is how many messages are ready in the queue.
func (g *group) count(m *member) (int, error) {
	var q amqp.Queue
	err := g.desk.ask(func(ch *amqp.Channel) (err error) {
		q, err = ch.QueueDeclarePassive(m.queue.Name, m.queue.Durable, m.queue.AutoDelete, m.queue.Exclusive, false, nil)
		return err
	})
	return q.Messages, err
}

// deleted ends the attachment of a queue that is gone.
func (g *group) deleted(m *member) {
	g.wants.mu.Lock()
	if !m.detached {
		g.wants.retire(m.attachment)
	}
	g.wants.mu.Unlock()
	g.nudge()
}
