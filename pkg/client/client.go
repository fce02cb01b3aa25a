// Package client calls the gateway's socket.
//
// Every method sends one request and returns the gateway's answer or fault. A
// gateway that does not answer is fault.NoGateway. It decides nothing: what a
// fault means for a script is the command's business.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"

	"fleet/pkg/api"
	"fleet/pkg/fault"
)

// Client speaks to one gateway. It may be used from any goroutine.
type Client struct {
	http   http.Client
	socket string
	token  string
}

// New returns a client of the socket. Token speaks for an agent; empty, the
// gateway tells by the process.
func New(socket, token string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{
		http:   http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true, MaxIdleConnsPerHost: 512}},
		socket: socket,
		token:  token,
	}
}

// Status asks how the gateway is.
func (c *Client) Status(ctx context.Context) (a api.Status, err error) {
	return a, c.call(ctx, "GET", "status", nil, &a)
}

// Await blocks until what r names is so. It fails with fault.TimedOut.
func (c *Client) Await(ctx context.Context, r api.WaitRequest) (a api.Status, err error) {
	return a, c.call(ctx, "POST", "await", r, &a)
}

// Roster asks who is where.
func (c *Client) Roster(ctx context.Context) (a api.Roster, err error) {
	return a, c.call(ctx, "GET", "roster", nil, &a)
}

// WatchRoster calls each with the roster now and after every change.
func (c *Client) WatchRoster(ctx context.Context, each func(api.Roster) error) error {
	return stream(ctx, c, "GET", "roster/changes", nil, each)
}

// Send sends and calls each with every step, the last of which has Last set. A
// stream that breaks off before that is fault.NoGateway.
func (c *Client) Send(ctx context.Context, r api.SendRequest, each func(api.Event) error) error {
	ended := false
	err := stream(ctx, c, "POST", "sends", r, func(e api.Event) error {
		ended = ended || e.Last
		return each(e)
	})
	if err == nil && !ended {
		err = lost()
	}
	return err
}

// Reply ends a turn.
func (c *Client) Reply(ctx context.Context, r api.ReplyRequest) (a api.ReplyResult, err error) {
	return a, c.call(ctx, "POST", "replies", r, &a)
}

// Inbox calls each with every message that fits r.
func (c *Client) Inbox(ctx context.Context, r api.InboxRequest, each func(api.Message) error) error {
	return stream(ctx, c, "POST", "inbox", r, each)
}

// Ack says that the caller has the messages.
func (c *Client) Ack(ctx context.Context, r api.AckRequest) (a api.AckResult, err error) {
	return a, c.call(ctx, "POST", "inbox/ack", r, &a)
}

// Register makes or resumes an agent without a pane.
func (c *Client) Register(ctx context.Context, r api.RegisterRequest) (a api.RegisterResult, err error) {
	return a, c.call(ctx, "POST", "registrations", r, &a)
}

// Spawn starts a worker.
func (c *Client) Spawn(ctx context.Context, r api.SpawnRequest) (a api.SpawnResult, err error) {
	return a, c.call(ctx, "POST", "agents", r, &a)
}

// Stop ends an agent.
func (c *Client) Stop(ctx context.Context, r api.StopRequest) (a api.StopResult, err error) {
	return a, c.call(ctx, "POST", "agents/stop", r, &a)
}

func (c *Client) call(ctx context.Context, method, path string, req, answer any) error {
	body, err := c.open(ctx, method, path, req)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		return c.broken(ctx, err)
	}
	return nil
}

// stream reads one JSON value a line. A line with a fault and no step ends it.
func stream[T any](ctx context.Context, c *Client, method, path string, req any, each func(T) error) error {
	body, err := c.open(ctx, method, path, req)
	if err != nil {
		return err
	}
	defer body.Close()
	r := bufio.NewReader(body)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return c.broken(ctx, err)
		}
		var failure struct {
			Step  string       `json:"step"`
			Fault *fault.Fault `json:"fault"`
		}
		if json.Unmarshal(line, &failure) == nil && failure.Fault != nil && failure.Step == "" {
			return failure.Fault
		}
		var item T
		if err := json.Unmarshal(line, &item); err != nil {
			return c.broken(ctx, err)
		}
		if err := each(item); err != nil {
			return err
		}
	}
}

// open sends the request and returns the body of a good answer.
func (c *Client) open(ctx context.Context, method, path string, req any) (io.ReadCloser, error) {
	var in io.Reader
	if req != nil {
		b, err := json.Marshal(req)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://gateway/v1/"+path, in)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set(api.TokenHeader, c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil, fault.New(fault.NoGateway, "the gateway's socket %s is closed to this user", c.socket).
				WithHint("FLEET_DIR names the directory of this user's own gateway")
		}
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return nil, fault.New(fault.NoGateway, "no gateway answers at %s", c.socket).
				WithHint("`fleet gateway run` starts it; FLEET_DIR names its directory")
		}
		return nil, lost()
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	var failure api.Failure
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&failure); err != nil || failure.Fault == nil {
		return nil, fault.New(fault.NoGateway, "what answers at %s is not a gateway (%s)", c.socket, answer.Status)
	}
	return nil, failure.Fault
}

// broken explains an answer that ended too early.
func (c *Client) broken(ctx context.Context, _ error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return lost()
}

func lost() error {
	return fault.New(fault.NoGateway, "the gateway went away during the call").
		WithHint("start it again with `fleet gateway run`; it has lost nothing that it accepted")
}
