package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
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
	url       string // for the library: amqp even for amqps, as TLS is made here; without a heartbeat
	tls       bool
	host      string // for the certificate
	shown     string // for people: without credentials
	user      string
	secrets   []string // what must not show in any text
	heartbeat time.Duration
	bad       error // why it can't be used
}

func parseAddress(raw string, heartbeat time.Duration) address {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "amqp" && u.Scheme != "amqps") || u.Hostname() == "" || strings.Contains(raw, " ") {
		return address{bad: fault.New(fault.Config, "the broker's URL makes no sense").
			WithHint("amqp://USER:PASSWORD@HOST:PORT/VHOST, with reserved characters in the password percent-encoded")}
	}
	query := u.Query()
	for _, name := range []string{"cacertfile", "certfile", "keyfile", "server_name_indication", "verify"} {
		if query.Has(name) {
			return address{bad: fault.New(fault.Config, "the broker's URL can't hold the TLS setting %s", name).
				WithHint("set it in the configuration file")}
		}
	}
	if s, err := strconv.Atoi(query.Get("heartbeat")); err == nil && s > 0 {
		heartbeat = time.Duration(s) * time.Second
	}
	query.Del("heartbeat")
	u.RawQuery = query.Encode()
	a := address{
		tls: u.Scheme == "amqps", host: u.Hostname(), user: u.User.Username(), heartbeat: heartbeat,
		shown: u.Scheme + "://" + u.Host + u.EscapedPath(),
	}
	if a.tls {
		u.Scheme = "amqp"
		if u.Port() == "" {
			u.Host = net.JoinHostPort(u.Hostname(), "5671")
		}
	}
	a.url = u.String()
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
	if b.broker.bad != nil {
		return nil, b.broker.bad
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Bounds.Dial)
	defer cancel()
	var raw *socket
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(strings.TrimSpace(b.cfg.Name + " " + role))
	conf := amqp.Config{
		Heartbeat:  b.broker.heartbeat,
		Properties: properties,
		Dial: func(network, addr string) (net.Conn, error) {
			inner, err := b.cfg.Dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			raw = newSocket(inner, b.cfg.Bounds.Write, 2*b.broker.heartbeat)
			return b.secure(ctx, raw)
		},
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

// secure bounds the handshakes on a new socket by ctx, makes TLS if it is to be,
// and puts the sieve on top.
func (b *Bus) secure(ctx context.Context, raw *socket) (net.Conn, error) {
	// The library's handshake knows no context. The function runs at the end of
	// the dial in any case; by then a good socket is kept.
	context.AfterFunc(ctx, raw.abandon)
	deadline, _ := ctx.Deadline()
	if err := raw.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if !b.broker.tls {
		return newSieve(raw), nil
	}
	conf := b.cfg.TLS.Clone() // nil stays nil
	if conf == nil {
		conf = &tls.Config{}
	}
	if conf.ServerName == "" {
		conf.ServerName = b.broker.host
	}
	secured := tls.Client(raw, conf)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return newSieve(secured), nil
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
