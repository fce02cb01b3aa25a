package bus

import (
	"bufio"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"time"
)

// socket bounds every read and write: the client library holds its locks over a
// write, so that one blocked write freezes publish and close alike, and it sets
// no read deadline before the second frame.
type socket struct {
	net.Conn
	write, read time.Duration

	mu       sync.Mutex
	hard     time.Time // set by SetDeadline: wins over the rolling bounds
	kept     bool      // the handshake is over: abandon does nothing any more
	deserted bool
}

func newSocket(c net.Conn, write, read time.Duration) *socket {
	return &socket{Conn: c, write: write, read: read}
}

// keep ends the power of abandon. It says false if that came first.
func (s *socket) keep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = true
	return !s.deserted
}

// abandon closes a socket whose handshake nobody waits for any more.
func (s *socket) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.kept {
		s.deserted = true
		s.Conn.Close()
	}
}

// bound is the deadline d from now, or the hard one if that is earlier.
func (s *socket) bound(d time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Now().Add(d)
	if !s.hard.IsZero() && s.hard.Before(t) {
		return s.hard
	}
	return t
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	if err := s.SetWriteDeadline(s.bound(s.write)); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	if err := s.SetReadDeadline(s.bound(s.read)); err != nil {
		return 0, err
	}
	return s.Conn.Read(p)
}

// SetDeadline implements net.Conn. The zero time restores the rolling bounds.
func (s *socket) SetDeadline(t time.Time) error {
	s.mu.Lock()
	s.hard = t
	s.mu.Unlock()
	if t.IsZero() {
		// A read may be waiting already, with no deadline after this call.
		t = time.Now().Add(s.read)
	}
	return s.Conn.SetDeadline(t)
}

// sieve drops what a broker still sends on a channel after it has closed it.
// RabbitMQ does so with deliveries and confirms that were under way, and the
// client library answers by closing the whole connection.
type sieve struct {
	net.Conn
	r    *bufio.Reader
	shut map[uint16]bool // channels that the broker has closed and not opened again
	left int             // of the frame that passes now
}

func newSieve(c net.Conn) *sieve {
	return &sieve{Conn: c, r: bufio.NewReaderSize(c, 16<<10), shut: map[uint16]bool{}}
}

// The parts of a frame, and the two methods that matter here (class and method
// number in one).
const (
	frameHead    = 7 // type, channel, size
	frameMethod  = 1
	heartbeat    = 8
	channelOpenK = 20<<16 | 11
	channelClose = 20<<16 | 40
)

// Read implements net.Conn. One goroutine reads.
func (s *sieve) Read(p []byte) (int, error) {
	for s.left == 0 {
		if err := s.frame(); err != nil {
			return 0, err
		}
	}
	n, err := s.r.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// frame looks at the next frame and drops it, or lets it pass.
func (s *sieve) frame() error {
	head, err := s.r.Peek(frameHead)
	if err != nil {
		return err
	}
	kind, channel, size := head[0], binary.BigEndian.Uint16(head[1:]), binary.BigEndian.Uint32(head[3:])
	if kind == 0 || kind > heartbeat || size > math.MaxInt32/2 {
		s.left = math.MaxInt // not AMQP, or another version's greeting: the library says so
		return nil
	}
	whole := frameHead + int(size) + 1
	if kind == frameMethod && size >= 4 {
		if head, err = s.r.Peek(frameHead + 4); err != nil {
			return err
		}
		switch binary.BigEndian.Uint32(head[frameHead:]) {
		case channelOpenK:
			delete(s.shut, channel)
		case channelClose:
			if !s.shut[channel] {
				s.shut[channel] = true
				s.left = whole
				return nil
			}
		}
	}
	if s.shut[channel] {
		_, err := s.r.Discard(whole)
		return err
	}
	s.left = whole
	return nil
}
