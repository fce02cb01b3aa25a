package broker_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/broker"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("BROKER_CHILD_DIR"); dir != "" {
		os.Exit(childMain(dir))
	}
	os.Exit(m.Run())
}

// node is a broker in this process.
type node struct {
	*broker.Server
	url string
}

// start opens a broker with o, whose Dir, Authenticate and Log have defaults.
func start(t testing.TB, o broker.Options) *node {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "data")
	}
	if o.Authenticate == nil {
		o.Authenticate = func(user, password string) bool { return user == "guest" && password == "guest" }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	s, err := broker.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	n := &node{s, "amqp://guest:guest@" + l.Addr().String() + "/"}
	t.Cleanup(func() {
		n.stop(t)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return n
}

func (n *node) stop(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Helper()
	l.t.Log(string(b[:len(b)-1]))
	return len(b), nil
}

// dial connects to url and opens a channel.
func dial(t testing.TB, url string) (*amqp.Connection, *amqp.Channel) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, open(t, conn)
}

func open(t testing.TB, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func declare(t testing.TB, ch *amqp.Channel, name string, args amqp.Table) {
	t.Helper()
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}
