package broker_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// outage is a scenario in which the broker's operator takes part.
type outage struct {
	row  string
	play func(*scene, site)
}

// outageRows are played one after the other, since each concerns all clients.
var outageRows = []outage{
	{"R02/alarm", func(s *scene, at site) {
		publisher, consumer := s.confirming(), s.channel()
		blocked := publisher.conn.NotifyBlocked(make(chan amqp.Blocking, 4))
		q, stored := publisher.queue("q", nil), publisher.queue("stored", nil)
		publisher.publish(post{key: stored, body: "m1"})
		s.need("alarm", at.alarm(true))
		publisher.counts(stored) // whoever does not publish is not blocked
		s.say("blocked before it publishes: %v", len(blocked) > 0)
		confirm, err := publisher.PublishWithDeferredConfirmWithContext(s.ctx, "", q, true, false, post{body: "m2"}.publishing())
		s.need("publish", err)
		b, _ := receive(s, "blocked", blocked)
		s.say("blocked %v, with a reason: %v", b.Active, b.Reason != "")
		consumer.consume("c", stored, nil).next()
		fresh := s.channel()
		freshBlocked := fresh.conn.NotifyBlocked(make(chan amqp.Blocking, 4))
		fresh.counts(q) // m2 waits in the socket
		fresh.send(post{key: q, body: "m3"})
		b, _ = receive(s, "blocked", freshBlocked)
		s.say("a new connection is blocked: %v", b.Active)
		s.say("confirmed meanwhile: %v", confirm.Acked())
		s.need("end of the alarm", at.alarm(false))
		b, _ = receive(s, "unblocked", blocked)
		s.say("blocked %v", b.Active)
		acked, err := confirm.WaitContext(s.ctx)
		s.say("confirm: %v %v", acked, err)
		consumer.await(q, 2)
	}},
	{"R03/restart", func(s *scene, at site) {
		ch, holder := s.confirming(), s.channel()
		q, idle := ch.queue("q", args{"x-max-length": int64(10)}), ch.queue("idle", args{"x-expires": int64(600000)})
		x, src := ch.exchange("x", "topic", nil), ch.exchange("src", "fanout", nil)
		ch.bind(q, "k.*", x, nil)
		s.need("bind", ch.ExchangeBind(x, "", src, false, nil))
		_, err := ch.QueueDeclare(s.name("transient"), false, false, false, false, nil)
		s.need("declare", err)
		_, err = ch.QueueDeclare(s.name("exclusive"), true, false, true, false, nil)
		s.need("declare", err)
		s.need("declare", ch.ExchangeDeclare(s.name("fleeting"), "direct", false, false, false, false, nil))
		ch.bind(q, "k", s.space+"fleeting", nil)
		ch.publish(post{key: q, body: "m1"})
		held := holder.get(q)
		ch.publish(post{key: q, body: "m2", transient: true})
		ch.publish(post{key: q, body: "m3", headers: args{"a": "b"}, expiration: "600000"})
		ch.publish(post{key: q, body: "m4"})
		done := holder.get(q) // the transient one, settled
		s.need("ack", done.Ack(false))
		holder.sync()
		ch.publish(post{key: q, body: "m5", transient: true})
		s.restart(at.restart)
		holder.conn.dies("a client")
		ch = s.confirming()
		for _, name := range []string{"q", "idle", "transient", "exclusive"} {
			probe := ch.conn.channel()
			probe.counts(s.space + name)
		}
		for _, name := range []string{"x", "src", "fleeting"} {
			probe := ch.conn.channel()
			probe.says("exchange "+name, probe.ExchangeDeclarePassive(s.space+name, "topic", true, false, false, false, nil))
		}
		ch.says("equal redeclare", declared{a: args{"x-max-length": int64(10)}}.on(ch, q))
		for range 3 {
			s.say("%s", whole(ch.get(q)))
		}
		ch.get(q)
		ch.publish(post{exchange: src, key: "k.1", body: "m6", mandatory: true})
		ch.get(q)
		_, _ = held, idle
	}},
	{"R03/order_after_a_restart", func(s *scene, at site) {
		ch, holder := s.confirming(), s.channel()
		q := ch.queue("q", nil)
		ch.publishAll(q, "m1 m2 m3 m4 m5 m6")
		held := []amqp.Delivery{holder.get(q), holder.get(q), holder.get(q), holder.get(q)}
		s.need("ack", held[1].Ack(false))
		s.need("requeue", held[2].Nack(false, true))
		holder.sync()
		s.restart(at.restart)
		s.channel().drain(q)
	}},
	{"R04/operator_closes", func(s *scene, at site) {
		ch, other := s.confirming(), s.channel()
		q := ch.queue("q", nil)
		ch.publish(post{key: q, body: "m1"})
		other.get(q)
		s.need("disconnect", at.disconnect("go away, please"))
		ch.conn.dies("one")
		other.conn.dies("other")
		s.channel().awaitDrain(q, 1)
	}},
	{"R04/user_removed", func(s *scene, at site) {
		s.need("add user", at.addUser("somebody"))
		conn, err := s.at.dial("somebody:somebody", s.at.config())
		s.need("connect", err)
		closed := conn.NotifyClose(make(chan *amqp.Error, 1))
		s.need("remove user", at.removeUser("somebody"))
		select {
		case reason := <-closed:
			s.say("its connection: conn %d %s", reason.Code, reason.Reason)
		case <-time.After(2 * time.Second): // no event tells that nothing will happen
			ch, err := conn.Channel()
			s.need("channel", err)
			s.say("its connection: lives")
			_ = ch.Close()
			_ = conn.Close()
		}
		_, err = s.at.dial("somebody:somebody", s.at.config())
		s.say("another: %v", err)
	}},
}

