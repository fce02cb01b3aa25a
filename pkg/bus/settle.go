package bus

import (
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
)

// note counts a return. It comes before its confirm; alone it decides nothing.
func (s *session) note(r amqp.Return) {
	s.returned[place{r.Exchange, r.RoutingKey, r.MessageId}]++
}

// settle decides every message whose confirm is there.
func (p *publisher) settle(s *session) {
	// The library queues a return before it completes the confirm: first see
	// which confirms are complete, then read the returns, then match.
	var complete []*Publication
	for _, m := range p.window[:p.sent] {
		select {
		case <-m.confirm.Done():
			complete = append(complete, m)
		default:
		}
	}
	for drained := false; !drained; {
		select {
		case r, ok := <-s.returns:
			if ok {
				s.note(r)
			} else {
				drained = true
			}
		default:
			drained = true
		}
	}
	decided := 0
	for _, m := range complete {
		at := place{m.m.Route.Exchange, m.m.Route.Key, m.m.ID}
		outcome := decide(m.confirm.Acked(), s.returned[at] > 0, s.ch.IsClosed())
		if outcome == "" {
			continue
		}
		if s.returned[at] > 0 {
			s.returned[at]--
			if s.returned[at] == 0 {
				delete(s.returned, at)
			}
		}
		m.settle(outcome, detail(outcome, m.m))
		decided++
	}
	if decided == 0 {
		return
	}
	p.drop()
}

// drop takes the decided messages out of the window.
func (p *publisher) drop() {
	keep := p.window[:0:0]
	sent, suspects := 0, 0
	for i, m := range p.window {
		select {
		case <-m.done:
			continue
		default:
		}
		if i < p.sent {
			sent++
		}
		if i < p.suspects {
			suspects++
		}
		keep = append(keep, m)
	}
	for range len(p.window) - len(keep) {
		<-p.intake.places
	}
	p.window, p.sent, p.suspects = keep, sent, suspects
}

// decide turns a completed confirm into an outcome; an empty one means that it
// is not decided. A nack says the same as the channel's end to the client, so a
// nack on a channel that is closed by now is taken as undecided: the message is
// published again and refused again.
func decide(acked, returned, closed bool) Outcome {
	switch {
	case acked && returned:
		return Unroutable
	case acked:
		return Accepted
	case closed:
		return ""
	}
	// LavinMQ returns what a full queue refuses as well; the nack tells.
	return Full
}

func detail(o Outcome, m Message) error {
	switch o {
	case Unroutable:
		return fault.New(fault.NotFound, "no queue takes messages for %s", m.Route.Key).WithID(m.ID)
	case Full:
		return fault.New(fault.Full, "a queue for %s is full", m.Route.Key).WithID(m.ID)
	}
	return nil
}

// expire gives up messages whose Until has passed.
func (p *publisher) expire() {
	p.take()
	now := time.Now()
	gone := false
	for _, m := range p.window {
		if now.After(m.m.Until) {
			m.settle(Unknown, fault.New(fault.Unknown, "the broker did not confirm the message in its time").WithID(m.m.ID))
			gone = true
		}
	}
	if gone {
		p.drop()
	}
}

// overdue says whether a confirm is late.
func (p *publisher) overdue() bool {
	return slices.ContainsFunc(p.window[:p.sent], func(m *Publication) bool {
		return time.Since(m.sent) > p.cfg.Bounds.Confirm
	})
}

// restartClocks makes the time of an alarm not count.
func (p *publisher) restartClocks() {
	for _, m := range p.window[:p.sent] {
		m.sent = time.Now()
	}
}
