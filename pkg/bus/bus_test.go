package bus

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/bus/proxy"
	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

// patience bounds every wait of these tests; none is expected to last so long.
const patience = 30 * time.Second

// TestMain looks for goroutines that have outlived their bus.
func TestMain(m *testing.M) {
	m.Run()
	over := time.Now().Add(patience)
	for stacks := leaked(); stacks != ""; stacks = leaked() {
		if time.Now().After(over) {
			panic("goroutines have no end:\n" + stacks)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leaked is the stacks of this package's and its client library's goroutines.
func leaked() string {
	b := make([]byte, 1<<20)
	var found []string
	for _, stack := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
		if strings.Contains(stack, "bus.TestMain") {
			continue
		}
		if strings.Contains(stack, "fleet/pkg/bus") || strings.Contains(stack, "amqp091") {
			found = append(found, stack)
		}
	}
	return strings.Join(found, "\n\n")
}

// eachBroker runs a test against every broker of the environment.
func eachBroker(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	list := os.Getenv("FLEET_TEST_BROKERS")
	if list == "" {
		if os.Getenv("FLEET_TEST_REQUIRE_BROKER") == "1" {
			t.Fatal("FLEET_TEST_BROKERS names no broker")
		}
		t.Skip("FLEET_TEST_BROKERS names no broker")
	}
	t.Parallel()
	for _, entry := range strings.Split(list, ",") {
		name, at, _ := strings.Cut(entry, "=")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newWorld(t, at))
		})
	}
}

// world is one test's broker, proxy and host. Its exchanges have names of their
// own: the proxy renames them on the way.
type world struct {
	t     *testing.T
	ctx   context.Context
	proxy *proxy.Proxy
	url   string // through the proxy
	admin *admin
	host  identity.Host
	space string // in place of "bridge."

	mu   sync.Mutex
	also func(proxy.Dir, proxy.Frame) []proxy.Frame
}

func newWorld(t *testing.T, at string) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	t.Cleanup(cancel)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	if u.Port() == "" {
		target += ":5672"
	}
	p, err := proxy.New(ctx, "127.0.0.1:0", target)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ctx: ctx, proxy: p, url: p.URL(at), host: identity.Host("t" + random(5)), space: random(3) + "."}
	p.Rewrite(w.rewrite)
	w.admin = newAdmin(t, at, w.space)
	return w
}

// rewrite gives the shared exchanges this test's names, of the same length.
func (w *world) rewrite(dir proxy.Dir, f proxy.Frame) []proxy.Frame {
	from, to := "bridge.", w.space
	if dir == proxy.ToClient {
		from, to = to, from
	}
	if f.Type == proxy.TypeMethod {
		f.Payload = bytes.ReplaceAll(f.Payload, []byte(from), []byte(to))
	}
	w.mu.Lock()
	also := w.also
	w.mu.Unlock()
	if also != nil {
		return also(dir, f)
	}
	return []proxy.Frame{f}
}

// onFrames puts f between as well.
func (w *world) onFrames(f func(proxy.Dir, proxy.Frame) []proxy.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.also = f
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// config is quick to retry.
func (w *world) config() Config {
	return Config{
		URL:    w.url,
		Name:   "test " + string(w.host),
		Layout: topology.Layout{Host: w.host, Type: topology.Classic, Limits: topology.DefaultLimits},
		Bounds: Bounds{BackoffMost: 200 * time.Millisecond},
	}
}

// start makes and runs a bus until the test ends.
func (w *world) start(change func(*Config)) *running {
	w.t.Helper()
	conf := w.config()
	if change != nil {
		change(&conf)
	}
	return w.run(New(conf))
}

// running is a Bus in its Run.
type running struct {
	*Bus
	w    *world
	stop context.CancelFunc
	done chan struct{}
}

func (w *world) run(b *Bus) *running {
	ctx, cancel := context.WithCancel(w.ctx)
	r := &running{Bus: b, w: w, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		_ = b.Run(ctx)
	}()
	w.t.Cleanup(r.end)
	return r
}

// end stops the bus and waits.
func (r *running) end() {
	r.stop()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.w.t.Error("Run does not return")
	}
}

// until waits for a state.
func (r *running) until(what string, so func(State) bool) State {
	r.w.t.Helper()
	over := time.After(patience)
	for {
		changed := r.Changed()
		state := r.State()
		if so(state) {
			return state
		}
		select {
		case <-changed:
		case <-over:
			r.w.t.Fatalf("not %s; the state is %+v", what, state)
		}
	}
}

