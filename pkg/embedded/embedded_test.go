package embedded

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/config"
	"fleet/pkg/fault"
)

// bound is how long a test waits for what must come.
const bound = 30 * time.Second

// options are those of a broker in dir that listens on a free port.
func options(dir string) Options {
	return Options{Dir: dir, Command: "a test", Version: "1", Log: slog.New(slog.DiscardHandler), Settings: config.Embedded{
		Listen: []string{"127.0.0.1:0"}, Connections: 10, Queues: 10, Bytes: 1 << 20, MessageBytes: 1 << 18, DiskFree: 1}}
}

// newDir is a directory for a broker, yet to be made: a short path, since a unix socket's has a limit.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "f")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "broker")
}

// start runs a broker; end ends it in order. The test's end does too.
func start(t *testing.T, o Options) (b *Broker, end func()) {
	t.Helper()
	b, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- b.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	case <-time.After(bound):
		t.Fatal("it is not ready")
	}
	over := false
	end = func() {
		t.Helper()
		if over {
			return
		}
		over = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return b, end
}

// urlOf is what the URL file says.
func urlOf(t *testing.T, b *Broker) string {
	t.Helper()
	text, err := os.ReadFile(b.URLFile())
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(text), "\n")
}

func dial(t *testing.T, url string, c amqp.Config) *amqp.Channel {
	t.Helper()
	conn, err := amqp.DialConfig(url, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// R53: what was confirmed is there after a restart, and so is the login.
func TestR53_RunStopRun(t *testing.T) {
	dir := newDir(t)
	b, end := start(t, options(dir))
	first := urlOf(t, b)
	if !strings.HasPrefix(first, "amqp://fleet:") || !strings.HasSuffix(first, "@"+b.Addresses()[0]+"/%2f") {
		t.Errorf("the URL is %s", first)
	}
	ch := dial(t, first, amqp.Config{})
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm("", "q", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("body")})
	if err != nil || !c.Wait() {
		t.Fatalf("not confirmed: %v", err)
	}
	for _, path := range []string{b.Users(), b.URL(), b.Socket(), b.Files.password(), b.Files.lock()} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	end()
	for _, path := range []string{b.URL(), b.Socket()} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stands after the end: %v", path, err)
		}
	}

	b, _ = start(t, options(dir))
	second := urlOf(t, b)
	password := func(url string) string { return url[:strings.LastIndex(url, "@")] }
	if password(first) != password(second) {
		t.Errorf("another login: %s, then %s", first, second)
	}
	got, ok, err := dial(t, second, amqp.Config{}).Get("q", true)
	if err != nil || !ok || string(got.Body) != "body" {
		t.Errorf("got %q, %v, %v", got.Body, ok, err)
	}
}

