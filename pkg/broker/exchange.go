package broker

import (
	"maps"
	"slices"
	"strings"

	"fleet/pkg/broker/wire"
)

type exchangeKind string

const (
	direct exchangeKind = "direct"
	fanout exchangeKind = "fanout"
	topic  exchangeKind = "topic"
)

// exchange routes by its bindings.
type exchange struct {
	name        string
	kind        exchangeKind
	durable     bool
	autoDelete  bool
	internal    bool
	predeclared bool
	args        wire.Table
	alternate   string // exchange for what has no route; "" for none

	visit    uint64                // of the last route and key that came by
	index    map[string]*binding   // all, by bindingKey
	exact    map[string][]*binding // by key: direct, and topic keys without wildcards
	patterns []*binding            // topic keys with wildcards, and all of a fanout
	into     map[*binding]struct{} // bindings of which this exchange is the destination
}

// binding leads from an exchange to a queue or to another exchange.
type binding struct {
	source   *exchange
	queue    *queue    // the destination: one of the two
	exchange *exchange //
	key      string
	words    []string // of a topic key
	at       int      // in the list of its exchange
	args     wire.Table
	argsKey  string // args encoded: with destination and key it tells bindings apart
}

func (b *binding) durable() bool {
	if b.queue != nil {
		return b.source.durable && b.queue.kept()
	}
	return b.source.durable && b.exchange.durable
}

// listed says where among x's bindings one with this key stands.
func (x *exchange) listed(key string) (exact bool) {
	return x.kind == direct || x.kind == topic && !strings.ContainsAny(key, "*#")
}

func (x *exchange) find(like *binding) *binding { return x.index[bindingKey(like)] }

func (x *exchange) add(b *binding) {
	if x.index == nil {
		x.index = map[string]*binding{}
	}
	x.index[bindingKey(b)] = b
	if x.kind == topic {
		b.words = words(b.key)
	}
	if x.listed(b.key) {
		if x.exact == nil {
			x.exact = map[string][]*binding{}
		}
		b.at = len(x.exact[b.key])
		x.exact[b.key] = append(x.exact[b.key], b)
	} else {
		b.at = len(x.patterns)
		x.patterns = append(x.patterns, b)
	}
	if b.queue != nil {
		b.queue.bindings[b] = struct{}{}
		return
	}
	if b.exchange.into == nil {
		b.exchange.into = map[*binding]struct{}{}
	}
	b.exchange.into[b] = struct{}{}
}

func (x *exchange) remove(b *binding) {
	delete(x.index, bindingKey(b))
	if x.listed(b.key) {
		if list := without(x.exact[b.key], b); len(list) > 0 {
			x.exact[b.key] = list
		} else {
			delete(x.exact, b.key)
		}
	} else {
		x.patterns = without(x.patterns, b)
	}
	if b.queue != nil {
		delete(b.queue.bindings, b)
	} else {
		delete(b.exchange.into, b)
	}
}

// without takes b out of the list that it stands in; the last takes its place.
func without(list []*binding, b *binding) []*binding {
	last := list[len(list)-1]
	list[b.at], last.at = last, b.at
	list[len(list)-1] = nil
	return list[:len(list)-1]
}

// all lists x's bindings.
func (x *exchange) all() []*binding { return slices.Collect(maps.Values(x.index)) }

func (x *exchange) unused() bool { return len(x.index) == 0 }

// route lists the queues to which key leads, each once.
func (c *core) route(x *exchange, keys ...string) []*queue {
	c.stamp++
	found := c.found[:0]
	for _, key := range keys {
		c.visit++
		found = c.follow(x, key, found)
	}
	c.found = found
	return found
}

// follow goes on from x, unless it was there already with this key.
func (c *core) follow(x *exchange, key string, found []*queue) []*queue {
	if x.visit == c.visit {
		return found
	}
	x.visit = c.visit
	if x.name == "" {
		return c.reach(c.queues[key], found)
	}
	reached := false
	take := func(b *binding) {
		reached = true
		if b.queue != nil {
			found = c.reach(b.queue, found)
		} else {
			found = c.follow(b.exchange, key, found)
		}
	}
	for _, b := range x.exact[key] {
		take(b)
	}
	if len(x.patterns) > 0 {
		var split []string
		if x.kind == topic {
			split = words(key)
		}
		for _, b := range x.patterns {
			if x.kind == fanout || matches(b.words, split) {
				take(b)
			}
		}
	}
	if !reached && x.alternate != "" {
		if a := c.exchanges[x.alternate]; a != nil {
			found = c.follow(a, key, found)
		}
	}
	return found
}

// reach adds q, which may be nil, unless this route has it already.
func (c *core) reach(q *queue, found []*queue) []*queue {
	if q == nil || q.stamp == c.stamp {
		return found
	}
	q.stamp = c.stamp
	return append(found, q)
}

// words splits a topic key; an empty one has none.
func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

// matches says whether a topic pattern takes a key: * stands for one word, # for
// any number of them.
func matches(pattern, key []string) bool {
	star, mark := -1, 0 // the last #, and where in key its match ends so far
	p, k := 0, 0
	for k < len(key) {
		switch {
		case p < len(pattern) && pattern[p] == "#":
			star, mark = p, k
			p++
		case p < len(pattern) && (pattern[p] == "*" || pattern[p] == key[k]):
			p++
			k++
		case star >= 0:
			mark++
			p, k = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == "#" {
		p++
	}
	return p == len(pattern)
}
