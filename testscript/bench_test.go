package testscript_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/api"
	"fleet/pkg/client"
	"fleet/pkg/envelope"
)

// The benchmarks measure SPEC §10 as ratios to a peer in the same run, on the
// first broker of FLEET_TEST_BROKERS, with the real binary:
//
//	.ci/test -run '^$' -bench . ./testscript
//
// Peer and product take turns, so that whatever else the machine does falls on
// both.

// fleetProgram is the product as a release builds it, without the tests around it.
var fleetProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/tmp", "fleet-bench")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "fleet")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "fleet/cmd/fleet")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // a dynamic loader doubles the time to start
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %v\n%s", err, out)
	}
	return path, nil
})

// benchWorld is two hosts on one virtual host of the broker.
type benchWorld struct {
	b     *testing.B
	dir   string
	url   string
	fleet string
	gws   map[string]*exec.Cmd
}

func newBenchWorld(b *testing.B, hosts ...string) *benchWorld {
	b.Helper()
	brokers, err := parseBrokers(os.Getenv("FLEET_TEST_BROKERS"))
	if err != nil {
		b.Fatal(err)
	}
	if len(brokers) == 0 {
		b.Skip("needs a broker: FLEET_TEST_BROKERS")
	}
	w := &benchWorld{b: b, gws: map[string]*exec.Cmd{}}
	if w.fleet, err = fleetProgram(); err != nil {
		b.Fatal(err)
	}
	if w.dir, err = os.MkdirTemp("/tmp", "fb"); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		killAllOf(w.dir)
		if keep := os.Getenv("FLEET_BENCH_KEEP"); keep != "" {
			os.Rename(w.dir, keep)
		}
		os.RemoveAll(w.dir)
	})
	pool, err := poolOf(brokers[0])
	if err != nil {
		b.Fatal(err)
	}
	vhost, err := pool.take()
	if err != nil {
		b.Fatal(err)
	}
	w.url = brokers[0].at(vhost)
	keys := map[string]string{}
	for _, h := range hosts {
		w.run(h, "init", "--host", h, "--broker", w.url)
		keys[h] = strings.TrimSpace(w.run(h, "key", "show"))
	}
	for _, h := range hosts {
		for _, peer := range hosts {
			if peer != h {
				w.run(h, "peer", "add", peer, keys[peer])
			}
		}
	}
	return w
}

func (w *benchWorld) home(host string) string { return filepath.Join(w.dir, host) }

func (w *benchWorld) command(host string, args ...string) *exec.Cmd {
	cmd := exec.Command(w.fleet, args...)
	cmd.Env = append(os.Environ(), "FLEET_DIR="+w.home(host))
	return cmd
}

func (w *benchWorld) run(host string, args ...string) string {
	w.b.Helper()
	var out, errs bytes.Buffer
	cmd := w.command(host, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		w.b.Fatalf("fleet %s on %s: %v\n%s", strings.Join(args, " "), host, err, errs.String())
	}
	return out.String()
}

// start runs the host's gateway and waits for its broker.
func (w *benchWorld) start(host string) {
	w.b.Helper()
	cmd := w.command(host, "gateway", "run")
	log, err := os.Create(filepath.Join(w.home(host), "gateway.log"))
	if err != nil {
		w.b.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		w.b.Fatal(err)
	}
	w.gws[host] = cmd
	w.run(host, "gateway", "wait", "--broker", "--timeout", "30s")
}

// profile adds a worker's profile.
func (w *benchWorld) profile(host, name string, command ...string) {
	quoted := make([]string, len(command))
	for i, c := range command {
		quoted[i] = fmt.Sprintf("%q", c)
	}
	file := filepath.Join(w.home(host), "fleet.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		w.b.Fatal(err)
	}
	add := fmt.Sprintf("profiles:\n  %s:\n    command: [%s]\n    evidence: none\n    ready: {quiet: 50ms}\n", name, strings.Join(quoted, ", "))
	text = append(bytes.Replace(text, []byte("\nprofiles:\n"), []byte("\n"), 1), add...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		w.b.Fatal(err)
	}
}

func (w *benchWorld) client(host string) *client.Client {
	return client.New(filepath.Join(w.home(host), "gateway.sock"), "")
}

// benchWindow is the gateway's publish window, and so the bare publisher's.
const benchWindow = 64

// benchCallers is more, so that the window is never empty while callers are told
// their results and come back with the next message.
const benchCallers = 256

