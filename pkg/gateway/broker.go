package gateway

import (
	"context"
	"crypto/rand"
	"net"
	"net/url"
	"sync"
	"time"

	"fleet/pkg/embedded"
	"fleet/pkg/fault"
)

// insideName is the gateway's own login. No user of the file can have it.
const insideName = "@gateway"

// ownBroker is the embedded broker of a gateway whose broker.url says so. The bus
// reaches it over its unix socket, as a client like any other. When it fails the
// host goes on by itself, and it is opened again.
type ownBroker struct {
	g       *Gateway
	options embedded.Options
	files   embedded.Files

	mu  sync.Mutex // guards why
	why error      // why it does not run; nil while it does
}

// startBroker runs the embedded broker where the configuration says so, until
// end is called, which waits for its end. It fails as openBroker does.
func (g *Gateway) startBroker(ctx context.Context) (end func(), err error) {
	if !g.cfg.Broker.Embedded() {
		return func() {}, nil
	}
	own, first, err := g.openBroker(ctx)
	if err != nil {
		return nil, err
	}
	g.broker = own
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { own.run(ctx, first) })
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// openBroker opens the embedded broker's directory and listeners; run serves
// them. It fails where a person must mend something first: another process has
// the directory, a port is taken, a certificate is not as it must be.
func (g *Gateway) openBroker(ctx context.Context) (*ownBroker, *embedded.Broker, error) {
	dir := g.cfg.Paths().Broker()
	o := &ownBroker{g: g, files: embedded.Files{Dir: dir}, options: embedded.Options{
		Dir: dir, Settings: g.cfg.Embedded, Command: "fleet gateway run", Version: g.version, Log: g.log,
		Inside: embedded.Login{User: insideName, Password: rand.Text()},
	}}
	first, err := embedded.Listen(ctx, o.options)
	return o, first, err
}

// url is how the bus logs in. The host is a word for people: dial knows the way.
func (o *ownBroker) url() string {
	u := url.URL{Scheme: "amqp", User: url.UserPassword(o.options.Inside.User, o.options.Inside.Password), Host: "embedded", Path: "//", RawPath: "/%2f"}
	return u.String()
}

// dial connects to the broker's socket. While the broker does not run it fails at
// once, and says why.
func (o *ownBroker) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	o.mu.Lock()
	why := o.why
	o.mu.Unlock()
	if why != nil {
		return nil, fault.New(fault.NoBroker, "the embedded broker does not run: %s", fault.From(why).Message).
			WithHint("it is tried again; what stays on this host passes meanwhile")
	}
	return new(net.Dialer).DialContext(ctx, "unix", o.files.Socket())
}

func (o *ownBroker) set(why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.why = why
}

// run serves the broker until ctx ends. One that fails by itself, since its disk
// is full or broken, is opened again with growing pauses: the agents of this host
// can do without it (R12).
func (o *ownBroker) run(ctx context.Context, b *embedded.Broker) {
	log := o.g.log
	const first = time.Second
	pause := first
	for {
		err := b.Run(ctx, func() {
			pause = first
			o.set(nil)
			log.Info("the embedded broker is up", "socket", o.files.Socket(), "listen", b.Addresses(), "url_file", b.URLFile(), "metrics", b.Metrics())
		})
		for b = nil; b == nil; {
			if ctx.Err() != nil {
				if err != nil {
					log.Error("the embedded broker did not end well", "err", err)
				}
				return
			}
			o.set(err)
			log.Error("the embedded broker has failed: other hosts are out of reach, this one goes on", "err", err, "retry_in_seconds", pause.Seconds())
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			pause = min(2*pause, o.g.cfg.Bounds.Reconnect)
			b, err = embedded.Listen(ctx, o.options)
		}
	}
}
