package broker_test

import (
	"strings"
	"time"
)

// settleRows are about acks, requeues, prefetch and cancels.
var settleRows = []scenario{
	{row: "B09/nack_requeue_position", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3 m4 m5")
		s.need("qos", ch.Qos(3, 0, false))
		c := ch.consume("c", q, nil)
		_, two, _ := c.next(), c.next(), c.next()
		s.need("nack", two.Nack(false, true))
		c.next()
		s.need("cancel", ch.Cancel("c", false))
		s.need("close", ch.Close())
		s.channel().awaitDrain(q, 5)
	}},
	{row: "B09/reject_requeue_position", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3")
		one, two := ch.get(q), ch.get(q)
		s.need("reject", two.Reject(true))
		s.need("reject", one.Reject(true))
		ch.drain(q)
	}},
	{row: "B09/nack_multiple", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publishAll(q, "m1 m2 m3 m4 m5 m6")
		ch.get(q)
		two := ch.get(q)
		ch.get(q)
		four := ch.get(q)
		s.need("nack", two.Nack(true, true))
		s.need("nack", four.Nack(true, false))
		ch.await(dlq, 2)
		ch.drain(dlq)
		ch.drain(q)
	}},
	{row: "B09/channel_closed_with_held", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3 m4 m5")
		s.need("qos", ch.Qos(4, 0, false))
		c := ch.consume("c", q, nil)
		one := c.next()
		c.next()
		c.next()
		c.next()
		s.need("ack", one.Ack(false))
		c.next()
		s.need("close", ch.Close())
		s.channel().awaitDrain(q, 4)
	}},
	{row: "B09/connection_cut_with_held", play: func(s *scene) {
		ch, holder := s.confirming(), s.channel()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3")
		s.need("qos", holder.Qos(2, 0, false))
		c := holder.consume("c", q, nil)
		c.next()
		c.next()
		s.need("cut", holder.conn.tap.Close())
		s.channel().awaitDrain(q, 3)
	}},
	{row: "B09/two_holders_requeue_by_age", play: func(s *scene) {
		ch, a, b := s.confirming(), s.channel(), s.channel()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3 m4 m5")
		a.get(q)
		b.get(q)
		a.get(q)
		b.get(q)
		s.need("close", b.Close())
		ch.await(q, 3)
		s.need("close", a.Close())
		ch.awaitDrain(q, 5)
	}},
	{row: "B09/reject", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publishAll(q, "m1")
		s.need("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
		ch.counts(q)
	}},
	{row: "B09/reject_without_a_dlx", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2")
		s.need("reject", ch.get(q).Reject(false))
		ch.drain(q)
	}},
	{row: "B18/double_ack", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		for _, body := range strings.Fields("m1 m2 m3") {
			ch.send(post{key: q, body: body})
		}
		m := ch.get(q)
		ch.get(q)
		ch.says("ack", m.Ack(false))
		ch.says("ack again", m.Ack(false))
		ch.dies("channel")
		ch.conn.channel().awaitDrain(q, 2)
	}},
	{row: "B18/unknown_tag", play: func(s *scene) {
		q := s.channel().queue("q", nil)
		for _, act := range []struct {
			name string
			do   func(ch *channel) error
		}{
			{"ack 7", func(ch *channel) error { return ch.Ack(7, false) }},
			{"ack to 7", func(ch *channel) error { return ch.Ack(7, true) }},
			{"nack 7", func(ch *channel) error { return ch.Nack(7, false, true) }},
			{"reject 7", func(ch *channel) error { return ch.Reject(7, true) }},
			{"ack 0", func(ch *channel) error { return ch.Ack(0, false) }},
		} {
			ch := s.channel()
			ch.send(post{key: q, body: "m"})
			ch.sync()
			ch.get(q)
			ch.says(act.name, act.do(ch))
			ch.dies("channel")
			ch.conn.channel().awaitDrain(q, 1)
		}
	}},
	{row: "B18/ack_all", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.says("ack all of nothing", ch.Ack(0, true))
		ch.lives("the channel")
		ch.publishAll(q, "m1 m2 m3")
		ch.get(q)
		ch.get(q)
		ch.says("ack all", ch.Ack(0, true))
		ch.lives("the channel")
		s.need("close", ch.Close())
		s.channel().drain(q)
	}},
	{row: "B18/ack_up_to_a_settled_tag", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3")
		ch.get(q)
		two := ch.get(q)
		ch.get(q)
		s.need("ack", two.Ack(false))
		ch.says("ack up to the settled one", two.Ack(true))
		ch.dies("channel")
		s.channel().awaitDrain(q, 2)
	}},
	{row: "B18/tag_of_another_channel", play: func(s *scene) {
		one := s.channel()
		two := one.conn.channel()
		q := one.queue("q", nil)
		one.send(post{key: q, body: "m1"})
		m := one.consume("c", q, nil).next()
		ch := two
		ch.says("ack on another channel", ch.Ack(m.DeliveryTag, false))
		ch.dies("channel")
		one.says("ack on its own", m.Ack(false))
		one.lives("its own")
		one.counts(q)
	}},
	{row: "B18/out_of_order_acks", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3 m4")
		one, two, three := ch.get(q), ch.get(q), ch.get(q)
		ch.says("ack the third", three.Ack(false))
		ch.says("ack the first", one.Ack(false))
		ch.says("ack the second", two.Ack(false))
		ch.sync()
		ch.drain(q)
	}},
	{row: "B18/ack_of_an_automatic_ack", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		ch.send(post{key: q, body: "m1"})
		ch.sync()
		m, _, err := ch.Get(q, true)
		s.need("get", err)
		ch.says("ack", m.Ack(false))
		ch.dies("channel")
	}},
	{row: "B19/cancel_with_held", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3 m4")
		s.need("qos", ch.Qos(3, 0, false))
		c := ch.consume("c", q, nil)
		one, two, three := c.next(), c.next(), c.next()
		ch.says("cancel", ch.Cancel("c", false))
		ch.counts(q)
		ch.says("ack", one.Ack(false))
		ch.says("nack", two.Nack(false, true))
		ch.says("reject", three.Reject(false))
		ch.sync()
		ch.drain(q)
	}},
	{row: "B19/cancel_of_an_unknown_tag", play: func(s *scene) {
		ch := s.channel()
		ch.says("cancel", ch.Cancel("nobody", false))
		ch.lives("the channel")
	}},
	{row: "B19/qos_on_a_live_channel", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		s.need("qos", ch.Qos(1, 0, false))
		c := ch.consume("c", q, nil)
		ch.publishAll(q, "m1 m2 m3")
		first := c.next()
		ch.says("qos 2", ch.Qos(2, 0, false))
		ch.counts(q)
		s.need("ack", first.Ack(false))
		ch.sync()
		c.next()
		ch.counts(q)
	}, lavin: `
		publish m1: ack
		publish m2: ack
		publish m3: ack
		c gets m1
		qos 2: ok
		q has 1 ready, 1 consumers
		c gets m2
		q has 0 ready, 1 consumers`},
	{row: "B19/prefetch", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		s.need("qos", ch.Qos(2, 0, false))
		a := ch.consume("a", q, nil)
		b := ch.consume("b", q, nil) // each has its own two
		ch.publishAll(q, "m1 m2 m3 m4 m5")
		one := a.next()
		b.next()
		a.next()
		two := b.next()
		ch.counts(q)
		s.need("ack", two.Ack(false))
		b.next()
		ch.counts(q)
		s.need("ack", one.Ack(true))
		ch.publishAll(q, "m6")
		a.next()
	}},
	{row: "B19/no_ack_has_no_prefetch", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		s.need("qos", ch.Qos(1, 0, false))
		ch.publishAll(q, "m1 m2 m3")
		in, err := ch.Consume(q, "c", true, false, false, false, nil)
		ch.says("consume without acks", err)
		c := &consumer{ch, "c", in}
		c.next()
		c.next()
		c.next()
		s.need("close", ch.Close())
		s.channel().drain(q)
	}},
	{row: "B19/qos_global", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.says("qos global", ch.Qos(2, 0, true))
		a := ch.consume("a", q, nil)
		b := ch.consume("b", q, nil) // both share the two
		ch.publishAll(q, "m1 m2 m3")
		one := a.next()
		b.next()
		ch.counts(q)
		s.need("ack", one.Ack(false))
		ch.await(q, 0)
	}},
	{row: "B19/prefetch_size", play: func(s *scene) {
		ch := s.channel()
		ch.says("qos with a size", ch.Qos(1, 100, false))
	}, lavin: `
		qos with a size: ch 540 ...`},
	{row: "recover/requeue", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3")
		ch.get(q)
		ch.get(q)
		ch.says("recover", ch.recover(true))
		ch.drain(q)
	}},
	{row: "recover/to_a_consumer", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		c := ch.consume("c", q, nil)
		ch.publishAll(q, "m1 m2")
		c.next()
		c.next()
		ch.says("recover", ch.recover(true))
		c.next()
		c.next()
	}},
	{row: "recover/without_requeue", play: func(s *scene) {
		ch := s.channel()
		ch.says("recover", ch.recover(false))
	}},
	{row: "consume/priority", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		low := ch.consume("low", q, args{"x-priority": int64(-5)})
		high := ch.consume("high", q, args{"x-priority": int64(10)})
		ch.publish(post{key: q, body: "m1"})
		select {
		case m := <-low.in:
			s.say("low gets %s", brief(m))
		case m := <-high.in:
			s.say("high gets %s", brief(m))
		case <-time.After(patience):
			s.broke("nobody gets m1")
		}
		_, err := ch.Consume(q, "bad", false, false, false, false, args{"x-priority": "high"})
		ch.says("x-priority is no number", err)
	}},
	{row: "consume/no_local", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		in, err := ch.Consume(q, "c", false, false, true, false, nil)
		ch.says("consume", err)
		ch.publishAll(q, "m1")
		(&consumer{ch, "c", in}).next()
	}},
	{row: "consume/a_message_finds_the_waiting", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		c := ch.consume("c", q, nil)
		ch.publish(post{key: q, body: "m1", change: nil, headers: args{
			"bool": true, "i8": int8(-1), "u8": byte(1), "i16": int16(-2), "i32": int32(-3), "i64": int64(-4), "f32": float32(1.5), "f64": 2.5,
			"text": "é", "bytes": []byte{0, 255}, "time": time.Unix(1, 0), "nil": nil, "list": []any{int32(1), "two"}, "table": args{"a": args{}},
		}})
		c.whole()
	}},
}

// awaitDrain drains a queue once it has so many ready messages.
func (ch *channel) awaitDrain(queue string, ready int) {
	ch.await(queue, ready)
	ch.drain(queue)
}

// recover asks for what is unacked again.
func (ch *channel) recover(requeue bool) error {
	//lint:ignore SA1019 a deprecated method of the protocol is a method of the protocol
	return ch.Channel.Recover(requeue)
}
