// Package gateway is the daemon of one host: it accepts messages, routes them,
// delivers them to the host's agents, and speaks with the other gateways through
// the broker.
//
// Every message enters the fleet through accept and reaches an agent through the
// agent's own goroutine (agent.run); a remote send is a local send with the
// broker in the middle. What must survive a kill is in the mailbox file; the
// rest is found again: agents from their panes, hosts from their presence.
//
// It knows no command line and prints nothing; it does not know how a terminal
// is driven (pane, inject) or how bytes travel (bus).
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/pane"
	"fleet/pkg/pane/pty"
	"fleet/pkg/topology"
	"fleet/pkg/trace"
)

// Options are what a gateway gets from the command that runs it.
type Options struct {
	Config  config.Config
	Version string
	Program string   // this program's path: the holder's, and what agents call
	Environ []string // of which agents get the few variables that every program needs
	Log     *slog.Logger
}

// Gateway is the daemon. Each field is owned by what it names, or never changes
// after Run has set it up.
type Gateway struct {
	cfg     config.Config
	version string
	program string
	environ []string
	log     *slog.Logger
	now     func() time.Time

	ctx         context.Context // ends with Run
	started     time.Time
	incarnation uint64
	signer      *identity.Signer
	tokens      *identity.Tokens
	keys        envelope.Keyring
	layout      topology.Layout
	audit       *trace.Writer
	store       *mailbox.Store
	panes       pane.Backend
	bus         *bus.Bus   // nil without a broker
	broker      *ownBroker // nil unless the broker is embedded
	agents      *agents
	sends       *sends
	who         *presence
	outbox      *outbox
	letters     *letters
	live        *queue[live]
	running     sync.WaitGroup // the agents' goroutines
}

var _ localapi.Gateway = (*Gateway)(nil)

// Run is a gateway until ctx ends. It fails with fault.HostHeld where another
// gateway serves the host, and with fault.Config where a file is not as it must
// be. ready is called once the socket answers.
func Run(ctx context.Context, o Options, ready func()) error {
	g := &Gateway{cfg: o.Config, version: o.Version, program: o.Program, environ: o.Environ, log: o.Log, now: time.Now,
		started: time.Now(), agents: newAgents(), live: newQueue[live]()}
	g.layout = topology.Layout{Host: g.cfg.Host, Type: g.cfg.Broker.QueueType, Limits: g.cfg.Broker.Limits}
	g.sends = &sends{g: g, active: map[string]*sending{}}
	g.outbox = newOutbox(g)
	g.letters = newLetters(g)

	lock, err := lockHost(g.cfg)
	if err != nil {
		return err
	}
	defer lock.Close()
	closeAll, err := g.open()
	defer closeAll()
	if err != nil {
		return err
	}
	return g.serve(ctx, ready)
}

// open opens the host's files. What it opened, closeAll closes.
func (g *Gateway) open() (closeAll func(), err error) {
	var closers []func() error
	closeAll = func() {
		for i := len(closers) - 1; i >= 0; i-- {
			if err := closers[i](); err != nil {
				g.log.Error("can't close a file", "err", err)
			}
		}
	}
	if g.signer, err = identity.LoadSigner(g.cfg.Dir); err != nil {
		return closeAll, err
	}
	if g.tokens, err = identity.LoadTokens(g.cfg.Dir); err != nil {
		return closeAll, err
	}
	g.keys = g.cfg.Keyring(g.signer.Public())
	if g.audit, err = trace.Open(g.cfg.Paths().Audit(), g.cfg.Host, g.log); err != nil {
		return closeAll, err
	}
	closers = append(closers, g.audit.Close)
	if g.store, err = mailbox.Open(g.cfg.Paths().Mailbox(), mailbox.Options{
		MessagesMost: g.cfg.Mailbox.Messages, BytesMost: g.cfg.Mailbox.Bytes, Log: g.log}); err != nil {
		return closeAll, err
	}
	closers = append(closers, g.store.Close)
	if err = g.store.Write(context.Background(), func(tx *mailbox.Tx) (err error) {
		g.incarnation, err = tx.Counter("incarnation")
		return err
	}); err != nil {
		return closeAll, err
	}
	g.panes, err = pty.New(g.cfg.Paths().Panes(), []string{g.program, "pty-hold"}, g.log)
	return closeAll, err
}

