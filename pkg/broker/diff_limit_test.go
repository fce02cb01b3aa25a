package broker_test

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// limitRows are about queues that are full, and messages and queues that are old.
var limitRows = []scenario{
	{row: "B03/drop_head", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-max-length": int64(3), "x-dead-letter-exchange": s.space + "dlx"})
		ch.publishAll(q, "m1 m2 m3 m4 m5")
		ch.drain(q)
		ch.await(dlq, 2)
		s.say("%s", whole(ch.get(dlq)))
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B03/drop_head_without_a_dlx", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-length": int64(2)})
		ch.publishAll(q, "m1 m2 m3")
		ch.drain(q)
	}},
	{row: "B03/max_length_zero", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-max-length": int64(0), "x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1", mandatory: true})
		ch.await(dlq, 1)
		c := ch.consume("c", q, nil)
		ch.publish(post{key: q, body: "m2"})
		c.next()
	}},
	{row: "B03/max_length_bytes", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-max-length-bytes": int64(100), "x-dead-letter-exchange": s.space + "dlx"})
		size := func(name string, n int) string { return name + strings.Repeat(".", n-len(name)) }
		ch.publishAll(q, strings.Join([]string{size("a", 40), size("b", 39), size("c", 21)}, " "))
		ch.await(q, 3)
		ch.publish(post{key: q, body: "d"})
		ch.await(dlq, 1)
		ch.drain(dlq)
		ch.publish(post{key: q, body: size("e", 101)}) // more than there is room at all
		ch.await(dlq, 4)
		ch.drain(q)
		ch.drain(dlq)
	}},
	{row: "B03/max_length_and_bytes", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-length": int64(3), "x-max-length-bytes": int64(10)})
		ch.publishAll(q, "1111 2222 33 444 5")
		ch.drain(q)
	}},
	{row: "B03/unacked_not_counted", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-length": int64(3)})
		c := ch.consume("c", q, nil)
		for i := range 7 {
			ch.publish(post{key: q, body: fmt.Sprintf("m%d", i)})
			c.next()
		}
		ch.counts(q)
	}},
	{row: "B03/requeue_over_the_cap", play: func(s *scene) {
		ch, holder := s.confirming(), s.channel()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-max-length": int64(3), "x-dead-letter-exchange": s.space + "dlx"})
		c := holder.consume("c", q, nil)
		for i := range 7 {
			ch.publish(post{key: q, body: fmt.Sprintf("m%d", i)})
			c.next()
		}
		s.need("close", holder.Close())
		ch.await(dlq, 4)
		ch.drain(dlq)
		ch.drain(q)
	}},
	{row: "B03/nack_over_the_cap", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-max-length": int64(2), "x-dead-letter-exchange": s.space + "dlx"})
		ch.publishAll(q, "m1 m2")
		first := ch.get(q)
		ch.publish(post{key: q, body: "m3"})
		s.need("nack", first.Nack(false, true))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
		ch.drain(q)
	}},
	{row: "B04/reject_publish", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-max-length": int64(3), "x-overflow": "reject-publish", "x-dead-letter-exchange": s.space + "dlx"})
		for i := range 8 {
			ch.publish(post{key: q, body: fmt.Sprintf("m%d", i), mandatory: true})
		}
		ch.drain(q)
		ch.counts(dlq)
		ch.publish(post{key: q, body: "m9"})
	}, lavin: `
		publish m0: ack
		publish m1: ack
		publish m2: ack
		publish m3: return 312 NO_ROUTE, nack
		publish m4: return 312 NO_ROUTE, nack
		publish m5: return 312 NO_ROUTE, nack
		publish m6: return 312 NO_ROUTE, nack
		publish m7: return 312 NO_ROUTE, nack
		q holds [m0 m1 m2]
		dlq has 0 ready, 0 consumers
		publish m9: ack`},
	{row: "B04/reject_publish_by_bytes", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-length-bytes": int64(10), "x-overflow": "reject-publish"})
		for _, body := range []string{"12345678", "90", "x", "yy"} {
			ch.publish(post{key: q, body: body})
		}
		ch.drain(q)
		ch.publish(post{key: q, body: strings.Repeat("z", 11)})
		ch.publish(post{key: q, body: "a"})
		ch.drain(q)
	}},
	{row: "B04/reject_publish_not_mandatory", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-length": int64(1), "x-overflow": "reject-publish"})
		ch.publishAll(q, "m1 m2")
		plain := s.channel()
		plain.send(post{key: q, body: "m3"})
		plain.lives("the channel without confirms")
		ch.drain(q)
	}},
	{row: "B04/reject_publish_counts_no_unacked", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-length": int64(1), "x-overflow": "reject-publish"})
		ch.publish(post{key: q, body: "m1"})
		held := ch.get(q)
		ch.publish(post{key: q, body: "m2"})
		ch.publish(post{key: q, body: "m3"})
		s.need("nack", held.Nack(false, true)) // a requeue is no publish: it may go over the cap
		ch.drain(q)
	}},
	{row: "B04/one_full_one_empty", play: func(s *scene) {
		ch := s.confirming()
		x := ch.exchange("x", "fanout", nil)
		full := ch.queue("full", args{"x-max-length": int64(1), "x-overflow": "reject-publish"})
		empty := ch.queue("empty", nil)
		ch.publish(post{key: full, body: "m1"})
		ch.bind(full, "", x, nil)
		ch.bind(empty, "", x, nil)
		ch.publish(post{exchange: x, body: "m2"})
		ch.drain(full)
		ch.drain(empty)
	}},
	{row: "B04/reject_publish_dlx", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-max-length": int64(1), "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": s.space + "dlx"})
		ch.publishAll(q, "m1 m2")
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
		ch.drain(q)
	}, lavin: `
		publish m1: ack
		publish m2: ack
		dlq has 1 ready
		get from dlq: m1, 0 left
		m1 exchange="dlx" key="q" mode=2 headers={x-death:[{count:int32(1) exchange:"" queue:"q" reason:"maxlen" routing-keys:["q"] time:time}] x-first-death-exchange:"" x-first-death-queue:"q" x-first-death-reason:"maxlen"}
		q holds [m2]`},
	{row: "B05/message_ttl", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-message-ttl": int64(200), "x-dead-letter-exchange": s.space + "dlx"})
		c := ch.consume("c", dlq, nil)
		started := time.Now()
		ch.publish(post{key: q, body: "m1"})
		c.whole()
		s.say("not before its time: %v", time.Since(started) > 195*time.Millisecond)
		ch.counts(q)
	}},
	{row: "B05/expiration_and_queue_ttl", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		dlx := s.space + "dlx"
		long := ch.queue("long", args{"x-message-ttl": int64(60000), "x-dead-letter-exchange": dlx})
		brief := ch.queue("brief", args{"x-message-ttl": int64(150), "x-dead-letter-exchange": dlx})
		c := ch.consume("c", dlq, nil)
		ch.publish(post{key: long, body: "m1", expiration: "150"})
		c.whole()
		ch.publish(post{key: brief, body: "m2", expiration: "60000"})
		c.whole()
	}},
	{row: "B05/only_the_head_expires", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1", expiration: "60000"})
		ch.publish(post{key: q, body: "m2", expiration: "100"})
		ch.publish(post{key: q, body: "m3", expiration: "60000"})
		timer := ch.queue("timer", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: timer, body: "over", expiration: "200"})
		c := ch.consume("c", dlq, nil)
		c.next()
		ch.counts(q)
		ch.get(q).Ack(false)
		c.next()
		ch.drain(q)
	}},
	{row: "B05/behind_a_held_one", play: func(s *scene) {
		ch := s.confirming()
		dlq, over := ch.deadLetters(), ch.queue("over", nil)
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		timer := ch.queue("timer", args{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": over})
		ch.publish(post{key: q, body: "m1", expiration: "60000"})
		ch.publish(post{key: q, body: "m2", expiration: "1000"})
		held := ch.get(q)
		ch.publish(post{key: timer, body: "over", expiration: "1200"})
		ch.await(over, 1)
		ch.counts(q)
		ch.counts(dlq)
		ch.get(q)
		ch.says("ack", held.Ack(false))
		ch.awaitDrain(dlq, 1)
	}, lavin: `
		publish m1: ack
		publish m2: ack
		get from q: m1, 1 left
		publish over: ack
		over has 1 ready
		q has 1 ready, 0 consumers
		dlq has 0 ready, 0 consumers
		get from q: empty
		ack: ok
		dlq has 1 ready
		dlq holds [m2]`},
	{row: "B05/expiry_while_held", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-message-ttl": int64(150), "x-dead-letter-exchange": s.space + "dlx"})
		c := ch.consume("c", q, nil)
		ch.publish(post{key: q, body: "m1"})
		ch.publish(post{key: q, body: "m2"})
		one, two := c.next(), c.next()
		time.Sleep(300 * time.Millisecond) // nothing may happen
		ch.counts(dlq)
		ch.says("late ack", one.Ack(false))
		ch.says("late requeue", two.Nack(false, true))
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
	}},
	{row: "B05/expiration_zero", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1", expiration: "0"})
		ch.await(dlq, 1)
		s.say("%s", whole(ch.get(dlq)))
		c := ch.consume("c", q, nil)
		ch.publish(post{key: q, body: "m2", expiration: "0"})
		c.whole()
	}},
	{row: "B05/queue_ttl_zero", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		q := ch.queue("q", args{"x-message-ttl": int64(0), "x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1", mandatory: true})
		ch.await(dlq, 1)
		ch.get(q)
		c := ch.consume("c", q, nil)
		ch.publish(post{key: q, body: "m2"})
		c.next()
	}},
	{row: "B05/bad_expiration", play: func(s *scene) {
		q := s.channel().queue("q", nil)
		for _, expiration := range []string{"abc", "-1", "1.5", " 7", "7x", "99999999999", "4294967295", "4294967296", "315360000000", "315360000001"} {
			ch := s.confirming()
			ch.publish(post{key: q, body: expiration, expiration: expiration})
		}
	}},
	{row: "B06/x_expires", play: func(s *scene) {
		ch := s.confirming()
		dlq := ch.deadLetters()
		started := time.Now()
		q := ch.queue("q", args{"x-expires": int64(500), "x-dead-letter-exchange": s.space + "dlx"})
		ch.publish(post{key: q, body: "m1"})
		s.say("gone: %v", ch.gone(q))
		s.say("not before its time: %v", time.Since(started) > 495*time.Millisecond)
		ch.counts(dlq)
	}},
	{row: "B06/what_renews_x_expires", play: func(s *scene) {
		var questions []question
		for _, r := range renewals {
			questions = append(questions, question{"after 1.5 s of " + r.name, func() string { return r.after(s) }})
		}
		s.all(questions)
	}},
	{row: "B06/after_the_last_consumer", play: func(s *scene) {
		ch, far := s.channel(), s.confirming()
		q := ch.queue("q", args{"x-expires": int64(200)})
		ch.consume("c", q, nil)
		time.Sleep(400 * time.Millisecond) // the queue's time passes
		far.publish(post{key: q, body: "m1", mandatory: true})
		started := time.Now()
		s.need("cancel", ch.Cancel("c", false))
		s.say("gone: %v", far.gone(q))
		s.say("not before its time: %v", time.Since(started) > 195*time.Millisecond)
	}},
}

