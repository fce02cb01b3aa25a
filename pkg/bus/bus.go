// Package bus moves bytes through an AMQP broker: publish and wait for the
// confirm, consume alone, come back after a lost connection.
//
// It keeps two connections. One consumes and declares; on it stands the host's
// lock queue, so that two gateways never serve one host. The other only
// publishes, because a broker's alarm or a dead link freezes a connection, and
// acknowledgements must not freeze with it.
//
// It does not know what the bytes mean, who sent them or what becomes of them:
// envelopes are the gateway's business, names and arguments of queues are
// topology's.
package bus

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"fleet/pkg/topology"
)

// Config is what a Bus needs to know. Only URL and Layout have no default.
type Config struct {
	URL string      // amqp:// or amqps://, with credentials; never logged
	TLS *tls.Config // cloned for each dial; nil: the default
	// Dial opens the connection below AMQP and TLS, and gives up when ctx ends; nil:
	// to the URL's host by TCP. A fault that it returns becomes the state's reason.
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	Name      string // the connections' names begin with it
	Layout    topology.Layout
	Heartbeat time.Duration // 0: 5 s
	Window    int           // publishes in flight; 0: 64
	Bounds    Bounds
	Log       *slog.Logger // nil: none
}

// Bounds are the times after which the bus stops waiting. Zero takes the
// default.
type Bounds struct {
	Confirm     time.Duration // for a confirm, not counted while blocked: 20 s
	Write       time.Duration // for one write to the socket: 10 s
	Dial        time.Duration // for connection, TLS and AMQP handshake together: 10 s
	BackoffMost time.Duration // between two dials: 30 s; twice that after a refused login
}

// Bus is one gateway's link to the broker. All its methods may be called from
// any goroutine, before Run as well.
type Bus struct {
	cfg    Config
	broker address
	board  *board
	wants  *registry
	intake *intake
	log    *slog.Logger
	// readers are the goroutines that call handlers. Each ends with its consumer.
	readers sync.WaitGroup
}

// New makes a Bus. It does nothing until Run; a URL that makes no sense shows
// in the state then.
func New(cfg Config) *Bus {
	orDuration(&cfg.Heartbeat, 5*time.Second)
	orDuration(&cfg.Bounds.Confirm, 20*time.Second)
	orDuration(&cfg.Bounds.Write, 10*time.Second)
	orDuration(&cfg.Bounds.Dial, 10*time.Second)
	orDuration(&cfg.Bounds.BackoffMost, 30*time.Second)
	if cfg.Window <= 0 {
		cfg.Window = 64
	}
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Layout.Limits = cfg.Layout.Limits.Or(topology.DefaultLimits)
	if cfg.Layout.Type == "" {
		cfg.Layout.Type = topology.Classic
	}
	board := newBoard()
	return &Bus{
		cfg:    cfg,
		broker: parseAddress(cfg.URL, cfg.Heartbeat),
		board:  board,
		wants:  newRegistry(board),
		intake: newIntake(cfg.Window),
		log:    cfg.Log,
	}
}

func orDuration(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

// Run connects and reconnects until ctx ends; then it closes and returns nil.
// The close is bounded: on a dead network it takes a few seconds. What is still
// in the publish window then gets the outcome Unknown. No handler is called
// after it, except a leftover of DetachAndDelete that blocks. Run is called once.
func (b *Bus) Run(ctx context.Context) error {
	var both sync.WaitGroup
	both.Go(func() { b.consumeLoop(ctx) })
	both.Go(func() { newPublisher(b).run(ctx) })
	both.Wait()
	b.board.end()
	quiet := make(chan struct{})
	go func() { // ended by the last handler's return
		b.readers.Wait()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-time.After(closeBound):
	}
	return nil
}
