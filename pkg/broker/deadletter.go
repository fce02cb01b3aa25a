package broker

import (
	"slices"
	"time"

	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
)

// death is a popped entry that waits to be given to its queue's dead-letter
// exchange. In the log it is alive in its queue, so a crash loses nothing.
type death struct {
	queue  *queue
	entry  entry
	reason string
}

// deadLetter ends a popped entry's life in q: at once if q has no dead-letter
// exchange, else in its turn (bury).
func (c *core) deadLetter(q *queue, e entry, reason string) {
	if q.gone || q.rules.deadLetter == nil {
		c.drop(q, e)
		return
	}
	c.dying = append(c.dying, death{q, e, reason})
}

// buryDead gives dead letters to their exchanges, as many as the disk keeps up
// with; more is to be called again at once. The copy is in the log before the end
// is, so a crash between leaves two rather than none.
func (c *core) buryDead() (more bool) {
	for len(c.dying) > 0 {
		d := c.dying[0]
		if d.queue.gone {
			c.forgetHeld(&d.entry)
		} else {
			if c.budget <= 0 {
				return true
			}
			if c.buryLater || c.store.Backlog() >= backlogBytes {
				return false // the disk's next word, or the next tick, goes on
			}
			body := c.store.Load(d.entry.ref)
			m, err := body.Read() // most often the page cache has it
			body.Release()
			if err != nil && !store.Damaged(err) {
				c.buryLater = true // it may pass
				c.server.opts.Log.Error("a dead letter can't be read; it is tried again", "queue", d.queue.name, "err", err)
				return false
			}
			if err != nil {
				c.server.opts.Log.Error("a dead letter is lost", "queue", d.queue.name, "reason", d.reason, "err", err)
			} else {
				c.bury(d.queue, m, d.entry.durable() || c.persistent(m), d.reason)
			}
			c.drop(d.queue, d.entry)
			c.budget -= d.entry.weight()
		}
		c.dying[0] = death{}
		if c.dying = c.dying[1:]; len(c.dying) == 0 {
			c.dying = nil
		}
	}
	return false
}

func (c *core) persistent(m store.Message) bool {
	mode, _, _, _, err := wire.Peek(m.Properties)
	return err == nil && mode == 2
}

// bury publishes a message that died in q.
func (c *core) bury(q *queue, m store.Message, persistent bool, reason string) {
	if q.rules.deadLetter == nil {
		return
	}
	x := c.exchanges[*q.rules.deadLetter]
	if x == nil {
		return // RabbitMQ's way: an exchange that does not exist takes it silently
	}
	p, err := wire.ParseProperties(m.Properties)
	if err != nil {
		return
	}
	keys := []string{m.Key}
	if cc, ok := p.Headers["CC"].([]any); ok {
		for _, k := range cc {
			if s, ok := k.(string); ok {
				keys = append(keys, s)
			}
		}
	}
	deaths := c.recordDeath(&p, q, m, keys, reason)
	if q.rules.deadKey != nil {
		keys = []string{*q.rules.deadKey}
		delete(p.Headers, "CC")
	}
	dead := store.Message{Exchange: x.name, Key: keys[0], Properties: p.Append(nil), Body: m.Body}
	// A publish that a full queue refuses (reject-publish-dlx) is in progress, and
	// what it has found and chosen is not to be overwritten.
	found, places, taken := c.found, c.places, c.taken
	c.found, c.places, c.taken = nil, nil, nil
	defer func() { c.found, c.places, c.taken = found, places, taken }()
	to := c.route(x, keys...)
	if reason != "rejected" {
		to = slices.DeleteFunc(to, func(q *queue) bool { return cycles(deaths, q.name) })
	}
	if len(to) == 0 {
		return
	}
	c.counts.deadLettered++
	// The disk's word is asked for only where the next in line will need it.
	c.enqueue(to, dead, persistent, -1, c.store.Backlog() > backlogBytes/2)
}

// recordDeath writes down in the headers where and why the message died, newest
// first, as RabbitMQ does (rabbit_dead_letter.erl), and takes the message's own
// lifetime away.
func (c *core) recordDeath(p *wire.Properties, q *queue, m store.Message, keys []string, reason string) []any {
	if p.Headers == nil {
		p.Headers = wire.Table{}
	}
	var routed []any
	for _, k := range keys {
		routed = append(routed, k)
	}
	death := wire.Table{"reason": reason, "queue": q.name, "exchange": m.Exchange,
		"routing-keys": routed, "time": time.UnixMilli(c.now).Truncate(time.Second)}
	if p.Expiration != "" {
		death["original-expiration"] = p.Expiration
	}
	count := int64(1)
	_, diedBefore := p.Headers["x-death"]
	deaths, _ := p.Headers["x-death"].([]any)
	if at := slices.IndexFunc(deaths, func(d any) bool {
		t, _ := d.(wire.Table)
		return t["queue"] == q.name && t["reason"] == reason
	}); at >= 0 {
		death = deaths[at].(wire.Table)
		switch n := death["count"].(type) {
		case int64:
			count = n + 1
		case int32:
			count = int64(n) + 1
		}
		deaths = slices.Delete(slices.Clone(deaths), at, at+1)
	} else if !diedBefore {
		for name, value := range map[string]string{"x-first-death-reason": reason, "x-first-death-queue": q.name, "x-first-death-exchange": m.Exchange} {
			if _, there := p.Headers[name]; !there {
				p.Headers[name] = value
			}
		}
	}
	if death["count"] = count; c.server.opts.Answers == LavinMQ {
		death["count"] = int32(count)
	}
	deaths = append([]any{death}, deaths...)
	p.Headers["x-death"] = deaths
	p.Drop(wire.FlagExpiration)
	return deaths
}

// cycles says whether a message with these deaths would go round for ever: it
// has been in the queue before and nobody has rejected it since.
func cycles(deaths []any, queue string) bool {
	for _, d := range deaths {
		t, _ := d.(wire.Table)
		if t["reason"] == "rejected" {
			return false
		}
		if t["queue"] == queue {
			return true
		}
	}
	return false
}