// crashRows are those in which it is killed.
var crashRows = []outage{
	{"R06/kill_9", func(s *scene, at site) {
		ch := s.confirming()
		q := ch.queue("q", args{"x-max-length": int64(100)})
		x := ch.exchange("x", "topic", nil)
		ch.bind(q, "#.k", x, nil)
		for i := range 20 {
			ch.publish(post{exchange: x, key: "k", body: fmt.Sprintf("m%d", i)})
		}
		held := s.channel()
		held.get(q)
		s.restart(at.crash)
		s.say("a client: %s", cutText.ReplaceAllString(ch.fate(amqp.ErrClosed), "$1 ..."))
		ch = s.confirming()
		ch.publish(post{exchange: x, key: "a.k", body: "after"})
		ch.says("equal redeclare", declared{a: args{"x-max-length": int64(100)}}.on(ch, q))
		var all []string
		for range 21 {
			m, _, err := ch.Get(q, true)
			s.need("get", err)
			all = append(all, brief(m))
		}
		s.say("q holds [%s]", strings.Join(all, " "))
		ch.counts(q)
	}},
}

// cutText is what a client says of a cut connection: the kernel's words.
var cutText = regexp.MustCompile(`(conn 501) .*`)

// restart has the broker go away and come back, perhaps elsewhere.
func (s *scene) restart(do func() error) {
	s.need("restart", do())
	s.at = s.site.party()
}

// TestR53_DifferentialOutage plays what operators and accidents do to a broker.
func TestR53_DifferentialOutage(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("starts and stops brokers")
	}
	if _, err := os.Stat("/usr/lib/rabbitmq/bin/rabbitmq-server"); err != nil && os.Getenv("FLEET_TEST_REQUIRE_BROKER") == "" {
		t.Skip("NOT COMPARED WITH RABBITMQ: it is not installed (.ci/test installs it)")
	}
	rabbit, ours := newRabbitSite(t), newEmbeddedSite(t)
	for _, row := range outageRows {
		t.Run(row.row, func(t *testing.T) { compareSites(t, row, rabbit, ours) })
	}
	ours = newChildSite(t)
	for _, row := range crashRows {
		t.Run(row.row, func(t *testing.T) { compareSites(t, row, rabbit, ours) })
	}
}

func compareSites(t *testing.T, row outage, rabbit, ours site) {
	var theirs, our transcript
	var both sync.WaitGroup
	both.Go(func() { theirs = playAt(rabbit, row) })
	both.Go(func() { our = playAt(ours, row) })
	both.Wait()
	compare(t, row.row, theirs, our)
}

func playAt(at site, row outage) transcript {
	return play(at.party(), func(s *scene) {
		s.site = at
		row.play(s, at)
	})
}