// BenchmarkP1_RemoteSends: durable remote sends accepted each second through one
// gateway's socket, against a bare amqp091-go publisher with the same window,
// into the same kind of queue, whose consumer is away.
func BenchmarkP1_RemoteSends(b *testing.B) {
	w := newBenchWorld(b, "alpha", "beta")
	w.start("alpha")
	w.start("beta")
	w.run("beta", "register", "sink")
	w.run("alpha", "gateway", "wait", "--agent", "sink@beta")
	_ = w.gws["beta"].Process.Signal(os.Interrupt)
	_ = w.gws["beta"].Wait()
	awaitHost(b, w.client("alpha"), "beta", "unknown")

	const messages = 2000
	text := strings.Repeat("x", 300) // 512 B and a little more, once sealed
	bare := newBarePublisher(b, w.url)
	var ours, theirs time.Duration
	for b.Loop() {
		theirs += bare.publish(b, messages, 640)
		ours += sendMany(b, w.client("alpha"), "sink@beta", text, messages)
		w.drainSink()
	}
	rate := func(d time.Duration) float64 { return float64(messages*b.N) / d.Seconds() }
	b.ReportMetric(rate(ours), "sends/s")
	b.ReportMetric(rate(theirs), "bare/s")
	b.ReportMetric(rate(ours)/rate(theirs), "ratio")
}

// drainSink empties the inbox, so that no round meets its cap.
func (w *benchWorld) drainSink() {
	conn, err := amqp.Dial(w.url)
	if err != nil {
		w.b.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		w.b.Fatal(err)
	}
	var r api.Roster
	if r, err = w.client("alpha").Roster(context.Background()); err != nil {
		w.b.Fatal(err)
	}
	for _, a := range r.Agents {
		if a.Name == "sink" {
			if _, err := ch.QueuePurge("agent.beta."+string(a.GID)+".inbox.v2", false); err != nil {
				w.b.Fatal(err)
			}
		}
	}
}

// awaitHost waits until a host has a state in the roster.
func awaitHost(b *testing.B, c *client.Client, host, state string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	found := fmt.Errorf("found")
	err := c.WatchRoster(ctx, func(r api.Roster) error {
		for _, h := range r.Hosts {
			if string(h.Host) == host && h.State == state {
				return found
			}
		}
		return nil
	})
	if err != found {
		b.Fatalf("%s did not become %s: %v", host, state, err)
	}
}

