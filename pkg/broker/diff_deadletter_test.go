package broker_test

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// deadLetterRows are about where messages go when they leave a queue, and what
// is written on them.
var deadLetterRows = []scenario{
	{row: "B08/routing_key", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("dlx", "direct", nil)
		dlq := ch.queue("dlq", nil)
		ch.bind(dlq, "original", x, nil)
		ch.bind(dlq, "replaced", x, nil)
		keeps := ch.queue("keeps", args{"x-dead-letter-exchange": x})
		replaces := ch.queue("replaces", args{"x-dead-letter-exchange": x, "x-dead-letter-routing-key": "replaced"})
		src := ch.exchange("src", "topic", nil)
		ch.bind(keeps, "original", src, nil)
		ch.publish(post{exchange: src, key: "original", body: "m1"})
		s.need("reject", ch.get(keeps).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
		ch.bind(replaces, "other.key", src, nil)
		ch.publish(post{exchange: src, key: "other.key", body: "m2"})
		s.need("reject", ch.get(replaces).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B08/default_exchange", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.queue("dlq", nil)
		q := ch.queue("q", args{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq})
		ch.publish(post{key: q, body: "m1"})
		s.need("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B08/drop_head_with_a_key", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.queue("dlq", nil)
		ch.bind(dlq, s.space+"dead", "amq.direct", nil)
		q := ch.queue("q", args{"x-max-length": int64(1), "x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": s.space + "dead"})
		ch.publishAll(q, "m1 m2")
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
		ch.drain(q)
	}},
	{row: "B08/ttl_self_cycle", play: func(s *scene) {
		ch := s.confirming()
		q := s.name("q")
		ch.queue("q", args{"x-message-ttl": int64(1000), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q})
		ch.publish(post{key: q, body: "m1", expiration: "100"})
		ch.await(q, 0)
		ch.publish(post{key: q, body: "m2"})
		ch.drain(q)
	}},
	{row: "B08/ttl_cycle_over_two_queues", play: func(s *scene) {
		ch := s.confirming()
		a, b := s.name("a"), s.name("b")
		ch.queue("a", args{"x-message-ttl": int64(100), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": b})
		ch.queue("b", args{"x-message-ttl": int64(1000), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": a})
		ch.publish(post{key: a, body: "m1"})
		ch.await(b, 1)
		ch.await(b, 0)
		ch.counts(a)
	}},
	{row: "B08/maxlen_cycle", play: func(s *scene) {
		ch := s.confirming()
		q := s.name("q")
		ch.queue("q", args{"x-max-length": int64(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q})
		ch.publishAll(q, "m1 m2 m3")
		ch.drain(q)
	}},
	{row: "B08/reject_cycle", play: func(s *scene) {
		ch := s.confirming()
		q := s.name("q")
		ch.queue("q", args{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": q})
		ch.publish(post{key: q, body: "m1", headers: args{"mine": "kept"}})
		for range 3 {
			s.need("reject", ch.get(q).Reject(false))
			ch.await(q, 1)
		}
		s.say("%s", whole(ch.get(q)))
	}},
	{row: "B08/reject_then_ttl_cycle", play: func(s *scene) {
		ch := s.confirming()
		retry, work := s.name("retry"), s.name("work")
		ch.queue("retry", args{"x-message-ttl": int64(100), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
		ch.queue("work", args{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry})
		c := ch.consume("c", work, nil)
		ch.publish(post{key: work, body: "m1"})
		for range 2 {
			s.need("reject", c.next().Reject(false))
		}
		c.whole()
	}},
	{row: "B08/two_hops", play: func(s *scene) {
		ch := s.confirming()
		last := ch.queue("last", nil)
		middle := ch.queue("middle", args{"x-message-ttl": int64(100), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": last})
		first := ch.queue("first", args{"x-max-length": int64(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": middle})
		ch.publish(post{key: first, body: "m1", expiration: "60000"})
		ch.await(last, 1)
		s.say("%s", whole(ch.get(last)))
	}},
	{row: "B08/several_queues_of_the_dlx", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		other := ch.queue("other", nil)
		ch.bind(other, "", s.space+"dlx", nil)
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1"})
		s.need("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		ch.await(other, 1)
		s.say("%s", whole(ch.get(other)))
	}},
	{row: "B08/properties_survive", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-message-ttl": int64(100), "x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1", expiration: "50", headers: args{"mine": int64(1)}, change: func(m *amqp.Publishing) {
			m.ContentType, m.ContentEncoding, m.Priority, m.CorrelationId, m.ReplyTo = "text/x", "gzip", 3, "corr", "reply"
			m.MessageId, m.Timestamp, m.Type, m.UserId, m.AppId = "id", time.Unix(1700000000, 0), "kind", "guest", "app"
		}})
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B08/transient_stays_transient", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1", transient: true})
		s.need("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B08/republished_dead_letter", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1"})
		s.need("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		m := ch.get(dlq)
		s.need("ack", m.Ack(false))
		ch.publish(post{key: q, body: "m1", headers: m.Headers})
		s.need("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B08/odd_x_death_headers", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		for _, odd := range []any{"text", int64(5), []any{}} {
			ch.publish(post{key: q, body: value(odd), headers: args{"x-death": odd}})
			s.need("reject", ch.get(q).Reject(false))
			ch.await(dlq, 1)
			m := ch.get(dlq)
			s.say("%s", whole(m))
			s.need("ack", m.Ack(false))
		}
	}},
	{row: "B08/cc_of_a_dead_letter", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1", headers: args{"CC": []any{"other1", "other2"}}})
		s.need("reject", ch.get(q).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
		keyed := ch.queue("keyed", args{"x-dead-letter-exchange": s.space + "dlx", "x-dead-letter-routing-key": "dead"})
		ch.publish(post{key: keyed, body: "m2", headers: args{"CC": []any{"other1"}}})
		s.need("reject", ch.get(keyed).Reject(false))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B25/full_dlq_rejects", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("dlx", "fanout", nil)
		dlq := ch.queue("dlq", args{"x-max-length": int64(2), "x-overflow": "reject-publish"})
		ch.bind(dlq, "", x, nil)
		q := ch.queue("q", args{"x-dead-letter-exchange": x})
		ch.publishAll(q, "m1 m2 m3 m4")
		for range 4 {
			s.need("reject", ch.get(q).Reject(false))
		}
		ch.sync()
		ch.await(dlq, 2)
		ch.drain(q)
		ch.drain(dlq)
	}},
	{row: "B25/full_dlq_drops_its_head", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("dlx", "fanout", nil)
		dlq := ch.queue("dlq", args{"x-max-length": int64(2)})
		ch.bind(dlq, "", x, nil)
		q := ch.queue("q", args{"x-dead-letter-exchange": x})
		ch.publishAll(q, "m1 m2 m3")
		for range 3 {
			s.need("reject", ch.get(q).Reject(false))
		}
		last := ch.queue("last", args{"x-dead-letter-exchange": x}) // what comes behind them
		ch.publish(post{key: last, body: "m4"})
		s.need("reject", ch.get(last).Reject(false))
		c := ch.consume("c", dlq, nil)
		for string(c.take().Body) != "m4" {
			continue
		}
		s.say("the last one is there")
	}},
	{row: "B25/order_of_dead_letters", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-message-ttl": int64(150), "x-dead-letter-exchange": s.space + "dlx"})
		ch.publishAll(q, "m1 m2 m3 m4 m5")
		ch.awaitDrain(dlq, 5)
	}},
}
