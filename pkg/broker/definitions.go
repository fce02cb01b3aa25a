package broker

import (
	"encoding/json"
	"fmt"
	"strconv"
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
	kind, to := "q", ""
	if b.queue != nil {
		to = b.queue.name
	} else {
		kind, to = "e", b.exchange.name
	}
	key := "binding"
	for _, part := range []string{b.source.name, kind, to, b.key, b.argsKey} {
		key += "\x00" + strconv.Itoa(len(part)) + ":" + part // a name may hold any byte
	}
	return key
}

// definition's names are bytes, because JSON would change what is no UTF-8.
type definition struct {
	Name       []byte `json:"name,omitempty"`
	ID         uint64 `json:"id,omitempty"` // of a queue
	Type       string `json:"type,omitempty"`
	AutoDelete bool   `json:"auto_delete,omitempty"`
	Internal   bool   `json:"internal,omitempty"`
	Source     []byte `json:"source,omitempty"` // of a binding, as what follows
	Queue      []byte `json:"queue,omitempty"`
	Exchange   []byte `json:"exchange,omitempty"`
	Key        []byte `json:"key,omitempty"`
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
	return encode(definition{Name: []byte(x.name), Type: string(x.kind), AutoDelete: x.autoDelete, Internal: x.internal}, x.args)
}

func (q *queue) encode() []byte {
	return encode(definition{Name: []byte(q.name), ID: q.id, AutoDelete: q.autoDelete}, q.args)
}

func (b *binding) encode() []byte {
	d := definition{Source: []byte(b.source.name), Key: []byte(b.key)}
	if b.queue != nil {
		d.Queue = []byte(b.queue.name)
	} else {
		d.Exchange = []byte(b.exchange.name)
	}
	return encode(d, b.args)
}

// restore builds the queues and exchanges that the store has kept.
func (c *core) restore(found *store.Recovered) error {
	type kept struct {
		definition
		storeKey string
		args     wire.Table
	}
	byKind := map[string][]kept{}
	for key, value := range found.Definitions {
		k := kept{storeKey: key}
		err := json.Unmarshal(value, &k.definition)
		if err == nil && len(k.Args) > 0 {
			k.args, _, err = wire.ParseTable(k.Args)
		}
		if err != nil {
			return fault.New(fault.Failed, "the broker's definition %q can't be read: %v", key, err).
				WithHint("the files were written by a newer version, or damaged; nothing was changed")
		}
		kind, _, _ := strings.Cut(key, "\x00")
		byKind[kind] = append(byKind[kind], k)
	}
	for _, d := range byKind["exchange"] {
		x := &exchange{name: string(d.Name), kind: exchangeKind(d.Type), durable: true, autoDelete: d.AutoDelete, internal: d.Internal, args: d.args}
		x.alternate, _ = x.args["alternate-exchange"].(string)
		c.exchanges[x.name] = x
	}
	for _, d := range byKind["queue"] {
		r, v := c.parseRules(string(d.Name), d.args)
		if v != nil {
			return fmt.Errorf("restore queue %s: %s", d.Name, v.text)
		}
		q := &queue{id: d.ID, name: string(d.Name), durable: true, autoDelete: d.AutoDelete, args: d.args, rules: r}
		c.queueID = max(c.queueID, q.id)
		c.addQueue(q)
		c.refill(q, found.Queues[q.id])
		delete(found.Queues, q.id)
	}
	for _, d := range byKind["binding"] {
		b := &binding{source: c.exchanges[string(d.Source)], key: string(d.Key), args: d.args}
		if len(d.Queue) > 0 {
			b.queue = c.queues[string(d.Queue)]
		} else {
			b.exchange = c.exchanges[string(d.Exchange)]
		}
		if b.source == nil || b.queue == nil && b.exchange == nil {
			// Its end was deleted, and the crash came before the next record.
			c.store.Delete(d.storeKey)
			continue
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
