package broker

import (
	"strings"

	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
)

// queue finds the queue that a method names, if this connection may use it. An
// empty name means the channel's last one.
func (ch *channel) queue(name string) (*queue, *violation) {
	if name == "" {
		if name = ch.lastQueue; name == "" {
			return nil, refuse(404, "no previously declared queue")
		}
	}
	q := ch.core.queues[name]
	if q == nil {
		return nil, noQueue(name)
	}
	return q, ch.locked(q)
}

// locked refuses what belongs to another connection.
func (ch *channel) locked(q *queue) *violation {
	if q.owner == nil || q.owner == ch.conn {
		return nil
	}
	if ch.core.server.opts.Answers == LavinMQ {
		return refuse(405, "Exclusive queue")
	}
	return refuse(405, "cannot obtain exclusive access to locked queue '%s' in vhost '/'. It could be originally declared on "+
		"another connection or the exclusive property value does not match that of the original declaration.", q.name)
}

func (ch *channel) declareQueue(m *wire.QueueDeclare) *violation {
	c := ch.core
	name := m.Queue
	q := c.queues[name]
	var at store.Position
	switch {
	case q == nil && m.Passive:
		return noQueue(name)
	case q != nil:
		if v := ch.locked(q); v != nil {
			return v
		}
		if !m.Passive {
			if v := c.equivalent(q, m); v != nil {
				return v
			}
			if m.Exclusive != (q.owner != nil) {
				return ch.locked(&queue{name: name, owner: &conn{}})
			}
		}
		q.idleSince = c.now
		c.sweep(q)
		c.mark(q)
	case strings.HasPrefix(name, "amq."):
		return refuse(403, "queue name '%s' contains reserved prefix 'amq.*'", name)
	case c.alarms.disk && c.server.opts.Answers == LavinMQ:
		return refuse(406, "Server low on disk space")
	case len(c.queues) >= c.server.opts.Limits.Queues:
		return refuse(406, "cannot declare queue '%s': queue limit in vhost '/' (%d) is reached", name, c.server.opts.Limits.Queues)
	default:
		if name == "" {
			name = "amq.gen-" + randomName()
		}
		r, v := c.parseRules(name, m.Arguments)
		if v != nil {
			return v
		}
		c.queueID++
		q = &queue{id: c.queueID, name: name, durable: m.Durable, autoDelete: m.AutoDelete, args: m.Arguments, rules: r}
		if m.Exclusive {
			q.owner = ch.conn
			ch.conn.queues[q] = struct{}{}
		}
		c.addQueue(q)
		if q.kept() {
			at = c.store.Put(queueKey(name), q.encode())
		}
	}
	ch.lastQueue = name
	if !m.NoWait {
		ch.after(at, &wire.QueueDeclareOK{Queue: name, MessageCount: uint32(q.ready.len()), ConsumerCount: uint32(len(q.consumers))})
	}
	return nil
}

func (c *core) addQueue(q *queue) {
	q.bindings = map[*binding]struct{}{}
	q.wakeIndex, q.idleSince = -1, c.now
	c.queues[q.name] = q
	c.mark(q)
}

func (ch *channel) purgeQueue(m *wire.QueuePurge) *violation {
	c := ch.core
	q, v := ch.queue(m.Queue)
	if v != nil {
		return v
	}
	c.sweep(q)
	n := q.ready.len()
	for q.ready.len() > 0 {
		c.drop(q, c.pop(q))
	}
	if !m.NoWait {
		c.send(ch.conn, item{channel: ch.id, method: &wire.QueuePurgeOK{MessageCount: uint32(n)}})
	}
	return nil
}

func (ch *channel) deleteQueueBy(m *wire.QueueDelete) *violation {
	c := ch.core
	q, v := ch.queue(m.Queue)
	if v != nil && v.code != 404 {
		return v
	}
	var at store.Position
	n := 0
	if q != nil {
		c.sweep(q)
		switch {
		case m.IfUnused && len(q.consumers) > 0:
			return refuse(406, "queue '%s' in vhost '/' in use", q.name)
		case m.IfEmpty && q.ready.len() > 0:
			return refuse(406, "queue '%s' in vhost '/' not empty", q.name)
		}
		n = q.ready.len()
		at = c.deleteQueue(q)
	}
	if !m.NoWait {
		ch.after(at, &wire.QueueDeleteOK{MessageCount: uint32(n)})
	}
	return nil
}

