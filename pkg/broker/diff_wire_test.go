package broker_test

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// wireRows are about connections: how they open, and what ends them.
var wireRows = []scenario{
	{row: "B13/login", play: func(s *scene) {
		login := func(mechanism, response, locale, vhost string) func() string {
			return func() string {
				r := s.raw()
				r.write([]byte(greeting))
				r.expect("connection.start")
				r.startOK(mechanism, response, locale)
				got := r.next()
				if got == "connection.tune" {
					r.tuneOK(2047, 131072, 10)
					r.open(vhost)
					got = r.next()
				}
				return got
			}
		}
		s.all([]question{
			{"good", login("PLAIN", "\x00guest\x00guest", "en_US", s.at.vhost())},
			{"an identity beside the user", login("PLAIN", "someone\x00guest\x00guest", "en_US", s.at.vhost())},
			{"another locale", login("PLAIN", "\x00guest\x00guest", "xx_XX", s.at.vhost())},
			{"missing virtual host", login("PLAIN", "\x00guest\x00guest", "en_US", "nowhere")},
			{"wrong password", login("PLAIN", "\x00guest\x00wrong", "en_US", s.at.vhost())},
			{"unknown user", login("PLAIN", "\x00nobody\x00guest", "en_US", s.at.vhost())},
			{"empty password", login("PLAIN", "\x00guest\x00", "en_US", s.at.vhost())},
			{"malformed response", login("PLAIN", "guest", "en_US", s.at.vhost())},
			{"unknown mechanism", login("MAGIC", "\x00guest\x00guest", "en_US", s.at.vhost())},
		})
	}},
	{row: "B13/login_as_the_client_tells_it", play: func(s *scene) {
		config := s.at.config()
		config.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "wrong"}}
		_, err := s.dialConfig(config)
		s.say("wrong password: %v", err)
		config = s.at.config()
		config.Vhost = "nowhere"
		_, err = s.dialConfig(config)
		s.say("missing virtual host: %v", err)
	}},
	{row: "B13/offers", play: func(s *scene) {
		conn := s.dial()
		capabilities, _ := conn.Properties["capabilities"].(amqp.Table)
		for _, name := range []string{"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
			"connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to"} {
			s.say("%s: %s", name, value(capabilities[name]))
		}
		s.say("locales %v", conn.Locales)
		plain := false
		for _, m := range conn.Connection.Config.SASL {
			plain = plain || m.Mechanism() == "PLAIN"
		}
		s.say("plain login: %v", plain)
	}},
	{row: "wire/greetings", play: func(s *scene) {
		var greetings []question
		for _, hello := range []string{"AMQP\x00\x01\x00\x00", "AMQP\x00\x00\x08\x00", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01"} {
			greetings = append(greetings, question{fmt.Sprintf("%q", hello), func() string {
				r := s.raw()
				r.write([]byte(hello))
				return r.next() + ", then " + r.next()
			}})
		}
		s.all(greetings)
	}},
	{row: "wire/tuning", play: func(s *scene) {
		tune := func(channels uint16, frame uint32, heartbeat uint16) func() string {
			return func() string {
				r := s.raw()
				r.write([]byte(greeting))
				r.expect("connection.start")
				r.startOK("PLAIN", "\x00guest\x00guest", "en_US")
				r.expect("connection.tune")
				r.tuneOK(channels, frame, heartbeat)
				r.open(s.at.vhost())
				return r.next()
			}
		}
		s.all([]question{
			{"less", tune(10, 8192, 5)}, {"no limits", tune(0, 0, 0)}, {"no heartbeats", tune(2047, 131072, 0)},
			{"more channels", tune(2048, 131072, 5)}, {"larger frames", tune(2047, 131073, 5)}, {"tiny frames", tune(2047, 4095, 5)},
		})
	}},
	{row: "wire/out_of_order_handshake", play: func(s *scene) {
		started := func() *raw {
			r := s.raw()
			r.write([]byte(greeting))
			r.expect("connection.start")
			return r
		}
		s.all([]question{
			{"tune-ok before start-ok", func() string { r := started(); r.tuneOK(2047, 131072, 5); return r.next() }},
			{"channel.open before start-ok", func() string { r := started(); r.method(1, 20, 10, enc{}.str("")); return r.next() }},
			{"open before tune-ok", func() string {
				r := started()
				r.startOK("PLAIN", "\x00guest\x00guest", "en_US")
				r.expect("connection.tune")
				r.open(s.at.vhost())
				return r.next()
			}},
		})
	}},
	{row: "wire/channels", play: func(s *scene) {
		s.each([]act{
			{"open an open channel", func(r *raw) { r.method(1, 20, 10, enc{}.str("")) }},
			{"a method on a closed channel", func(r *raw) { r.method(2, 60, 10, enc{}.u32(0).u16(1).u8(0)) }},
			{"a channel over the maximum", func(r *raw) { r.method(2048, 20, 10, enc{}.str("")) }},
			{"channel 0 for a queue", func(r *raw) { r.method(0, 50, 10, enc{}.u16(0).str("q").u8(0).u32(0)) }},
			{"channel.open on channel 0", func(r *raw) { r.method(0, 20, 10, enc{}.str("")) }},
			{"a connection's method on channel 1", func(r *raw) { r.method(1, 10, 40, enc{}.str("/").str("").u8(0)) }},
			{"open the connection again", func(r *raw) { r.open("/") }},
			{"close the channel", func(r *raw) { r.method(1, 20, 40, enc{}.u16(200).str("bye").u16(0).u16(0)) }},
			{"close the connection", func(r *raw) { r.method(0, 10, 50, enc{}.u16(200).str("bye").u16(0).u16(0)) }},
			{"a heartbeat", func(r *raw) { r.frame(heartbeatFrame, 0, nil); r.method(2, 20, 10, enc{}.str("")) }},
			{"a heartbeat on channel 1", func(r *raw) { r.frame(heartbeatFrame, 1, nil); r.method(2, 20, 10, enc{}.str("")) }},
			{"reopen a closed channel", func(r *raw) {
				r.method(1, 20, 40, enc{}.u16(200).str("bye").u16(0).u16(0))
				r.expect("channel.close-ok")
				r.method(1, 20, 10, enc{}.str(""))
			}},
		})
	}},
	// What RabbitMQ 3.10 does not answer at all, until heartbeats are missed, is not
	// here: unknown classes and methods, malformed tables, more body than announced.
	{row: "wire/bad_frames", play: func(s *scene) {
		s.each([]act{
			{"a wrong frame end", func(r *raw) { r.write(append(enc{1}.u16(1).u32(4), 0, 20, 0, 10, 0x00)) }},
			{"an unknown frame type", func(r *raw) { r.frame(7, 1, []byte{1, 2, 3, 4}) }},
			{"a frame over the maximum", func(r *raw) { r.write(enc{1}.u16(1).u32(131073)) }},
			{"a frame of 4 GiB", func(r *raw) { r.write(enc{1}.u16(1).u32(0xFFFFFFFF)) }},
			{"a method cut short", func(r *raw) { r.method(1, 50, 10, enc{}.u16(0).u8(9)) }},
			{"a method with more than it has", func(r *raw) { r.method(1, 60, 10, enc{}.u32(0).u16(1).u8(0).u64(0)) }},
			{"a method of two bytes", func(r *raw) { r.frame(methodFrame, 1, []byte{0, 60}) }},
			{"cancel-ok that nobody asked for", func(r *raw) { r.method(1, 60, 31, enc{}.str("c")); r.method(1, 60, 10, enc{}.u32(0).u16(1).u8(0)) }},
		})
	}},
	{row: "wire/bad_content", play: func(s *scene) {
		q := s.channel().queue("q", nil)
		s.each([]act{
			{"a header without a publish", func(r *raw) { r.header(1, 60, 0) }},
			{"a body without a publish", func(r *raw) { r.frame(bodyFrame, 1, []byte("m")) }},
			{"a method instead of the header", func(r *raw) { r.publish(1, "", q); r.method(1, 60, 10, enc{}.u32(0).u16(1).u8(0)) }},
			{"a body instead of the header", func(r *raw) { r.publish(1, "", q); r.frame(bodyFrame, 1, []byte("m")) }},
			{"a header of another class", func(r *raw) { r.publish(1, "", q); r.header(1, 50, 0) }},
			{"a method instead of the body", func(r *raw) {
				r.publish(1, "", q)
				r.header(1, 60, 3)
				r.method(1, 60, 10, enc{}.u32(0).u16(1).u8(0))
			}},
			{"a header instead of the body", func(r *raw) { r.publish(1, "", q); r.header(1, 60, 3); r.header(1, 60, 3) }},
			{"properties cut short", func(r *raw) {
				r.publish(1, "", q)
				r.frame(headerFrame, 1, enc{}.u16(60).u16(0).u64(0).u16(1<<15).u8(9))
			}},
			{"a header cut short", func(r *raw) { r.publish(1, "", q); r.frame(headerFrame, 1, enc{}.u16(60).u16(0)) }},
			{"a publish to nowhere, with its body", func(r *raw) {
				r.publish(1, s.space+"nowhere", "k")
				r.header(1, 60, 3)
				r.frame(bodyFrame, 1, []byte("abc"))
			}},
		})
	}},
	{row: "wire/content_in_parts", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		r := s.rawOpen(10)
		r.publish(1, "", q)
		r.header(1, 60, 6)
		r.frame(bodyFrame, 1, []byte("ab"))
		r.frame(heartbeatFrame, 0, nil)
		r.frame(bodyFrame, 1, nil)
		r.method(2, 20, 10, enc{}.str("")) // another channel's method between
		s.say("another channel: %s", r.next())
		r.frame(bodyFrame, 1, []byte("cdef"))
		ch.awaitDrain(q, 1)
		r.publish(1, "", q) // a client that goes away in the middle has published nothing
		r.header(1, 60, 6)
		r.frame(bodyFrame, 1, []byte("ab"))
		r.method(0, 10, 50, enc{}.u16(200).str("bye").u16(0).u16(0))
		s.say("close in the middle: %s", r.next())
		ch.drain(q)
	}},
	{row: "wire/small_frames", play: func(s *scene) {
		ch := s.confirming()
		q := ch.queue("q", nil)
		ch.publish(post{key: q, body: strings.Repeat("m", 10000)})
		r := s.rawFrames(4096, 10)
		r.consume(1, q, false)
		for range 5 {
			s.say("%s", r.next())
		}
	}},
	{row: "wire/a_client_that_knows_no_cancel", play: func(s *scene) {
		ch := s.channel()
		q := ch.queue("q", nil)
		r := s.rawOpen(10)
		r.consume(1, q, false)
		_, err := ch.QueueDelete(q, false, false, false)
		ch.says("delete", err)
		r.method(2, 20, 10, enc{}.str(""))
		s.say("%s", r.next())
	}},
	{row: "wire/after_the_channel_closed", play: func(s *scene) {
		q := s.channel().queue("q", nil)
		r := s.rawOpen(10)
		r.publish(1, s.space+"nowhere", "k")
		r.header(1, 60, 0)
		r.publish(1, "", q) // these come while the broker waits for close-ok, and are for nothing
		r.header(1, 60, 1)
		r.frame(bodyFrame, 1, []byte("m"))
		r.method(1, 60, 10, enc{}.u32(0).u16(1).u8(0))
		s.say("%s", r.next())
		r.method(1, 20, 41, nil)
		r.method(1, 20, 10, enc{}.str(""))
		s.say("open again: %s", r.next())
		s.channel().drain(q)
	}},
	{row: "wire/nothing_after_close", play: func(s *scene) {
		r := s.rawOpen(10)
		r.method(0, 10, 50, enc{}.u16(200).str("bye").u16(0).u16(0))
		r.method(1, 60, 10, enc{}.u32(0).u16(1).u8(0))
		s.say("%s", r.next()) // RabbitMQ lets the client hang up
		r = s.rawOpen(10)
		r.method(2, 60, 10, enc{}.u32(0).u16(1).u8(0)) // there is no channel 2
		s.say("%s", r.next())
		r.method(0, 10, 51, nil)
		s.say("after close-ok: %s", r.next())
	}},
	{row: "wire/missed_heartbeats", play: func(s *scene) {
		r := s.rawOpen(1)
		started := time.Now()
		beats := 0
		for {
			kind, _, _, ok := r.read()
			if !ok {
				break
			}
			if kind == heartbeatFrame {
				beats++
			}
		}
		took := time.Since(started)
		s.say("heartbeats come: %v", beats > 0)
		s.say("hung up after 1.5 to 15 heartbeats: %v", took > 1500*time.Millisecond && took < 15*time.Second)
	}},
	{row: "wire/garbage", play: func(s *scene) {
		other := s.channel()
		r := s.rawOpen(10)
		r.write([]byte(strings.Repeat("\xff\x00garbage", 1000)))
		s.say("%s", r.next())
		other.lives("another connection")
	}},
	{row: "B14/body_over_the_limit", play: func(s *scene) {
		const size = 128<<20 + 1
		q := s.channel().queue("q", nil)
		r := s.rawOpen(60)
		r.publish(1, "", q)
		r.header(1, 60, size)
		part := make([]byte, 131064)
		for left := size; left > 0; left -= len(part) {
			r.frame(bodyFrame, 1, part[:min(left, len(part))])
		}
		s.say("%s", r.next())
		s.channel().drain(q)
	}},
}
