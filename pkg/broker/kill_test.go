package broker_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/broker"
)

// childMain is a broker in a process of its own, to be killed.
func childMain(dir string) int {
	s, err := broker.Open(broker.Options{Dir: dir, Authenticate: func(string, string) bool { return true }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(l.Addr())
	if err := s.Serve(l); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// child starts a broker process on dir and returns it with its URL.
func child(t testing.TB, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BROKER_CHILD_DIR="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the broker did not start: %v", err)
	}
	return cmd, "amqp://guest:guest@" + strings.TrimSpace(line) + "/"
}

// TestR53_KillNine kills the broker under load, again and again, and asks after
// each start whether all that was confirmed is there, in order.
func TestR53_KillNine(t *testing.T) {
	t.Parallel()
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	const publishers = 4
	dir := filepath.Join(t.TempDir(), "data")
	var published, confirmed, taken, again int
	// next is the number that each publisher's next message has; floor is the
	// first one whose like must still come: all below it were taken and acked,
	// though an ack may be forgotten.
	var next, seen [publishers]uint64
	owed := [publishers]map[uint64]bool{}
	for p := range owed {
		owed[p] = map[uint64]bool{}
	}
	for round := range rounds {
		cmd, url := child(t, dir)
		conn, err := amqp.Dial(url)
		if err != nil {
			t.Fatal(err)
		}
		ch := open(t, conn)
		for p := range publishers {
			declare(t, ch, fmt.Sprint("q", p), nil)
		}
		// Every third round all is read, with acks; what was owed must be there.
		if round%3 == 2 {
			for p := range publishers {
				n, rep := drain(t, ch, p, owed[p], &seen[p])
				taken += n
				again += rep
			}
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for p := range publishers {
			ch := open(t, conn)
			if err := ch.Confirm(false); err != nil {
				t.Fatal(err)
			}
			wg.Add(1)
			go func() { // ends with the broker
				defer wg.Done()
				var waits sync.WaitGroup
				defer waits.Wait()
				window := make(chan struct{}, 100)
				for {
					window <- struct{}{}
					mu.Lock()
					number := next[p]
					next[p]++
					published++
					mu.Unlock()
					body := make([]byte, 8+rand.Intn(700))
					binary.BigEndian.PutUint64(body, number)
					d, err := ch.PublishWithDeferredConfirmWithContext(context.Background(), "", fmt.Sprint("q", p), true, false,
						amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
					if err != nil {
						return
					}
					waits.Add(1)
					go func() { // ends with the confirm, or the broker
						defer waits.Done()
						defer func() { <-window }()
						if d.Wait() {
							mu.Lock()
							owed[p][number] = true
							confirmed++
							mu.Unlock()
						}
					}()
				}
			}()
		}
		time.Sleep(time.Duration(5+rand.Intn(20)) * time.Millisecond) // the moment is the test's subject
		cmd.Process.Kill()
		cmd.Wait()
		wg.Wait()
		conn.Close()
	}
	cmd, url := child(t, dir)
	_, ch := dial(t, url)
	for p := range publishers {
		n, rep := drain(t, ch, p, owed[p], &seen[p])
		taken += n
		again += rep
		if len(owed[p]) > 0 {
			t.Errorf("publisher %d: %d confirmed messages are missing", p, len(owed[p]))
		}
	}
	cmd.Process.Kill()
	t.Logf("%d kills: %d published, %d confirmed, %d taken, %d of them twice, none missing", rounds, published, confirmed, taken, again)
}

// drain reads queue p empty: in order, each once, and all that is owed. What was
// acked before the last kill may come again.
func drain(t *testing.T, ch *amqp.Channel, p int, owed map[uint64]bool, seen *uint64) (n, again int) {
	t.Helper()
	last, first := uint64(0), true
	queue := fmt.Sprint("q", p)
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Qos(100, 0, false); err != nil {
		t.Fatal(err)
	}
	msgs, err := ch.Consume(queue, queue, false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	for range q.Messages {
		m := await(t, ctx, msgs)
		number := binary.BigEndian.Uint64(m.Body)
		if !first && number <= last {
			t.Errorf("publisher %d: %d came after %d", p, number, last)
		}
		last, first = number, false
		if number < *seen {
			again++
		}
		delete(owed, number)
		n++
		if err := m.Ack(false); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.Cancel(queue, false); err != nil {
		t.Fatal(err)
	}
	if len(owed) > 0 {
		t.Fatalf("publisher %d: %d confirmed messages are missing", p, len(owed))
	}
	if !first {
		*seen = last + 1
	}
	return n, again
}
