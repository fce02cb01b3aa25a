package broker

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fleet/pkg/broker/wire"
)

// wholeNumber reads any integer of a table.
func wholeNumber(v any) (int64, bool) {
	switch n := v.(type) {
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	case int16:
		return int64(n), true
	case uint16:
		return int64(n), true
	case int32:
		return int64(n), true
	case uint32:
		return int64(n), true
	case int64:
		return n, true
	case uint64:
		if n <= math.MaxInt64 {
			return int64(n), true
		}
	}
	return 0, false
}

// typeName is RabbitMQ's (Erlang client's) name of a value's type.
func typeName(v any) string {
	switch v.(type) {
	case bool:
		return "bool"
	case string:
		return "longstr"
	case int8:
		return "byte"
	case uint8:
		return "unsignedbyte"
	case int16:
		return "short"
	case uint16:
		return "unsignedshort"
	case int32:
		return "signedint"
	case uint32:
		return "unsignedint"
	case int64:
		return "long"
	case float32:
		return "float"
	case float64:
		return "double"
	case wire.Table:
		return "table"
	case []any:
		return "array"
	case []byte:
		return "binary"
	case nil:
		return "void"
	}
	return "other"
}

// argument is one that a queue's declaration may have: how it is checked, and
// what it sets. check returns what is wrong in RabbitMQ's words, "" if nothing.
type argument struct {
	name  string
	check func(v any) string
	set   func(r *rules, v any)
}

// noInteger is RabbitMQ's text, quotes and all.
func noInteger(v any) string { return fmt.Sprintf("\"expected integer, got %s\"", typeName(v)) }

func number(least, most int64, set func(*rules, int64)) argument {
	return argument{
		check: func(v any) string {
			n, ok := wholeNumber(v)
			switch {
			case !ok:
				return noInteger(v)
			case n < 0:
				return fmt.Sprintf("{value_negative,%d}", n)
			case n < least:
				return "{value_zero,0}"
			case n > most && most < maxLife:
				return fmt.Sprintf("{max_value_exceeded,%d}", n)
			case n > most:
				return fmt.Sprintf("{value_too_large,%d}", n)
			}
			return ""
		},
		set: func(r *rules, v any) { n, _ := wholeNumber(v); set(r, n) },
	}
}

func text(set func(*rules, string), among ...string) argument {
	return argument{
		check: func(v any) string {
			s, ok := v.(string)
			switch {
			case !ok:
				return fmt.Sprintf("{unacceptable_type,%s}", typeName(v))
			case len(among) > 0 && !slices.Contains(among, s):
				return "invalid_overflow"
			}
			return ""
		},
		set: func(r *rules, v any) { set(r, v.(string)) },
	}
}

func named(name string, a argument) argument { a.name = name; return a }

var ignore = func(*rules, string) {}

// arguments are those that are known; others are kept and ignored.
var arguments = []argument{
	named("x-expires", number(1, maxLife, func(r *rules, n int64) { r.expires = n })),
	named("x-message-ttl", number(0, maxLife, func(r *rules, n int64) { r.ttl = n })),
	named("x-max-length", number(0, math.MaxInt64, func(r *rules, n int64) { r.maxLength = n })),
	named("x-max-length-bytes", number(0, math.MaxInt64, func(r *rules, n int64) { r.maxBytes = n })),
	named("x-overflow", text(func(r *rules, s string) { r.overflow = s }, dropHead, rejectPublish, rejectPublishDead)),
	named("x-dead-letter-exchange", text(func(r *rules, s string) { r.deadLetter = &s })),
	named("x-dead-letter-routing-key", text(func(r *rules, s string) { r.deadKey = &s })),
	named("x-dead-letter-strategy", text(ignore, "at-most-once", "at-least-once")),
	named("x-max-priority", number(0, 255, func(*rules, int64) {})), // messages have no priority here
	named("x-queue-mode", text(ignore, "default", "lazy")),          // bodies are on disk in any case
	named("x-queue-version", number(1, 2, func(*rules, int64) {})),
	named("x-queue-type", text(ignore, "classic", "quorum")),
	named("x-single-active-consumer", argument{
		check: func(v any) string {
			if _, ok := v.(bool); !ok {
				return fmt.Sprintf("{unacceptable_type,%s}", typeName(v))
			}
			return ""
		},
		set: func(r *rules, v any) { r.single = v.(bool) },
	}),
}

