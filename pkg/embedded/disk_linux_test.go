package embedded

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/fault"
)

// A broker whose disk takes no more ends by itself and says why; with room on the
// disk the same directory is opened again, and has what was confirmed.
func TestR53_FullDisk(t *testing.T) {
	o := options(newDir(t))
	o.Settings.Bytes = 1 << 30
	if err := makeDir(o.Dir); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("fleet", o.Dir, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Skipf("can't mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(o.Dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() { ended <- b.Run(context.Background(), func() { close(ready) }) }()
	<-ready
	ch := dial(t, urlOf(t, b), amqp.Config{})
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirmed := 0
	for ; confirmed < 100; confirmed++ {
		c, err := ch.PublishWithDeferredConfirm("", "q", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: make([]byte, 100<<10)})
		if err != nil {
			break
		}
		bounded, cancel := context.WithTimeout(t.Context(), bound)
		acked, err := c.WaitContext(bounded)
		cancel()
		if err != nil {
			t.Fatal("a publish hangs")
		}
		if !acked {
			break
		}
	}
	if confirmed == 0 || confirmed == 100 {
		t.Fatalf("%d messages were confirmed", confirmed)
	}
	select {
	case err = <-ended:
	case <-time.After(bound):
		t.Fatal("a broker without a disk goes on")
	}
	if err == nil || fault.From(err).Hint == "" {
		t.Errorf("it ended with %+v", fault.From(err))
	}
	if _, err := os.Stat(b.URL()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the URL stands: %v", err)
	}
	if err := syscall.Mount("fleet", o.Dir, "tmpfs", syscall.MS_REMOUNT, "size=64m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	b, _ = start(t, o)
	q, err := dial(t, urlOf(t, b), amqp.Config{}).QueueDeclarePassive("q", true, false, false, false, nil)
	if err != nil || q.Messages < confirmed {
		t.Errorf("%d of %d messages, %v", q.Messages, confirmed, err)
	}
}
