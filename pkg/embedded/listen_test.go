package embedded

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// R45, R53: without TLS only loopback is listened on, whatever it is called.
func TestR45R53_ListenWithoutTLS(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":0", "10.0.0.1:0", "192.0.2.1:0"} {
		o := options(newDir(t))
		o.Settings.Listen = []string{"127.0.0.1:0", address}
		refused(t, o, address+" can be reached from other machines, which takes TLS", "embedded.certificate")
	}
	for address, message := range map[string]string{
		"nobody.invalid:0": "nobody knows the host", "127.0.0.1": "is not an address", "127.0.0.1:99999": "is not an address",
	} {
		o := options(newDir(t))
		o.Settings.Listen = []string{address}
		refused(t, o, message, "127.0.0.1")
	}
	o := options(newDir(t))
	o.Settings.Listen = []string{"localhost:0", "127.0.0.2:0"}
	b, _ := start(t, o)
	for _, a := range b.Addresses() {
		if host, _, _ := net.SplitHostPort(a); !net.ParseIP(host).IsLoopback() {
			t.Errorf("listens on %s", a)
		}
	}
	dial(t, urlOf(t, b), amqp.Config{})
}

func TestR53_PortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := options(newDir(t))
	o.Settings.Listen = []string{l.Addr().String()}
	refused(t, o, l.Addr().String()+" is in use by another program", "--listen")
}

// authority makes certificates and can be trusted.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{key, cert}
}

// issue writes a certificate for names and its key into dir.
func (a authority) issue(t *testing.T, dir string, names ...string) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(dir, "broker.pem"), filepath.Join(dir, "broker.key")
	if err := errors.Join(
		os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600)); err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// With TLS every address may be listened on; the URL calls the host what its
// certificate calls it, and nobody gets in without TLS.
func TestR45R53_TLS(t *testing.T) {
	a := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	o := options(newDir(t))
	o.Settings.Certificate, o.Settings.Key = a.issue(t, t.TempDir(), "*.example", "broker.example")
	o.Settings.Listen = []string{"0.0.0.0:0"}
	b, _ := start(t, o)
	u, err := url.Parse(urlOf(t, b))
	if err != nil || u.Scheme != "amqps" || u.Hostname() != "broker.example" {
		t.Fatalf("the URL is %s, %v", u, err)
	}
	here := func(_, address string) (net.Conn, error) { return net.Dial("tcp", "127.0.0.1:"+u.Port()) }
	dial(t, u.String(), amqp.Config{Dial: here, TLSClientConfig: &tls.Config{RootCAs: pool}})
	u.Scheme = "amqp"
	short := func(_, address string) (net.Conn, error) {
		c, err := here("", "")
		if err == nil {
			err = c.SetDeadline(time.Now().Add(bound))
		}
		return c, err
	}
	if conn, err := amqp.DialConfig(u.String(), amqp.Config{Dial: short}); err == nil {
		conn.Close()
		t.Error("without TLS a client got in")
	}
}

func TestR45_CertificatesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	certificate, key := newAuthority(t).issue(t, dir, "a")
	otherDir := t.TempDir()
	_, otherKey := newAuthority(t).issue(t, otherDir, "b")
	open := filepath.Join(dir, "open.key")
	text, err := os.ReadFile(key)
	if err := errors.Join(err, os.WriteFile(open, text, 0o644), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ certificate, key, message, hint string }{
		"missing":        {"/nowhere/a.pem", key, "can't read the certificate /nowhere/a.pem", ""},
		"missing key":    {certificate, "/nowhere/a.key", "can't read the key /nowhere/a.key", ""},
		"no key":         {certificate, "", "one of the two is missing", ""},
		"open key":       {certificate, open, "has mode 0644, so others can read it", "chmod 600 " + open},
		"another's key":  {certificate, otherKey, "can't be used", "PEM"},
		"no certificate": {key, key, "can't be used", "PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(newDir(t))
			o.Settings.Certificate, o.Settings.Key = c.certificate, c.key
			refused(t, o, c.message, c.hint)
		})
	}
}
