package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
)

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
	alarm    *atomic.Bool // of the present connection: the broker has a resource alarm
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
	return &publisher{Bus: b, log: b.log.With("link", "publish")}
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
		p.log.Warn("the publishing connection is down", "err", reason, "retry_in_seconds", wait.Seconds(), "undecided", len(p.window))
		if !p.await(ctx, nil, wait) {
			break
		}
	}
	p.intake.close()
	p.take()
	for _, m := range p.window {
		m.settle(Unknown, fault.New(fault.Unknown, "the gateway closed before the broker confirmed the message").WithID(m.m.ID))
	}
	p.drop()
}

// take puts what is new at the window's end.
func (p *publisher) take() { p.window = append(p.window, p.intake.take()...) }

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
		p.intake.nudge()
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
		select {
		case <-p.intake.wake:
			p.settle(s)
			p.take()
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
		p.intake.nudge()
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
