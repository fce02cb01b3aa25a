package bus

import (
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/topology"
)

// desk is a channel for questions whose refusal closes the channel; it opens
// another one then. One goroutine owns it.
type desk struct {
	conn *amqp.Connection
	ch   *amqp.Channel
}

// ask runs f on the desk's channel.
func (d *desk) ask(f func(*amqp.Channel) error) error {
	if d.ch == nil || d.ch.IsClosed() {
		ch, err := d.conn.Channel()
		if err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		d.ch = ch
	}
	return f(d.ch)
}

func (d *desk) close() {
	if d.ch != nil {
		_ = d.ch.Close()
		d.ch = nil
	}
}

// table makes an AMQP table: the client library cuts an int to 32 bits.
func table(args map[string]any) amqp.Table {
	if len(args) == 0 {
		return nil
	}
	t := make(amqp.Table, len(args))
	for key, value := range args {
		if n, ok := value.(int); ok {
			value = int64(n)
		}
		t[key] = value
	}
	return t
}

// declareShared makes sure of the exchanges and the queue of dead letters:
// passively, which needs no permission, and actively only what is missing. It
// says whether it made an exchange.
func declareShared(d *desk, layout topology.Layout, dialect topology.Dialect) (made bool, err error) {
	letters := false // the dead letters' exchange is new
	for _, x := range topology.Exchanges() {
		err := d.ask(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(x.Name, x.Type, true, false, false, false, nil)
		})
		if codeOf(err) == amqp.NotFound {
			err = d.ask(func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(x.Name, x.Type, true, false, false, false, nil)
			})
			made = made || err == nil
			letters = letters || err == nil && x.Name == topology.DeadLetters
		}
		if err != nil {
			return made, fmt.Errorf("declare exchange %s: %w", x.Name, err)
		}
	}
	dlq := layout.DLQ(dialect)
	err = passive(d, dlq)
	if codeOf(err) == amqp.NotFound {
		err = active(d, dlq)
		letters = true
	}
	if err == nil && letters {
		err = bind(d, dlq)
	}
	if err != nil {
		return made, fmt.Errorf("declare queue %s: %w", dlq.Name, err)
	}
	return made, nil
}

func passive(d *desk, q topology.Queue) error {
	return d.ask(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(q.Name, q.Durable, q.AutoDelete, q.Exclusive, false, nil)
		return err
	})
}

func active(d *desk, q topology.Queue) error {
	return d.ask(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.Name, q.Durable, q.AutoDelete, q.Exclusive, false, table(q.Args))
		return err
	})
}

func bind(d *desk, q topology.Queue) error {
	for _, b := range q.Bindings {
		err := d.ask(func(ch *amqp.Channel) error { return ch.QueueBind(q.Name, b.Key, b.Exchange, false, nil) })
		if err != nil {
			return fmt.Errorf("bind queue %s to %s with %s: %w", q.Name, b.Exchange, b.Key, err)
		}
	}
	return nil
}

func unbind(d *desk, q topology.Queue) error {
	for _, b := range q.Bindings {
		err := d.ask(func(ch *amqp.Channel) error { return ch.QueueUnbind(q.Name, b.Key, b.Exchange, nil) })
		if err != nil && codeOf(err) != amqp.NotFound {
			return fmt.Errorf("unbind queue %s from %s with %s: %w", q.Name, b.Exchange, b.Key, err)
		}
	}
	return nil
}

// declareOwn declares and binds one of the host's queues. One that stands with
// other arguments, or that this login may not declare, is used as it stands
// (R4); warn is then called with the broker's text.
func declareOwn(d *desk, q topology.Queue, warn func(queue string, cause error)) error {
	err := active(d, q)
	if slices.Contains([]int{amqp.PreconditionFailed, amqp.AccessRefused}, codeOf(err)) {
		if passive(d, q) != nil {
			return fmt.Errorf("declare queue %s: %w", q.Name, err)
		}
		warn(q.Name, err)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("declare queue %s: %w", q.Name, err)
	}
	return bind(d, q)
}
