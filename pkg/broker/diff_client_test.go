package broker_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// connection is a client's connection whose frames from the broker are seen.
type connection struct {
	*amqp.Connection
	s      *scene
	tap    *tap
	closed chan *amqp.Error
}

// dial connects as the usual user.
func (s *scene) dial() *connection {
	c, err := s.dialConfig(s.at.config())
	s.need("connect", err)
	return c
}

// dialConfig connects to the broker's virtual host.
func (s *scene) dialConfig(config amqp.Config) (*connection, error) {
	t := &tap{}
	if config.Dial == nil {
		config.Dial = amqp.DefaultDial(patience)
	}
	inner := config.Dial
	config.Dial = func(network, addr string) (net.Conn, error) {
		raw, err := inner(network, addr)
		if err != nil {
			return nil, err
		}
		t.Conn = raw
		return t, nil
	}
	conn, err := s.at.dial("", config)
	if err != nil {
		return nil, err
	}
	c := &connection{conn, s, t, conn.NotifyClose(make(chan *amqp.Error, 1))}
	s.mu.Lock()
	s.conns = append(s.conns, c)
	s.mu.Unlock()
	return c, nil
}

// channel is a client's channel.
type channel struct {
	*amqp.Channel
	conn   *connection
	s      *scene
	closed chan *amqp.Error
	end    string // what closed it, once that is known
}

// channel is a new channel of a connection of its own.
func (s *scene) channel() *channel { return s.dial().channel() }

func (c *connection) channel() *channel {
	ch, err := c.Channel()
	c.s.need("open a channel", err)
	return &channel{Channel: ch, conn: c, s: c.s, closed: ch.NotifyClose(make(chan *amqp.Error, 1))}
}

// confirming is a new channel of a connection of its own, with confirms.
func (s *scene) confirming() *channel {
	ch := s.channel()
	s.need("select confirms", ch.Confirm(false))
	return ch
}

// says notes how a call ended: ok, or what the broker closed and why.
func (ch *channel) says(what string, err error) bool {
	if err == nil {
		ch.s.say("%s: ok", what)
		return true
	}
	ch.s.say("%s: %s", what, ch.fate(err))
	return false
}

// dies notes why the broker closes the channel or its connection.
func (ch *channel) dies(what string) { ch.s.say("%s: %s", what, ch.fate(amqp.ErrClosed)) }

// lives notes that the channel still answers, after everything before.
func (ch *channel) lives(what string) {
	ch.says(what, ch.ExchangeDeclarePassive("amq.direct", "direct", true, false, false, false, nil))
}

// sync waits until the broker has handled what came on this channel.
func (ch *channel) sync() {
	if err := ch.ExchangeDeclarePassive("amq.direct", "direct", true, false, false, false, nil); err != nil {
		ch.s.broke("the channel should live: %s", ch.fate(err))
	}
}

// fate is what the broker closed, the channel or its connection, and why.
func (ch *channel) fate(err error) string {
	var by *amqp.Error
	if !errors.As(err, &by) || !by.Server && !errors.Is(err, amqp.ErrClosed) {
		return "client: " + err.Error()
	}
	if ch.end == "" {
		reason, _ := receive(ch.s, "the end of a channel", ch.closed)
		if reason == nil {
			return "closed by the client"
		}
		ch.end = ch.conn.scope() + fmt.Sprintf(" %d %s", reason.Code, reason.Reason)
	}
	return ch.end
}

// scope is "ch" while the connection lives, and "conn" otherwise.
func (c *connection) scope() string {
	if ch, err := c.Channel(); err == nil {
		_ = ch.Close()
		return "ch"
	}
	return "conn"
}

// dies notes why the broker closes the connection.
func (c *connection) dies(what string) {
	reason, _ := receive(c.s, "the end of a connection", c.closed)
	if reason == nil {
		c.s.say("%s: closed by the client", what)
		return
	}
	c.s.say("%s: conn %d %s", what, reason.Code, reason.Reason)
}

// args is a table of arguments, shorter to read.
type args = amqp.Table

// queue declares a durable queue; its failure breaks the scenario.
func (ch *channel) queue(name string, a args) string {
	_, err := ch.QueueDeclare(ch.s.name(name), true, false, false, false, a)
	ch.s.need("declare "+name, err)
	return ch.s.space + name
}

// exchange declares a durable exchange; its failure breaks the scenario.
func (ch *channel) exchange(name, kind string, a args) string {
	err := ch.ExchangeDeclare(ch.s.name(name), kind, true, false, false, false, a)
	ch.s.need("declare "+name, err)
	return ch.s.space + name
}