// serve runs all parts until ctx ends or one fails, and ends them in the order
// in which they need each other: no new callers, then agents and outbox, then
// goodbye to the other hosts, then the bus, and last a broker of the gateway's own.
func (g *Gateway) serve(ctx context.Context, ready func()) error {
	listener, err := localapi.Listen(g.cfg.Paths().Socket())
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	parts, endParts := context.WithCancel(context.WithoutCancel(ctx))
	defer endParts()
	link, endLink := context.WithCancel(context.WithoutCancel(ctx))
	defer endLink()
	g.ctx = parts

	endBroker, err := g.startBroker(ctx)
	if err != nil {
		listener.Close()
		return err
	}
	defer endBroker()
	if g.bus, err = g.newBus(); err != nil {
		listener.Close()
		return err
	}
	g.who = newPresence(g)
	var working, connected sync.WaitGroup
	if g.bus != nil {
		g.attachHost()
		connected.Go(func() {
			if err := g.bus.Run(link); err != nil {
				fail(err)
			}
		})
		working.Go(func() { g.runLive(parts) })
		working.Go(func() { g.letters.run(parts) })
		working.Go(func() { g.guardHost(ctx, fail) })
	}
	if err := g.outbox.load(); err != nil {
		listener.Close()
		return err
	}
	if err := g.restore(ctx); err != nil {
		listener.Close()
		return err
	}
	working.Go(func() { g.outbox.run(parts) })
	working.Go(func() { g.who.run(parts) })
	working.Go(func() { g.prune(parts) })
	g.log.Info("gateway", "host", g.cfg.Host, "version", g.version, "socket", g.cfg.Paths().Socket(),
		"incarnation", g.incarnation, "agents", len(g.agents.all()))
	ready()

	if err := localapi.Serve(ctx, listener, g, g.version, g.cfg.Limits.TextBytes); err != nil {
		fail(fmt.Errorf("serve the socket: %w", err))
	}
	endParts()
	g.running.Wait()
	working.Wait()
	endLink()
	connected.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// lockHost takes the host's file lock (R7). The file holds the gateway's process
// id, for people and for signals.
func lockHost(c config.Config) (*os.File, error) {
	f, err := os.OpenFile(c.Paths().Lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.New(fault.Config, "can't open the lock file: %v", err).WithHint("`fleet init` makes the directory")
	}
	if err := flock(f); err != nil {
		pid := make([]byte, 16)
		n, _ := f.Read(pid)
		f.Close()
		return nil, fault.New(fault.HostHeld, "host %s is served from %s already, by process %s", c.Host, c.Dir, firstLine(pid[:n])).
			WithHint("end that gateway first, or give this one its own FLEET_DIR and host")
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fault.New(fault.Config, "can't write the lock file: %v", err)
	}
	return f, nil
}

func firstLine(b []byte) string {
	for i, c := range b {
		if c < '0' || c > '9' {
			return string(b[:i])
		}
	}
	return string(b)
}

// newBus is the link to the configured broker; nil without one.
func (g *Gateway) newBus() (*bus.Bus, error) {
	c := bus.Config{
		URL: g.cfg.Broker.URL.Reveal(), Layout: g.layout, Heartbeat: g.cfg.Broker.Heartbeat,
		Name: fmt.Sprintf("fleet %s %d", g.cfg.Host, g.incarnation),
		Bounds: bus.Bounds{Confirm: g.cfg.Bounds.Confirm, Write: min(g.cfg.Bounds.Confirm, 10*time.Second),
			BackoffMost: g.cfg.Bounds.Reconnect}, Log: g.log,
	}
	switch {
	case g.cfg.Broker.URL.Empty():
		return nil, nil
	case g.broker != nil:
		c.URL, c.Dial = g.broker.url(), g.broker.dial
		return bus.New(c), nil
	}
	tls, err := g.cfg.Broker.TLS()
	if err != nil {
		return nil, err
	}
	c.TLS = tls
	return bus.New(c), nil
}

// attachHost consumes the host's own queues.
func (g *Gateway) attachHost() {
	g.bus.OnLive(g.receiveLive)
	g.bus.BindLive(topology.LiveKey(identity.OperatorGID(g.cfg.Host))) // answers to the roster's questions
	g.bus.Attach(g.layout.Control(topology.Dialect{}).Name, g.layout.Control, prefetch, g.receiveControl)
	g.bus.Attach(g.layout.Roster().Name, func(topology.Dialect) topology.Queue { return g.layout.Roster() }, 4*prefetch, g.receiveRoster)
}

// guardHost says at once when another gateway has the host. A gateway that never
// had it and serves no agent ends after four heartbeats, which is longer than a
// dead connection holds it; others stay up, local only, and retry (R7).
func (g *Gateway) guardHost(ctx context.Context, fail func(error)) {
	patience := 4 * g.cfg.Broker.Heartbeat
	said := false
	for {
		changed := g.bus.Changed()
		s := g.bus.State()
		wait := time.Hour
		switch {
		case s.Link != bus.Held:
			said = false
		case !said:
			said = true
			g.log.Error("the host is held by another gateway", "host", g.cfg.Host, "by", s.Reason)
			fallthrough
		default:
			wait = patience - g.now().Sub(s.HeldSince)
		}
		if s.Link == bus.Held && wait <= 0 {
			if !s.HadHost && len(g.agents.all()) <= 1 { // the operator is always there
				fail(fault.New(fault.HostHeld, "host %s is served by another gateway: %s", g.cfg.Host, s.Reason).
					WithHint("end that gateway, or give this one another host name (`fleet init --host NAME`)"))
				return
			}
			wait = time.Hour
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// prune forgets what is older than anything that could still ask for it, once an
// hour, until ctx ends.
func (g *Gateway) prune(ctx context.Context) {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			n, err := g.store.Prune(now)
			if err == nil {
				err = g.pruneSends(ctx, now)
			}
			if err != nil && ctx.Err() == nil {
				g.log.Error("can't prune the mailbox file", "err", err)
			}
			g.log.Debug("pruned", "seen", n)
		}
	}
}

// pruneSends forgets old sends, a bounded number in one transaction.
func (g *Gateway) pruneSends(ctx context.Context, now time.Time) error {
	const most = 1000
	for {
		var old []string
		if err := g.store.Read(func(tx *mailbox.Tx) error {
			return mailbox.Each(tx, sendsTable, "", func(key string, r sendRow) error {
				if len(old) < most && now.Sub(r.Created) > envelope.DefaultMemory {
					old = append(old, key)
				}
				return nil
			})
		}); err != nil || len(old) == 0 {
			return err
		}
		if err := g.store.Write(ctx, func(tx *mailbox.Tx) error {
			for _, key := range old {
				if err := mailbox.Delete(tx, sendsTable, key); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
}

// Status is the gateway at a glance.
func (g *Gateway) Status(ctx context.Context) (api.Status, error) {
	s := api.Status{Host: g.cfg.Host, Version: g.version, PID: os.Getpid(), Started: g.started, Incarnation: g.incarnation,
		Broker: api.Link{State: "none"}, Agents: len(g.agents.all()), OpenTurns: g.openTurns(ctx), Outcomes: g.outbox.owing()}
	for _, h := range g.who.union().Hosts {
		if h.Host != g.cfg.Host && h.State != hostUnknown {
			s.Peers++
		}
	}
	if g.bus != nil {
		b := g.bus.State()
		s.Broker = api.Link{State: string(b.Link), Since: b.Since, Reason: b.Reason, Product: b.Dialect.Product,
			Version: b.Dialect.Version, Reconnects: b.Reconnects, Embedded: g.broker != nil}
	}
	return s, nil
}

// Await returns once everything that r names is so. It fails with TimedOut.
func (g *Gateway) Await(ctx context.Context, r api.WaitRequest) (api.Status, error) {
	if r.Within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Within*float64(time.Second)))
		defer cancel()
	}
	if g.bus == nil && (r.Broker || r.Peer != "") {
		return api.Status{}, noBroker() // only a restart can change that
	}
	for {
		roster := g.who.changed.next()
		var link <-chan struct{}
		if g.bus != nil {
			link = g.bus.Changed()
		}
		missing := g.missing(r)
		if missing == nil {
			return g.Status(ctx)
		}
		select {
		case <-roster:
		case <-link:
		case <-time.After(time.Second): // an inbox may come to stand without a change of either
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return api.Status{}, missing
			}
			return api.Status{}, ctx.Err()
		}
	}
}

// missing says what of r is not so yet.
func (g *Gateway) missing(r api.WaitRequest) error {
	if r.Broker || r.Peer != "" {
		if s := g.bus.State(); s.Link != bus.Up {
			return fault.New(fault.TimedOut, "the broker is not there: %s", s.Reason)
		}
		quick, cancel := context.WithTimeout(g.ctx, 100*time.Millisecond)
		defer cancel()
		operator := g.agents.get(identity.OperatorGID(g.cfg.Host))
		if err := g.bus.Served(quick, operator.queueName()); err != nil {
			return fault.New(fault.TimedOut, "the own inbox is not there yet")
		}
	}
	if r.Peer != "" {
		h, err := identity.ParseHost(r.Peer)
		if err != nil {
			return err
		}
		if _, known := g.cfg.Peers[h]; !known && h != g.cfg.Host {
			return fault.New(fault.TimedOut, "%s is no peer of this host", h).WithHint("`fleet peer add %s KEY` makes it one", h)
		}
		if v, ok := g.who.host(h); !ok || v.State == hostUnknown {
			return fault.New(fault.TimedOut, "%s is not there", h).
				WithHint("is its gateway up, and has each host the other's key? `fleet peer list` and `fleet key show` tell")
		}
	}
	if r.Agent != "" {
		if _, err := g.who.resolve(r.Agent); err != nil {
			return fault.New(fault.TimedOut, "agent %s is not there", r.Agent)
		}
	}
	return nil
}
