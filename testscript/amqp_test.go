package testscript_test

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/testscript"
)

// raw is a channel of a plain client, which knows nothing of the product.
type raw struct {
	conn *amqp.Connection
	ch   *amqp.Channel
}

func dial(ts *testscript.TestScript, url string) raw {
	conn, err := amqp.DialConfig(url, amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(waitBound)})
	ts.Check(err)
	ch, err := conn.Channel()
	ts.Check(err)
	return raw{conn, ch}
}

func (r raw) close() { _ = r.conn.Close() } // what is unacked goes back to its queue

// headers is a repeatable flag NAME=VALUE.
type headers amqp.Table

func (h headers) String() string { return "" }

func (h headers) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("%q is not NAME=VALUE", s)
	}
	h[name] = value
	return nil
}

func flagsOf(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

// cmdRawPublish: raw-publish [FLAGS] URL EXCHANGE KEY FILE publishes the file's
// bytes, and prints what the broker made of each: ack, nack or returned.
// An EXCHANGE of "" is the default one, whose key is a queue's name.
func cmdRawPublish(ts *testscript.TestScript, neg bool, args []string) {
	h := make(headers)
	f := flagsOf("raw-publish")
	id, kind := f.String("id", "", "message id"), f.String("type", "", "type")
	corr := f.String("corr", "", "correlation id")
	content := f.String("content", "application/vnd.fleet+json", "content type")
	count := f.Int("n", 1, "how many copies")
	f.Var(h, "h", "header NAME=VALUE")
	ts.Check(f.Parse(args))
	usage(ts, !neg && f.NArg() == 4, "raw-publish [-id ID] [-type KIND] [-corr ID] [-content TYPE] [-h NAME=VALUE]... [-n COUNT] URL EXCHANGE KEY FILE")
	body := ts.ReadFile(f.Arg(3))

	r := dial(ts, f.Arg(0))
	defer r.close()
	ts.Check(r.ch.Confirm(false))
	returns := r.ch.NotifyReturn(make(chan amqp.Return, 1))
	ctx, cancel := context.WithTimeout(context.Background(), waitBound)
	defer cancel()
	for range *count {
		confirm, err := r.ch.PublishWithDeferredConfirmWithContext(ctx, f.Arg(1), f.Arg(2), true, false, amqp.Publishing{
			Headers: amqp.Table(h), ContentType: *content, DeliveryMode: amqp.Persistent, CorrelationId: *corr,
			MessageId: *id, Type: *kind, Timestamp: time.Now(), Body: []byte(body),
		})
		ts.Check(err)
		acked, err := confirm.WaitContext(ctx)
		ts.Check(err)
		outcome := "nack"
		if acked {
			outcome = "ack"
		}
		select { // a return comes before its confirm
		case _, open := <-returns:
			if !open {
				ts.Fatalf("the broker closed the channel")
			}
			outcome = "returned"
		default:
		}
		fmt.Fprintln(ts.Stdout(), outcome)
	}
}

// cmdDLQRead: dlq-read [-save DIR] URL.
func cmdDLQRead(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 1, "dlq-read [-save DIR] URL")
	cmdQueueRead(ts, neg, append(args, "bridge.dlq"))
}

// cmdQueueRead: queue-read [-take] [-save DIR] URL QUEUE prints a line for each
// message of a queue: id, type, SHA-256 and length of the body, then its headers as
// NAME=VALUE in order. It leaves the messages there unless told to take them. -save
// writes the bodies into DIR as 0, 1, ...
func cmdQueueRead(ts *testscript.TestScript, neg bool, args []string) {
	f := flagsOf("queue-read")
	take, save := f.Bool("take", false, "ack"), f.String("save", "", "directory")
	ts.Check(f.Parse(args))
	usage(ts, !neg && f.NArg() == 2, "queue-read [-take] [-save DIR] URL QUEUE")
	r := dial(ts, f.Arg(0))
	defer r.close()
	out := ts.Stdout()
	for i := 0; ; i++ {
		m, ok, err := r.ch.Get(f.Arg(1), *take)
		ts.Check(err)
		if !ok {
			return
		}
		fmt.Fprintf(out, "%s\t%s\t%x\t%d\t%s\n", m.MessageId, m.Type, sha256.Sum256(m.Body), len(m.Body), headerLine(m.Headers))
		if *save != "" {
			dir := ts.MkAbs(*save)
			ts.Check(os.MkdirAll(dir, 0o700))
			ts.Check(os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), m.Body, 0o600))
		}
	}
}

