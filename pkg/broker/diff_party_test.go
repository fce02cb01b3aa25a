package broker_test

import (
	"cmp"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// party is a broker that scenarios are played against.
type party struct {
	name string
	url  string // with the virtual host, as user guest
}

// config is a client's usual configuration.
func (p party) config() amqp.Config {
	return amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(patience), Locale: "en_US"}
}

// dial connects; login is "user:password", or empty for the usual user.
func (p party) dial(login string, config amqp.Config) (*amqp.Connection, error) {
	u, err := url.Parse(p.url)
	if err != nil {
		return nil, err
	}
	if user, password, ok := strings.Cut(login, ":"); ok {
		u.User = url.UserPassword(user, password)
	}
	return amqp.DialConfig(u.String(), config)
}

// address is the broker's host and port.
func (p party) address() string {
	u, _ := url.Parse(p.url)
	return u.Hostname() + ":" + cmp.Or(u.Port(), "5672")
}

// liveRabbit is the RabbitMQ of the environment. Without one the test is
// skipped, or fails where the environment promises one.
func liveRabbit(t *testing.T) party {
	t.Helper()
	for entry := range strings.SplitSeq(os.Getenv("FLEET_TEST_BROKERS"), ",") {
		if name, at, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "rabbit") {
			return party{name, at}
		}
	}
	if os.Getenv("FLEET_TEST_REQUIRE_BROKER") != "" {
		t.Fatal("FLEET_TEST_BROKERS names no rabbitmq=amqp://..., but FLEET_TEST_REQUIRE_BROKER is set")
	}
	t.Skip("NOT COMPARED WITH RABBITMQ: FLEET_TEST_BROKERS names no rabbitmq=amqp://... (.ci/test starts one)")
	return party{}
}

// vhost is the broker's virtual host.
func (p party) vhost() string {
	u, _ := url.Parse(p.url)
	return cmp.Or(strings.TrimPrefix(u.Path, "/"), "/")
}
