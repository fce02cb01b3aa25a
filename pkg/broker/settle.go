package broker

// hold keeps a delivery under the channel's last delivery tag.
func (ch *channel) hold(h *held) {
	if len(ch.held) == 0 {
		ch.lowest = ch.deliveryTag
	}
	ch.held[ch.deliveryTag] = h
	if h.consumer != nil {
		h.consumer.held++
		ch.delivered++
	}
}

// release takes a delivery out of the channel's hand.
func (ch *channel) release(tag uint64) *held {
	h := ch.held[tag]
	delete(ch.held, tag)
	if h.consumer != nil {
		h.consumer.held--
		ch.delivered--
	}
	return h
}

// tags lists what a settlement means, oldest first. ok is false if it means
// nothing that is held.
func (ch *channel) tags(tag uint64, multiple bool) (list []uint64, ok bool) {
	if !multiple {
		_, ok := ch.held[tag]
		return []uint64{tag}, ok
	}
	if tag == 0 {
		tag = ch.deliveryTag
	} else if _, ok := ch.held[tag]; !ok {
		return nil, false
	}
	for t := ch.lowest; t <= tag && len(list) < len(ch.held); t++ {
		if _, ok := ch.held[t]; ok {
			list = append(list, t)
		}
	}
	return list, true
}

// fate is what becomes of a delivery.
type fate int

const (
	acked fate = iota
	requeued
	rejected
)

// settleDeliveries ends the deliveries that a client names.
func (ch *channel) settleDeliveries(tag uint64, multiple bool, f fate) *violation {
	list, ok := ch.tags(tag, multiple)
	if !ok {
		return refuse(406, "unknown delivery tag %d", tag)
	}
	for _, t := range list {
		h := ch.release(t)
		switch {
		case f == acked:
			ch.core.counts.acked++
			ch.core.drop(h.queue, h.entry)
		case f == requeued:
			ch.core.putBack(h.queue, h.entry)
		default:
			ch.core.deadLetter(h.queue, h.entry, "rejected")
		}
	}
	if len(list) > 0 {
		for ch.lowest <= ch.deliveryTag && len(ch.held) > 0 {
			if _, ok := ch.held[ch.lowest]; ok {
				break
			}
			ch.lowest++
		}
		ch.resume()
	}
	return nil
}

// resume has the queues looked at whose consumers on this channel can take more.
func (ch *channel) resume() {
	for _, k := range ch.consumers {
		if k.queue.ready.len() > 0 && k.may() {
			ch.core.mark(k.queue)
		}
	}
}

// requeueAll returns everything that is held to its queues.
func (ch *channel) requeueAll() {
	for tag := range ch.held {
		h := ch.release(tag)
		ch.core.putBack(h.queue, h.entry)
	}
	ch.resume()
}

// abandon is told that q is gone; the tags of what it had stay known.
func (ch *channel) abandon(q *queue) {
	for _, h := range ch.held {
		if h.queue == q {
			ch.core.forgetHeld(&h.entry)
		}
	}
}

// forgetHeld drops a popped entry of a queue that is gone.
func (c *core) forgetHeld(e *entry) {
	if e.flags&flagLost == 0 {
		c.store.Forget(e.ref)
	}
	c.bytes -= e.weight()
	c.messages--
}
