package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"fleet/pkg/config"
	"fleet/pkg/fault"
)

// longestSocket is the most bytes that a unix socket's path may have on every
// system (sun_path has 104 bytes on the BSDs, 108 on Linux).
const longestSocket = 103

// listenUnix opens the socket, mode 0600, in place of one that nobody serves. The
// caller holds the directory's lock, so a leftover is nobody's.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > longestSocket {
		return nil, fault.New(fault.Config, "the broker socket's path has %d bytes, more than the %d that a unix socket may have: %s",
			len(path), longestSocket, path).WithHint("set FLEET_DIR to a shorter directory")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.Config, "can't replace the socket %s: %v", path, reason(err))
	}
	// The directory is 0700, so nobody else reaches the socket before its mode is set.
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fault.New(fault.Config, "can't open the broker's socket: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fault.New(fault.Config, "can't protect the broker's socket: %v", err)
	}
	return l, nil
}

// listenTCP opens one TCP listener, with TLS where secure is not nil; name is
// what clients may call its host. Without TLS it listens on loopback only: a name
// must stand for nothing else (R45). A name that stands for several addresses is
// listened on by its first, IPv4 before IPv6.
func listenTCP(ctx context.Context, address string, secure *tls.Config) (l net.Listener, name string, err error) {
	at, name, err := resolve(ctx, address)
	if err != nil {
		return nil, "", err
	}
	if secure == nil && !at.loopback {
		return nil, "", fault.New(fault.Config, "%s can be reached from other machines, which takes TLS", address).
			WithHint("give a certificate and its key (embedded.certificate and embedded.key in fleet.yaml), or listen on 127.0.0.1")
	}
	if l, err = open(at.address); err != nil {
		return nil, "", err
	}
	if secure == nil {
		return l, l.Addr().(*net.TCPAddr).IP.String(), nil
	}
	if name == "" || unspecified(name) {
		name = certified(secure)
	}
	return tls.NewListener(l, secure), name, nil
}

// listenMetrics opens the metrics' listener, on loopback.
func listenMetrics(ctx context.Context, address string) (net.Listener, error) {
	at, _, err := resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	if !at.loopback {
		return nil, fault.New(fault.Config, "%s can be reached from other machines, and metrics have no password", address).
			WithHint("127.0.0.1:PORT")
	}
	return open(at.address)
}

// place is where an address leads.
type place struct {
	address  string // with an IP address in place of a name
	loopback bool   // and all that the name stands for is this machine's loopback
}

// resolve finds out what HOST:PORT stands for, once, so that what is listened on
// is what was judged.
func resolve(ctx context.Context, address string) (place, string, error) {
	if err := config.CheckAddress(address); err != nil {
		return place{}, "", err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return place{address: address}, "", err
	}
	found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil || len(found) == 0 {
		return place{}, "", fault.New(fault.Config, "nobody knows the host of %s: %v", address, err).
			WithHint("give an address, such as 127.0.0.1")
	}
	slices.SortStableFunc(found, func(a, b net.IPAddr) int { return len(b.IP.To4()) - len(a.IP.To4()) }) // IPv6 has no bytes there
	p := place{address: net.JoinHostPort(found[0].String(), port), loopback: true}
	for _, ip := range found {
		p.loopback = p.loopback && ip.IP.IsLoopback()
	}
	return p, host, nil
}

// open listens on an address whose host is an IP address, or empty.
func open(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.New(fault.Config, "%s is in use by another program", address).
			WithHint("another broker? End it, or choose another address: --listen, or embedded.listen in fleet.yaml; port 0 takes a free one, another at each start")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fault.New(fault.Config, "%s is no address of this machine", address).WithHint("127.0.0.1 is one")
	case errors.Is(err, syscall.EACCES):
		return nil, fault.New(fault.Config, "this user may not listen on %s", address).WithHint("ports from 1024 on are free for all")
	}
	return nil, fault.New(fault.Config, "can't listen on %s: %v", address, err)
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsUnspecified()
}

// certified is a host that the certificate is for: what clients must call this
// one, if it listens on every interface.
func certified(secure *tls.Config) string {
	leaf := secure.Certificates[0].Leaf
	for _, name := range leaf.DNSNames {
		if name != "" && name[0] != '*' {
			return name
		}
	}
	for _, ip := range leaf.IPAddresses {
		return ip.String()
	}
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "localhost"
}

// serverTLS reads certificate and key; nil where none is set. It fails with
// fault.Config, also for a key that others can read. A certificate that has
// expired is logged, since the rest of the host works without it.
func serverTLS(s config.Embedded, log *slog.Logger) (*tls.Config, error) {
	if s.Certificate == "" && s.Key == "" {
		return nil, nil
	}
	if s.Certificate == "" || s.Key == "" {
		return nil, fault.New(fault.Config, "TLS takes a certificate and its key, and one of the two is missing")
	}
	certificate, err := os.ReadFile(s.Certificate)
	if err != nil {
		return nil, fault.New(fault.Config, "can't read the certificate %s: %v", s.Certificate, reason(err))
	}
	info, err := os.Stat(s.Key)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Config, "%s has mode %04o, so others can read it", s.Key, info.Mode().Perm()).WithHint("chmod 600 %s", s.Key)
	}
	key, err := os.ReadFile(s.Key)
	if err != nil {
		return nil, fault.New(fault.Config, "can't read the key %s: %v", s.Key, reason(err))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fault.New(fault.Config, "the certificate %s and the key %s can't be used: %v", s.Certificate, s.Key, err).
			WithHint("both are PEM, the certificate first and those that sign it after it")
	}
	if end := pair.Leaf.NotAfter; time.Now().After(end) {
		log.Error("the broker's certificate has expired: clients will refuse it", "certificate", s.Certificate, "expired", end)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}
