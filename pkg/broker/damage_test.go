package broker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/broker"
)

// TestR53_DamagedMessage has the disk spoil one of three messages under a running
// broker: it costs that one and nothing else.
func TestR53_DamagedMessage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n := start(t, broker.Options{Dir: dir})
	_, ch := dial(t, n.url)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"consumed", "got"} {
		declare(t, ch, queue, nil)
		for _, body := range []string{"first", "SPOILT-" + queue, "third"} {
			d, err := ch.PublishWithDeferredConfirmWithContext(within(t), "", queue, true, false, amqp.Publishing{DeliveryMode: 2, Body: []byte(body)})
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := d.WaitContext(within(t)); !ok {
				t.Fatal("not confirmed", err)
			}
		}
	}
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	spoilt := 0
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, queue := range []string{"consumed", "got"} {
			if at := bytes.Index(text, []byte("SPOILT-"+queue)); at >= 0 {
				spoilt++
				if _, err := f.WriteAt([]byte("?"), int64(at)); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.Close()
	}
	if spoilt != 2 {
		t.Fatalf("spoilt %d messages in %v", spoilt, logs)
	}
	msgs, err := ch.Consume("consumed", "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"first", "third"} {
		m := await(t, within(t), msgs)
		if string(m.Body) != want {
			t.Errorf("got %q, not %q", m.Body, want)
		}
		m.Ack(false)
	}
	var got []string
	for range 3 {
		m, ok, err := ch.Get("got", true)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			got = append(got, string(m.Body))
		}
	}
	if len(got) != 2 || got[0] != "first" || got[1] != "third" {
		t.Errorf("got %q", got)
	}
	for _, queue := range []string{"consumed", "got"} { // nothing is held
		if count, err := ch.QueueDelete(queue, false, true, false); err != nil || count != 0 {
			t.Errorf("%s: %d left, %v", queue, count, err)
		}
	}
}
