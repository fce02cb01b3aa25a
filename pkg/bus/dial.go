package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

// closeBound is how long a closing connection waits for the broker's answer
// before its socket is closed under it.
const closeBound = 2 * time.Second

// address is the broker's URL, taken apart once.
type address struct {
	url       string // what is dialled; without heartbeat, which would win over the configuration
	shown     string // for people: without credentials
	user      string
	secrets   []string // what must not show in any text
	heartbeat time.Duration
	bad       bool
}

func parseAddress(raw string, heartbeat time.Duration) address {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "amqp" && u.Scheme != "amqps") || u.Host == "" || strings.Contains(raw, " ") {
		return address{bad: true, shown: "the broker", heartbeat: heartbeat}
	}
	query := u.Query()
	if s, err := strconv.Atoi(query.Get("heartbeat")); err == nil && s > 0 {
		heartbeat = time.Duration(s) * time.Second
	}
	query.Del("heartbeat")
	u.RawQuery = query.Encode()
	a := address{url: u.String(), shown: u.Scheme + "://" + u.Host + u.EscapedPath(), user: u.User.Username(), heartbeat: heartbeat}
	if password, ok := u.User.Password(); ok && password != "" && password != a.user {
		a.secrets = []string{u.User.String(), password, url.QueryEscape(password), url.PathEscape(password)}
	}
	return a
}

// redact takes the credentials out of a text that comes from elsewhere.
func (a address) redact(text string) string {
	for _, s := range a.secrets {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}

// link is one connection and the socket below it.
type link struct {
	conn    *amqp.Connection
	raw     *socket
	closed  <-chan *amqp.Error
	dialect topology.Dialect
}

// dial connects and shakes hands within the bound; it gives up when ctx ends.
func (b *Bus) dial(ctx context.Context, role string) (*link, error) {
	if b.broker.bad {
		return nil, fault.New(fault.Config, "the broker's URL makes no sense").
			WithHint("amqp://USER:PASSWORD@HOST:PORT/VHOST, with reserved characters in the password percent-encoded")
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Bounds.Dial)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var raw *socket
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(strings.TrimSpace(b.cfg.Name + " " + role))
	conf := amqp.Config{
		Heartbeat:  b.broker.heartbeat,
		Properties: properties,
		Dial: func(network, addr string) (net.Conn, error) {
			var d net.Dialer
			inner, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			s := newSocket(inner, b.cfg.Bounds.Write, 2*b.broker.heartbeat)
			raw = s
			// The library's handshake knows no context. The function runs at the end
			// of this dial in any case; by then a good socket is kept.
			context.AfterFunc(ctx, s.abandon)
			return s, s.SetDeadline(deadline)
		},
	}
	if b.cfg.TLS != nil {
		conf.TLSClientConfig = b.cfg.TLS.Clone()
	}
	conn, err := amqp.DialConfig(b.broker.url, conf)
	if err != nil {
		if raw != nil {
			raw.Close()
		}
		err = fmt.Errorf("connect to %s: %w", b.broker.shown, err)
		if code := codeOf(err); code == amqp.AccessRefused || code == amqp.NotAllowed {
			return nil, &loginRefused{err}
		}
		return nil, err
	}
	if !raw.keep() {
		raw.Close()
		return nil, fmt.Errorf("connect to %s: %w", b.broker.shown, ctx.Err())
	}
	b.board.connected(role)
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	return &link{
		conn: conn, raw: raw,
		closed:  conn.NotifyClose(make(chan *amqp.Error, 1)),
		dialect: topology.DialectOf(product, version),
	}, nil
}

// doom closes the socket some time after ctx has ended, so that whoever stands
// in a call to a broker that answers nothing comes free. The returned function
// takes it back.
func (l *link) doom(ctx context.Context) (stop func()) {
	over, cancel := context.WithCancel(context.Background())
	go func() { // ended by stop
		select {
		case <-ctx.Done():
			if pause(over, 2*closeBound) {
				l.raw.Close()
			}
		case <-over.Done():
		}
	}()
	return cancel
}

// close says good-bye within closeBound, then closes the socket. A broker that
// is stopped or out of reach answers nothing.
func (l *link) close() {
	done := make(chan struct{})
	go func() { // ended by the broker's answer, the deadline, or the closed socket
		defer close(done)
		_ = l.conn.CloseDeadline(time.Now().Add(closeBound))
	}()
	timer := time.NewTimer(closeBound + closeBound/2)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	l.raw.Close()
}

// abandon closes the socket without a word; the client library notices.
func (l *link) abandon() { l.raw.Close() }

// loginRefused is a dial that the broker refused, or seems to have refused.
type loginRefused struct{ error }

func (e *loginRefused) Unwrap() error { return e.error }

// why names the cause of a connection's end.
func why(e *amqp.Error) error {
	if e == nil {
		return errors.New("the connection was closed")
	}
	return e
}

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
