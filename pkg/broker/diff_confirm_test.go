package broker_test

import (
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// confirmRows are about what a publisher is told.
var confirmRows = []scenario{
	{row: "B02/unroutable_mandatory", play: func(s *scene) {
		ch := s.confirming()
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		p := post{exchange: "amq.direct", key: s.space + "nobody", body: "m1", mandatory: true, expiration: "5000",
			headers: args{"a": "b", "n": int64(3)}, change: func(m *amqp.Publishing) { m.MessageId, m.Type = "id", "kind" }}
		ch.publish(p)
		r, _ := receive(s, "return", returns)
		s.say("returned %d %s exchange=%q key=%q %s id=%s type=%s expiration=%s headers=%s", r.ReplyCode, r.ReplyText,
			r.Exchange, r.RoutingKey, r.Body, r.MessageId, r.Type, r.Expiration, value(r.Headers))
		p.body = "" // an empty body has no body frame
		ch.publish(p)
		r, _ = receive(s, "return", returns)
		s.say("returned %q", r.Body)
	}},
	{row: "B02/unroutable_mandatory_without_confirms", play: func(s *scene) {
		ch := s.channel()
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		ch.send(post{key: s.space + "nobody", body: "m1", mandatory: true})
		r, _ := receive(s, "return", returns)
		s.say("returned %d %s exchange=%q key=%q %s", r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey, r.Body)
	}},
	{row: "B02/pipelined", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		var confirms []*amqp.DeferredConfirmation
		for i := range 6 {
			key := q
			if i%2 == 1 {
				key = fmt.Sprintf("nobody%d", i+1)
			}
			c, err := ch.PublishWithDeferredConfirmWithContext(s.ctx, "", key, true, false, post{body: fmt.Sprintf("m%d", i+1)}.publishing())
			s.need("publish", err)
			confirms = append(confirms, c)
		}
		for _, c := range confirms {
			_, err := c.WaitContext(s.ctx)
			s.need("confirm", err)
		}
		// The order among messages may differ; of one, the return is first.
		s.say("%s", eachOutcome(ch.conn.tap.seen(), 6))
		ch.drain(q)
	}},
	{row: "B02/unroutable_not_mandatory", play: func(s *scene) {
		ch := s.confirming()
		ch.publish(post{exchange: "amq.direct", key: s.space + "nobody", body: "m1"})
		ch.publish(post{exchange: "amq.fanout", key: s.space + "nobody", body: "m2", transient: true})
	}},
	{row: "B02/exchange_missing", play: func(s *scene) {
		ch := s.confirming()
		x := s.name("nowhere")
		ch.publish(post{exchange: x, key: "k", body: "m1"})
		again := s.confirming()
		c, err := again.PublishWithDeferredConfirmWithContext(s.ctx, x, "k", true, false, post{body: "m2"}.publishing())
		s.need("publish", err)
		acked, err := c.WaitContext(s.ctx)
		s.say("confirm: %v, %v", acked, err)
		plain := s.channel()
		plain.send(post{exchange: x, key: "k", body: "m3"})
		plain.dies("without confirms")
	}},
	{row: "B02/pending_when_the_channel_closes", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		var confirms []*amqp.DeferredConfirmation
		for i, exchange := range []string{"", "", "", s.space + "nowhere", "", ""} {
			c, err := ch.PublishWithDeferredConfirmWithContext(s.ctx, exchange, q, true, false, post{body: fmt.Sprintf("m%d", i+1)}.publishing())
			if err != nil {
				break // the channel is closed already
			}
			confirms = append(confirms, c)
		}
		for _, c := range confirms[3:] {
			acked, err := c.WaitContext(s.ctx)
			if acked || err != nil {
				s.say("confirm: %v, %v", acked, err)
			}
		}
		ch.dies("channel")
		ch.conn.channel().drain(q)
	}},
	{row: "B02/confirm_select_twice", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publish(post{key: q, body: "m1"})
		ch.says("select again", ch.Confirm(false))
		ch.publish(post{key: q, body: "m2"})
		s.say("tags %s", tags(ch.conn.tap.seen()))
	}},
	{row: "B15/many_pipelined_confirms", play: func(s *scene) {
		const many = 2000
		ch := s.confirming()
		q := ch.queue("q", nil)
		var last *amqp.DeferredConfirmation
		all := make([]*amqp.DeferredConfirmation, many)
		for i := range all {
			c, err := ch.PublishWithDeferredConfirmWithContext(s.ctx, "", q, true, false, post{body: fmt.Sprint(i)}.publishing())
			s.need("publish", err)
			all[i], last = c, c
		}
		for _, c := range all {
			acked, err := c.WaitContext(s.ctx)
			if !acked || err != nil {
				s.broke("confirm %d: %v, %v", c.DeliveryTag, acked, err)
			}
		}
		s.say("%d acked", last.DeliveryTag)
		multiple := slices.ContainsFunc(ch.conn.tap.seen(), func(a answer) bool { return a.multiple })
		s.say("several at a time: %v", multiple)
		ch.counts(q)
	}},
	{row: "B13/tune", play: func(s *scene) {
		conn := s.dial()
		s.say("frame-max %d, channel-max %d", conn.Config.FrameSize, conn.Config.ChannelMax)
	}, lavin: `
		frame-max 131072, channel-max 2048`},
	{row: "B13/large_body", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		body := strings.Repeat("0123456789abcdef", 4<<20/16) + "end"
		ch.publish(post{key: q, body: body})
		m, ok, err := ch.Get(q, true)
		s.say("got it back: %v %v %v", ok, err, string(m.Body) == body)
		ch.publish(post{key: q, body: ""})
		ch.get(q)
	}},
	{row: "B13/headers_over_a_frame", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publish(post{key: q, body: "m1", headers: args{"a": strings.Repeat("x", 100<<10)}})
		ch.publish(post{key: q, body: "m2", headers: args{"a": strings.Repeat("x", 200<<10)}})
	}},
	{row: "B22/user_id", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		as := func(user string) func(*amqp.Publishing) { return func(m *amqp.Publishing) { m.UserId = user } }
		ch.publish(post{key: q, body: "m1", change: as("guest")})
		ch.publish(post{key: q, body: "m2", change: as("somebody")})
		s.channel().drain(q)
	}},
	{row: "B22/immediate", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publish(post{key: q, body: "m1", immediate: true})
	}, lavin: `
		publish m1: ack`},
	{row: "confirm/flow_off", play: func(s *scene) {
		ch := s.confirming()
		ch.says("flow off", ch.Flow(false))
	}, lavin: `
		flow off: ok`},
	{row: "confirm/flow_on", play: func(s *scene) {
		ch := s.confirming()
		ch.says("flow on", ch.Flow(true))
	}},
	{row: "tx/select", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		if ch.says("select", ch.Tx()) {
			ch.send(post{key: q, body: "m1"})
			ch.counts(q)
			ch.says("commit", ch.TxCommit())
			ch.counts(q)
		}
	}},
	{row: "tx/commit_without_select", play: func(s *scene) {
		ch := s.channel()
		ch.says("commit", ch.TxCommit())
	}},
	{row: "tx/select_on_a_confirming_channel", play: func(s *scene) {
		ch := s.confirming()
		ch.says("select", ch.Tx())
	}},
}

// eachOutcome says of each of n messages what came, in its order; a return
// belongs to the message whose number ends its key.
func eachOutcome(seen []answer, n int) string {
	outcome := make([]string, n+1)
	add := func(tag int, what string) {
		outcome[tag] += " " + what
	}
	upTo := 1 // the first tag that no multiple confirm has covered
	for _, a := range seen {
		if a.method == basicReturn {
			add(int(a.key[len(a.key)-1]-'0'), fmt.Sprintf("return %d", a.code))
			continue
		}
		from := int(a.tag)
		if a.multiple {
			from = upTo
			upTo = int(a.tag) + 1
		}
		for tag := from; tag <= int(a.tag); tag++ {
			if !strings.Contains(outcome[tag], "ack") {
				add(tag, a.String())
			}
		}
	}
	var all []string
	for tag, what := range outcome[1:] {
		all = append(all, fmt.Sprintf("m%d:%s", tag+1, what))
	}
	return strings.Join(all, "; ")
}

// tags are those of the confirms.
func tags(seen []answer) string {
	var all []string
	for _, a := range seen {
		if a.confirms() {
			all = append(all, fmt.Sprint(a.tag))
		}
	}
	return strings.Join(all, " ")
}