// triesArgument is known to LavinMQ for each queue, and to RabbitMQ for quorum queues.
var triesArgument = named("x-delivery-limit", number(0, math.MaxUint8, func(r *rules, n int64) { r.tries = int(n) + 1 }))

// parseRules makes rules of a declaration's arguments.
func (c *core) parseRules(name string, args wire.Table) (rules, *violation) {
	lavin := c.server.opts.Answers == LavinMQ
	r := rules{ttl: -1, maxLength: -1, maxBytes: -1, overflow: dropHead}
	known := arguments
	if _, there := args["x-delivery-limit"]; there {
		if !lavin && args["x-queue-type"] != "quorum" {
			return r, refuse(406, "invalid arg 'x-delivery-limit' for queue '%s' in vhost '/' of queue type rabbit_classic_queue", name)
		}
		known = append(slices.Clone(arguments), triesArgument)
	}
	for _, a := range known {
		v, there := args[a.name]
		if !there {
			continue
		}
		if wrong := a.check(v); wrong != "" {
			if lavin && strings.HasPrefix(a.name, "x-overflow") {
				continue // unknown words there mean nothing
			}
			if a.name == "x-dead-letter-exchange" {
				return r, refuse(406, "invalid type '%s' for arg '%s' in queue '%s' in vhost '/'", typeName(v), a.name, name)
			}
			return r, refuse(406, "invalid arg '%s' for queue '%s' in vhost '/': %s", a.name, name, wrong)
		}
		if lavin && a.name == "x-overflow" && v == rejectPublishDead {
			continue
		}
		a.set(&r, v)
	}
	if r.deadKey != nil && r.deadLetter == nil {
		return r, refuse(406, "invalid arg 'x-dead-letter-routing-key' for queue '%s' in vhost '/': routing_key_but_no_dlx_defined", name)
	}
	return r, nil
}

// equivalent says what is wrong with declaring q again like this.
func (c *core) equivalent(q *queue, m *wire.QueueDeclare) *violation {
	if c.server.opts.Answers == LavinMQ {
		if q.durable != m.Durable || q.autoDelete != m.AutoDelete || !sameTable(q.args, m.Arguments) {
			return refuse(406, "Existing queue '%s' declared with other arguments", q.name)
		}
		return nil
	}
	differ := func(what string, got, is bool) *violation {
		if got == is {
			return nil
		}
		return refuse(406, "inequivalent arg '%s' for queue '%s' in vhost '/': received '%t' but current is '%t'", what, q.name, got, is)
	}
	if v := differ("durable", m.Durable, q.durable); v != nil {
		return v
	}
	if v := differ("auto_delete", m.AutoDelete, q.autoDelete); v != nil {
		return v
	}
	for _, a := range arguments {
		got, gotIt := m.Arguments[a.name]
		is, hasIt := q.args[a.name]
		if a.name == "x-queue-type" { // without it a queue is classic
			if !gotIt {
				got, gotIt = "classic", hasIt
			}
			if !hasIt {
				is, hasIt = "classic", gotIt
			}
		}
		if gotIt && hasIt && sameValue(got, is) || !gotIt && !hasIt {
			continue
		}
		return refuse(406, "inequivalent arg '%s' for queue '%s' in vhost '/': received %s but current is %s",
			a.name, q.name, shown(got, gotIt, hasIt), shown(is, hasIt, gotIt))
	}
	return nil
}

// shown writes an argument's value as RabbitMQ does; both says that the other
// side has one as well.
func shown(v any, there, both bool) string {
	switch {
	case !there:
		return "none"
	case both:
		return quoted(v)
	}
	return fmt.Sprintf("the value %s of type '%s'", quoted(v), typeName(v))
}

func quoted(v any) string {
	if f, ok := v.(float64); ok && f == math.Trunc(f) {
		return fmt.Sprintf("'%.1f'", f)
	}
	return fmt.Sprintf("'%v'", v)
}

func sameValue(a, b any) bool {
	if n, ok := wholeNumber(a); ok {
		m, ok := wholeNumber(b)
		return ok && n == m
	}
	return sameTable(wire.Table{"": a}, wire.Table{"": b})
}

func sameTable(a, b wire.Table) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 1 { // numbers are the same whatever their width
		for k, v := range a {
			n, ok := wholeNumber(v)
			m, ok2 := wholeNumber(b[k])
			if ok && ok2 {
				return n == m
			}
		}
		return string(a.Append(nil)) == string(b.Append(nil))
	}
	for k, v := range a {
		w, there := b[k]
		if !there || !sameValue(v, w) {
			return false
		}
	}
	return true
}
