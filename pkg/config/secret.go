package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"fleet/pkg/fault"
)

// Secret is a text that is printed, logged and encoded only in a redacted form.
// The zero Secret is empty.
type Secret struct{ text string }

// NewSecret hides text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text itself, for whoever must use it.
func (s Secret) Reveal() string { return s.text }

// Empty says whether there is nothing to hide.
func (s Secret) Empty() bool { return s.text == "" }

// String is what may be seen of s: of a URL scheme, user, host and path, of
// anything else nothing.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	u, err := url.Parse(s.text)
	if err != nil || u.Host == "" {
		return "(hidden)"
	}
	// A query may name key files, and a fragment is what follows an unescaped #
	// in a password.
	u.RawQuery, u.Fragment, u.RawFragment = "", "", ""
	return u.Redacted()
}

// Format redacts under every verb, %#v and %d included.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(f, "%q", s.String())
		return
	}
	io.WriteString(f, s.String())
}

// MarshalJSON encodes the redacted form.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalText encodes the redacted form.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// URL parameters of the client library that would silently beat a key of ours
// or break how the gateway shares connections.
var refusedParameters = []string{"heartbeat", "connection_timeout", "channel_max"}

// The words that may stand where a broker's URL does.
const (
	EmbeddedURL = "embedded" // the gateway runs a broker itself
	NoURL       = "none"     // no broker, as an empty text
)

// parseBrokerURL checks the form of a broker's URL. Its errors never hold any
// part of the URL, which may hold a password.
func parseBrokerURL(text string) (Secret, error) {
	const shape = "it looks like amqps://USER:PASSWORD@HOST:PORT/VHOST"
	switch text {
	case "", NoURL:
		return Secret{}, nil
	case EmbeddedURL:
		return Secret{EmbeddedURL}, nil
	}
	if near := nearest(text, []string{EmbeddedURL, NoURL}); near != "" {
		return Secret{}, &misfit{message: "it is no URL", hint: "did you mean " + near + "?"}
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return Secret{}, &misfit{message: "it is not a URL",
			hint: shape + "; write special characters of the password as %40 (@), %2F (/), %23 (#) or %3A (:)"}
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return Secret{}, &misfit{message: "it starts with neither amqps:// nor amqp://", hint: shape}
	case u.Hostname() == "":
		return Secret{}, &misfit{message: "it names no broker host", hint: shape}
	case strings.ContainsAny(text, " \t\r\n"):
		return Secret{}, &misfit{message: "it has white space in it", hint: shape}
	case u.Fragment != "":
		return Secret{}, &misfit{message: "it has a # in it", hint: "write # in a password as %23"}
	}
	for _, name := range refusedParameters {
		if u.Query().Has(name) {
			return Secret{}, &misfit{message: "the parameter " + name + " can't be set in the URL",
				hint: "the heartbeat is broker.heartbeat; the others follow from what the gateway does"}
		}
	}
	return Secret{text}, nil
}

// plaintext says whether the broker's URL sends passwords and messages readably
// over a network: amqp:// to anything that is not this machine (R45).
func (b Broker) plaintext() bool {
	u, err := url.Parse(b.URL.text)
	if err != nil || u.Scheme != "amqp" {
		return false
	}
	host := u.Hostname()
	return !strings.EqualFold(host, "localhost") && !loopback(host)
}

// holdsPassword says whether the URL itself is a secret.
func (b Broker) holdsPassword() bool {
	u, err := url.Parse(b.URL.text)
	if err != nil || u.User == nil {
		return false
	}
	_, set := u.User.Password()
	return set
}

// TLS is the client's TLS configuration: nil where the system's authorities
// serve. It reads CAFile, and fails with fault.Config where that holds no
// certificate.
func (b Broker) TLS() (*tls.Config, error) {
	if b.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(b.CAFile)
	if err != nil {
		return nil, fault.New(fault.Config, "can't read broker.ca_file %s: %s", b.CAFile, reason(err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fault.New(fault.Config, "broker.ca_file %s holds no certificate", b.CAFile).
			WithHint("it is PEM: blocks that start with -----BEGIN CERTIFICATE-----")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
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
