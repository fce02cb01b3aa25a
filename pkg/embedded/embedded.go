// Package embedded runs the broker that fleet brings along: around a
// broker.Server it puts the directory, the users, the listeners, the file with
// the URL, and the metrics.
//
// `fleet broker run` and a gateway whose broker.url is "embedded" run the same
// thing. The package does not know what clients say to the broker, and does not
// connect to it.
package embedded

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"fleet/pkg/broker"
	"fleet/pkg/broker/login"
	"fleet/pkg/config"
	"fleet/pkg/fault"
)

// Options is what a Broker is made with.
type Options struct {
	Dir      string // see Files
	Settings config.Embedded
	// Inside is a login that exists in memory only, for the process itself. The
	// zero Login is none.
	Inside  Login
	Command string // what runs the broker, for whoever finds its directory taken
	Answers broker.Answers
	Version string
	Log     *slog.Logger
}

// Login is a user with its password.
type Login struct{ User, Password string }

// Files says where the files in a broker's directory are. The directory is 0700,
// each of them 0600.
type Files struct{ Dir string }

// Data is the directory of messages and definitions.
func (f Files) Data() string { return filepath.Join(f.Dir, "data") }

// Users holds the users with their hashed passwords.
func (f Files) Users() string { return filepath.Join(f.Dir, "users") }

// Socket is the unix socket.
func (f Files) Socket() string { return filepath.Join(f.Dir, "broker.sock") }

// URL holds the URL of the first TCP listener while there is one, with a user and
// its password.
func (f Files) URL() string { return filepath.Join(f.Dir, "url") }

// password holds the password of the user that the broker has made itself.
func (f Files) password() string { return filepath.Join(f.Dir, "password") }

func (f Files) lock() string { return filepath.Join(f.Dir, "lock") }

// Broker is the embedded broker of one directory. Its fields never change after
// Listen, but for urlFile.
type Broker struct {
	Files
	opts      Options
	users     *login.Users
	lock      *os.File
	unix      net.Listener
	tcp       []net.Listener
	names     []string // of the tcp listeners: what clients may call them
	metrics   net.Listener
	encrypted bool // TLS on the tcp listeners
	urlFile   string
}

// closeBound is how long the end of the broker may take, then it is left as it
// is: what was confirmed is on the disk already.
const closeBound = 10 * time.Second

