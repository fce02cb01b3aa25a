package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// BenchmarkR53_Million stores a million messages of 512 B and restarts on them.
// It reports the resident memory after each, and how long the start took.
func BenchmarkR53_Million(b *testing.B) {
	const count = 1_000_000
	dir, err := os.MkdirTemp("/var/tmp", "broker-million")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	dir = filepath.Join(dir, "data")
	cmd, url := child(b, dir)
	_, ch := dial(b, url)
	declare(b, ch, "q", nil)
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), 512)
	var window []*amqp.DeferredConfirmation
	for range count {
		d, err := ch.PublishWithDeferredConfirmWithContext(context.Background(), "", "q", true, false, amqp.Publishing{DeliveryMode: 2, Body: body})
		if err != nil {
			b.Fatal(err)
		}
		if window = append(window, d); len(window) == 500 {
			if !window[0].Wait() {
				b.Fatal("not confirmed")
			}
			window = window[1:]
		}
	}
	for _, d := range window {
		d.Wait()
	}
	b.ReportMetric(resident(b, cmd), "filled-MiB")
	cmd.Process.Kill()
	cmd.Wait()
	began := time.Now()
	cmd, url = child(b, dir)
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	q, err := open(b, conn).QueueDeclarePassive("q", true, false, false, false, nil)
	if err != nil || q.Messages != count {
		b.Fatalf("%d messages after the restart, %v", q.Messages, err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "restart-s")
	b.ReportMetric(resident(b, cmd), "restarted-MiB")
	b.ReportMetric(0, "ns/op")
}

// resident is a process's memory in MiB.
func resident(b *testing.B, cmd *exec.Cmd) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kib float64
	fmt.Sscan(rest, &kib)
	return kib / 1024
}
