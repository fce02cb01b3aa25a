package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
)

// Publish puts m into the publish window, in the order of the calls. It blocks
// while the window is full, until ctx ends. It fails at once with
// fault.NoBroker (or HostHeld, or Config) while the link is not Up, and with
// fault.Usage if the broker could not take m in any case. An error means that m
// was not published and will not be.
func (b *Bus) Publish(ctx context.Context, m Message) (*Publication, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	state, left := b.board.leaving()
	if state.Link != Up {
		return nil, state.Err
	}
	p := newPublication(m)
	select {
	case b.in <- p:
		return p, nil
	case <-left:
		return nil, b.refusal()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a place in the publish window: %w", ctx.Err())
	}
}

// refusal is why the link has just been lost, even if it is back already.
func (b *Bus) refusal() error {
	if err := b.State().Err; err != nil {
		return err
	}
	return noBroker("the link was lost a moment ago")
}

// publisher owns the publishing connection, its channel and the window; all of
// it in the goroutine that calls run.
type publisher struct {
	*Bus
	log    *slog.Logger
	window []*Publication // undecided, in order; the first sent of them are on the channel
	sent   int
	// suspects counts the messages at the head of the window that are published
	// one at a time, to find which of them made the broker close the channel.
	suspects int
	wake     chan struct{} // cap 1: a confirm has come, or an alarm begun or ended
	alarm    *atomic.Bool  // of the present connection: the broker has a resource alarm
}

// session is one channel in confirm mode.
type session struct {
	link     *link
	ch       *amqp.Channel
	returns  <-chan amqp.Return
	closed   <-chan *amqp.Error
	returned map[place]int
}

// place tells returned messages apart; a message's copy for another exchange
// bears the same id.
type place struct{ exchange, key, id string }

func newPublisher(b *Bus) *publisher {
	return &publisher{Bus: b, log: b.log.With("link", "publish"), wake: make(chan struct{}, 1)}
}

// run connects and reconnects until ctx ends. It dials only while the consuming
// side stands, so that queues and the host's lock come first.
func (p *publisher) run(ctx context.Context) {
	retry := p.newRetry()
	for p.await(ctx, p.board.readiness(), 0) {
		began := time.Now()
		err := p.connect(ctx)
		if ctx.Err() != nil {
			break
		}
		wait := retry.after(err, time.Since(began))
		reason, state := p.explain(err)
		p.board.publishDown(reason, state)
		p.log.Warn("the publishing connection is down", "err", reason, "retry_in", wait, "undecided", len(p.window))
		if !p.await(ctx, nil, wait) {
			break
		}
	}
	for _, m := range p.window {
		m.settle(Unknown, fault.New(fault.Unknown, "the gateway closed before the broker confirmed the message").WithID(m.m.ID))
	}
	p.window = nil
}

// await waits for c, or for d where c is nil, and gives up messages whose time
// passes meanwhile. It says false if ctx ends first.
func (p *publisher) await(ctx context.Context, c <-chan struct{}, d time.Duration) bool {
	var over <-chan time.Time
	if c == nil {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-c:
			return ctx.Err() == nil
		case <-over:
			return true
		case <-tick.C:
			p.expire()
		}
	}
}

// connect runs one connection until it or ctx ends.
func (p *publisher) connect(ctx context.Context) error {
	l, err := p.dial(ctx, "publish")
	if err != nil {
		return err
	}
	defer l.doom(ctx)()
	p.alarm, p.suspects = new(atomic.Bool), 0
	alarms := l.conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	watched := make(chan struct{})
	go func() { // ended by the connection's end, which closes alarms
		defer close(watched)
		p.watchAlarms(alarms, p.alarm)
	}()
	defer func() { <-watched }()
	for {
		err = p.serve(ctx, l)
		var closed *channelClosed
		if ctx.Err() != nil {
			l.close()
			return nil
		}
		if !errors.As(err, &closed) || l.conn.IsClosed() {
			l.abandon()
			return err
		}
		if !p.afterRefusal(ctx, l, closed.cause) {
			l.abandon()
			return err
		}
	}
}

