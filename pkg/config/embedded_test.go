package config

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestR53_EmbeddedBroker(t *testing.T) {
	for text, want := range map[string]struct {
		shown    string
		embedded bool
	}{"embedded": {"embedded", true}, "none": {"none", false}, "''": {"none", false}, "amqps://h": {"amqps://h", false}} {
		c, err := load(home(t, "broker:\n  url: "+text+"\n"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.Broker.Embedded() != want.embedded || c.Settings()[1].Value != want.shown {
			t.Errorf("%s: embedded %v, shown as %s", text, c.Broker.Embedded(), c.Settings()[1].Value)
		}
	}
	c, err := load(home(t, "broker: {url: embedded}\nembedded: {listen: [127.0.0.1:1]}\n"),
		[]string{"FLEET_BROKER_URL=none", "FLEET_EMBEDDED_LISTEN="})
	if err != nil || c.Broker.Embedded() || !c.Broker.URL.Empty() || len(c.Embedded.Listen) != 0 {
		t.Errorf("variables: %+v, %v", c.Broker, err)
	}
	c, err = load(home(t, ""), []string{"FLEET_EMBEDDED_LISTEN=[localhost:1, '[::1]:2']"})
	if err != nil || len(c.Embedded.Listen) != 2 {
		t.Errorf("a list: %v, %v", c.Embedded.Listen, err)
	}
}

// Whatever is wrong with the embedded broker's keys names file, line and a
// remedy.
func TestR53_EmbeddedMistakesHaveAPlace(t *testing.T) {
	for _, c := range []struct{ name, text, message, hint string }{
		{"embedded and quorum", "broker:\n  url: embedded\n  queue_type: quorum\n", "fleet.yaml:3: broker.queue_type: quorum queues are for a RabbitMQ cluster", "broker.url"},
		{"embedded misspelt", "broker:\n  url: embeded\n", "fleet.yaml:2: broker.url: it is no URL", "did you mean embedded?"},
		{"embedded as a section", "broker: embedded\n", "fleet.yaml:1: broker: it is a single value, a section", ""},
		{"embedded's address", "embedded:\n  listen: [127.0.0.1:5672, '5672']\n", "fleet.yaml:2: embedded.listen: 5672 is not an address", "HOST:PORT"},
		{"embedded's port", "embedded:\n  listen: ['127.0.0.1:amqp']\n", `fleet.yaml:2: embedded.listen: "127.0.0.1:amqp" is not an address`, "HOST:PORT"},
		{"embedded for all", "embedded:\n  listen: [':5672']\n", "fleet.yaml:2: embedded.listen: :5672 can be reached from other machines", "embedded.certificate"},
		{"embedded for others", "embedded:\n  listen:\n    - 10.0.0.1:5672\n", "fleet.yaml:2: embedded.listen: 10.0.0.1:5672 can be reached", "127.0.0.1"},
		{"embedded's key", "embedded:\n  certificate: a.pem\n", "fleet.yaml:2: embedded: TLS takes a certificate and its key", "embedded.key"},
		{"embedded's metrics", "embedded:\n  metrics: 0.0.0.0:9419\n", "fleet.yaml:2: embedded.metrics: 0.0.0.0:9419 can be reached", "127.0.0.1:PORT"},
		{"embedded's limit", "embedded:\n  bytes: 8GB\n", "fleet.yaml:2: embedded.bytes: 8GB is not a size", "GiB"},
		{"embedded's messages", "broker: {url: embedded}\nembedded:\n  message_bytes: 1MiB\n", "fleet.yaml:3: embedded.message_bytes: 1MiB is too little", "it takes 1638400"},
		{"embedded's unknown", "embedded:\n  lisen: []\n", "fleet.yaml:2: unknown key embedded.lisen", "did you mean embedded.listen?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := home(t, c.text)
			_, err := load(dir, nil)
			expect(t, err, strings.Replace(c.message, "fleet.yaml", filepath.Join(dir, "fleet.yaml"), 1), c.hint)
		})
	}
}