// headerLine shows the headers with plain values, sorted.
func headerLine(t amqp.Table) string {
	var parts []string
	for name, v := range t {
		switch v := v.(type) {
		case string, bool, int64, int32:
			parts = append(parts, fmt.Sprintf("%s=%v", name, v))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

const amqpUsage = `amqp VERB URL ...:
	count URL QUEUE         print the ready messages and consumers of a queue
	await URL QUEUE N       until N messages are ready in it
	consumers URL QUEUE N   until it has N consumers
	absent URL QUEUE        until it is not there
	hold URL QUEUE          consume it exclusively until the script ends or release
	release URL QUEUE
	purge URL QUEUE
	delete-queue URL QUEUE
	delete-exchange URL EXCHANGE
	declare URL QUEUE [NAME=VALUE...]   a durable queue, or fail if it has others; typed as they look
	bind URL QUEUE EXCHANGE KEY`

// cmdAMQP is what a stranger does to the broker's objects.
func cmdAMQP(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 3, amqpUsage)
	verb, url, name, rest := args[0], args[1], args[2], args[3:]
	if verb == "release" {
		release(ts, url+" "+name)
		return
	}
	r := dial(ts, url)
	if verb == "hold" {
		hold(ts, r, url+" "+name, name)
		return
	}
	defer r.close()
	switch verb {
	case "count":
		q, err := r.ch.QueueDeclarePassive(name, true, false, false, false, nil)
		ts.Check(err)
		fmt.Fprintf(ts.Stdout(), "%d %d\n", q.Messages, q.Consumers)
	case "await", "consumers":
		usage(ts, len(rest) == 1, amqpUsage)
		awaitQueue(ts, r, verb, name, rest[0])
	case "absent":
		awaitAbsent(ts, r, name)
	case "purge":
		_, err := r.ch.QueuePurge(name, false)
		ts.Check(err)
	case "delete-queue":
		_, err := r.ch.QueueDelete(name, false, false, false)
		ts.Check(err)
	case "delete-exchange":
		ts.Check(r.ch.ExchangeDelete(name, false, false))
	case "declare":
		_, err := r.ch.QueueDeclare(name, true, false, false, false, tableOf(ts, rest))
		ts.Check(err)
	case "bind":
		usage(ts, len(rest) == 2, amqpUsage)
		ts.Check(r.ch.QueueBind(name, rest[1], rest[0], false, nil))
	default:
		ts.Fatalf("usage: %s", amqpUsage)
	}
}

// awaitQueue waits for a number of messages or consumers, on new channels while
// the queue is not there, since a passive declare closes its channel then.
func awaitQueue(ts *testscript.TestScript, r raw, what, name, number string) {
	want, err := strconv.Atoi(number)
	ts.Check(err)
	last := "it was never there"
	ok := eventually(waitBound, func() bool {
		ch, err := r.conn.Channel()
		ts.Check(err)
		defer func() { _ = ch.Close() }() // closed already where the queue is missing
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			return false
		}
		last = fmt.Sprintf("%d messages, %d consumers", q.Messages, q.Consumers)
		got := q.Messages
		if what == "consumers" {
			got = q.Consumers
		}
		return got == want
	})
	if !ok {
		ts.Fatalf("queue %s did not come to %s %d within %s: %s", name, what, want, waitBound, last)
	}
}

// awaitAbsent waits until a queue is not there; gateways delete theirs in the
// background.
func awaitAbsent(ts *testscript.TestScript, r raw, name string) {
	var q amqp.Queue
	ok := eventually(waitBound, func() bool {
		ch, err := r.conn.Channel()
		ts.Check(err)
		defer func() { _ = ch.Close() }() // closed already where the queue is missing
		q, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil && !isCode(err, amqp.NotFound) {
			ts.Check(err)
		}
		return err != nil
	})
	if !ok {
		ts.Fatalf("queue %s is still there after %s, with %d messages", name, waitBound, q.Messages)
	}
}

func isCode(err error, code int) bool {
	e, ok := err.(*amqp.Error)
	return ok && e.Code == code
}

func tableOf(ts *testscript.TestScript, pairs []string) amqp.Table {
	t := make(amqp.Table)
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		usage(ts, ok, amqpUsage)
		t[name] = value
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			t[name] = n
		} else if value == "true" || value == "false" {
			t[name] = value == "true"
		}
	}
	return t
}

// hold consumes a queue exclusively, retrying while somebody else does.
func hold(ts *testscript.TestScript, r raw, key, queue string) {
	var err error
	if !eventually(waitBound, func() bool {
		var ch *amqp.Channel
		if ch, err = r.conn.Channel(); err != nil {
			return false
		}
		_, err = ch.Consume(queue, "", false, true, false, false, nil)
		return err == nil
	}) {
		r.close()
		ts.Fatalf("hold %s: %v", queue, err)
	}
	w := worldOf(ts)
	w.held[key] = r
	w.atEnd = append(w.atEnd, r.close)
}

func release(ts *testscript.TestScript, key string) {
	r, ok := worldOf(ts).held[key]
	if !ok {
		ts.Fatalf("nothing holds %s", key)
	}
	r.close()
}