// Wrong passwords and missing users do not get in, the login of the process itself
// does, by the unix socket, and is written nowhere.
func TestR53_Logins(t *testing.T) {
	o := options(newDir(t))
	o.Inside = Login{"@gateway", "MARKERinside"}
	b, _ := start(t, o)
	over := amqp.Config{Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", b.Socket()) }}
	dial(t, "amqp://%40gateway:MARKERinside@x/%2f", over)
	for _, url := range []string{"amqp://%40gateway:wrong@x/%2f", "amqp://%40gateway:@x/%2f", "amqp://fleet:wrong@x/%2f", "amqp://guest:guest@x/%2f"} {
		if conn, err := amqp.DialConfig(url, over); err == nil {
			conn.Close()
			t.Errorf("%s got in", url)
		}
	}
	err := filepath.WalkDir(o.Dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "MARKERinside") {
			t.Errorf("%s holds the inside password", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// With no login of the process itself, no empty password gets in.
func TestNoInsideLogin(t *testing.T) {
	b := &Broker{opts: options(newDir(t))}
	if err := makeDir(b.opts.Dir); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.users, err = OpenUsers(b.opts.Dir, nil); err != nil {
		t.Fatal(err)
	}
	if b.good("", "") || b.good("@gateway", "") {
		t.Error("an empty login got in")
	}
}

// Once the own user is changed or gone, its URL is not given any more.
func TestR53_TheURLIsTrueOrAbsent(t *testing.T) {
	dir := newDir(t)
	_, end := start(t, options(dir))
	end()
	users, err := OpenUsers(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := users.AddRandom("ann", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"); err != nil {
		t.Fatal(err)
	}
	if _, err := users.Remove(ownName); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "url"), []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, _ := start(t, options(dir))
	if b.URLFile() != "" {
		t.Errorf("the URL is %s", urlOf(t, b))
	}
	if _, err := os.Stat(b.URL()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a URL stands: %v", err)
	}
	if list, err := users.List(); err != nil || len(list) != 1 {
		t.Errorf("users %v, %v", list, err)
	}
	dial(t, "amqp://ann:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA@"+b.Addresses()[0]+"/%2f", amqp.Config{})
}

// One directory has one broker; who it is can be read.
func TestR53_OneBrokerADirectory(t *testing.T) {
	o := options(newDir(t))
	b, end := start(t, o)
	_, err := Listen(t.Context(), o)
	f := fault.From(err)
	if !errors.Is(err, fault.Refused) || !strings.Contains(f.Message, "(a test) runs the broker in "+o.Dir) || !strings.Contains(f.Hint, b.URL()) {
		t.Errorf("got %+v", f)
	}
	dial(t, urlOf(t, b), amqp.Config{}) // the first goes on
	end()
	second, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
	third, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatalf("a closed one still holds it: %v", err)
	}
	third.Close()
}

// A socket that a crash has left is replaced.
func TestLeftoverSocket(t *testing.T) {
	o := options(newDir(t))
	o.Settings.Listen = nil
	if err := makeDir(o.Dir); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", Files{o.Dir}.Socket())
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	b, _ := start(t, o)
	if b.URLFile() != "" || len(b.Addresses()) != 0 {
		t.Errorf("URL file %s, addresses %v", b.URLFile(), b.Addresses())
	}
	if _, err := os.Stat(b.Users()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a broker without a TCP listener has made a user: %v", err)
	}
	c, err := net.Dial("unix", b.Socket())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// What can't be served is said before anything is.
func TestR53_FilesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil         func(dir string) error
		message, hint string
	}{
		"open directory": {func(dir string) error { return os.Chmod(dir, 0o755) }, "has mode 0755", "chmod 700"},
		"open users": {func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "users"), nil, 0o600), os.Chmod(filepath.Join(dir, "users"), 0o644))
		}, "users has mode 0644", "chmod 600"},
		"no directory": {func(dir string) error { return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)) }, "can't make", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			if err := errors.Join(makeDir(dir), c.spoil(dir)); err != nil {
				t.Fatal(err)
			}
			refused(t, options(dir), c.message, c.hint)
		})
	}
	t.Run("long path", func(t *testing.T) {
		refused(t, options(filepath.Join(newDir(t), strings.Repeat("x", 100))), "path has", "shorter directory")
	})
}

// refused expects Listen to fail with these words, and to hold nothing.
func refused(t *testing.T, o Options, message, hint string) {
	t.Helper()
	_, err := Listen(t.Context(), o)
	f := fault.From(err)
	if !errors.Is(err, fault.Config) && !errors.Is(err, fault.Usage) || !strings.Contains(f.Message, message) || !strings.Contains(f.Hint, hint) {
		t.Fatalf("got %+v, want %s (%s)", f, message, hint)
	}
	if _, err := os.Stat(Files{o.Dir}.Socket()); err == nil {
		t.Error("the socket stands")
	}
}

// The metrics are there on loopback, and nowhere else.
func TestR53_Metrics(t *testing.T) {
	o := options(newDir(t))
	o.Settings.Metrics = "0.0.0.0:0"
	refused(t, o, "metrics have no password", "127.0.0.1")
	o.Settings.Metrics = "127.0.0.1:0"
	b, end := start(t, o)
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + b.Metrics() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(text)
	}
	ch := dial(t, urlOf(t, b), amqp.Config{})
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
		status, text := get("/metrics")
		if status == 200 && strings.Contains(text, "\nfleet_broker_connections 1\n") && strings.Contains(text, "\nfleet_broker_queues 1\n") &&
			strings.Contains(text, "# TYPE fleet_broker_published_total counter") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d:\n%s", status, text)
		}
	}
	if status, _ := get("/"); status != 404 {
		t.Errorf("/ answers %d", status)
	}
	end()
	if _, err := http.Get("http://" + b.Metrics() + "/metrics"); err == nil {
		t.Error("the metrics outlive the broker")
	}
}
