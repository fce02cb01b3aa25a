// Package localapi serves the gateway's unix socket: decode, find out who calls,
// call, encode.
//
// HTTP/1.1 and JSON under /v1. A request with an unknown field is refused; each
// answer names the gateway's version. It knows neither messages nor agents:
// Gateway does the work, and says who a process is.
package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// Caller is who speaks on a connection. It comes from the connection, never from
// a request (R15).
type Caller struct {
	GID  identity.GID
	Name string
	Role api.Role
	PID  int
}

// Gateway does the work behind the socket. Every method returns when its context
// ends; faults cross the socket as they are.
type Gateway interface {
	// Identify says which agent a process speaks for: by its pane, else by the
	// token, else as the operator.
	Identify(pid int, token string) (Caller, error)

	Status(context.Context) (api.Status, error)
	Await(context.Context, api.WaitRequest) (api.Status, error)
	Roster(context.Context) (api.Roster, error)
	WatchRoster(context.Context, func(api.Roster) error) error
	Send(context.Context, Caller, api.SendRequest, func(api.Event) error) error
	Reply(context.Context, Caller, api.ReplyRequest) (api.ReplyResult, error)
	Inbox(context.Context, Caller, api.InboxRequest, func(api.Message) error) error
	Ack(context.Context, Caller, api.AckRequest) (api.AckResult, error)
	Register(context.Context, Caller, api.RegisterRequest) (api.RegisterResult, error)
	Spawn(context.Context, Caller, api.SpawnRequest) (api.SpawnResult, error)
	Stop(context.Context, Caller, api.StopRequest) (api.StopResult, error)
}

// requestBytes bounds a request: the longest text with every byte escaped in six,
// and room for the other fields.
func requestBytes(textBytes int) int64 { return 6*int64(textBytes) + 64<<10 }

// longestSocket is the most bytes that a unix socket's path may have on every
// system (sun_path has 104 bytes on the BSDs, 108 on Linux).
const longestSocket = 103

// Listen opens the socket, mode 0600, in place of one that nobody serves. The
// caller holds the host's file lock, so a leftover is nobody's.
func Listen(path string) (net.Listener, error) {
	if len(path) > longestSocket {
		return nil, fault.New(fault.Config, "the socket's path has %d bytes, more than the %d that a unix socket may have: %s",
			len(path), longestSocket, path).WithHint("set FLEET_DIR to a shorter directory")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fault.New(fault.Config, "can't replace the socket %s: %v", path, errors.Unwrap(err))
	}
	// The directory is 0700, so nobody else reaches the socket before its mode is set.
	if info, err := os.Stat(filepath.Dir(path)); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Config, "%s has mode %04o, so others can enter it", filepath.Dir(path), info.Mode().Perm()).
			WithHint("chmod 700 %s", filepath.Dir(path))
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fault.New(fault.Config, "can't open the socket: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fault.New(fault.Config, "can't protect the socket: %v", err)
	}
	return l, nil
}

// peerKey finds the peer's credentials in a request's context.
type peerKey struct{}

// peer is the process at the other end of a connection.
type peer struct {
	pid, uid int
	err      error

	mu    sync.Mutex // guards all below
	token string
	known Caller
	until time.Time
}

// knownFor is how long a connection's caller is not looked up again. To find out
// means to walk through the process's ancestors, which costs more than most calls;
// a process does not change whom it speaks for.
const knownFor = time.Second

// caller says who speaks on the connection.
func (p *peer) caller(g Gateway, token string) (Caller, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if token == p.token && time.Now().Before(p.until) {
		return p.known, nil
	}
	c, err := g.Identify(p.pid, token)
	if err == nil {
		p.known, p.token, p.until = c, token, time.Now().Add(knownFor)
	}
	return c, err
}

// Serve answers on l until ctx ends, then waits a moment for calls under way.
func Serve(ctx context.Context, l net.Listener, g Gateway, version string, textBytes int) error {
	s := &server{gateway: g, version: version, textBytes: textBytes}
	h := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			p := &peer{}
			p.pid, p.uid, p.err = credentials(c)
			return context.WithValue(ctx, peerKey{}, p)
		},
	}
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if h.Shutdown(grace) != nil {
			h.Close()
		}
	}()
	err := h.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		<-done
		return nil
	}
	return err
}

type server struct {
	gateway   Gateway
	version   string
	textBytes int // of the longest text
}

