package broker_test

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declared is one queue.declare beside another.
type declared struct {
	what                           string
	transient, autoDelete, exclude bool
	a                              args
}

func (d declared) on(ch *channel, name string) error {
	_, err := ch.QueueDeclare(name, !d.transient, d.autoDelete, d.exclude, false, d.a)
	return err
}

// full has every argument that a queue of fleet's may have.
func full() args {
	return args{"x-max-length": int64(10), "x-max-length-bytes": int64(1000), "x-message-ttl": int64(60000), "x-expires": int64(600000),
		"x-overflow": "reject-publish", "x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "dead", "x-single-active-consumer": true}
}

// without is full but for one argument, or with another value of it.
func without(name string, other any) args {
	a := full()
	delete(a, name)
	if other != nil {
		a[name] = other
	}
	return a
}

// declareRows are about queues that are declared, once and again.
var declareRows = []scenario{
	{row: "B07/equal_redeclare", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", full())
		ch.send(post{key: q, body: "m1"})
		ch.sync()
		got, err := ch.QueueDeclare(q, true, false, false, false, full())
		ch.says("the same again", err)
		s.say("%s %d %d", got.Name, got.Messages, got.Consumers)
		for _, v := range []any{int32(10), int16(10), int8(10), uint8(10), uint16(10), uint32(10)} {
			again := s.channel()
			again.says("x-max-length as "+value(v), declared{a: without("x-max-length", v)}.on(again, q))
		}
	}},
	{row: "B07/inequivalent_redeclare", play: func(s *scene) {
		s.channel().queue("q", full())
		for _, d := range []declared{
			{what: "not durable", transient: true, a: full()},
			{what: "auto-delete", autoDelete: true, a: full()},
			{what: "exclusive", exclude: true, a: full()},
			{what: "other max-length", a: without("x-max-length", int64(11))},
			{what: "no max-length", a: without("x-max-length", nil)},
			{what: "other max-length-bytes", a: without("x-max-length-bytes", int64(11))},
			{what: "other ttl", a: without("x-message-ttl", int64(11))},
			{what: "no ttl", a: without("x-message-ttl", nil)},
			{what: "other expires", a: without("x-expires", int64(11))},
			{what: "no expires", a: without("x-expires", nil)},
			{what: "other overflow", a: without("x-overflow", "drop-head")},
			{what: "no overflow", a: without("x-overflow", nil)},
			{what: "other dlx", a: without("x-dead-letter-exchange", "amq.direct")},
			{what: "other dlx key", a: without("x-dead-letter-routing-key", "other")},
			{what: "no dlx key", a: without("x-dead-letter-routing-key", nil)},
			{what: "no single active consumer", a: without("x-single-active-consumer", nil)},
			{what: "max-length as a float", a: without("x-max-length", float64(10))},
			{what: "nothing", a: nil},
		} {
			ch := s.channel()
			ch.says(d.what, d.on(ch, s.space+"q"))
		}
	}},
	{row: "B07/extra_known_argument", play: func(s *scene) {
		s.channel().queue("q", nil)
		for _, name := range []string{"x-max-length", "x-message-ttl", "x-expires", "x-overflow", "x-dead-letter-exchange"} {
			ch := s.channel()
			ch.says("with "+name, declared{a: args{name: full()[name]}}.on(ch, s.space+"q"))
		}
	}},
	{row: "B07/unknown_arguments", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		ch.says("explicit type", declared{a: args{"x-queue-type": "classic"}}.on(ch, q))
		ch = s.channel()
		ch.says("unknown extra", declared{a: args{"x-fleet-version": int64(2)}}.on(ch, q))
		ch = s.channel()
		ch.says("declare with an unknown", declared{a: args{"x-fleet-version": "1"}}.on(ch, s.name("q2")))
	}, lavin: `
		explicit type: ch 406 ...
		unknown extra: ch 406 ...
		declare with an unknown: ok`},
	{row: "B07/invalid_values", play: func(s *scene) {
		for _, a := range []struct {
			name   string
			values []any
		}{
			{"x-max-length", []any{int64(-1), "3", 3.5, true, nil}},
			{"x-max-length-bytes", []any{int64(-1), "3"}},
			{"x-message-ttl", []any{int64(-1), "3", int64(4294967295), int64(4294967296), int64(315360000000), int64(315360000001)}},
			{"x-expires", []any{int64(0), int64(-1), "3", int64(315360000001)}},
			{"x-dead-letter-exchange", []any{int64(1), true}},
			{"x-single-active-consumer", []any{"true", int64(1)}},
		} {
			for i, v := range a.values {
				ch := s.channel()
				ch.says(a.name+"="+value(v), declared{a: args{a.name: v}}.on(ch, s.name(a.name+string(rune('a'+i)))))
			}
		}
	}},
	{row: "B07/overflow_unknown", play: func(s *scene) {
		ch := s.channel()
		ch.says("x-overflow=bogus", declared{a: args{"x-overflow": "bogus"}}.on(ch, s.name("q")))
	}, lavin: `
		x-overflow=bogus: ok`},
	{row: "B07/overflow_is_no_text", play: func(s *scene) {
		ch := s.channel()
		ch.says("x-overflow=7", declared{a: args{"x-overflow": int64(7)}}.on(ch, s.name("q")))
	}, lavin: unmeasured},
	{row: "B07/dlx_key_alone", play: func(s *scene) {
		ch := s.channel()
		ch.says("key without exchange", declared{a: args{"x-dead-letter-routing-key": "k"}}.on(ch, s.name("q")))
		ch = s.channel()
		ch.says("key is a number", declared{a: args{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": int64(1)}}.on(ch, s.name("q2")))
	}},
	{row: "B07/dlx_missing", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.name("later")})
		ch.publish(post{key: q, body: "m1"})
		ch.says("reject", ch.get(q).Reject(false))
		ch.counts(q)
		x := ch.exchange("later", "fanout", nil) // asked for each dead letter anew
		dlq := ch.queue("dlq", nil)
		ch.bind(dlq, "", x, nil)
		ch.publish(post{key: q, body: "m2"})
		ch.says("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		ch.drain(dlq)
	}},
	{row: "B07/delivery_limit", play: func(s *scene) {
		ch := s.channel()
		ch.says("x-delivery-limit", declared{a: args{"x-delivery-limit": int64(2)}}.on(ch, s.name("q")))
	}, lavin: `
		x-delivery-limit: ok`},
	{row: "B07/max_priority_argument", play: func(s *scene) {
		ch := s.channel()
		ch.says("x-max-priority=5", declared{a: args{"x-max-priority": int64(5)}}.on(ch, s.name("q")))
		for i, v := range []any{int64(-1), "5", int64(256)} {
			ch := s.channel()
			ch.says("x-max-priority="+value(v), declared{a: args{"x-max-priority": v}}.on(ch, s.name("q"+string(rune('a'+i)))))
		}
	}},
	{row: "B07/queue_types", play: func(s *scene) {
		for _, kind := range []any{"classic", "bogus", int64(1)} {
			ch := s.channel()
			ch.says("x-queue-type="+value(kind), declared{a: args{"x-queue-type": kind}}.on(ch, s.name("q")))
		}
	}},
	{row: "B07/quorum_queue", play: func(s *scene) {
		ch := s.channel()
		ch.says("x-queue-type=quorum", declared{a: args{"x-queue-type": "quorum"}}.on(ch, s.name("q")))
	}},
	{row: "B07/not_durable", play: func(s *scene) {
		ch := s.channel()
		ch.says("not durable", declared{transient: true}.on(ch, s.name("q")))
		ch.says("not durable, auto-delete", declared{transient: true, autoDelete: true}.on(ch, s.name("q2")))
	}},
	{row: "B07/delayed_message_exchange", play: func(s *scene) {
		ch := s.channel()
		ch.says("declare", ch.ExchangeDeclare(s.name("x"), "x-delayed-message", true, false, false, false, args{"x-delayed-type": "direct"}))
	}, lavin: `
		declare: ok`},
	{row: "B07/missing_queue", play: func(s *scene) {
		q := s.name("nowhere")
		for _, c := range []struct {
			what string
			do   func(*channel) error
		}{
			{"passive declare", func(ch *channel) error {
				_, err := ch.QueueDeclarePassive(q, true, false, false, false, nil)
				return err
			}},
			{"consume", func(ch *channel) error { _, err := ch.Consume(q, "", false, false, false, false, nil); return err }},
			{"get", func(ch *channel) error { _, _, err := ch.Get(q, true); return err }},
			{"purge", func(ch *channel) error { _, err := ch.QueuePurge(q, false); return err }},
			{"delete", func(ch *channel) error { _, err := ch.QueueDelete(q, false, false, false); return err }},
			{"bind", func(ch *channel) error { return ch.QueueBind(q, "k", "amq.direct", false, nil) }},
			{"unbind", func(ch *channel) error { return ch.QueueUnbind(q, "k", "amq.direct", nil) }},
		} {
			ch := s.channel()
			ch.says(c.what, c.do(ch))
		}
	}},
	{row: "B07/missing_exchange", play: func(s *scene) {
		q, x := s.channel().queue("q", nil), s.name("nowhere")
		ch := s.channel()
		ch.says("bind", ch.QueueBind(q, "k", x, false, nil))
		ch = s.channel()
		ch.says("unbind", ch.QueueUnbind(q, "k", x, nil))
		ch = s.channel()
		ch.says("passive declare", ch.ExchangeDeclarePassive(x, "direct", true, false, false, false, nil))
		ch = s.channel()
		ch.says("delete", ch.ExchangeDelete(x, false, false))
		ch = s.channel()
		ch.says("bind both missing", ch.QueueBind(s.name("none"), "k", x, false, nil))
	}},
	{row: "B07/passive_declare_of_another_kind", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", args{"x-max-length": int64(5)})
		_, err := ch.QueueDeclarePassive(q, false, true, false, false, args{"x-max-length": int64(6), "x-queue-type": "quorum"})
		ch.says("queue", err)
		x := ch.exchange("x", "direct", nil)
		ch.says("exchange", ch.ExchangeDeclarePassive(x, "topic", false, true, true, false, nil))
	}},
	{row: "B07/same_consumer_tag", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		ch.consume("c", q, nil)
		// The client knows its own tags, but not those of its other channels.
		r := s.rawOpen(10)
		r.consume(1, q, false)
		r.method(1, 60, 20, enc{}.u16(0).str(q).str("raw").u8(0).u32(0))
		s.say("the same tag again: %s", r.next())
		ch.counts(q)
	}, lavin: `
		the same tag again: basic.consume-ok
		q has 0 ready, 3 consumers`},
	{row: "B07/reserved_names", play: func(s *scene) {
		for _, name := range []string{"amq.mine", "amq."} {
			ch := s.channel()
			ch.says("queue "+name, declared{exclude: true, transient: true}.on(ch, name))
		}
		ch := s.channel()
		_, err := ch.QueueDeclarePassive("amq.mine", true, false, false, false, nil)
		ch.says("passive declare", err)
	}},
	{row: "B07/names", play: func(s *scene) {
		ch := s.channel()
		for _, name := range []string{"with space", "ü", "slash/colon:", strings.Repeat("n", 255-len(s.space))} {
			q := ch.queue(name, nil)
			ch.send(post{key: q, body: "m1"})
			ch.drain(q)
		}
	}},
	{row: "B07/nowait_declare", play: func(s *scene) {
		ch := s.channel()
		_, err := ch.QueueDeclare(s.name("q"), true, false, false, true, nil)
		ch.says("declare without waiting", err)
		ch.counts(s.space + "q")
		_, err = ch.QueueDeclare(s.space+"q", true, false, false, true, args{"x-max-length": int64(1)})
		ch.says("another without waiting", err)
		ch.dies("channel")
	}},
	{row: "basic.get/counts", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3")
		ch.get(q)
		m := ch.get(q)
		ch.get(q)
		ch.get(q)
		ch.counts(q)
		ch.says("requeue", m.Reject(true))
		ch.get(q)
		s.need("close", ch.Close())
		other := s.channel()
		other.await(q, 3)
		got, ok, err := other.Get(q, true)
		s.say("with auto-ack: %s %v %v, %d left", brief(got), ok, err, got.MessageCount)
		other.drain(q)
	}},
	{row: "purge/ready_only", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-dead-letter-exchange": "amq.fanout"})
		ch.publishAll(q, "m1 m2 m3")
		held := ch.get(q)
		n, err := ch.QueuePurge(q, false)
		ch.says("purge", err)
		s.say("purged %d", n)
		ch.says("requeue", held.Nack(false, true))
		ch.drain(q)
		n, err = ch.QueuePurge(q, false)
		ch.says("purge", err)
		s.say("purged %d", n)
	}},
	{row: "B10/queue_deleted_under_a_consumer", play: func(s *scene) {
		ch, other := s.channel(), s.confirming()
		q := ch.queue("q", nil)
		cancels := ch.NotifyCancel(make(chan string, 1))
		c := ch.consume("c", q, nil)
		other.publishAll(q, "m1 m2")
		m := c.next()
		c.next()
		n, err := other.QueueDelete(q, false, false, false)
		other.says("delete", err)
		s.say("deleted %d messages", n)
		tag, _ := receive(s, "a cancel", cancels)
		s.say("cancelled %s", tag)
		c.ends()
		ch.says("late ack", m.Ack(false))
		ch.lives("the channel")
		ch.says("cancel of the cancelled", ch.Cancel("c", false))
	}},
	{row: "B10/deleted_messages_are_no_dead_letters", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publishAll(q, "m1 m2 m3")
		ch.get(q)
		n, err := ch.QueueDelete(q, false, false, false)
		ch.says("delete", err)
		s.say("deleted %d messages", n)
		ch.counts(dlq)
		ch.publish(post{key: q, body: "m4", mandatory: true})
	}},
	{row: "B10/if_unused_if_empty", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		ch.consume("c", q, nil)
		other := s.channel()
		_, err := other.QueueDelete(q, true, false, false)
		other.says("if unused, with a consumer", err)
		s.need("cancel", ch.Cancel("c", false))
		ch.send(post{key: q, body: "m1"})
		ch.sync()
		other = s.channel()
		_, err = other.QueueDelete(q, false, true, false)
		other.says("if empty, with a message", err)
		held := ch.get(q)
		other = s.channel()
		_, err = other.QueueDelete(q, false, true, false)
		other.says("if empty, with an unacked message", err)
		_ = held
		q = ch.queue("q2", nil)
		n, err := ch.QueueDelete(q, true, true, false)
		ch.says("if both", err)
		s.say("deleted %d messages", n)
	}},
	{row: "B10/delete_of_a_missing_queue", play: func(s *scene) {
		ch := s.channel()
		n, err := ch.QueueDelete(s.name("nowhere"), false, false, false)
		ch.says("delete", err)
		s.say("deleted %d messages", n)
		n, err = ch.QueueDelete(s.name("nowhere"), true, true, false)
		ch.says("delete if unused and empty", err)
		s.say("deleted %d messages", n)
	}},
	{row: "B11/priority", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-priority": int64(5)})
		for _, p := range []struct {
			body     string
			priority uint8
		}{{"low", 1}, {"none", 0}, {"high", 5}, {"higher", 9}, {"middle", 3}} {
			ch.publish(post{key: q, body: p.body, change: func(m *amqp.Publishing) { m.Priority = p.priority }})
		}
		ch.drain(q)
	}},
	{row: "B11/priority_without_the_argument", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		for i, body := range []string{"m1", "m2", "m3"} {
			ch.publish(post{key: q, body: body, change: func(m *amqp.Publishing) { m.Priority = uint8(4 * i) }})
		}
		ch.drain(q)
	}},
}