func (r *running) up() State {
	r.w.t.Helper()
	return r.until("up", func(s State) bool { return s.Link == Up })
}

func (r *running) served(names ...string) {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(r.w.ctx, patience)
	defer cancel()
	if err := r.Served(ctx, names...); err != nil {
		r.w.t.Fatal(err)
	}
}

// send publishes and fails the test if it may not.
func (r *running) send(m Message) *Publication {
	r.w.t.Helper()
	p, err := r.Publish(r.w.ctx, m)
	if err != nil {
		r.w.t.Fatalf("publish %s: %v", m.ID, err)
	}
	return p
}

// want waits for the outcome of a publication.
func (r *running) want(p *Publication, want Outcome) error {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(r.w.ctx, patience)
	defer cancel()
	got, err := p.Wait(ctx)
	if got != want {
		r.w.t.Fatalf("message %s: %s (%v), want %s", p.m.ID, got, err, want)
	}
	return err
}

// inbox attaches an inbox for a new agent, whose deliveries come to the
// returned channel, and waits until it stands.
func (r *running) inbox(prefetch int) (gid identity.GID, name string, got chan Delivery) {
	r.w.t.Helper()
	gid = identity.NewGID()
	got = make(chan Delivery, 10_000)
	name = r.cfg.Layout.Inbox(topology.Dialect{}, gid, false, nil).Name
	r.Attach(name, func(d topology.Dialect) topology.Queue {
		return r.cfg.Layout.Inbox(d, gid, false, nil)
	}, prefetch, func(d Delivery) { got <- d })
	r.served(name)
	return gid, name, got
}

// to is a durable message to a key.
func to(key any, id string) Message {
	return Message{
		Route: topology.Route{Exchange: topology.Messages, Key: fmt.Sprint(key), Mandatory: true, Persistent: true},
		ID:    id, Kind: "SEND", Body: []byte("text " + id), Timestamp: time.Now(),
		Headers: map[string]string{"fleet-sig": "s"},
	}
}

// next is the next delivery.
func (w *world) next(got <-chan Delivery) Delivery {
	w.t.Helper()
	select {
	case d := <-got:
		return d
	case <-time.After(patience):
		w.t.Fatal("no delivery")
		return Delivery{}
	}
}

// admin is a bare client beside the bus.
type admin struct {
	t     *testing.T
	conn  *amqp.Connection
	space string
}

func newAdmin(t *testing.T, at, space string) *admin {
	conn, err := amqp.Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	a := &admin{t: t, conn: conn, space: space}
	t.Cleanup(func() {
		for _, x := range topology.Exchanges() {
			_ = a.ask(func(ch *amqp.Channel) error { return ch.ExchangeDelete(a.name(x.Name), false, false) })
		}
		_ = a.ask(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(a.name(topology.DLQ), false, false, false)
			return err
		})
		_ = conn.Close()
	})
	return a
}

// name is a shared name in this test's space.
func (a *admin) name(s string) string { return strings.Replace(s, "bridge.", a.space, 1) }

func (a *admin) ask(f func(*amqp.Channel) error) error {
	ch, err := a.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	return f(ch)
}

func (a *admin) must(f func(*amqp.Channel) error) {
	a.t.Helper()
	if err := a.ask(f); err != nil {
		a.t.Fatal(err)
	}
}

// look is a queue's state, or an error if there is none.
func (a *admin) look(queue string) (q amqp.Queue, err error) {
	err = a.ask(func(ch *amqp.Channel) error {
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	return q, err
}

// holds waits until so many messages are ready in a queue.
func (a *admin) holds(queue string, want int) {
	a.t.Helper()
	over := time.Now().Add(patience)
	for {
		q, err := a.look(queue)
		if err == nil && q.Messages == want {
			return
		}
		if time.Now().After(over) {
			a.t.Fatalf("queue %s: %+v, %v; want %d messages", queue, q, err, want)
		}
		time.Sleep(5 * time.Millisecond) // the broker tells nobody
	}
}

// deleteLater removes a durable queue after the test.
func (a *admin) deleteLater(queue string) {
	a.t.Cleanup(func() {
		if !a.conn.IsClosed() {
			_ = a.ask(func(ch *amqp.Channel) error { _, err := ch.QueueDelete(queue, false, false, false); return err })
		}
	})
}

// logs collects what a bus logs.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