// renewal is what may put off the end of a queue with x-expires.
type renewal struct {
	name  string
	often bool // again and again, and not just once
	do    func(ch *channel, queue string)
}

var renewals = []renewal{
	{"a consumer", false, func(ch *channel, q string) { ch.consume("c", q, nil) }},
	{"declares", true, func(ch *channel, q string) {
		_, _ = ch.QueueDeclare(q, true, false, false, false, args{"x-expires": int64(1000)})
	}},
	{"passive declares", true, func(ch *channel, q string) { _, _ = ch.QueueDeclarePassive(q, true, false, false, false, nil) }},
	{"gets", true, func(ch *channel, q string) { _, _, _ = ch.Get(q, true) }},
	{"publishes", true, func(ch *channel, q string) {
		_ = ch.PublishWithContext(ch.s.ctx, "", q, false, false, amqp.Publishing{})
	}},
	{"binds", true, func(ch *channel, q string) { _ = ch.QueueBind(q, "k", "amq.direct", false, nil) }},
	{"purges", true, func(ch *channel, q string) { _, _ = ch.QueuePurge(q, false) }},
	{"nothing", false, func(*channel, string) {}},
}

// after says whether a queue that expires in 1 s is there after 1.5 s.
func (r renewal) after(s *scene) string {
	ch := s.channel()
	q := ch.queue(r.name, args{"x-expires": int64(1000)})
	r.do(ch, q)
	for range 15 {
		time.Sleep(100 * time.Millisecond) // the queue's time passes
		if r.often && !ch.IsClosed() {
			r.do(ch, q)
		}
	}
	probe := ch.conn.channel()
	if _, err := probe.QueueDeclarePassive(q, true, false, false, false, nil); err != nil {
		return probe.fate(err)
	}
	return "it is there"
}

// deadLetters declares an exchange "dlx" and a queue "dlq" with all that it gets.
func (ch *channel) deadLetters() string {
	x, q := ch.exchange("dlx", "fanout", nil), ch.queue("dlq", nil)
	ch.bind(q, "", x, nil)
	return q
}

// publishAll publishes each word to a queue.
func (ch *channel) publishAll(queue, words string) {
	for _, body := range strings.Fields(words) {
		ch.publish(post{key: queue, body: body})
	}
}

// gone waits until a queue is not there, without renewing it.
func (ch *channel) gone(queue string) bool {
	ch.s.eventually(queue+" is gone", func() bool {
		ch.conn.tap.forget()
		c, err := ch.PublishWithDeferredConfirmWithContext(ch.s.ctx, "", queue, true, false, amqp.Publishing{})
		ch.s.need("publish", err)
		_, err = c.WaitContext(ch.s.ctx)
		ch.s.need("confirm", err)
		return ch.conn.tap.seen()[0].method == basicReturn
	})
	return true
}
