package broker

import (
	"bytes"
	"slices"
	"strconv"

	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
)

// publish takes a message: routes it, puts it into queues, and sees to its
// confirm. What is persistent is confirmed when the disk has it.
func (ch *channel) publish(m *wire.BasicPublish, body *content) *violation {
	c := ch.core
	lavin := c.server.opts.Answers == LavinMQ
	if ch.confirm {
		ch.publishTag++
	}
	c.counts.published++
	x := c.exchanges[m.Exchange]
	switch {
	case x == nil:
		return noExchange(m.Exchange)
	case x.internal:
		return refuse(403, "cannot publish to internal exchange '%s' in vhost '/'", m.Exchange)
	case m.Immediate && !lavin:
		return forbid(540, "immediate=true")
	case body.size > uint64(c.server.opts.Limits.MessageBytes):
		return refuse(406, "message size %d is larger than configured max size %d", body.size, c.server.opts.Limits.MessageBytes)
	case lavin && c.alarms.disk:
		return refuse(406, "Server low on disk space")
	}
	mode, expiration, user, _, err := wire.Peek(body.properties)
	if err != nil {
		return fromWire(asWire(err))
	}
	if user != "" && user != ch.conn.who.user {
		return refuse(406, "user_id property set to '%s' but authenticated user was '%s'", user, ch.conn.who.user)
	}
	ttl, v := c.parseExpiration(expiration)
	if v != nil {
		return v
	}
	properties, keys := body.properties, []string{m.RoutingKey}
	if bytes.Contains(properties, []byte("CC")) {
		if properties, keys, v = copies(properties, keys); v != nil {
			return v
		}
	}
	message := store.Message{Exchange: m.Exchange, Key: m.RoutingKey, Properties: properties, Body: body.body}
	queues := c.route(x, keys...)
	if len(queues) == 0 {
		if m.Mandatory {
			ch.giveBack(m, message)
		}
		ch.confirmNow()
		return nil
	}
	at, refused := c.enqueue(queues, message, mode == 2, ttl, true)
	switch {
	case !ch.confirm:
	case refused:
		if lavin && m.Mandatory {
			ch.giveBack(m, message)
		}
		c.counts.refused++
		c.send(ch.conn, item{channel: ch.id, method: &wire.BasicNack{DeliveryTag: ch.publishTag}})
	case at == 0:
		ch.confirmNow()
	default:
		ch.unconfirmed = append(ch.unconfirmed, pending{ch.publishTag, at})
		c.await(ch)
	}
	return nil
}

// enqueue puts a message into the queues that take it, under one record in the
// log. refused says that one did not. The position is 0 if no queue keeps the
// message over a restart.
func (c *core) enqueue(queues []*queue, m store.Message, persistent bool, ttl int64, sync bool) (at store.Position, refused bool) {
	places := c.places[:0]
	taken := c.taken[:0]
	kept := false
	for _, q := range queues {
		if q.full(len(m.Body)) {
			refused = true
			if q.rules.overflow == rejectPublishDead {
				c.bury(q, m, persistent, "maxlen")
			}
			continue
		}
		p := store.Place{Queue: q.id, Durable: persistent && q.kept()}
		if life := shorter(ttl, q.rules.ttl); life >= 0 {
			p.Expires = c.now + life
		}
		kept = kept || p.Durable
		places = append(places, p)
		taken = append(taken, q)
	}
	c.places, c.taken = places, taken
	if len(taken) == 0 {
		return 0, refused
	}
	c.seq++
	seq := c.seq
	ref, at := c.store.Append(seq, m, places, sync && kept)
	for i, q := range taken {
		e := entry{seq: seq, expires: places[i].Expires, ref: ref, body: uint32(len(m.Body))}
		if places[i].Durable {
			e.flags |= flagDurable
		}
		c.push(q, e)
		if q.ready.len() == 1 {
			// Who waits for it gets it at once: neither a limit of 0 nor a life of
			// 0 ms is in the way.
			if k := c.taker(q); k != nil {
				c.deliver(k, c.pop(q))
			}
		}
		if q.over() {
			c.sweep(q) // at once: whoever asks for the queue's length is never told more than its limit
		}
	}
	if !kept {
		at = 0
	}
	return at, refused
}

// shorter is the smaller of two lifetimes in ms; -1 stands for none.
func shorter(a, b int64) int64 {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// parseExpiration reads a message's own lifetime in ms; -1 is none.
func (c *core) parseExpiration(text string) (int64, *violation) {
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil && n >= 0 && n <= maxLife:
		return n, nil
	case c.server.opts.Answers == LavinMQ:
		return 0, refuse(406, "Expiration not a number")
	case err == nil && n < 0:
		return 0, refuse(406, "invalid expiration '%s': {value_negative,%d}", text, n)
	case err == nil:
		return 0, refuse(406, "invalid expiration '%s': {value_too_large,%d}", text, n)
	}
	if digits := len(text) - len(bytes.TrimLeft([]byte(text), "0123456789")); digits > 0 {
		return 0, refuse(406, "invalid expiration '%s': {leftover_string,\"%s\"}", text, text[digits:])
	}
	return 0, refuse(406, "invalid expiration '%s': no_integer", text)
}

