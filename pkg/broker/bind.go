package broker

import (
	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
)

// bound finds what a bind or unbind of an exchange is about.
func (ch *channel) bound(source string) (*exchange, *violation) {
	if source == "" {
		return nil, refuse(403, "operation not permitted on the default exchange")
	}
	x := ch.core.exchanges[source]
	if x == nil {
		return nil, noExchange(source)
	}
	return x, nil
}

// bindQueue's order of checks is RabbitMQ's: the exchange, then the queue.
func (ch *channel) bindQueue(m *wire.QueueBind) *violation {
	x, v := ch.bound(m.Exchange)
	if v != nil {
		return v
	}
	q, v := ch.queue(m.Queue)
	if v != nil {
		return v
	}
	key := m.RoutingKey
	if m.Queue == "" && key == "" {
		key = q.name
	}
	at := ch.core.bind(&binding{source: x, queue: q, key: key, args: m.Arguments})
	if !m.NoWait {
		ch.after(at, &wire.QueueBindOK{})
	}
	return nil
}

func (ch *channel) unbindQueue(m *wire.QueueUnbind) *violation {
	x, v := ch.bound(m.Exchange)
	if v != nil && v.code != 404 {
		return v
	}
	q, u := ch.queue(m.Queue)
	if u != nil && u.code != 404 {
		return u
	}
	var at store.Position
	if v == nil && u == nil { // what is not there is not bound
		key := m.RoutingKey
		if m.Queue == "" && key == "" {
			key = q.name
		}
		at = ch.core.unbindLike(&binding{source: x, queue: q, key: key, args: m.Arguments})
	}
	ch.after(at, &wire.QueueUnbindOK{})
	return nil
}

func (ch *channel) bindExchange(m *wire.ExchangeBind) *violation {
	to, v := ch.bound(m.Destination)
	if v != nil {
		return v
	}
	x, v := ch.bound(m.Source)
	if v != nil {
		return v
	}
	at := ch.core.bind(&binding{source: x, exchange: to, key: m.RoutingKey, args: m.Arguments})
	if !m.NoWait {
		ch.after(at, &wire.ExchangeBindOK{})
	}
	return nil
}

func (ch *channel) unbindExchange(m *wire.ExchangeUnbind) *violation {
	to, v := ch.bound(m.Destination)
	if v != nil && v.code != 404 {
		return v
	}
	x, u := ch.bound(m.Source)
	if u != nil && u.code != 404 {
		return u
	}
	var at store.Position
	if v == nil && u == nil {
		at = ch.core.unbindLike(&binding{source: x, exchange: to, key: m.RoutingKey, args: m.Arguments})
	}
	if !m.NoWait {
		ch.after(at, &wire.ExchangeUnbindOK{})
	}
	return nil
}

// bind adds b unless there is its like; it returns when that is durable.
func (c *core) bind(b *binding) store.Position {
	b.argsKey = string(b.args.Append(nil))
	if b.source.find(b) != nil {
		return 0
	}
	b.source.add(b)
	if !b.durable() {
		return 0
	}
	return c.store.Put(bindingKey(b), b.encode())
}

func (c *core) unbindLike(like *binding) store.Position {
	like.argsKey = string(like.args.Append(nil))
	b := like.source.find(like)
	if b == nil {
		return 0
	}
	return c.unbind(b)
}

// unbind removes b, and with its last binding an exchange that is so declared.
func (c *core) unbind(b *binding) (at store.Position) {
	b.source.remove(b)
	if b.durable() {
		at = c.store.Delete(bindingKey(b))
	}
	if x := b.source; x.autoDelete && x.unused() && c.exchanges[x.name] == x {
		at = max(at, c.removeExchange(x))
	}
	return at
}
