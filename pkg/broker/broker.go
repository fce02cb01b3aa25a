// Package broker is an AMQP 0-9-1 broker for one machine: exchanges, queues,
// confirms and dead letters over real connections, kept in a log on disk.
//
// It knows no envelope, no gateway and no agent; to it they are clients like any
// other. What a connection says is read in the connection's own goroutine; what
// it means is decided in one place, the core, a single goroutine that owns every
// exchange, queue and channel and never waits for a socket, nor for the disk but to
// read a message that died or must be moved.
// Bodies stay on disk (package store): a queue holds 40 bytes a message.
//
// It gives RabbitMQ's answers (3.10, classic queues), with these exceptions, named
// by the rows of the differential test, and why a gateway can't notice them:
//
//   - tx/select, tx/commit_without_select, tx/select_on_a_confirming_channel:
//     transactions are refused with 540; gateways publish with confirms.
//   - exchange/headers, exchange/predeclared: there are no headers exchanges;
//     gateways declare direct, fanout and topic exchanges only.
//   - B11/priority, consume/priority: priorities are ignored, of messages and of
//     consumers; gateways set none and consume alone.
//   - B13/offers: what goes with the above is not announced, nor is a direct
//     reply-to; gateways answer over their own queues.
//   - B13/login, wire/tuning, wire/out_of_order_handshake: where RabbitMQ hangs up
//     without a word, the reason is said first, and a channel_max of 0 is taken.
//   - wire/channels: a channel number over the maximum is refused already at the
//     first; client libraries keep to the maximum.
//   - wire/bad_frames, wire/bad_content: a basic.cancel-ok is taken at any time,
//     and properties that can't be read are 502, not 541.
//   - R03/restart, R03/order_after_a_restart: all that a restart
//     brings back counts as redelivered, because nobody wrote down what had been
//     delivered; gateways tell repeats by the message's id.
//   - R01: a delivery may be held for ever (RabbitMQ closes the channel after 30
//     minutes); gateways hold none for long.
//   - R04/user_removed: a login is asked for when a connection opens, so removing
//     a user closes none; an operator can (Disconnect).
//   - Queue type quorum is taken, as LavinMQ takes it, and is an ordinary queue.
//
// For tests it can give LavinMQ's answers (2.9.1), but for its delayed-message
// exchange (B07/delayed_message_exchange) and its channel.flow (confirm/flow_off).
package broker

import (
	"context"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"fleet/pkg/broker/store"
	"fleet/pkg/fault"
)

// Answers says whose answers a broker gives where the two products differ.
type Answers int

const (
	RabbitMQ Answers = iota
	LavinMQ          // as of 2.9.1
)

// Options is what a broker is made with.
type Options struct {
	// Dir holds messages and definitions; it is created with mode 0700.
	Dir string
	// Authenticate says whether a login is good. It may take its time: it is
	// called in the connection's own goroutine.
	Authenticate func(user, password string) bool
	Answers      Answers
	Limits       Limits
	// Heartbeat is what clients are proposed; 0 is 60 s.
	Heartbeat time.Duration
	Version   string
	Log       *slog.Logger
}

// Server is a running broker. All methods are safe for concurrent use.
type Server struct {
	opts  Options
	store *store.Store
	core  *core

	mu        sync.Mutex
	listeners map[net.Listener]struct{} // guarded by mu, as is closing
	closing   bool
	conns     sync.WaitGroup // connections that have logged in; Add with mu held
	open      atomic.Int64   // connections
	strangers atomic.Int64   // those that have not logged in
	done      chan struct{}  // closed when the core has ended
	err       error          // why, if by itself; readable once done is closed
}

// Open recovers what Dir holds and starts the broker; it serves nobody before
// Serve. It fails with fault.Refused if another process has the directory.
func Open(o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 60 * time.Second
	}
	o.Limits = o.Limits.withDefaults()
	if o.Limits.fit() {
		o.Log.Warn("fewer connections than configured are taken, as the process may not open more files (ulimit -n)",
			"connections", o.Limits.Connections)
	}
	s := &Server{opts: o, listeners: map[net.Listener]struct{}{}, done: make(chan struct{})}
	c := newCore(s)
	disk, found, err := store.Open(store.Options{
		Dir: o.Dir, Durable: c.nowDurable, Failed: c.diskFailed, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	s.store, s.core, c.store = disk, c, disk
	if err := c.restore(found); err != nil {
		disk.Close()
		return nil, err
	}
	if found.Messages > 100_000 {
		debug.FreeOSMemory() // recovery needs more than what goes on
	}
	o.Log.Info("broker is ready", "queues", len(c.queues), "messages", found.Messages,
		"log_bytes", found.Bytes, "recovery_seconds", found.Elapsed.Seconds(), "damaged_records", found.Damaged)
	go func() { // ends with Close, or when the disk fails
		defer close(s.done)
		s.err = c.run()
		s.stopListening()
	}()
	return s, nil
}

// Serve takes connections from l until Close, and returns nil then; it returns
// an error if l fails or the broker has stopped by itself. It closes l.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return s.stopped()
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	var pause time.Duration
	for {
		raw, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			closing := s.closing
			s.mu.Unlock()
			if closing {
				return s.stopped()
			}
			if !passing(err) {
				return fault.New(fault.Failed, "the broker can't take connections on %s: %v", l.Addr(), err)
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.opts.Log.Warn("can't accept a connection", "err", err, "pause_seconds", pause.Seconds())
			select {
			case <-time.After(pause):
			case <-s.done:
			}
			continue
		}
		pause = 0
		s.mu.Lock()
		if s.closing {
			s.mu.Unlock()
			raw.Close()
			return s.stopped()
		}
		s.mu.Unlock()
		go s.serve(raw) // ends with the connection, which Close ends
	}
}

// stopped is what Serve returns once the broker is closing.
func (s *Server) stopped() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

func (s *Server) stopListening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for l := range s.listeners {
		l.Close()
	}
}

// Close says 320 CONNECTION_FORCED to every client, writes and syncs what is
// pending, and returns when all is closed, or ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.stopListening()
	s.core.stop(nil)
	ended := make(chan error, 1)
	go func() { // ends with the connections, which stop has told to end
		<-s.done
		s.conns.Wait()
		ended <- s.store.Close()
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done is closed when the broker has stopped, by Close or by itself.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is why the broker stopped by itself, once Done is closed; nil after Close.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}
