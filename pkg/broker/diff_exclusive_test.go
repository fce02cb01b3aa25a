package broker_test

import (
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// exclusiveRows are about who may have a queue or a consumer alone.
var exclusiveRows = []scenario{
	{row: "B01/second_consume_exclusive", play: func(s *scene) {
		one := s.channel()
		q := one.queue("q", nil)
		c := one.exclusive("c", q)
		for _, exclusive := range []bool{true, false} {
			other := one.conn.channel()
			_, err := other.Consume(q, "", false, exclusive, false, false, nil)
			other.says("same connection", err)
			far := s.channel()
			_, err = far.Consume(q, "", false, exclusive, false, false, nil)
			far.says("other connection", err)
		}
		one.send(post{key: q, body: "m1"})
		c.next()
		one.counts(q)
	}},
	{row: "B01/exclusive_consume_after_plain", play: func(s *scene) {
		one := s.channel()
		q := one.queue("q", nil)
		s.need("qos", one.Qos(1, 0, false))
		a := one.consume("a", q, nil)
		two := s.channel()
		s.need("qos", two.Qos(1, 0, false))
		in, err := two.Consume(q, "b", false, true, false, false, nil)
		two.says("exclusive consume", err)
		one.send(post{key: q, body: "m1"})
		one.send(post{key: q, body: "m2"})
		a.next()
		if err == nil {
			(&consumer{two, "b", in}).next()
		}
	}, lavin: `
		exclusive consume: ok
		a gets m1
		b gets m2`},
	{row: "B01/get_and_purge_beside_exclusive", play: func(s *scene) {
		one := s.channel()
		q := one.queue("q", nil)
		s.need("qos", one.Qos(1, 0, false))
		c := one.exclusive("c", q)
		for _, body := range []string{"m1", "m2", "m3"} {
			one.send(post{key: q, body: body})
		}
		c.next()
		s.channel().get(q)
		other := s.channel()
		n, err := other.QueuePurge(q, false)
		other.says("purge", err)
		s.say("purged %d", n)
	}, lavin: `
		c gets m1
		get from q: ch 403 ...
		purge: ok
		purged 2`},
	{row: "B01/nowait_refused", play: func(s *scene) {
		one := s.channel()
		q := one.queue("q", nil)
		one.exclusive("c", q)
		other := s.channel()
		in, err := other.Consume(q, "d", false, true, false, true, nil)
		s.say("consume without waiting: %v", err)
		(&consumer{other, "d", in}).ends()
		other.dies("channel")
	}},
	{row: "B01/after_cancel", play: func(s *scene) {
		one, two := s.channel(), s.channel()
		q := one.queue("q", nil)
		one.exclusive("c", q)
		s.need("cancel", one.Cancel("c", false))
		_, err := two.Consume(q, "d", false, true, false, false, nil)
		two.says("exclusive consume after a cancel", err)
		s.need("close", two.Close())
		_, err = one.Consume(q, "e", false, true, false, false, nil)
		one.says("exclusive consume after a channel's end", err)
		s.need("close", one.conn.Close())
		three := s.channel()
		_, err = three.Consume(q, "f", false, true, false, false, nil)
		three.says("exclusive consume after a connection's end", err)
	}},
	{row: "B01/after_cut", play: func(s *scene) {
		one, two := s.channel(), s.channel()
		q := one.queue("q", nil)
		c := one.exclusive("c", q)
		two.send(post{key: q, body: "m1"})
		c.next()
		s.need("cut", one.conn.tap.Close())
		var next *consumer
		s.eventually("exclusive consume after a cut", func() bool {
			other := two.conn.channel()
			in, err := other.Consume(q, "d", false, true, false, false, nil)
			next = &consumer{other, "d", in}
			return err == nil
		})
		next.next()
	}},
	{row: "B01/several_consumers_take_turns", play: func(s *scene) {
		one := s.channel()
		q := one.queue("q", nil)
		a, b, c := one.consume("a", q, nil), one.consume("b", q, nil), one.consume("c", q, nil)
		for _, body := range strings.Fields("m1 m2 m3 m4 m5 m6") {
			one.send(post{key: q, body: body})
		}
		for range 2 {
			a.next()
			b.next()
			c.next()
		}
	}},
	{row: "B01/single_active_consumer", play: func(s *scene) {
		// RabbitMQ 3.10 loses its queue's process when the active consumer is
		// cancelled while messages are ready, so here there are none then.
		one, two := s.confirming(), s.channel()
		q := one.queue("q", args{"x-single-active-consumer": true})
		a, b := one.consume("a", q, nil), two.consume("b", q, nil)
		one.publish(post{key: q, body: "m1"})
		s.need("ack", a.next().Ack(false))
		s.need("cancel", one.Cancel("a", false))
		one.publish(post{key: q, body: "m2"})
		b.next()
		c := one.consume("c", q, nil)
		one.publish(post{key: q, body: "m3"})
		b.next()
		s.need("close", two.Close())
		c.next()
		c.next()
	}},
	{row: "B01/exclusive_beside_single_active", play: func(s *scene) {
		one := s.channel()
		q := one.queue("q", args{"x-single-active-consumer": true})
		_, err := one.Consume(q, "a", false, true, false, false, nil)
		one.says("exclusive consume", err)
	}, lavin: unmeasured},
	{row: "B12/exclusive_queue", play: func(s *scene) {
		one := s.channel()
		_, err := one.QueueDeclare(s.name("q"), false, true, true, false, nil)
		one.says("declare", err)
		q := s.space + "q"
		refused := func(what string, f func(*channel) error) {
			other := s.channel()
			other.says(what, f(other))
		}
		one.bind(q, s.space+"k", "amq.direct", nil)
		refused("declare by another", func(o *channel) error {
			_, err := o.QueueDeclare(q, false, true, true, false, nil)
			return err
		})
		refused("passive declare by another", func(o *channel) error {
			_, err := o.QueueDeclarePassive(q, false, true, true, false, nil)
			return err
		})
		refused("consume by another", func(o *channel) error {
			_, err := o.Consume(q, "", false, false, false, false, nil)
			return err
		})
		refused("get by another", func(o *channel) error { _, _, err := o.Get(q, true); return err })
		refused("bind by another", func(o *channel) error { return o.QueueBind(q, "k", "amq.direct", false, nil) })
		refused("unbind by another", func(o *channel) error { return o.QueueUnbind(q, o.s.space+"k", "amq.direct", nil) })
		refused("purge by another", func(o *channel) error { _, err := o.QueuePurge(q, false); return err })
		refused("delete by another", func(o *channel) error { _, err := o.QueueDelete(q, false, false, false); return err })
		far := s.confirming()
		far.publish(post{key: q, body: "m1", mandatory: true})
		one.conn.channel().get(q)
	}},
	{row: "B12/exclusive_queue_goes_with_its_connection", play: func(s *scene) {
		one, far := s.channel(), s.confirming()
		q := s.name("q")
		_, err := one.QueueDeclare(q, false, false, true, false, nil)
		one.says("declare", err)
		s.need("close", one.Close())
		far.publish(post{key: q, body: "m1", mandatory: true})
		s.need("close", one.conn.Close())
		far.publish(post{key: q, body: "m2", mandatory: true})
		again := s.channel()
		_, err = again.QueueDeclare(q, false, false, true, false, nil)
		again.says("declare anew", err)
		s.need("cut", again.conn.tap.Close())
		s.eventually("the queue is gone after a cut", func() bool {
			_, err := far.conn.channel().QueueDeclarePassive(q, false, false, true, false, nil)
			return err != nil && err.(*amqp.Error).Code == amqp.NotFound
		})
		far.publish(post{key: q, body: "m3", mandatory: true})
		last := far.conn.channel()
		_, err = last.QueueDeclare(q, true, false, false, false, nil)
		last.says("its name is free", err)
	}},
	{row: "B12/auto_delete", play: func(s *scene) {
		one, far := s.channel(), s.confirming()
		q := s.name("q")
		_, err := one.QueueDeclare(q, true, true, false, false, nil)
		one.says("declare", err)
		one.get(q)
		far.publish(post{key: q, body: "m1", mandatory: true})
		s.say("it stays without a consumer")
		one.consume("a", q, nil).next()
		two := s.channel()
		two.consume("b", q, nil)
		s.need("cancel", one.Cancel("a", false))
		far.publish(post{key: q, body: "m2", mandatory: true})
		s.say("it stays with one consumer of two")
		s.need("close", two.Close())
		far.publish(post{key: q, body: "m3", mandatory: true})
		one.says("late ack", one.Ack(1, false))
		one.lives("the channel")
	}},
	{row: "B12/server_named_queue", play: func(s *scene) {
		one := s.channel()
		q, err := one.QueueDeclare("", false, true, true, false, nil)
		one.says("declare", err)
		s.say("named %s", q.Name)
		s.say("its name has %d characters", len(q.Name))
		one.says("bind the last queue", one.QueueBind("", s.space+"k", "amq.direct", false, nil))
		one.send(post{exchange: "amq.direct", key: s.space + "k", body: "m1"})
		one.consume("c", "", nil).next()
		second, err := one.QueueDeclare("", false, true, true, false, nil)
		one.says("declare another", err)
		s.say("the same: %v", second.Name == q.Name)
		_, err = one.QueueDeclarePassive("", false, true, true, false, nil)
		one.says("passive declare without a name", err)
		fresh := s.channel()
		_, err = fresh.Consume("", "", false, false, false, false, nil)
		fresh.says("consume without a last queue", err)
	}},
	{row: "B21/exclusive_consumer_of_a_dead_host", play: func(s *scene) {
		dead := s.rawOpen(1)
		ch := s.channel()
		q := ch.queue("q", nil)
		dead.consume(1, q, true)
		started := time.Now()
		s.eventually("the next consumer", func() bool {
			other := ch.conn.channel()
			_, err := other.Consume(q, "", false, true, false, false, nil)
			return err == nil
		})
		// Twice the heartbeat at least; the protocol's two missed heartbeats may
		// be found by a clock that ticks twice a heartbeat.
		took := time.Since(started)
		s.say("taken over after 1 to 15 heartbeats: %v", took > time.Second && took < 15*time.Second)
	}},
}

// exclusive starts an exclusive consumer; its failure breaks the scenario.
func (ch *channel) exclusive(name, queue string) *consumer {
	in, err := ch.Consume(queue, name, false, true, false, false, nil)
	ch.s.need("consume "+queue+" exclusively", err)
	return &consumer{ch, name, in}
}
