package broker_test

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// exchangeRows are about exchanges, bindings and which queues get a message.
var exchangeRows = []scenario{
	{row: "B20/one_copy_a_queue", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("x", "topic", nil)
		q, other := ch.queue("q", nil), ch.queue("other", nil)
		for _, key := range []string{"a.*", "#", "*.b", "a.b", "a.b"} {
			ch.bind(q, key, x, nil)
		}
		ch.bind(other, "#.b", x, nil)
		ch.publish(post{exchange: x, key: "a.b", body: "m1"})
		ch.drain(q)
		ch.drain(other)
	}},
	{row: "B20/cc_and_bcc", play: func(s *scene) {
		ch := s.confirming()
		a, b, c := ch.queue("a", nil), ch.queue("b", nil), ch.queue("c", nil)
		ch.publish(post{key: a, body: "m1", mandatory: true, headers: args{"CC": []any{b, a}, "BCC": []any{c}, "x": "y"}})
		for _, q := range []string{a, b, c} {
			ch.await(q, 1)
			s.say("%s", whole(ch.get(q)))
		}
		ch.publish(post{key: s.space + "nobody", body: "m2", mandatory: true, headers: args{"CC": []any{b}}})
		ch.drain(b)
		ch.publish(post{key: a, body: "m3", headers: args{"CC": "text"}})
	}},
	{row: "B20/cc_of_numbers", play: func(s *scene) {
		ch := s.confirming()
		ch.publish(post{key: s.space + "nobody", body: "m1", headers: args{"CC": []any{int64(1)}}})
	}},
	{row: "B20/topic_patterns", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("x", "topic", nil)
		var patterns []string
		for i, p := range strings.Split("#|*|*.*|a.b|a.*|*.b|a.#|#.b|a.#.b|#.#|#.*|*.#|a.b.|.|||a..b|#.a.#|A.b|a.*.*.b|*#|a#", "|") {
			q := ch.queue("q"+string(rune('A'+i)), nil)
			ch.bind(q, p, x, nil)
			patterns = append(patterns, p)
		}
		for _, key := range []string{"", "a", "a.b", "b", "a.b.", "a..b", ".", "..", "a.x.b", "a.x.y.b", "A.b", "a#", "b.a", "*", "#", "a.*"} {
			ch.send(post{exchange: x, key: key, body: "m"})
			ch.sync()
			var matched []string
			for i, p := range patterns {
				if _, ok, err := ch.Get(s.space+"q"+string(rune('A'+i)), true); err == nil && ok {
					matched = append(matched, `"`+p+`"`)
				}
			}
			s.say("%q matches %s", key, strings.Join(matched, " "))
		}
	}},
	{row: "B20/trailing_dot", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("x", "topic", nil)
		q := ch.queue("q", nil)
		ch.bind(q, "a.b.", x, nil)
		ch.publish(post{exchange: x, key: "a.b.", body: "m1", mandatory: true})
	}, lavin: `
		publish m1: return 312 NO_ROUTE, ack`},
	{row: "B20/bindings", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("x", "direct", nil)
		q := ch.queue("q", nil)
		ch.says("bind", ch.QueueBind(q, "k", x, false, nil))
		ch.says("bind again", ch.QueueBind(q, "k", x, false, nil))
		ch.says("bind with arguments", ch.QueueBind(q, "k", x, false, args{"a": "b"}))
		ch.publish(post{exchange: x, key: "k", body: "m1", mandatory: true})
		ch.says("unbind", ch.QueueUnbind(q, "k", x, nil))
		ch.publish(post{exchange: x, key: "k", body: "m2", mandatory: true})
		ch.says("unbind with arguments", ch.QueueUnbind(q, "k", x, args{"a": "b"}))
		ch.publish(post{exchange: x, key: "k", body: "m3", mandatory: true})
		ch.says("unbind what is not there", ch.QueueUnbind(q, "k", x, nil))
		ch.drain(q)
	}},
	{row: "B20/bindings_go_with_queue_and_exchange", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("x", "direct", nil)
		q := ch.queue("q", nil)
		ch.bind(q, "k", x, nil)
		_, err := ch.QueueDelete(q, false, false, false)
		s.need("delete", err)
		ch.queue("q", nil)
		ch.publish(post{exchange: x, key: "k", body: "m1", mandatory: true})
		ch.bind(q, "k", x, nil)
		s.need("delete", ch.ExchangeDelete(x, false, false))
		ch.exchange("x", "direct", nil)
		ch.publish(post{exchange: x, key: "k", body: "m2", mandatory: true})
		ch.publish(post{key: q, body: "m3", mandatory: true})
	}},
	{row: "B20/fanout_ignores_keys", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("x", "fanout", nil)
		a, b := ch.queue("a", nil), ch.queue("b", nil)
		ch.bind(a, "one", x, nil)
		ch.bind(b, "", x, nil)
		ch.publish(post{exchange: x, key: "other", body: "m1"})
		s.say("%s", whole(ch.get(a)))
		ch.drain(b)
	}},
	{row: "exchange/default", play: func(s *scene) {
		q := s.channel().queue("q", nil)
		ch := s.channel()
		ch.says("bind to it", ch.QueueBind(q, "k", "", false, nil))
		ch = s.channel()
		ch.says("unbind from it", ch.QueueUnbind(q, q, "", nil))
		ch = s.channel()
		ch.says("delete it", ch.ExchangeDelete("", false, false))
		ch = s.channel()
		ch.says("declare it", ch.ExchangeDeclare("", "direct", true, false, false, false, nil))
		ch = s.channel()
		ch.says("passive declare of it", ch.ExchangeDeclarePassive("", "direct", true, false, false, false, nil))
		ch = s.channel()
		ch.says("bind it to an exchange", ch.ExchangeBind("amq.direct", "k", "", false, nil))
		ch = s.channel()
		ch.says("bind an exchange to it", ch.ExchangeBind("", "k", "amq.direct", false, nil))
	}},
	{row: "exchange/predeclared", play: func(s *scene) {
		ch := s.channel()
		ch.says("declare", ch.ExchangeDeclare("amq.direct", "direct", true, false, false, false, nil))
		ch.says("bind an exchange", ch.ExchangeBind("amq.fanout", s.space+"k", "amq.direct", false, nil))
		ch.says("unbind it", ch.ExchangeUnbind("amq.fanout", s.space+"k", "amq.direct", false, nil))
		ch.says("delete", ch.ExchangeDelete("amq.direct", false, false))
		for _, name := range []string{"amq.direct", "amq.topic", "amq.fanout", "amq.headers", "amq.match"} {
			ch := s.channel()
			ch.says("passive "+name, ch.ExchangeDeclarePassive(name, "direct", true, false, false, false, nil))
		}
		ch = s.channel()
		ch.says("another kind", ch.ExchangeDeclare("amq.direct", "topic", true, false, false, false, nil))
		ch = s.channel()
		ch.says("a new reserved one", ch.ExchangeDeclare("amq.mine", "direct", true, false, false, false, nil))
	}},
	{row: "exchange/redeclare", play: func(s *scene) {
		ch := s.channel()
		x := ch.exchange("x", "topic", nil)
		ch.says("the same again", ch.ExchangeDeclare(x, "topic", true, false, false, false, nil))
		ch.says("with an unknown argument", ch.ExchangeDeclare(x, "topic", true, false, false, false, args{"x-mine": "1"}))
		for _, d := range []struct {
			what, kind                    string
			durable, autoDelete, internal bool
			a                             args
		}{
			{"other kind", "direct", true, false, false, nil},
			{"not durable", "topic", false, false, false, nil},
			{"auto-delete", "topic", true, true, false, nil},
			{"internal", "topic", true, false, true, nil},
			{"alternate", "topic", true, false, false, args{"alternate-exchange": "amq.fanout"}},
		} {
			ch := s.channel()
			ch.says(d.what, ch.ExchangeDeclare(x, d.kind, d.durable, d.autoDelete, d.internal, false, d.a))
		}
	}},
	{row: "exchange/unknown_kind", play: func(s *scene) {
		ch := s.channel()
		ch.says("declare", ch.ExchangeDeclare(s.name("x"), "bogus", true, false, false, false, nil))
	}},
	{row: "exchange/delete_if_unused", play: func(s *scene) {
		ch := s.channel()
		x := ch.exchange("x", "direct", nil)
		q := ch.queue("q", nil)
		ch.bind(q, "k", x, nil)
		other := s.channel()
		other.says("with a binding", other.ExchangeDelete(x, true, false))
		s.need("unbind", ch.QueueUnbind(q, "k", x, nil))
		ch.says("without", ch.ExchangeDelete(x, true, false))
		ch.says("again", ch.ExchangeDelete(x, true, false))
	}},
	{row: "exchange/internal", play: func(s *scene) {
		ch := s.confirming()
		x := s.name("x")
		s.need("declare", ch.ExchangeDeclare(x, "fanout", true, false, true, false, nil))
		q := ch.queue("q", nil)
		ch.bind(q, "", x, nil)
		front := ch.exchange("front", "fanout", nil)
		ch.says("bind it to another", ch.ExchangeBind(x, "", front, false, nil))
		ch.publish(post{exchange: front, body: "m1"})
		ch.publish(post{exchange: x, body: "m2"})
		s.channel().drain(q)
	}},
	{row: "exchange/auto_delete", play: func(s *scene) {
		ch := s.channel()
		x := s.name("x")
		s.need("declare", ch.ExchangeDeclare(x, "direct", true, true, false, false, nil))
		a, b := ch.queue("a", nil), ch.queue("b", nil)
		there := func(when string) {
			probe := s.channel()
			probe.says(when, probe.ExchangeDeclarePassive(x, "direct", true, true, false, false, nil))
		}
		there("without a binding yet")
		ch.bind(a, "k", x, nil)
		ch.bind(b, "k", x, nil)
		s.need("unbind", ch.QueueUnbind(a, "k", x, nil))
		there("with one binding of two")
		_, err := ch.QueueDelete(b, false, false, false)
		s.need("delete", err)
		there("after the last one's queue")
		ch.says("unbind from the gone one", ch.QueueUnbind(a, "k", x, nil))
	}},
	{row: "exchange/to_exchange", play: func(s *scene) {
		ch := s.confirming()
		src, dst := ch.exchange("src", "topic", nil), ch.exchange("dst", "direct", nil)
		q := ch.queue("q", nil)
		ch.bind(q, "a.b", dst, nil)
		ch.says("bind", ch.ExchangeBind(dst, "a.*", src, false, nil))
		ch.says("bind again", ch.ExchangeBind(dst, "a.*", src, false, nil))
		ch.says("a loop", ch.ExchangeBind(src, "#", dst, false, nil))
		ch.publish(post{exchange: src, key: "a.b", body: "m1", mandatory: true})
		ch.publish(post{exchange: src, key: "a.c", body: "m2", mandatory: true})
		s.say("%s", whole(ch.get(q)))
		ch.says("unbind", ch.ExchangeUnbind(dst, "a.*", src, false, nil))
		ch.says("unbind again", ch.ExchangeUnbind(dst, "a.*", src, false, nil))
		ch.publish(post{exchange: src, key: "a.b", body: "m3", mandatory: true})
		ch.drain(q)
		ch.says("bind from a missing one", ch.ExchangeBind(dst, "k", s.name("none"), false, nil))
		ch = s.channel()
		ch.says("bind to a missing one", ch.ExchangeBind(s.name("none"), "k", src, false, nil))
	}},
	{row: "exchange/to_exchange_auto_delete", play: func(s *scene) {
		ch := s.channel()
		src, dst := s.name("src"), ch.exchange("dst", "fanout", nil)
		s.need("declare", ch.ExchangeDeclare(src, "fanout", true, true, false, false, nil))
		s.need("bind", ch.ExchangeBind(dst, "", src, false, nil))
		s.need("delete", ch.ExchangeDelete(dst, false, false))
		ch.says("the source", ch.ExchangeDeclarePassive(src, "fanout", true, true, false, false, nil))
	}},
	{row: "B23/alternate_exchange", play: func(s *scene) {
		ch := s.confirming()
		ae := ch.exchange("ae", "fanout", nil)
		q := ch.queue("q", nil)
		ch.bind(q, "", ae, nil)
		x := ch.exchange("x", "direct", args{"alternate-exchange": ae})
		ch.publish(post{exchange: x, key: "nobody", body: "m1", mandatory: true})
		s.say("%s", whole(ch.get(q)))
		lost := ch.exchange("lost", "direct", args{"alternate-exchange": s.name("nowhere")})
		ch.publish(post{exchange: lost, key: "nobody", body: "m2", mandatory: true})
		s.need("unbind", ch.QueueUnbind(q, "", ae, nil))
		ch.publish(post{exchange: x, key: "nobody", body: "m3", mandatory: true})
		bad := s.channel()
		bad.says("no name", bad.ExchangeDeclare(s.name("bad"), "direct", true, false, false, false, args{"alternate-exchange": int64(1)}))
	}},
	{row: "exchange/headers", play: func(s *scene) {
		ch := s.confirming()
		if !ch.says("declare", ch.ExchangeDeclare(s.name("x"), "headers", true, false, false, false, nil)) {
			return
		}
		x := s.space + "x"
		all, anyOf := ch.queue("all", nil), ch.queue("any", nil)
		ch.bind(all, "", x, args{"x-match": "all", "a": "1", "b": int64(2)})
		ch.bind(anyOf, "", x, args{"x-match": "any", "a": "1", "b": int64(2)})
		for _, h := range []amqp.Table{{"a": "1", "b": int64(2)}, {"a": "1"}, {"c": "1"}, nil} {
			ch.publish(post{exchange: x, body: value(h), headers: h, mandatory: true})
		}
		ch.drain(all)
		ch.drain(anyOf)
	}},
	{row: "exchange/nowait", play: func(s *scene) {
		ch := s.confirming()
		x := s.name("x")
		ch.says("declare", ch.ExchangeDeclare(x, "fanout", true, false, false, true, nil))
		q := ch.queue("q", nil)
		ch.says("bind", ch.QueueBind(q, "", x, true, nil))
		ch.publish(post{exchange: x, body: "m1", mandatory: true})
		_, err := ch.QueuePurge(q, true)
		ch.says("purge", err)
		ch.drain(q)
		ch.says("delete", ch.ExchangeDelete(x, false, true))
		_, err = ch.QueueDelete(q, false, false, true)
		ch.says("delete", err)
		ch.publish(post{key: q, body: "m2", mandatory: true})
	}},
}