// bind binds a queue; its failure breaks the scenario.
func (ch *channel) bind(queue, key, exchange string, a args) {
	ch.s.need("bind "+queue, ch.QueueBind(queue, key, exchange, false, a))
}

// counts notes a queue's ready messages and consumers.
func (ch *channel) counts(queue string) {
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		ch.says("count "+queue, err)
		return
	}
	ch.s.say("%s has %d ready, %d consumers", queue, q.Messages, q.Consumers)
}

// await waits until a queue has so many ready messages.
func (ch *channel) await(queue string, ready int) {
	ch.s.eventually(fmt.Sprintf("%s has %d ready", queue, ready), func() bool {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		ch.s.need("count "+queue, err)
		return q.Messages == ready
	})
	ch.s.say("%s has %d ready", queue, ready)
}

// get notes one message taken by basic.get; it stays unacked.
func (ch *channel) get(queue string) amqp.Delivery {
	m, ok, err := ch.Get(queue, false)
	switch {
	case err != nil:
		ch.says("get from "+queue, err)
	case !ok:
		ch.s.say("get from %s: empty", queue)
	default:
		ch.s.say("get from %s: %s, %d left", queue, brief(m), m.MessageCount)
	}
	return m
}

// drain notes all messages of a queue in their order, and takes them.
func (ch *channel) drain(queue string) {
	var all []string
	for {
		m, ok, err := ch.Get(queue, true)
		ch.s.need("drain "+queue, err)
		if !ok {
			ch.s.say("%s holds [%s]", queue, strings.Join(all, " "))
			return
		}
		all = append(all, brief(m))
	}
}

// brief is a message's body, with a * if it was delivered before.
func brief(m amqp.Delivery) string {
	if m.Redelivered {
		return string(m.Body) + "*"
	}
	return string(m.Body)
}

// whole is everything that came with a message.
func whole(m amqp.Delivery) string {
	b := fmt.Sprintf("%s exchange=%q key=%q mode=%d", brief(m), m.Exchange, m.RoutingKey, m.DeliveryMode)
	for _, p := range []struct{ name, value string }{
		{"content-type", m.ContentType}, {"content-encoding", m.ContentEncoding}, {"correlation-id", m.CorrelationId},
		{"reply-to", m.ReplyTo}, {"expiration", m.Expiration}, {"message-id", m.MessageId}, {"type", m.Type},
		{"user-id", m.UserId}, {"app-id", m.AppId},
	} {
		if p.value != "" {
			b += fmt.Sprintf(" %s=%q", p.name, p.value)
		}
	}
	if m.Priority != 0 {
		b += fmt.Sprintf(" priority=%d", m.Priority)
	}
	if !m.Timestamp.IsZero() {
		b += fmt.Sprintf(" timestamp=%d", m.Timestamp.Unix())
	}
	if m.Headers != nil {
		b += " headers=" + value(m.Headers)
	}
	return b
}

// value shows a field with its type, and a time only as such.
func value(v any) string {
	switch v := v.(type) {
	case amqp.Table:
		var names, parts []string
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			parts = append(parts, name+":"+value(v[name]))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, value(e))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case string:
		return fmt.Sprintf("%q", v)
	case time.Time:
		return "time"
	case nil:
		return "nil"
	}
	return fmt.Sprintf("%T(%v)", v, v)
}

// consumer is one basic.consume.
type consumer struct {
	ch   *channel
	name string
	in   <-chan amqp.Delivery
}

// consume starts a consumer that acks by hand; its failure breaks the scenario.
func (ch *channel) consume(name, queue string, a args) *consumer {
	in, err := ch.Consume(queue, name, false, false, false, false, a)
	ch.s.need("consume "+queue, err)
	return &consumer{ch, name, in}
}

// next notes the next message.
func (c *consumer) next() amqp.Delivery {
	m := c.take()
	c.ch.s.say("%s gets %s", c.name, brief(m))
	return m
}

// whole notes everything that came with the next message.
func (c *consumer) whole() amqp.Delivery {
	m := c.take()
	c.ch.s.say("%s gets %s", c.name, whole(m))
	return m
}

// take takes the next message without a word.
func (c *consumer) take() amqp.Delivery {
	m, open := receive(c.ch.s, c.name+" gets a message", c.in)
	if !open {
		c.ch.s.broke("%s has ended: %s", c.name, c.ch.fate(amqp.ErrClosed))
	}
	return m
}

// ends notes that the deliveries end.
func (c *consumer) ends() {
	m, open := receive(c.ch.s, "the end of "+c.name, c.in)
	if open {
		c.ch.s.broke("%s gets %s instead of its end", c.name, brief(m))
	}
	c.ch.s.say("%s: its deliveries end", c.name)
}
