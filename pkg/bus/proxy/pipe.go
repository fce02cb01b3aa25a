package proxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// The frame types of AMQP 0-9-1.
const (
	TypeMethod    = 1
	TypeHeader    = 2
	TypeBody      = 3
	TypeHeartbeat = 8
)

const (
	frameEnd   = 0xCE
	greeting   = "AMQP\x00\x00\x09\x01"
	headerSize = 7
	// frameMost is far over what any peer negotiates.
	frameMost = 16 << 20
)

// Frame is one frame: its type, channel and payload.
type Frame struct {
	Type    byte
	Channel uint16
	Payload []byte
}

// Method is the method that a method frame carries.
func (f Frame) Method() (Method, bool) {
	if f.Type != TypeMethod || len(f.Payload) < 4 {
		return Method{}, false
	}
	return Method{binary.BigEndian.Uint16(f.Payload), binary.BigEndian.Uint16(f.Payload[2:])}, true
}

// NewMethod makes a method frame of encoded arguments.
func NewMethod(channel uint16, m Method, args []byte) Frame {
	payload := binary.BigEndian.AppendUint16(nil, m.Class)
	payload = binary.BigEndian.AppendUint16(payload, m.Method)
	return Frame{Type: TypeMethod, Channel: channel, Payload: append(payload, args...)}
}

// Short encodes a short string.
func Short(s string) []byte { return append([]byte{byte(len(s))}, s...) }

func (f Frame) bytes() []byte {
	b := append(make([]byte, 0, headerSize+len(f.Payload)+1), f.Type)
	b = binary.BigEndian.AppendUint16(b, f.Channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Payload)))
	b = append(b, f.Payload...)
	return append(b, frameEnd)
}

func readFrame(r io.Reader) (Frame, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	size := binary.BigEndian.Uint32(head[3:])
	if size > frameMost {
		return Frame{}, errors.New("a frame is too large")
	}
	body := make([]byte, size+1)
	if _, err := io.ReadFull(r, body); err != nil {
		return Frame{}, err
	}
	if body[size] != frameEnd {
		return Frame{}, errors.New("a frame does not end as it should")
	}
	return Frame{Type: head[0], Channel: binary.BigEndian.Uint16(head[1:]), Payload: body[:size]}, nil
}

// pair is one client's connection with the broker's.
type pair struct {
	proxy *Proxy
	pipes [2]*pipe
	over  chan struct{} // closed at the end
	left  chan struct{} // closed when the client's side is gone and the broker's stays
	once  sync.Once
	leave sync.Once
}

// pipe carries one direction of a pair.
type pipe struct {
	*pair
	dir      Dir
	from, to net.Conn
	writing  sync.Mutex // one frame at a time: pump and Inject both write

	// Guarded by the proxy's lock.
	holding bool
	held    []Frame
}

func newPair(p *Proxy, client, broker net.Conn) *pair {
	c := &pair{proxy: p, over: make(chan struct{}), left: make(chan struct{})}
	c.pipes[ToBroker] = &pipe{pair: c, dir: ToBroker, from: client, to: broker}
	c.pipes[ToClient] = &pipe{pair: c, dir: ToClient, from: broker, to: client}
	return c
}

// run pumps both ways until either side closes.
func (c *pair) run() {
	var both sync.WaitGroup
	for _, d := range c.pipes {
		both.Go(func() {
			d.pump()
			select {
			case <-c.left:
				d.linger()
			default:
			}
			c.end(net.Conn.Close)
		})
		both.Go(d.release)
	}
	both.Wait()
}

// reset ends both connections as a lost peer does; what is under way is lost.
func (c *pair) reset() { c.end(reset) }

// abandon ends the client's side only.
func (c *pair) abandon() {
	c.leave.Do(func() {
		close(c.left)
		_ = reset(c.pipes[ToBroker].from)
	})
}

// linger keeps the broker's side open until the broker closes it.
func (d *pipe) linger() {
	if d.dir == ToClient {
		_, _ = io.Copy(io.Discard, d.from)
		return
	}
	<-d.over
}

func (c *pair) end(shut func(net.Conn) error) {
	c.once.Do(func() {
		close(c.over)
		_ = shut(c.pipes[ToBroker].from)
		_ = shut(c.pipes[ToBroker].to)
	})
}

// pump reads frames and writes or holds them, until the reading side closes.
func (d *pipe) pump() {
	r := bufio.NewReader(d.from)
	if d.dir == ToBroker {
		hello := make([]byte, len(greeting))
		if _, err := io.ReadFull(r, hello); err != nil || d.write(hello) != nil {
			return
		}
	}
	for d.flowing() {
		f, err := readFrame(r)
		if err != nil || !d.flowing() || !d.pass(f) {
			return
		}
	}
}

// flowing waits while the direction is stalled. It says false once the pair is
// over.
func (d *pipe) flowing() bool {
	for {
		d.proxy.mu.Lock()
		stalled, changed := d.proxy.stall[d.dir], d.proxy.changed
		d.proxy.mu.Unlock()
		select {
		case <-d.over:
			return false
		default:
		}
		if !stalled {
			return true
		}
		select {
		case <-changed:
		case <-d.over:
			return false
		}
	}
}

// pass writes a frame, or holds it.
func (d *pipe) pass(f Frame) bool {
	p := d.proxy
	if f.Type == TypeHeartbeat {
		return d.write(f.bytes()) == nil
	}
	frames := []Frame{f}
	p.mu.Lock()
	rewrite := p.rewrite
	p.mu.Unlock()
	if rewrite != nil {
		frames = rewrite(d.dir, f)
	}
	for _, f := range frames {
		// The writing lock comes first: release must not let held frames go
		// between the decision here and the write.
		d.writing.Lock()
		p.mu.Lock()
		d.holding = d.holding || p.holds(d.dir, f)
		if d.holding {
			d.held = append(d.held, f)
			p.tell()
		}
		holding := d.holding
		p.mu.Unlock()
		var err error
		if !holding {
			_, err = d.to.Write(f.bytes())
		}
		d.writing.Unlock()
		if err != nil {
			return false
		}
	}
	return true
}

// release lets held frames go when nothing is to be held any more, until the
// pair is over.
func (d *pipe) release() {
	p := d.proxy
	for {
		d.writing.Lock()
		p.mu.Lock()
		changed := p.changed
		var frames []Frame
		if d.holding && len(p.hold[d.dir]) == 0 {
			d.holding = false
			frames, d.held = d.held, nil
		}
		p.mu.Unlock()
		for _, f := range frames {
			_, _ = d.to.Write(f.bytes()) // a closed connection shows in the pump
		}
		d.writing.Unlock()
		select {
		case <-changed:
		case <-d.over:
			return
		}
	}
}

func (d *pipe) write(b []byte) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	_, err := d.to.Write(b)
	return err
}