func (ch *channel) declareExchange(m *wire.ExchangeDeclare) *violation {
	c := ch.core
	x := c.exchanges[m.Exchange]
	lavin := c.server.opts.Answers == LavinMQ
	kind := exchangeKind(m.Type)
	var at store.Position
	switch {
	case x == nil && m.Passive:
		return noExchange(m.Exchange)
	case m.Exchange == "":
		return refuse(403, "operation not permitted on the default exchange")
	case m.Passive:
	case kind != direct && kind != fanout && kind != topic:
		return forbid(503, "unknown exchange type '%s'", m.Type)
	case x == nil && strings.HasPrefix(m.Exchange, "amq."):
		return refuse(403, "exchange name '%s' contains reserved prefix 'amq.*'", m.Exchange)
	case x == nil:
		x = &exchange{name: m.Exchange, kind: kind, durable: m.Durable, autoDelete: m.AutoDelete, internal: m.Internal, args: m.Arguments}
		if a, there := m.Arguments["alternate-exchange"]; there {
			s, ok := a.(string)
			if !ok {
				return refuse(406, "invalid type '%s' for arg 'alternate-exchange' in exchange '%s' in vhost '/'", typeName(a), x.name)
			}
			x.alternate = s
		}
		c.exchanges[x.name] = x
		if x.durable {
			at = c.store.Put(exchangeKey(x.name), x.encode())
		}
	default:
		if v := x.equivalent(m, lavin); v != nil {
			return v
		}
	}
	if !m.NoWait {
		ch.after(at, &wire.ExchangeDeclareOK{})
	}
	return nil
}

func (x *exchange) equivalent(m *wire.ExchangeDeclare, lavin bool) *violation {
	alternate := func(t wire.Table, other any) (any, string) {
		v, there := t["alternate-exchange"]
		return v, shown(v, there, other != nil)
	}
	got, gotShown := alternate(m.Arguments, x.args["alternate-exchange"])
	is, isShown := alternate(x.args, got)
	for _, d := range []struct {
		what    string
		same    bool
		got, is string
	}{
		{"type", x.kind == exchangeKind(m.Type), quoted(m.Type), quoted(x.kind)},
		{"durable", x.durable == m.Durable, quoted(m.Durable), quoted(x.durable)},
		{"auto_delete", x.autoDelete == m.AutoDelete, quoted(m.AutoDelete), quoted(x.autoDelete)},
		{"internal", x.internal == m.Internal, quoted(m.Internal), quoted(x.internal)},
		{"alternate-exchange", got == is, gotShown, isShown},
	} {
		if !d.same && lavin {
			return refuse(406, "Existing exchange '%s' declared with other arguments", x.name)
		}
		if !d.same {
			return refuse(406, "inequivalent arg '%s' for exchange '%s' in vhost '/': received %s but current is %s", d.what, x.name, d.got, d.is)
		}
	}
	return nil
}

func (ch *channel) deleteExchange(m *wire.ExchangeDelete) *violation {
	c := ch.core
	x := c.exchanges[m.Exchange]
	var at store.Position
	switch {
	case m.Exchange == "":
		return refuse(403, "operation not permitted on the default exchange")
	case x == nil:
	case x.predeclared:
		return refuse(403, "deletion of system exchange '%s' in vhost '/' not allowed", m.Exchange)
	case m.IfUnused && !x.unused():
		return refuse(406, "exchange '%s' in vhost '/' in use", x.name)
	default:
		at = c.removeExchange(x)
	}
	if !m.NoWait {
		ch.after(at, &wire.ExchangeDeleteOK{})
	}
	return nil
}

// removeExchange takes x away with all bindings from and to it.
func (c *core) removeExchange(x *exchange) (at store.Position) {
	delete(c.exchanges, x.name)
	for _, b := range x.all() {
		at = max(at, c.unbind(b))
	}
	for b := range x.into {
		at = max(at, c.unbind(b))
	}
	if x.durable {
		at = c.store.Delete(exchangeKey(x.name))
	}
	return at
}
