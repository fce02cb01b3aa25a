// Package proxy is test support: a TCP proxy that stands between an AMQP client
// and a broker and understands frames, so that a test can stage what a network
// or a broker does to somebody at an exact moment: cut the connection after the
// publish has left but before the broker has it, hold back a confirm, freeze a
// direction, raise an alarm.
//
// It knows how frames are framed and which method they carry. It knows nothing
// of queues or messages, and no TLS.
package proxy

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
)

// Dir is a direction.
type Dir int

// The directions.
const (
	ToBroker Dir = iota
	ToClient
)

// Method names an AMQP method by its class and number.
type Method struct{ Class, Method uint16 }

// Methods that tests like to hold.
var (
	QueueDeclare = Method{50, 10}
	BasicConsume = Method{60, 20}
	BasicPublish = Method{60, 40}
	BasicReturn  = Method{60, 50}
	BasicDeliver = Method{60, 60}
	BasicAck     = Method{60, 80}
	BasicNack    = Method{60, 120}
)

// Proxy is a running proxy. Its methods may be called from any goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	ended    chan struct{}

	mu      sync.Mutex // guards all below and the pipes' fields
	changed chan struct{}
	pairs   map[*pair]bool
	refuse  bool
	stall   [2]bool
	hold    [2]map[Method]bool
	rewrite func(Dir, Frame) []Frame
	made    int
}

// New listens on listenAddr ("127.0.0.1:0" takes a free port) and connects each
// client to target, a host:port. It ends with ctx, and cuts all connections
// then.
func New(ctx context.Context, listenAddr, target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", listenAddr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &Proxy{
		target: target, listener: listener, ended: make(chan struct{}),
		changed: make(chan struct{}), pairs: map[*pair]bool{},
		hold: [2]map[Method]bool{{}, {}},
	}
	go p.accept() // ended by the listener's close
	context.AfterFunc(ctx, func() {
		close(p.ended)
		listener.Close()
		p.Cut()
	})
	return p, nil
}

// Addr is the address that clients dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL is amqpURL with the proxy's address in place of the broker's. It panics
// on what is not a URL.
func (p *Proxy) URL(amqpURL string) string {
	u, err := url.Parse(amqpURL)
	if err != nil {
		panic(err)
	}
	u.Host = p.Addr()
	return u.String()
}

// Cut resets every connection. What is held is lost with them.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.reset()
	}
}

// Abandon resets every client and leaves the broker's side open and silent, as
// a network does that takes a host away: the broker keeps what the connection
// holds until it misses its heartbeats.
func (p *Proxy) Abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.abandon()
	}
}

// Refuse makes new connections fail, by a reset as soon as they are made.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Stall stops reading in one direction, as a stopped peer or a dead link does;
// the sender's writes block once the buffers between are full.
func (p *Proxy) Stall(dir Dir, on bool) { p.set(func() { p.stall[dir] = on }) }

// Hold holds back, for each connection, everything from the first frame of the
// method on, in one direction; heartbeats pass. Turned off, it lets go what is
// held, in order, unless another method is still held.
func (p *Proxy) Hold(m Method, dir Dir, on bool) {
	p.set(func() {
		if on {
			p.hold[dir][m] = true
		} else {
			delete(p.hold[dir], m)
		}
	})
}

// HoldMethod is Hold by numbers.
func (p *Proxy) HoldMethod(class, method uint16, dir Dir, on bool) {
	p.Hold(Method{class, method}, dir, on)
}

// Rewrite puts f between: every frame but heartbeats is replaced by what f
// returns for it. f is called by several goroutines. Nil takes it out.
func (p *Proxy) Rewrite(f func(Dir, Frame) []Frame) { p.set(func() { p.rewrite = f }) }

// Held counts the frames that are held.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held()
}

func (p *Proxy) held() int {
	n := 0
	for c := range p.pairs {
		n += len(c.pipes[ToBroker].held) + len(c.pipes[ToClient].held)
	}
	return n
}

// Drop forgets what is held, and goes on holding what follows.
func (p *Proxy) Drop() {
	p.set(func() {
		for c := range p.pairs {
			c.pipes[ToBroker].held, c.pipes[ToClient].held = nil, nil
		}
	})
}

// AwaitHeld waits until at least n frames are held.
func (p *Proxy) AwaitHeld(ctx context.Context, n int) error {
	return p.await(ctx, func() bool { return p.held() >= n })
}

// Connections counts the open connections and those ever made.
func (p *Proxy) Connections() (open, made int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs), p.made
}

// AwaitConnections waits until n connections have been made.
func (p *Proxy) AwaitConnections(ctx context.Context, n int) error {
	return p.await(ctx, func() bool { return p.made >= n })
}

// Inject sends frames of the test's own to every connection. It fails if a
// connection could not take them.
func (p *Proxy) Inject(dir Dir, frames ...Frame) error {
	p.mu.Lock()
	pairs := make([]*pair, 0, len(p.pairs))
	for c := range p.pairs {
		pairs = append(pairs, c)
	}
	p.mu.Unlock()
	for _, c := range pairs {
		for _, f := range frames {
			if err := c.pipes[dir].write(f.bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Proxy) await(ctx context.Context, so func() bool) error {
	for {
		p.mu.Lock()
		is, changed := so(), p.changed
		p.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.tell()
}

// tell is called with mu held.
func (p *Proxy) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			_ = reset(client)
			continue
		}
		go p.serve(client) // ended by either side's close, Cut, or the context
	}
}

func (p *Proxy) serve(client net.Conn) {
	broker, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = reset(client)
		return
	}
	c := newPair(p, client, broker)
	p.set(func() {
		p.pairs[c] = true
		p.made++
	})
	defer p.set(func() { delete(p.pairs, c) })
	select {
	case <-p.ended:
		c.reset()
	default:
	}
	c.run()
}

// holds says whether a frame begins to be held. It is called with mu held.
func (p *Proxy) holds(dir Dir, f Frame) bool {
	m, is := f.Method()
	return is && p.hold[dir][m]
}

func reset(c net.Conn) error {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	return c.Close()
}
