package broker

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"fleet/pkg/broker/wire"
)

// conn is one client's connection. Its reader makes commands of frames, its
// writer makes frames of items; the core owns what lies between.
type conn struct {
	server *Server
	raw    net.Conn
	in     *wire.Reader
	who    client
	out    *outbox
	ended  atomic.Bool

	// Owned by the core:
	channels map[uint16]*channel
	queues   map[*queue]struct{} // exclusive ones
	closing  bool                // connection.close was sent; all but its answer is dropped
	told     bool                // connection.blocked was sent
	stalled  bool                // deliveries wait for the socket; a consumer's queues are looked at again when it has taken them
	outgoing []item
	touched  bool     // it is in core.touched
	paused   int      // channels that wait for the disk
	goodbye  *command // a connection.close that waits for them
}

func newConn(s *Server, raw net.Conn, in *wire.Reader, who client) *conn {
	return &conn{server: s, raw: raw, in: in, who: who, out: newOutbox(), channels: map[uint16]*channel{},
		queues: map[*queue]struct{}{}}
}

// run returns when the connection is over and the core knows.
func (c *conn) run() {
	core := c.server.core
	c.server.open.Add(1)
	defer c.server.open.Add(-1)
	if !core.submit(batch{conn: c, commands: []command{{event: connected}}}) {
		return
	}
	written := make(chan struct{})
	go func() { // ends with the outbox, which end closes
		defer close(written)
		c.write()
	}()
	c.read()
	c.end()
	<-written
	core.submit(batch{conn: c, commands: []command{{event: gone}}})
}

// end closes the socket; reader and writer notice. It may be called by anyone,
// more than once.
func (c *conn) end() {
	if c.ended.CompareAndSwap(false, true) {
		c.raw.Close()
		c.out.close()
	}
}

// expire ends the connection if its client does not.
func (c *conn) expire() { time.AfterFunc(closeBound, c.end) }

// event is what a command says that is no method.
type event uint8

const (
	said      event = iota // a method
	connected              // the connection is open
	gone                   // and over
	drained                // its socket has taken what waited
	stands                 // it has a publish and may not go on
	damaged                // a delivery to it can't be read; tag says which
)

// command is one thing that a connection says to the core.
type command struct {
	event   event
	channel uint16
	method  wire.Method
	content *content
	tag     uint64     // of the delivery, and
	seq     uint64     // of its message, where it can't be read
	wrong   *violation // in place of a method
}

// content is a message's header and body, as they came.
type content struct {
	properties []byte
	body       []byte
	size       uint64 // as announced; larger than body if the body was over the limit and dropped
}

// batch is what a connection hands over at once.
type batch struct {
	conn     *conn
	commands []command
}

// read makes commands of frames until the connection ends.
func (c *conn) read() {
	parts := newAssembler(c.server.opts.Limits, c.who.channelMax)
	var commands []command
	size, publishes := 0, false
	for {
		f, err := c.in.Next()
		var cmd command
		var whole bool
		switch {
		case err == nil:
			cmd, whole = parts.add(f)
		default:
			var v *wire.Error
			if !errors.As(err, &v) {
				if len(commands) > 0 { // what came whole counts
					c.hand(commands, publishes)
				}
				return
			}
			cmd, whole = command{wrong: fromWire(v)}, true
		}
		if whole {
			commands = append(commands, cmd)
			if cmd.content != nil {
				size += len(cmd.content.body)
				publishes = true
			}
		}
		last := cmd.wrong != nil && cmd.wrong.whole
		if len(commands) > 0 && (last || len(commands) >= batchCommands || size >= batchBytes || !c.in.Ready()) {
			if !c.hand(commands, publishes) {
				return
			}
			commands, size, publishes = nil, 0, false
		}
		if last {
			c.awaitGoodbye()
			return
		}
	}
}

// hand gives commands to the core, when the connection may go on.
func (c *conn) hand(commands []command, publishes bool) bool {
	core := c.server.core
	if publishes && core.shut.Load() {
		if !core.submit(batch{conn: c, commands: []command{{event: stands}}}) {
			return false
		}
	}
	if !c.out.awaitRoom(func() bool { return !publishes || core.mayPublish() }, &core.waiting) {
		return false
	}
	return core.submit(batch{conn: c, commands: commands})
}

// awaitGoodbye reads and drops until the client has closed, for a moment: a
// socket closed with unread input resets, and the reason would be lost.
func (c *conn) awaitGoodbye() {
	c.raw.SetReadDeadline(time.Now().Add(closeBound))
	var scratch [4096]byte
	for {
		if _, err := c.raw.Read(scratch[:]); err != nil {
			return
		}
	}
}