// Listen takes the broker's directory, which it makes (0700), and opens its
// listeners: clients may connect, and get their answer once Run serves them. It
// fails with fault.Refused where another process runs the broker of this
// directory, with fault.Config where a listener, certificate or file is not as it
// must be. The Broker must be Run, or closed.
func Listen(ctx context.Context, o Options) (*Broker, error) {
	b := &Broker{Files: Files{o.Dir}, opts: o}
	if err := b.open(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Broker) open(ctx context.Context) (err error) {
	if err = makeDir(b.Dir); err != nil {
		return err
	}
	if b.lock, err = b.hold(); err != nil {
		return err
	}
	if b.users, err = login.Open(b.Users(), b.opts.Log); err != nil {
		return err
	}
	secure, err := serverTLS(b.opts.Settings, b.opts.Log)
	if err != nil {
		return err
	}
	b.encrypted = secure != nil
	if b.unix, err = listenUnix(b.Socket()); err != nil {
		return err
	}
	for _, address := range b.opts.Settings.Listen {
		l, name, err := listenTCP(ctx, address, secure)
		if err != nil {
			return err
		}
		b.tcp, b.names = append(b.tcp, l), append(b.names, name)
	}
	if b.opts.Settings.Metrics != "" {
		if b.metrics, err = listenMetrics(ctx, b.opts.Settings.Metrics); err != nil {
			return err
		}
	}
	if len(b.tcp) == 0 {
		return nil
	}
	return b.ownUser()
}

// Addresses are those of the TCP listeners, HOST:PORT.
func (b *Broker) Addresses() []string {
	list := make([]string, 0, len(b.tcp))
	for _, l := range b.tcp {
		list = append(list, l.Addr().String())
	}
	return list
}

// Metrics is the metrics' HOST:PORT, empty where there are none.
func (b *Broker) Metrics() string {
	if b.metrics == nil {
		return ""
	}
	return b.metrics.Addr().String()
}

// URLFile is the file with the URL; empty where there is none, because there is
// no TCP listener, or no user whose password is known here.
func (b *Broker) URLFile() string { return b.urlFile }

// Close gives back what Listen took. After Run it does nothing.
func (b *Broker) Close() {
	for _, l := range append([]net.Listener{b.unix, b.metrics}, b.tcp...) {
		if l != nil {
			l.Close()
		}
	}
	if b.lock != nil {
		b.lock.Close()
	}
}

// Run recovers what is stored and serves until ctx ends, when it returns nil, or
// until the broker stops by itself, when it returns why. ready is called once
// clients are served. Run is called once; it closes b.
func (b *Broker) Run(ctx context.Context, ready func()) (err error) {
	defer b.Close()
	limits := b.opts.Settings
	server, err := broker.Open(broker.Options{
		Dir: b.Data(), Authenticate: b.good, Answers: b.opts.Answers, Version: b.opts.Version, Log: b.opts.Log,
		Limits: broker.Limits{Connections: limits.Connections, Queues: limits.Queues, Bytes: limits.Bytes,
			MessageBytes: limits.MessageBytes, DiskFree: limits.DiskFree},
	})
	if err != nil {
		return err
	}
	var parts sync.WaitGroup
	failed := make(chan error, 2+len(b.tcp)) // one for each part
	for _, l := range append([]net.Listener{b.unix}, b.tcp...) {
		parts.Go(func() { failed <- server.Serve(l) })
	}
	endMetrics := func() {}
	if b.metrics != nil {
		h := metricsServer(server.Metrics())
		endMetrics = func() { h.Close() }
		parts.Go(func() {
			if err := h.Serve(b.metrics); ctx.Err() == nil {
				b.opts.Log.Error("the broker's metrics are served no more", "err", err)
			}
		})
	}
	defer func() {
		endMetrics()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeBound)
		defer cancel()
		if ended := server.Close(grace); ended != nil && err == nil {
			err = fmt.Errorf("close the broker: %w", ended)
		}
		parts.Wait()
	}()
	if err := b.writeURL(); err != nil {
		return err
	}
	defer os.Remove(b.URL()) // that it stands says that the broker runs
	ready()

	select {
	case <-ctx.Done():
		return nil
	case <-server.Done():
		return orStopped(server.Err())
	case err := <-failed:
		if err == nil { // it says so before it says why
			<-server.Done()
			err = server.Err()
		}
		return orStopped(err)
	}
}

// orStopped is why a broker ended that nobody has told to.
func orStopped(err error) error {
	if err == nil {
		return fault.New(fault.Failed, "the broker stopped")
	}
	return err
}

// good says whether a login is. It may block, see login.Users.Check.
func (b *Broker) good(user, password string) bool {
	if inside := b.opts.Inside; inside.Password != "" && user == inside.User {
		return subtle.ConstantTimeCompare([]byte(password), []byte(inside.Password)) == 1
	}
	return b.users.Check(user, password)
}

// OpenUsers opens the users of the broker in dir, which it makes where it is missing.
// The broker may run or not. It fails with fault.Config.
func OpenUsers(dir string, log *slog.Logger) (*login.Users, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	return login.Open(Files{dir}.Users(), log)
}

// makeDir makes a broker's directory, private to its owner.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.New(fault.Config, "can't make %s: %v", dir, reason(err))
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fault.New(fault.Config, "can't look at %s: %v", dir, reason(err))
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fault.New(fault.Config, "%s has mode %04o, so other users can reach the broker", dir, mode).WithHint("chmod 700 %s", dir)
	}
	return nil
}

// reason is why a file operation failed, without the path, which the sentence
// around it names already.
func reason(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