// sendMany sends n messages and waits until the broker has accepted each.
func sendMany(b *testing.B, c *client.Client, to, text string, n int) time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	work := make(chan struct{}, n)
	for range n {
		work <- struct{}{}
	}
	close(work)
	for range benchCallers {
		all.Go(func() {
			for range work {
				if err := c.Send(context.Background(), api.SendRequest{To: to, Text: text}, func(e api.Event) error {
					if e.Last && e.Fault != nil {
						return e.Fault
					}
					return nil
				}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	return time.Since(began)
}

// barePublisher publishes mandatory persistent messages with confirms.
type barePublisher struct {
	ch    *amqp.Channel
	queue string
}

func newBarePublisher(b *testing.B, address string) *barePublisher {
	conn, err := amqp.Dial(address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	q, err := ch.QueueDeclare("bare", true, false, false, false, amqp.Table{"x-queue-type": "classic", "x-max-length": int64(10_000),
		"x-max-length-bytes": int64(256 << 20), "x-overflow": "reject-publish", "x-message-ttl": int64(345_600_000)})
	if err != nil {
		b.Fatal(err)
	}
	return &barePublisher{ch, q.Name}
}

func (p *barePublisher) publish(b *testing.B, n, size int) time.Duration {
	body := bytes.Repeat([]byte("x"), size)
	began := time.Now()
	window := make(chan *amqp.DeferredConfirmation, benchWindow)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c := range window {
			if !c.Wait() {
				b.Error("nacked")
			}
		}
	}()
	for range n {
		c, err := p.ch.PublishWithDeferredConfirm("", p.queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent,
			MessageId: string(envelope.NewID()), Body: body})
		if err != nil {
			b.Fatal(err)
		}
		window <- c
	}
	close(window)
	<-done
	took := time.Since(began)
	if _, err := p.ch.QueuePurge(p.queue, false); err != nil {
		b.Fatal(err)
	}
	return took
}

// BenchmarkP2_SendCommand: `fleet send` into a local pty agent, from the start of
// the process to its end, against amqp-publish of one persistent message.
func BenchmarkP2_SendCommand(b *testing.B) {
	if _, err := exec.LookPath("amqp-publish"); err != nil {
		b.Skip("needs amqp-publish (Debian: amqp-tools)")
	}
	w := newBenchWorld(b, "alpha")
	w.profile("alpha", "sink", "cat")
	text, err := os.ReadFile(filepath.Join(w.home("alpha"), "fleet.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	text = append(text, "    when: always\n"...)
	if err := os.WriteFile(filepath.Join(w.home("alpha"), "fleet.yaml"), text, 0o600); err != nil {
		b.Fatal(err)
	}
	w.start("alpha")
	w.run("alpha", "spawn", "worker", "--profile", "sink")
	newBarePublisher(b, w.url)
	body := strings.Repeat("x", 512)
	var ours, theirs []time.Duration
	for b.Loop() {
		theirs = append(theirs, timed(b, exec.Command("amqp-publish", "-u", w.url, "-r", "bare", "-p", "-b", body)))
		ours = append(ours, timed(b, w.command("alpha", "send", "worker", body)))
	}
	report(b, ours, theirs)
}

func timed(b *testing.B, cmd *exec.Cmd) time.Duration {
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return time.Since(began)
}

func report(b *testing.B, ours, theirs []time.Duration) {
	p50 := func(d []time.Duration) time.Duration {
		slices.Sort(d)
		return d[len(d)/2]
	}
	a, z := p50(ours), p50(theirs)
	b.ReportMetric(float64(a.Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(z.Microseconds())/1000, "bare-p50-ms")
	b.ReportMetric(float64(a)/float64(z), "ratio")
}

// BenchmarkP3_RoundTrip: send, a worker in a pty on the other host, its reply;
// against request and reply over two durable queues by bare amqp091-go.
func BenchmarkP3_RoundTrip(b *testing.B) {
	w := newBenchWorld(b, "alpha", "beta")
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	prompt := filepath.Join(w.dir, "prompt") // testscript.Main tells programs by their names
	if err := os.Link(self, prompt); err != nil {
		if err := exec.Command("cp", self, prompt).Run(); err != nil {
			b.Fatal(err)
		}
	}
	w.profile("beta", "prompt", prompt)
	w.start("alpha")
	w.start("beta")
	w.run("beta", "spawn", "worker", "--profile", "prompt")
	w.run("alpha", "gateway", "wait", "--agent", "worker@beta")
	c := w.client("alpha")
	bare := newBareEcho(b, w.url)
	text := strings.Repeat("x", 300)
	var ours, theirs []time.Duration
	for b.Loop() {
		began := time.Now()
		bare.roundTrip(b, text)
		theirs = append(theirs, time.Since(began))
		began = time.Now()
		if err := c.Send(context.Background(), api.SendRequest{To: "worker@beta", Text: text, Wait: true}, func(e api.Event) error {
			if e.Fault != nil {
				return e.Fault
			}
			if e.Last {
				ours = append(ours, time.Since(began))
				_, err := c.Ack(context.Background(), api.AckRequest{IDs: []envelope.ID{e.Message}})
				return err
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	report(b, ours, theirs)
}

// promptMain is the worker of P3: it answers every message at once, over one
// connection to the gateway.
func promptMain() int {
	c := client.New(filepath.Join(os.Getenv("FLEET_DIR"), "gateway.sock"), os.Getenv("FLEET_TOKEN"))
	in := bufio.NewReader(os.Stdin)
	for {
		head, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		m := header.FindStringSubmatch(strings.TrimRight(head, "\r\n"))
		if m == nil {
			continue
		}
		lines, _ := strconv.Atoi(m[3]) // digits
		for range lines {
			if _, err := in.ReadString('\n'); err != nil {
				return 0
			}
		}
		if _, err := c.Reply(context.Background(), api.ReplyRequest{ID: m[1], Text: "done"}); err != nil {
			fmt.Println(err)
		}
	}
}

// bareEcho is request and reply without a gateway: a client, a server, a durable
// queue for each, persistent confirmed messages.
type bareEcho struct {
	ch      *amqp.Channel
	replies <-chan amqp.Delivery
}

func newBareEcho(b *testing.B, address string) *bareEcho {
	side := func(queue string) (*amqp.Channel, <-chan amqp.Delivery) {
		conn, err := amqp.Dial(address)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close() })
		ch, err := conn.Channel()
		if err != nil {
			b.Fatal(err)
		}
		if err := ch.Confirm(false); err != nil {
			b.Fatal(err)
		}
		if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "classic"}); err != nil {
			b.Fatal(err)
		}
		in, err := ch.Consume(queue, "", false, true, false, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		return ch, in
	}
	server, requests := side("bare.requests")
	go func() { // ends with the connection
		for d := range requests {
			bareSend(b, server, "bare.replies", d.Body)
			_ = d.Ack(false)
		}
	}()
	ch, replies := side("bare.replies")
	return &bareEcho{ch, replies}
}

// bareSend publishes and waits for the confirm.
func bareSend(b *testing.B, ch *amqp.Channel, queue string, body []byte) {
	c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent,
		MessageId: string(envelope.NewID()), Body: body})
	if err != nil {
		b.Error(err)
		return
	}
	c.Wait()
}

func (e *bareEcho) roundTrip(b *testing.B, text string) {
	bareSend(b, e.ch, "bare.requests", []byte(text))
	d := <-e.replies
	if err := d.Ack(false); err != nil {
		b.Fatal(err)
	}
}