// maxLife is ten years in ms, RabbitMQ's bound (rabbit_misc, check_expiry).
const maxLife = 315_360_000_000

// copies adds the routing keys of the headers CC and BCC; BCC is taken out.
func copies(properties []byte, keys []string) ([]byte, []string, *violation) {
	p, err := wire.ParseProperties(properties)
	if err != nil {
		return nil, nil, fromWire(asWire(err))
	}
	for _, name := range []string{"CC", "BCC"} {
		value, there := p.Headers[name]
		if !there {
			continue
		}
		list, ok := value.([]any)
		if !ok {
			return nil, nil, refuse(406, "invalid message: {unacceptable_type_in_header,\"%s\",%s}", name, typeName(value))
		}
		for _, key := range list {
			if s, ok := key.(string); ok { // others lead nowhere
				keys = append(keys, s)
			}
		}
	}
	if _, there := p.Headers["BCC"]; there {
		delete(p.Headers, "BCC")
		properties = p.Append(nil)
	}
	return properties, keys, nil
}

// giveBack returns what has no route.
func (ch *channel) giveBack(m *wire.BasicPublish, message store.Message) {
	ch.core.counts.returned++
	size := int64(len(message.Body) + len(message.Properties))
	ch.conn.out.bytes.Add(size)
	ch.core.send(ch.conn, item{channel: ch.id, message: &message, size: size, method: &wire.BasicReturn{
		ReplyCode: 312, ReplyText: "NO_ROUTE", Exchange: m.Exchange, RoutingKey: m.RoutingKey}})
}

// confirmNow confirms the last publish at the end of the step.
func (ch *channel) confirmNow() {
	if ch.confirm {
		ch.ack(ch.publishTag)
	}
}

func (ch *channel) ack(tag uint64) {
	ch.acks = append(ch.acks, tag)
	if !ch.confirmMarked {
		ch.confirmMarked = true
		ch.core.confirmed = append(ch.core.confirmed, ch)
	}
}

// sendConfirms sends what is to be confirmed: one multiple ack for all below the
// first that still waits, and one for each of the others.
func (ch *channel) sendConfirms() {
	if len(ch.acks) == 0 {
		return
	}
	slices.Sort(ch.acks)
	below := 0
	if len(ch.unconfirmed) == 0 {
		below = len(ch.acks)
	} else {
		below, _ = slices.BinarySearch(ch.acks, ch.unconfirmed[0].tag)
	}
	send := func(tag uint64, multiple bool) {
		ch.core.send(ch.conn, item{channel: ch.id, method: &wire.BasicAck{DeliveryTag: tag, Multiple: multiple}})
	}
	if below > 0 {
		send(ch.acks[below-1], below > 1)
	}
	for _, tag := range ch.acks[below:] {
		send(tag, false)
	}
	ch.acks = ch.acks[:0]
}

// await has the channel looked at when the disk has more.
func (c *core) await(ch *channel) {
	if !ch.awaits {
		ch.awaits = true
		c.awaiting = append(c.awaiting, ch)
	}
}

// after sends a reply once the disk has what it reports.
func (ch *channel) after(at store.Position, reply wire.Method) {
	if at == 0 || uint64(at) <= ch.core.synced.Load() {
		ch.core.send(ch.conn, item{channel: ch.id, method: reply})
		return
	}
	ch.reply, ch.replyAt = reply, at
	if ch.conn.paused++; ch.conn.paused == 1 {
		ch.conn.out.hold(true)
	}
	ch.core.await(ch)
}

func (ch *channel) unpause() {
	if ch.conn.paused--; ch.conn.paused == 0 {
		ch.conn.out.hold(false)
	}
}

// settle confirms and answers what the disk has.
func (ch *channel) settle(upTo store.Position) {
	n := 0
	for n < len(ch.unconfirmed) && ch.unconfirmed[n].at <= upTo {
		ch.ack(ch.unconfirmed[n].tag)
		n++
	}
	if ch.unconfirmed = ch.unconfirmed[n:]; len(ch.unconfirmed) == 0 {
		ch.unconfirmed = nil
	}
	if ch.reply != nil && ch.replyAt <= upTo {
		ch.core.send(ch.conn, item{channel: ch.id, method: ch.reply})
		ch.reply = nil
		ch.unpause()
		queued := ch.queued
		ch.queued = nil
		for i := range queued {
			ch.core.obey(ch.conn, &queued[i]) // may pause again, and then queues the rest
		}
		if last := ch.conn.goodbye; last != nil && ch.conn.paused == 0 {
			ch.conn.goodbye = nil
			ch.core.obey(ch.conn, last)
		}
	}
	if ch.reply != nil || len(ch.unconfirmed) > 0 {
		ch.core.await(ch)
	}
}
