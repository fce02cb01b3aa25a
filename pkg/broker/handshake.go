package broker

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"fleet/pkg/broker/wire"
)

var protocol = [8]byte{'A', 'M', 'Q', 'P', 0, 0, 9, 1}

// client is what a connection told about itself in its handshake.
type client struct {
	user           string
	name           string // connection_name, for people
	frameMax       uint32
	channelMax     uint16
	heartbeat      time.Duration // 0: none
	cancelNotify   bool
	blockedNotices bool
}

// serve speaks with one client until its connection ends.
func (s *Server) serve(raw net.Conn) {
	defer raw.Close()
	if s.strangers.Add(1) > maxStrangers {
		s.strangers.Add(-1)
		return
	}
	known := sync.OnceFunc(func() { s.strangers.Add(-1) })
	defer known()
	if t, ok := raw.(*net.TCPConn); ok {
		t.SetNoDelay(true)
	}
	// A client in the middle of its handshake is not waited for at the end.
	stopWatch := make(chan struct{})
	defer close(stopWatch)
	shaken := make(chan struct{})
	go func() { // ends with this function
		select {
		case <-s.core.stopping:
			select {
			case <-shaken:
			default:
				raw.Close()
			}
		case <-stopWatch:
		}
	}()

	raw.SetDeadline(time.Now().Add(handshakeBound))
	patience := &patient{raw: raw}
	in := wire.NewReader(patience)
	who, err := s.shakeHands(raw, in)
	if err != nil {
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			s.opts.Log.Warn("a client did not get in", "remote", raw.RemoteAddr().String(), "err", err.Error())
		}
		return
	}
	raw.SetDeadline(time.Time{})
	close(shaken)
	known()
	patience.silent = 2 * who.heartbeat
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return
	}
	s.conns.Add(1)
	s.mu.Unlock()
	defer s.conns.Done()
	newConn(s, raw, in, who).run()
}

// patient reads from raw with the deadline that the heartbeat sets.
type patient struct {
	raw    net.Conn
	silent time.Duration // how long the client may be silent; 0: the deadline stays as it is
}

func (p *patient) Read(b []byte) (int, error) {
	if p.silent > 0 {
		p.raw.SetReadDeadline(time.Now().Add(p.silent))
	}
	return p.raw.Read(b)
}

// refusal is a handshake that ended with an answer to the client.
type refusal struct {
	code uint16
	text string
}

func (r *refusal) Error() string { return fmt.Sprintf("refused with %d: %s", r.code, r.text) }

// handshake is one in progress.
type handshake struct {
	server *Server
	raw    net.Conn
	in     *wire.Reader
	who    client
}

// shakeHands goes on to the open virtual host. A client that does something
// wrong is told so first.
func (s *Server) shakeHands(raw net.Conn, in *wire.Reader) (client, error) {
	h := &handshake{server: s, raw: raw, in: in}
	for _, step := range []func() error{h.greet, h.login, h.tune, h.open} {
		err := step()
		var v *wire.Error
		if errors.As(err, &v) {
			err = h.refuse(v.Code, v.Class, v.Method, "%s", v.Text)
		}
		if err != nil {
			return client{}, err
		}
	}
	return h.who, nil
}

func (h *handshake) say(m wire.Method) error {
	_, err := h.raw.Write(wire.AppendMethod(nil, 0, m))
	return err
}

// refuse tells the client why and returns it as an error.
func (h *handshake) refuse(code uint16, class, method uint16, format string, args ...any) error {
	text := replyText(code, format, args...)
	h.say(&wire.ConnectionClose{ReplyCode: code, ReplyText: text, ClassID: class, MethodID: method})
	awaitCloseOK(h.in)
	return &refusal{code, text}
}

// greet is TLS and the protocol's header.
func (h *handshake) greet() error {
	if t, ok := h.raw.(*tls.Conn); ok {
		if err := t.Handshake(); err != nil {
			return fmt.Errorf("make TLS: %w", err)
		}
	}
	header, err := h.in.Protocol()
	if err != nil {
		return err
	}
	if header != protocol {
		h.raw.Write(protocol[:])
		return fmt.Errorf("it speaks something else: %q", header[:])
	}
	return nil
}

func (h *handshake) login() error {
	if err := h.say(&wire.ConnectionStart{VersionMajor: 0, VersionMinor: 9, ServerProperties: h.server.properties(),
		Mechanisms: "PLAIN", Locales: "en_US"}); err != nil {
		return err
	}
	started, err := expect[*wire.ConnectionStartOK](h.in)
	if err != nil {
		return err
	}
	capabilities, _ := started.ClientProperties["capabilities"].(wire.Table)
	able := func(name string) bool { yes, _ := capabilities[name].(bool); return yes }
	h.who.cancelNotify, h.who.blockedNotices = able("consumer_cancel_notify"), able("connection.blocked")
	h.who.name, _ = started.ClientProperties["connection_name"].(string)
	if started.Mechanism != "PLAIN" {
		return h.refuse(503, 10, 11, "unknown authentication mechanism '%.40s'", started.Mechanism)
	}
	parts := bytes.Split([]byte(started.Response), []byte{0})
	if len(parts) == 3 && len(parts[0]) == 0 { // nobody acts for another
		h.who.user = string(parts[1])
	}
	if h.who.user != "" && h.server.authentic(h.raw, h.who.user, string(parts[2])) {
		return nil
	}
	if able("authentication_failure_close") {
		h.refuse(403, 0, 0, "Login was refused using authentication mechanism PLAIN. For details see the broker logfile.")
	}
	return &refusal{403, fmt.Sprintf("wrong user or password for %q", h.who.user)}
}

