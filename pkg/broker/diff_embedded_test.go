package broker_test

import (
	"context"
	"net"
	"testing"

	"fleet/pkg/broker"
)

// embedded is a fresh embedded broker that serves until the test ends.
func embedded(t *testing.T, answers broker.Answers) party {
	t.Helper()
	server, err := broker.Open(broker.Options{
		Dir:          t.TempDir(),
		Authenticate: func(user, password string) bool { return user == "guest" && password == "guest" },
		Answers:      answers,
		Limits:       broker.Limits{MessageBytes: 128 << 20}, // RabbitMQ's
		Version:      "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends with Close
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Errorf("close the embedded broker: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("the embedded broker ended with %v", err)
		}
	})
	return party{"embedded", "amqp://guest:guest@" + l.Addr().String() + "/"}
}
