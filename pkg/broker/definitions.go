package broker

import (
	"encoding/json"
	"fmt"
	"strings"

	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
	"fleet/pkg/fault"
)

// Definitions are kept in the store under keys that name them; the values are
// JSON, with arguments as the protocol encodes them.

func exchangeKey(name string) string { return "exchange\x00" + name }
func queueKey(name string) string    { return "queue\x00" + name }

func bindingKey(b *binding) string {
	to := "e\x00"
	if b.queue != nil {
		to = "q\x00" + b.queue.name
	} else {
		to += b.exchange.name
	}
	return strings.Join([]string{"binding", b.source.name, to, b.key, b.argsKey}, "\x00")
}

type definition struct {
	Name       string `json:"name,omitempty"`
	ID         uint64 `json:"id,omitempty"` // of a queue
	Type       string `json:"type,omitempty"`
	AutoDelete bool   `json:"auto_delete,omitempty"`
	Internal   bool   `json:"internal,omitempty"`
	Source     string `json:"source,omitempty"` // of a binding, as what follows
	Queue      string `json:"queue,omitempty"`
	Exchange   string `json:"exchange,omitempty"`
	Key        string `json:"key,omitempty"`
	Args       []byte `json:"args,omitempty"`
}

func encode(d definition, args wire.Table) []byte {
	if len(args) > 0 {
		d.Args = args.Append(nil)
	}
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // strings and bytes can't fail
	}
	return b
}

func (x *exchange) encode() []byte {
	return encode(definition{Name: x.name, Type: string(x.kind), AutoDelete: x.autoDelete, Internal: x.internal}, x.args)
}

func (q *queue) encode() []byte {
	return encode(definition{Name: q.name, ID: q.id, AutoDelete: q.autoDelete}, q.args)
}

func (b *binding) encode() []byte {
	d := definition{Source: b.source.name, Key: b.key}
	if b.queue != nil {
		d.Queue = b.queue.name
	} else {
		d.Exchange = b.exchange.name
	}
	return encode(d, b.args)
}

// restore builds the queues and exchanges that the store has kept.
func (c *core) restore(found *store.Recovered) error {
	byKind := map[string][]definition{}
	args := map[string][]wire.Table{}
	for key, value := range found.Definitions {
		kind, _, _ := strings.Cut(key, "\x00")
		var d definition
		err := json.Unmarshal(value, &d)
		var t wire.Table
		if err == nil && len(d.Args) > 0 {
			t, _, err = wire.ParseTable(d.Args)
		}
		if err != nil {
			return fault.New(fault.Failed, "the broker's definition %q can't be read: %v", key, err).
				WithHint("the files were written by a newer version, or damaged; nothing was changed")
		}
		byKind[kind] = append(byKind[kind], d)
		args[kind] = append(args[kind], t)
	}
	for i, d := range byKind["exchange"] {
		x := &exchange{name: d.Name, kind: exchangeKind(d.Type), durable: true, autoDelete: d.AutoDelete, internal: d.Internal, args: args["exchange"][i]}
		x.alternate, _ = x.args["alternate-exchange"].(string)
		c.exchanges[x.name] = x
	}
	for i, d := range byKind["queue"] {
		r, v := c.parseRules(d.Name, args["queue"][i])
		if v != nil {
			return fmt.Errorf("restore queue %s: %s", d.Name, v.text)
		}
		q := &queue{id: d.ID, name: d.Name, durable: true, autoDelete: d.AutoDelete, args: args["queue"][i], rules: r}
		c.queueID = max(c.queueID, q.id)
		c.addQueue(q)
		c.refill(q, found.Queues[q.id])
		delete(found.Queues, q.id)
	}
	for i, d := range byKind["binding"] {
		b := &binding{source: c.exchanges[d.Source], queue: c.queues[d.Queue], exchange: c.exchanges[d.Exchange], key: d.Key, args: args["binding"][i]}
		if d.Queue == "" {
			b.queue = nil
		} else {
			b.exchange = nil
		}
		if b.source == nil || b.queue == nil && b.exchange == nil {
			continue // its end was deleted, and the crash came before the next record
		}
		b.argsKey = string(b.args.Append(nil))
		b.source.add(b)
	}
	for id, items := range found.Queues { // of queues that were deleted
		c.queueID = max(c.queueID, id)
		c.store.Drop(id)
		for _, it := range items {
			c.store.Forget(it.Ref)
		}
	}
	c.seq = found.LastSeq
	return nil
}

// refill gives q back what it held. Nobody knows what of it was delivered
// before, so all of it is marked as if it had been.
func (c *core) refill(q *queue, items []store.Item) {
	flags := uint8(flagDurable)
	if c.server.opts.Answers != LavinMQ {
		flags |= flagRedelivered
	}
	for _, it := range items {
		c.push(q, entry{seq: it.Seq, ref: it.Ref, expires: it.Expires, body: it.BodyBytes, flags: flags})
	}
}