// routes is the table of the API: shape, path, and the method behind it.
func (s *server) routes() http.Handler {
	g := s.gateway
	mux := http.NewServeMux()
	mux.Handle("GET /v1/status", call(s, func(ctx context.Context, _ Caller, _ struct{}) (api.Status, error) { return g.Status(ctx) }))
	mux.Handle("POST /v1/await", call(s, func(ctx context.Context, _ Caller, r api.WaitRequest) (api.Status, error) { return g.Await(ctx, r) }))
	mux.Handle("GET /v1/roster", call(s, func(ctx context.Context, _ Caller, _ struct{}) (api.Roster, error) { return g.Roster(ctx) }))
	mux.Handle("GET /v1/roster/changes", stream(s, func(ctx context.Context, _ Caller, _ struct{}, emit func(api.Roster) error) error {
		return g.WatchRoster(ctx, emit)
	}))
	mux.Handle("POST /v1/sends", stream(s, g.Send))
	mux.Handle("POST /v1/replies", call(s, g.Reply))
	mux.Handle("POST /v1/inbox", stream(s, g.Inbox))
	mux.Handle("POST /v1/inbox/ack", call(s, g.Ack))
	mux.Handle("POST /v1/registrations", call(s, g.Register))
	mux.Handle("POST /v1/agents", call(s, g.Spawn))
	mux.Handle("POST /v1/agents/stop", call(s, g.Stop))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, fault.New(fault.Usage, "this gateway (%s) does not know the request %s %q", s.version, r.Method, r.URL.Path).
			WithHint("the command and the gateway may have different versions: restart the gateway"))
	})
	return mux
}

// call serves one request with one answer.
func call[Req, Ans any](s *server, do func(context.Context, Caller, Req) (Ans, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, req, err := decode[Req](s, w, r)
		if err != nil {
			s.fail(w, err)
			return
		}
		answer, err := do(r.Context(), caller, req)
		if err != nil {
			s.fail(w, err)
			return
		}
		s.head(w, http.StatusOK)
		json.NewEncoder(w).Encode(answer) //nolint:errcheck // the caller has gone; its context has ended too
	})
}

// stream serves one request with one JSON value a line. An error before the
// first line is an ordinary failure; one after it is the last line.
func stream[Req, Item any](s *server, do func(context.Context, Caller, Req, func(Item) error) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, req, err := decode[Req](s, w, r)
		if err != nil {
			s.fail(w, err)
			return
		}
		begun := false
		begin := func() {
			if !begun {
				begun = true
				s.head(w, http.StatusOK)
			}
		}
		flush := http.NewResponseController(w)
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		err = do(r.Context(), caller, req, func(item Item) error {
			begin()
			if err := enc.Encode(item); err != nil {
				return err
			}
			return flush.Flush()
		})
		switch {
		case err == nil:
			begin()
		case !begun:
			s.fail(w, err)
		default:
			enc.Encode(api.Failure{Fault: faultOf(err)}) //nolint:errcheck // as above
		}
	})
}

// decode reads who calls and what is asked.
func decode[Req any](s *server, w http.ResponseWriter, r *http.Request) (Caller, Req, error) {
	var req Req
	p, _ := r.Context().Value(peerKey{}).(*peer)
	if p == nil {
		return Caller{}, req, fault.New(fault.Refused, "can't tell who calls")
	}
	if p.err != nil {
		return Caller{}, req, fault.New(fault.Refused, "can't tell who calls: %v", p.err)
	}
	if p.uid != os.Getuid() {
		return Caller{}, req, fault.New(fault.Refused, "the gateway belongs to another user")
	}
	caller, err := p.caller(s.gateway, r.Header.Get(api.TokenHeader))
	if err != nil {
		return Caller{}, req, err
	}
	if r.Method == http.MethodGet {
		return caller, req, nil
	}
	body := http.MaxBytesReader(w, r.Body, requestBytes(s.textBytes))
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return caller, req, fault.New(fault.Usage, "the request has more than the %d bytes that one with the longest text needs", large.Limit).
				WithHint("limits.text_bytes in fleet.yaml bounds a text; a file's path may be better sent than its content")
		}
		return caller, req, fault.New(fault.Usage, "the request does not fit: %v", err).
			WithHint("the command and the gateway may have different versions: restart the gateway")
	}
	// Read to the end, so that net/http watches for the caller's leaving.
	if n, _ := io.Copy(io.Discard, io.LimitReader(dec.Buffered(), 1024)); n > 1 {
		return caller, req, fault.New(fault.Usage, "the request has more than one value")
	}
	io.Copy(io.Discard, body) //nolint:errcheck // only to reach the end
	return caller, req, nil
}

func (s *server) head(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(api.VersionHeader, s.version)
	w.WriteHeader(status)
}

// faultOf is what err is to the caller. A call that is cancelled and still has a
// reader is cancelled by the gateway's end.
func faultOf(err error) *fault.Fault {
	if errors.Is(err, context.Canceled) {
		return fault.New(fault.NoGateway, "the gateway is closing").WithHint("start it again with `fleet gateway run`")
	}
	return fault.From(err)
}

// fail answers with a fault. The status code is for people with curl; fleet
// reads the fault.
func (s *server) fail(w http.ResponseWriter, err error) {
	f := faultOf(err)
	status := http.StatusInternalServerError
	switch fault.Exit(f) {
	case 2:
		status = http.StatusBadRequest
	case 3:
		status = http.StatusNotFound
	case 7:
		status = http.StatusConflict
	case 5, 6, 10:
		status = http.StatusServiceUnavailable
	}
	s.head(w, status)
	json.NewEncoder(w).Encode(api.Failure{Fault: f}) //nolint:errcheck // as above
}
