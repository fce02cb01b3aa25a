package bus

import (
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Delivery is one message as it came. It is to be acknowledged once; until
// then it counts against the queue's prefetch, and should the channel die, it
// comes again.
type Delivery struct {
	Queue       string
	Exchange    string
	RoutingKey  string
	ID          string
	Kind        string
	Correlation string
	ContentType string
	AppID       string
	Headers     map[string]string // the string headers only
	Body        []byte
	Timestamp   time.Time
	// Redelivered says that the broker has handed it over before. It may be false
	// all the same (LavinMQ after a restart): tell repeats by the id.
	Redelivered bool

	line *line
	tag  uint64
}

// Ack tells the broker that the message is in other hands now. It does not
// block. It does nothing if the channel that brought the message is gone, or
// the second time: a tag means another message on another channel, and a wrong
// one closes the channel.
func (d Delivery) Ack() {
	if d.line != nil {
		d.line.ack(d.tag)
	}
}

// line is one channel that consumes, with what is out on it. It is never used
// again after its death; deliveries keep the line that brought them, so that an
// acknowledgement never reaches another.
type line struct {
	ch     *amqp.Channel
	closed <-chan *amqp.Error
	acks   chan struct{} // cap 1: something is to be acknowledged

	mu   sync.Mutex
	dead bool
	out  map[uint64]string // tags handed over and not acknowledged, with their queue
	due  []uint64          // tags to acknowledge
}

// openLine opens a channel whose every consumer gets at most prefetch messages
// ahead.
func openLine(conn *amqp.Connection, prefetch int) (*line, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	return &line{
		ch:     ch,
		closed: ch.NotifyClose(make(chan *amqp.Error, 1)),
		acks:   make(chan struct{}, 1),
		out:    map[uint64]string{},
	}, nil
}

// ack hands a tag to the owner of the channel.
func (l *line) ack(tag uint64) {
	l.mu.Lock()
	_, is := l.out[tag]
	is = is && !l.dead
	if is {
		delete(l.out, tag)
		l.due = append(l.due, tag)
	}
	l.mu.Unlock()
	if is {
		select {
		case l.acks <- struct{}{}:
		default:
		}
	}
}

// flush sends what is to be acknowledged, each tag by itself: a lower tag may
// still wait unseen in the client library. The owner calls it. An error shows
// in closed.
func (l *line) flush() {
	l.mu.Lock()
	due := l.due
	l.due = nil
	l.mu.Unlock()
	for _, tag := range due {
		if l.ch.Ack(tag, false) != nil {
			return
		}
	}
}

// die makes acknowledgements of this line's deliveries do nothing.
func (l *line) die() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead, l.due, l.out = true, nil, nil
}

// busy says whether anything is out, or due to be acknowledged.
func (l *line) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.out)+len(l.due) > 0
}

// outstanding counts what is handed over from queue and not acknowledged.
func (l *line) outstanding(queue string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, q := range l.out {
		if q == queue {
			n++
		}
	}
	return n
}

// read hands over deliveries until their channel closes: the consumer is
// cancelled (then what was prefetched still comes) or the line is dead (then
// what was prefetched is dropped here and comes again).
func (l *line) read(deliveries <-chan amqp.Delivery, queue string, handle func(Delivery)) {
	for d := range deliveries {
		if l.enter(d.DeliveryTag, queue) {
			handle(l.delivery(d, queue))
		}
	}
}

func (l *line) enter(tag uint64, queue string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return false
	}
	l.out[tag] = queue
	return true
}

func (l *line) delivery(d amqp.Delivery, queue string) Delivery {
	headers := make(map[string]string, len(d.Headers))
	for key, value := range d.Headers {
		if s, ok := value.(string); ok {
			headers[key] = s
		}
	}
	return Delivery{
		Queue: queue, Exchange: d.Exchange, RoutingKey: d.RoutingKey,
		ID: d.MessageId, Kind: d.Type, Correlation: d.CorrelationId,
		ContentType: d.ContentType, AppID: d.AppId,
		Headers: headers, Body: d.Body, Timestamp: d.Timestamp, Redelivered: d.Redelivered,
		line: l, tag: d.DeliveryTag,
	}
}