func (h *handshake) tune() error {
	channelMax := uint16(h.server.opts.Limits.Channels)
	if h.server.opts.Answers == LavinMQ {
		channelMax++ // 2,048
	}
	proposed := uint16(min(h.server.opts.Heartbeat/time.Second, 65535))
	if err := h.say(&wire.ConnectionTune{ChannelMax: channelMax, FrameMax: frameMax, Heartbeat: proposed}); err != nil {
		return err
	}
	tuned, err := expect[*wire.ConnectionTuneOK](h.in)
	if err != nil {
		return err
	}
	h.who.frameMax, h.who.channelMax = tuned.FrameMax, tuned.ChannelMax
	h.who.heartbeat = time.Duration(tuned.Heartbeat) * time.Second
	switch {
	case h.who.frameMax < wire.FrameMin:
		return h.refuse(530, 10, 31, "frame_max=%d < %d min size", h.who.frameMax, wire.FrameMin)
	case h.who.frameMax > frameMax:
		return h.refuse(530, 10, 31, "frame_max=%d > %d max size", h.who.frameMax, frameMax)
	case h.who.channelMax > channelMax:
		return h.refuse(530, 10, 31, "channel_max=%d > %d max size", h.who.channelMax, channelMax)
	case h.who.channelMax == 0:
		h.who.channelMax = channelMax
	}
	h.in.SetMax(h.who.frameMax)
	return nil
}

func (h *handshake) open() error {
	opened, err := expect[*wire.ConnectionOpen](h.in)
	if err != nil {
		return err
	}
	if opened.VirtualHost != "/" {
		return h.refuse(530, 10, 40, "vhost %s not found", opened.VirtualHost)
	}
	if most := h.server.opts.Limits.Connections; h.server.open.Load() >= int64(most) {
		return h.refuse(530, 10, 40, "access to vhost '/' refused for user '%s': connection limit (%d) is reached", h.who.user, most)
	}
	return h.say(&wire.ConnectionOpenOK{})
}

// authentic has the login checked. However long others were before it in line,
// the client has its time for the rest of the handshake.
func (s *Server) authentic(raw net.Conn, user, password string) bool {
	raw.SetDeadline(time.Time{})
	defer func() { raw.SetDeadline(time.Now().Add(handshakeBound)) }()
	return s.opts.Authenticate(user, password)
}

// expect reads the one method that may come now.
func expect[M wire.Method](in *wire.Reader) (M, error) {
	var none M
	for {
		f, err := in.Next()
		if err != nil {
			return none, err
		}
		if f.Type == wire.FrameHeartbeat {
			continue
		}
		if f.Type != wire.FrameMethod || f.Channel != 0 {
			return none, &wire.Error{Code: 501, Text: "a method of the handshake was expected"}
		}
		m, err := wire.ParseMethod(f.Payload)
		if err != nil {
			return none, err
		}
		if m, ok := m.(M); ok {
			return m, nil
		}
		if _, ok := m.(*wire.ConnectionClose); ok {
			return none, io.EOF
		}
		return none, &wire.Error{Code: 503, Text: "unexpected method " + m.Name(), Class: m.Class(), Method: m.ID()}
	}
}

// awaitCloseOK reads on until the client has answered a close, so that the
// answer is not lost in a reset. It ends with the handshake's deadline.
func awaitCloseOK(in *wire.Reader) {
	for range 1000 {
		f, err := in.Next()
		if err != nil {
			return
		}
		if m, err := wire.ParseMethod(f.Payload); err == nil && f.Type == wire.FrameMethod {
			if _, ok := m.(*wire.ConnectionCloseOK); ok {
				return
			}
		}
	}
}

// properties is what the broker says about itself. Clients choose their ways by
// product and version, so it names the product whose answers it gives.
func (s *Server) properties() wire.Table {
	product, version := "RabbitMQ", "3.10.8"
	if s.opts.Answers == LavinMQ {
		product, version = "LavinMQ", "2.9.1"
	}
	return wire.Table{
		"product": product, "version": version,
		"platform":    "fleet " + s.opts.Version,
		"information": "fleet's embedded broker; it gives the answers of " + product + " " + version,
		"capabilities": wire.Table{
			"publisher_confirms": true, "exchange_exchange_bindings": true, "basic.nack": true,
			"consumer_cancel_notify": true, "connection.blocked": true,
			"authentication_failure_close": true, "per_consumer_qos": true,
		},
	}
}