// watchAlarms is a goroutine of its own because the publisher may stand in a
// write to the blocked socket.
func (p *publisher) watchAlarms(alarms <-chan amqp.Blocking, alarm *atomic.Bool) {
	for a := range alarms {
		alarm.Store(a.Active)
		if a.Active {
			p.board.publishBlocked(p.broker.redact(orText(a.Reason, "no reason given")))
		} else {
			p.board.publishBlocked("")
		}
		p.nudge()
	}
}

func (p *publisher) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func orText(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// channelClosed ends a session whose connection lives on.
type channelClosed struct{ cause *amqp.Error }

func (e *channelClosed) Error() string { return "the channel was closed: " + e.cause.Error() }

// open makes a channel in confirm mode. Everything undecided is to be published
// on it again.
func (p *publisher) open(l *link) (*session, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	s := &session{
		link: l, ch: ch,
		// An unread return holds up the whole connection for 5 s and is then lost.
		returns:  ch.NotifyReturn(make(chan amqp.Return, p.cfg.Window+8)),
		closed:   ch.NotifyClose(make(chan *amqp.Error, 1)),
		returned: map[place]int{},
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("ask for confirms: %w", err)
	}
	for _, m := range p.window {
		m.confirm = nil
	}
	p.sent = 0
	return s, nil
}

// serve publishes on a new channel until it ends: first what is undecided, in
// its order, then what is new.
func (p *publisher) serve(ctx context.Context, l *link) error {
	s, err := p.open(l)
	if err != nil {
		return err
	}
	p.board.publishUp()
	clock := time.NewTicker(max(min(p.cfg.Bounds.Confirm/8, time.Second), time.Millisecond))
	defer clock.Stop()
	wasBlocked := false
	for {
		blocked := p.alarm.Load()
		if wasBlocked && !blocked {
			p.restartClocks()
		}
		wasBlocked = blocked
		if p.maySend(blocked) {
			if err := p.send(s); err != nil {
				return err
			}
		}
		if p.maySend(blocked) {
			continue
		}
		var in chan *Publication
		if !blocked && p.suspects == 0 && len(p.window) < p.cfg.Window {
			in = p.in
		}
		select {
		case m := <-in:
			p.window = append(p.window, m)
		case <-p.wake:
			p.settle(s)
		case r, ok := <-s.returns:
			if ok {
				s.note(r)
			}
		case <-clock.C:
			p.expire()
			if !blocked && p.overdue() {
				return fmt.Errorf("no confirm within %v", p.cfg.Bounds.Confirm)
			}
		case e := <-s.closed:
			return p.sessionEnd(s, e)
		case <-ctx.Done():
			return nil
		}
	}
}

// maySend says whether the next message of the window goes out now.
func (p *publisher) maySend(blocked bool) bool {
	return !blocked && p.sent < len(p.window) && (p.suspects == 0 || p.sent == 0)
}

// send publishes the next message of the window.
func (p *publisher) send(s *session) error {
	m := p.window[p.sent]
	route := m.m.Route
	confirm, err := s.ch.PublishWithDeferredConfirm(route.Exchange, route.Key, route.Mandatory, false, m.m.publishing())
	if err != nil {
		// Either the channel has just been closed, and why waits in closed, or
		// the write failed and the connection is going.
		select {
		case e := <-s.closed:
			return p.sessionEnd(s, e)
		case <-time.After(closeBound):
			return fmt.Errorf("publish: %w", err)
		}
	}
	m.confirm, m.sent = confirm, time.Now()
	p.sent++
	go func() { // ended by the confirm, or by the channel's end, which completes it too
		<-confirm.Done()
		p.nudge()
	}()
	return nil
}

// sessionEnd takes in what came before the channel closed.
func (p *publisher) sessionEnd(s *session, e *amqp.Error) error {
	p.settle(s)
	if e == nil || s.link.conn.IsClosed() {
		return why(e)
	}
	return &channelClosed{e}
}

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
