package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/broker"
)

// peers are the embedded broker and, if FLEET_TEST_BROKERS names one, a RabbitMQ
// whose files are on the same disk; /var/tmp is on a disk where /tmp may not be.
func peers(b *testing.B) map[string]string {
	dir, err := os.MkdirTemp("/var/tmp", "broker-bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	n := start(b, broker.Options{Dir: filepath.Join(dir, "data")})
	list := map[string]string{"embedded": n.url}
	if _, address, ok := strings.Cut(strings.Split(os.Getenv("FLEET_TEST_BROKERS"), ",")[0], "="); ok {
		u, err := url.Parse(address)
		if err != nil {
			b.Fatal(err)
		}
		vhost, _, _ := strings.Cut(os.Getenv("FLEET_TEST_VHOSTS"), ",")
		u.Path = "/" + vhost
		list["rabbitmq"] = u.String()
	}
	return list
}

// BenchmarkP6_Publish measures confirmed persistent publishes of 512 B per
// second, and with a RabbitMQ the ratio to it.
func BenchmarkP6_Publish(b *testing.B) {
	rates := map[string]float64{}
	all := peers(b)
	for _, window := range []int{1, 50} {
		for _, name := range []string{"rabbitmq", "embedded"} {
			if all[name] == "" {
				continue
			}
			b.Run(fmt.Sprintf("window=%d/%s", window, name), func(b *testing.B) {
				_, ch := dial(b, all[name])
				queue := fmt.Sprintf("p6-%d", time.Now().UnixNano())
				declare(b, ch, queue, nil)
				defer ch.QueueDelete(queue, false, false, false)
				if err := ch.Confirm(false); err != nil {
					b.Fatal(err)
				}
				body := bytes.Repeat([]byte("x"), 512)
				var waiting []*amqp.DeferredConfirmation
				b.ResetTimer()
				for i := range b.N + window {
					if i >= window || i >= b.N {
						if !waiting[0].Wait() {
							b.Fatal("not confirmed")
						}
						waiting = waiting[1:]
					}
					if i < b.N {
						d, err := ch.PublishWithDeferredConfirmWithContext(context.Background(), "", queue, true, false,
							amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
						if err != nil {
							b.Fatal(err)
						}
						waiting = append(waiting, d)
					}
					if len(waiting) == 0 {
						break
					}
				}
				rate := float64(b.N) / b.Elapsed().Seconds()
				rates[name] = rate
				b.ReportMetric(rate, "msgs/s")
				if name == "embedded" && rates["rabbitmq"] > 0 {
					b.ReportMetric(rate/rates["rabbitmq"], "ratio")
				}
			})
			if name == "embedded" {
				clear(rates)
			}
		}
	}
}
