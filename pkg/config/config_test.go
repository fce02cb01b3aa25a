package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/topology"
)

// testKey is a public key that is the same in every run.
func testKey(t testing.TB, n byte) identity.PublicKey {
	t.Helper()
	seed := make([]byte, 32)
	seed[0] = n
	s, err := identity.NewSigner(seed)
	if err != nil {
		t.Fatal(err)
	}
	return s.Public()
}

// home is a host's directory with the given fleet.yaml.
func home(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if text != "" {
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const full = `
host: alpha
broker:
  url: amqps://gw:secret@broker.example:5671/fleet
  queue_type: quorum
  heartbeat: 30s
  ca_file: ca.pem
embedded:
  listen: [127.0.0.1:0, 'broker.example:5671']
  certificate: broker.pem
  key: /etc/broker.key
  connections: 8
  queues: 9
  bytes: 10MiB
  message_bytes: 11MiB
  disk_free: 12MiB
  metrics: '[::1]:9419'
queues:
  inbox_messages: 50
  inbox_bytes: 64KiB
  inbox_ttl: 2s
  worker_expires: 4s
  puller_expires: 5s
  dlq_messages: 60
  dlq_bytes: 1MiB
peers:
  beta:
    keys: [KEY1, KEY2]
  gamma: {keys: [KEY3]}
profiles:
  echo:
    command: [sh, -c, "while read l; do echo $l; done"]
    dir: /tmp
    env:
      PORT: 8080
      TOKEN: s3cret
    env_file: echo.env
    evidence: none
    when: always
    ready:
      quiet: 100ms
      timeout: 5s
    groups: [builders, all-hands]
    role: worker
mailbox:
  messages: 7
  bytes: 8MiB
limits:
  text_bytes: 2MiB
roster:
  heartbeat: 200ms
  forget: 3s
bounds:
  receipt: 1s
  confirm: 2s
  reconnect: 3s
  away: 4s
  lease: 5s
`

func withKeys(t testing.TB, text string) string {
	return strings.NewReplacer("KEY1", testKey(t, 1).String(), "KEY2", testKey(t, 2).String(), "KEY3", testKey(t, 3).String()).Replace(text)
}

func TestLoadFull(t *testing.T) {
	dir := home(t, withKeys(t, full))
	c, err := load(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Broker.URL.Reveal(); got != "amqps://gw:secret@broker.example:5671/fleet" {
		t.Errorf("url %s", got)
	}
	c.sources, c.Broker.URL = nil, Secret{}
	want := Config{
		Dir: dir, File: filepath.Join(dir, "fleet.yaml"), Host: "alpha",
		Broker: Broker{
			QueueType: topology.Quorum, Heartbeat: 30 * time.Second, CAFile: filepath.Join(dir, "ca.pem"),
			Limits: topology.Limits{InboxMessages: 50, InboxBytes: 64 << 10, InboxTTL: 2 * time.Second, WorkerExpires: 4 * time.Second,
				PullerExpires: 5 * time.Second, DLQMessages: 60, DLQBytes: 1 << 20},
		},
		Embedded: Embedded{
			Listen: []string{"127.0.0.1:0", "broker.example:5671"}, Certificate: filepath.Join(dir, "broker.pem"), Key: "/etc/broker.key",
			Connections: 8, Queues: 9, Bytes: 10 << 20, MessageBytes: 11 << 20, DiskFree: 12 << 20, Metrics: "[::1]:9419",
		},
		Peers: map[identity.Host]Peer{
			"beta":  {Keys: []identity.PublicKey{testKey(t, 1), testKey(t, 2)}},
			"gamma": {Keys: []identity.PublicKey{testKey(t, 3)}},
		},
		Profiles: map[string]Profile{"echo": {
			Command: []string{"sh", "-c", "while read l; do echo $l; done"}, Dir: "/tmp",
			Env: map[string]string{"PORT": "8080", "TOKEN": "s3cret"}, EnvFile: filepath.Join(dir, "echo.env"),
			Evidence: "none", When: WhenAlways, Ready: Ready{100 * time.Millisecond, 5 * time.Second},
			Groups: []string{"builders", "all-hands"}, Role: "worker",
		}},
		Mailbox: MailboxLimits{7, 8 << 20}, Roster: Roster{200 * time.Millisecond, 3 * time.Second},
		Bounds: Bounds{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second},
	}
	want.Limits.TextBytes = 2 << 20
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestDefaults(t *testing.T) {
	for name, text := range map[string]string{
		"no file": "", "comments": "# nothing\n", "empty sections": "broker:\npeers:\nprofiles:\nqueues: {}\n",
		"marker": "---\n", "null": "~\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := load(home(t, text), nil)
			if err != nil {
				t.Fatal(err)
			}
			if !c.Broker.URL.Empty() || c.Broker.QueueType != topology.Classic || c.Broker.Limits != topology.DefaultLimits ||
				c.Bounds.Receipt != 15*time.Second || c.Limits.TextBytes != 1<<20 || c.Host != DefaultHost() || c.Peers == nil || c.Profiles == nil {
				t.Errorf("got %+v", c)
			}
		})
	}
}

const echo = "profiles:\n  echo:\n    command: [cat]\n    evidence: none\n"

// Whatever is wrong names file, line and a remedy.
func TestC53_EveryMistakeHasAPlace(t *testing.T) {
	for _, c := range []struct{ name, text, message, hint string }{
		{"unknown", "host: a\nbrokr:\n  url: x\n", "fleet.yaml:2: unknown key brokr", "did you mean broker?"},
		{"unknown below", "broker:\n  ulr: x\n", "fleet.yaml:2: unknown key broker.ulr", "did you mean broker.url?"},
		{"nothing alike", "broker:\n  colour: red\n", "fleet.yaml:2: unknown key broker.colour", "known here: url, queue_type, "},
		{"misplaced deeper", "queue_type: quorum\n", "fleet.yaml:1: misplaced key queue_type", "queue_type belongs under broker"},
		{"misplaced up", "broker:\n  host: a\n", "fleet.yaml:2: misplaced key host", "host stands at the top"},
		{"misplaced section", "broker:\n  peers: {}\n", "fleet.yaml:2: misplaced key peers", "peers stands at the top"},
		{"misplaced named", "evidence: none\n", "fleet.yaml:1: misplaced key evidence", "evidence belongs under profiles.PROFILE"},
		{"misplaced ready", "ready: {}\n", "fleet.yaml:1: misplaced key ready", "ready belongs under profiles.PROFILE"},
		{"unknown in profile", echo + "    comand: [a]\n", "fleet.yaml:5: unknown key profiles.echo.comand", "did you mean profiles.echo.command?"},
		{"strange key", "\"a\\nb\": 1\n", `fleet.yaml:1: unknown key "a\nb"`, "known here: host"},
		{"merge", "broker:\n  <<: {url: x}\n", `fleet.yaml:2: unknown key "broker.<<"`, "known here"},
		{"twice", "host: a\nhost: b\n", "fleet.yaml:2: host is there twice, first in line 1", ""},
		{"peer twice", withKeys(t, "peers:\n  beta: {keys: [KEY1]}\n  beta: {keys: [KEY2]}\n"), "fleet.yaml:3: peers: beta is there twice, first in line 2", ""},
		{"section wanted", "broker: amqp://localhost\n", "fleet.yaml:1: broker: it is a single value, a section", ""},
		{"list at the top", "- a\n", "fleet.yaml:1: it is a list, a section", ""},
		{"word wanted", "host: [a]\n", "fleet.yaml:1: host: it is a list, a single value is wanted", ""},
		{"list wanted", "profiles:\n  e:\n    evidence: none\n    command: cat\n", "fleet.yaml:4: profiles.e.command: it is a single value, a list is wanted", "[A, B]"},
		{"no value", "host:\n", "fleet.yaml:1: host: it has no value", "remove the line"},
		{"alias", "host: &h a\nbroker:\n  queue_type: *h\n", "fleet.yaml:3: broker.queue_type: it is an alias", ""},
		{"self alias", "profiles: &p\n  a: *p\n", "fleet.yaml:2: profiles.a: it is an alias", ""},
		{"list as key", "? [a]\n: b\n", "fleet.yaml:1: a key is a list", ""},
		{"duration", "broker:\n  heartbeat: 5\n", "fleet.yaml:2: broker.heartbeat: 5 is not a duration", "500ms, 5s"},
		{"short", "broker:\n  heartbeat: 10ms\n", "fleet.yaml:2: broker.heartbeat: 10ms is not between 1s and 10m", ""},
		{"size", "mailbox:\n  bytes: 1 GB\n", `fleet.yaml:2: mailbox.bytes: "1 GB" is not a size`, "KiB, MiB or GiB"},
		{"size overflow", "mailbox:\n  bytes: 9999999999999GiB\n", "fleet.yaml:2: mailbox.bytes: 9999999999999GiB is not a size", ""},
		{"negative", "mailbox:\n  messages: -1\n", `fleet.yaml:2: mailbox.messages: "-1" is not a whole number`, ""},
		{"bool", "broker:\n  allow_plaintext: yes\n", "fleet.yaml:2: broker.allow_plaintext: yes is neither true nor false", ""},
		{"choice", "broker:\n  queue_type: stream\n", "fleet.yaml:2: broker.queue_type: stream is not classic or quorum", "quorum is for clustered"},
		{"host", "host: Alpha.local\n", "fleet.yaml:1: host: \"Alpha.local\" is not a host name", "one DNS label"},
		{"peer name", "peers:\n  be_ta: {}\n", `fleet.yaml:2: "be_ta" is not a host name`, "one DNS label"},
		{"profile name", "profiles:\n  Echo: {}\n", `fleet.yaml:2: "Echo" is not a name`, "a name has"},
		{"peer without keys", "peers:\n  beta:\n", "fleet.yaml:2: peers.beta has no keys", "fleet peer add"},
		{"peer with no keys", "peers:\n  beta:\n    keys: []\n", "fleet.yaml:3: peers.beta has no keys", "fleet peer add"},
		{"key", "peers:\n  beta:\n    keys:\n    - ed25519:short\n", "fleet.yaml:4: peers.beta.keys: it holds something that is not a public key", "fleet key show"},
		{"key twice", withKeys(t, "peers:\n  beta:\n    keys:\n    - KEY1\n    - KEY1\n"), "fleet.yaml:5: peers.beta.keys: the key ed25519:", ""},
		{"key of two", withKeys(t, "peers:\n  beta: {keys: [KEY1]}\n  gamma: {keys: [KEY1]}\n"), "fleet.yaml:3: peers.gamma: the key ed25519:", "fleet key show"},
		{"no evidence", "profiles:\n  echo:\n    command: [cat]\n", "fleet.yaml:2: profiles.echo does not say which evidence", "evidence: none"},
		{"evidence", "profiles:\n  echo:\n    command: [cat]\n    evidence: hook\n", "fleet.yaml:4: profiles.echo.evidence: hook is not none", "typing only"},
		{"no command", "profiles:\n  echo:\n    evidence: none\n", "fleet.yaml:2: profiles.echo has no command", "command: ["},
		{"empty command", "profiles:\n  echo:\n    command: []\n    evidence: none\n", "fleet.yaml:3: profiles.echo.command: it names no program", ""},
		{"group", echo + "    groups:\n      - a\n      - B\n", `fleet.yaml:7: profiles.echo.groups: "B" is not a name`, ""},
		{"group all", echo + "    groups: [all]\n", "fleet.yaml:5: profiles.echo.groups: every agent is in the group all", ""},
		{"variable name", echo + "    env:\n      OK: 1\n      A-B: 1\n", `fleet.yaml:7: profiles.echo.env: A-B can't be the name`, ""},
		{"variable value", echo + "    env:\n      A: [1]\n", "fleet.yaml:6: profiles.echo.env: A: it is a list", ""},
		{"variable twice", echo + "    env:\n      A: 1\n      A: 2\n", "fleet.yaml:7: profiles.echo.env: A is there twice", ""},
		{"directory", echo + "    dir: work\n", "fleet.yaml:5: profiles.echo.dir: work is not an absolute path", "~/"},
		{"NUL", echo + "    dir: \"/a\\0b\"\n", "fleet.yaml:5: profiles.echo.dir: it holds a NUL", ""},
		{"role", echo + "    role: main\n", "fleet.yaml:5: profiles.echo.role: main is not worker", ""},
		{"expires before ttl", "queues:\n  worker_expires: 1h\n", "fleet.yaml:2: queues.worker_expires: 1h is not longer than queues.inbox_ttl, 96h", "loses them silently"},
		{"ttl after expires", "queues:\n  inbox_ttl: 2000h\n", "fleet.yaml:2: queues.worker_expires: 240h is not longer", ""},
		{"not YAML", "host: a\nbroker:\n\turl: x\n", "fleet.yaml:3: it is not YAML: found character", ""},
		{"not YAML either", withKeys(t, "host: a\npeers:\n  b:\n    keys:\n      - KEY1\n    - KEY2\n"), "fleet.yaml:6: it is not YAML: ", ""},
		{"open bracket", "host: a\nprofiles:\n  e:\n    command: [a,\n    evidence: none\n", "fleet.yaml:4: it is not YAML: ", ""},
		{"control character", "host: a\nx: \x01\n", "fleet.yaml:2: it is not YAML: control characters", ""},
		{"unknown anchor", "host: *u\n", "fleet.yaml:1: it is not YAML: unknown anchor", ""},
		{"two documents", "host: a\n---\nhost: b\n", "a second document starts here", ""},
		{"too large", "# " + strings.Repeat("x", mostBytes), "fleet.yaml:1: it has more than 1MiB", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := home(t, c.text)
			_, err := load(dir, nil)
			expect(t, err, strings.Replace(c.message, "fleet.yaml", filepath.Join(dir, "fleet.yaml"), 1), c.hint)
		})
	}
}

// expect fails unless err is a configuration fault with these words.
func expect(t *testing.T, err error, message, hint string) {
	t.Helper()
	if !errors.Is(err, fault.Config) {
		t.Fatalf("got %v, want a configuration fault: %s", err, message)
	}
	f := fault.From(err)
	if !strings.Contains(f.Message, message) {
		t.Errorf("got  %s\nwant %s", f.Message, message)
	}
	if !strings.Contains(f.Hint, hint) {
		t.Errorf("%s: hint %q, want %q", f.Message, f.Hint, hint)
	}
}

// Every mistake is reported at once, and no more than a screenful.
func TestC53_AllMistakesAtOnce(t *testing.T) {
	_, err := load(home(t, "hots: a\nbroker:\n  queue_type: x\n  heartbeat: 5\n"), []string{"FLEET_MAILBOX_BYTES=many"})
	f := fault.From(err)
	if f == nil || len(f.Also) != 3 {
		t.Fatalf("got %+v", f)
	}
	for i, want := range []string{"fleet.yaml:3: broker.queue_type", "fleet.yaml:4: broker.heartbeat", "FLEET_MAILBOX_BYTES: mailbox.bytes"} {
		if !strings.Contains(f.Also[i], want) {
			t.Errorf("line %d is %q, want %q", i, f.Also[i], want)
		}
	}
	var many strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&many, "unknown%d: 1\n", i)
	}
	_, err = load(home(t, many.String()), nil)
	if f := fault.From(err); f == nil || len(f.Also) != mostProblems-1 {
		t.Errorf("%d further lines", len(f.Also))
	}
}

func TestR45_PlaintextOnlyToLoopbackOrInWords(t *testing.T) {
	for _, c := range []struct {
		url   string
		words bool
		ok    bool
	}{
		{"amqp://guest:guest@localhost:5672/", false, true},
		{"amqp://127.0.0.1", false, true},
		{"amqp://127.8.9.1:5672", false, true},
		{"amqp://[::1]:5672", false, true},
		{"amqps://broker.example", false, true},
		{"amqp://broker.example", false, false},
		{"amqp://127.0.0.1.evil.example", false, false},
		{"amqp://localhost.evil.example", false, false},
		{"amqp://0.0.0.0", false, false},
		{"amqp://10.0.0.1", false, false},
		{"amqp://user:localhost@10.0.0.1", false, false},
		{"amqp://[fe80::1]:5672", false, false},
		{"AMQP://broker.example", false, false},
		{"amqp://broker.example", true, true},
	} {
		text := "broker:\n  url: '" + c.url + "'\n"
		if c.words {
			text += "  allow_plaintext: true\n"
		}
		_, err := load(home(t, text), nil)
		if c.ok && err != nil {
			t.Errorf("%s (in words: %v): %v", c.url, c.words, err)
		}
		if !c.ok {
			expect(t, err, "fleet.yaml:2: broker.url: amqp:// sends the password", "broker.allow_plaintext: true")
		}
	}
	if _, err := load(home(t, ""), []string{"FLEET_BROKER_URL=amqp://rabbit:5672", "FLEET_BROKER_ALLOW_PLAINTEXT=true"}); err != nil {
		t.Errorf("a container in CI: %v", err)
	}
}

const password = "hunter2hunter2"

// A broker URL that is wrong in whatever way is reported without any of it.
func TestR47_URLErrorsHoldNoPassword(t *testing.T) {
	for name, url := range map[string]string{
		"no scheme":  "user:" + password + "@host",
		"scheme":     "https://user:" + password + "@host/",
		"bad port":   "amqp://user:" + password + "@host:port/",
		"slash":      "amqps://user:a/" + password + "@host/",
		"hash":       "amqps://user:a#" + password + "@host/",
		"percent":    "amqps://user:%zz" + password + "@host/",
		"control":    "amqps://user:\x7f" + password + "@host/",
		"no host":    "amqps://user:" + password + "@/vhost",
		"heartbeat":  "amqps://user:" + password + "@host/?heartbeat=1",
		"plaintext":  "amqp://user:" + password + "@host/",
		"only a key": password,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(home(t, ""), []string{"FLEET_BROKER_URL=" + url})
			if !errors.Is(err, fault.Config) {
				t.Fatalf("accepted: %v", err)
			}
			if all := fmt.Sprintf("%+v", *fault.From(err)); strings.Contains(all, password) || !strings.Contains(all, "FLEET_BROKER_URL") {
				t.Errorf("says %s", all)
			}
		})
	}
}

func TestR47_SecretsAreNeverPrinted(t *testing.T) {
	text := "broker:\n  url: amqps://gw:" + password + "@host/v?certfile=" + password + "\n" + echo + "    env:\n      TOKEN: " + password + "\n"
	c, err := load(home(t, text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Broker.URL.String() != "amqps://gw:xxxxx@host/v" {
		t.Errorf("shown as %s", c.Broker.URL)
	}
	shown := fmt.Sprintf("%v %+v %#v %s %q %d %x", c.Broker, c.Broker, c.Broker, c.Broker.URL, c.Broker.URL, c.Broker.URL, c.Broker.URL)
	json, err := c.Broker.URL.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	txt, _ := c.Broker.URL.MarshalText()
	shown += string(json) + string(txt) + fmt.Sprint(c.Settings())
	if strings.Contains(shown, password) || strings.Contains(shown, fmt.Sprintf("%x", password)) {
		t.Errorf("printed: %s", shown)
	}
	if got := fmt.Sprint(NewSecret(password), NewSecret("")); got != "(hidden) " {
		t.Errorf("a secret that is no URL shows as %q", got)
	}
	_, err = load(home(t, echo+"    env:\n      TOKEN: "+password+"\n      B@D: "+password+"\n"), nil)
	if all := fmt.Sprintf("%+v", *fault.From(err)); strings.Contains(all, password) {
		t.Errorf("an error says %s", all)
	}
	_, err = load(home(t, "peers:\n  beta:\n    keys: ['fleet-ed25519-seed:"+password+"']\n"), nil)
	if all := fmt.Sprintf("%+v", *fault.From(err)); strings.Contains(all, password) {
		t.Errorf("a pasted private key is repeated: %s", all)
	}
}

// A password in a file that others can read is refused.
func TestR47_FileWithPasswordIsPrivate(t *testing.T) {
	dir := home(t, "broker:\n  url: amqps://gw:pw@host\n")
	path := filepath.Join(dir, fileName)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := load(dir, nil)
	expect(t, err, "mode 0644 and holds the broker's password", "chmod 600 "+path)
	if err := os.WriteFile(path, []byte("broker:\n  url: amqps://host\n"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := load(dir, nil); err != nil {
		t.Errorf("without a password: %v", err)
	}
}

func TestKeyring(t *testing.T) {
	c, err := load(home(t, withKeys(t, full)), nil)
	if err != nil {
		t.Fatal(err)
	}
	ring := c.Keyring(testKey(t, 9))
	for n, want := range map[byte]identity.Host{1: "beta", 2: "beta", 3: "gamma", 9: "alpha"} {
		host, key, ok := ring.Find(testKey(t, n).ID())
		if !ok || host != want || key.ID() != testKey(t, n).ID() {
			t.Errorf("key %d belongs to %q (%v), want %s", n, host, ok, want)
		}
	}
	if _, _, ok := ring.Find(testKey(t, 8).ID()); ok {
		t.Error("a stranger's key is known")
	}
	// A peer to whom somebody gave this host's own key does not speak for it.
	if host, _, _ := c.Keyring(testKey(t, 1)).Find(testKey(t, 1).ID()); host != "alpha" {
		t.Errorf("this host's own key belongs to %s", host)
	}
}

// All hosts may share one file: a host's own entry is not a peer, and trusts
// nothing besides its own key.
func TestSharedFileLeavesOutOneself(t *testing.T) {
	dir := home(t, withKeys(t, "peers:\n  alpha: {keys: [KEY1]}\n  beta: {keys: [KEY2]}\n"))
	c, err := load(dir, []string{"FLEET_HOST=alpha"})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Peers["alpha"]; ok || len(c.Peers) != 1 {
		t.Errorf("peers %v", c.Peers)
	}
	if _, _, ok := c.Keyring(testKey(t, 9)).Find(testKey(t, 1).ID()); ok {
		t.Error("a key in the file speaks for this host")
	}
}

func TestSettingsSayWhereFrom(t *testing.T) {
	dir := home(t, withKeys(t, full))
	c, err := load(dir, []string{"FLEET_BROKER_HEARTBEAT=7s", "FLEET_PEERS_BETA_KEYS=" + testKey(t, 5).String()})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Setting{}
	for _, s := range c.Settings() {
		got[s.Key] = s
	}
	file := filepath.Join(dir, fileName)
	for _, want := range []Setting{
		{Key: "host", Value: "alpha", Source: file + ":2"},
		{Key: "broker.heartbeat", Value: "7s", Source: "FLEET_BROKER_HEARTBEAT"},
		{Key: "broker.allow_plaintext", Value: "false", Source: SourceDefault},
		{Key: "peers.beta.keys", Value: testKey(t, 5).String(), Source: "FLEET_PEERS_BETA_KEYS"},
		{Key: "embedded.listen", Value: "127.0.0.1:0 broker.example:5671", Source: file + ":9"},
		{Key: "profiles.echo.command", Value: `sh "-c" "while read l; do echo $l; done"`, Source: file + ":32"},
		{Key: "profiles.echo.env", Value: "PORT TOKEN", Source: file + ":34"},
	} {
		s := got[want.Key]
		s.Doc = ""
		if s != want {
			t.Errorf("got %+v, want %+v", s, want)
		}
	}
}

var docForm = regexp.MustCompile(`^[a-zA-Z][^.]*[^. ]$`)

// The table is what the manual is made from: every row is complete, and its
// default is what an empty file gives.
func TestKeysTable(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Keys() {
		if k.Type == "" || !docForm.MatchString(k.Doc) {
			t.Errorf("%s: type %q, doc %q", k.Path, k.Type, k.Doc)
		}
		if seen[k.Variable()] {
			t.Errorf("two keys have the variable %s", k.Variable())
		}
		seen[k.Variable()] = true
		switch k.Path {
		case "host", "peers.HOST.keys", "profiles.PROFILE.command", "profiles.PROFILE.evidence", "profiles.PROFILE.env", "profiles.PROFILE.groups":
			continue
		}
		d := newDraft("/")
		if err := k.set(d, "name", valueOf(&k, k.Default)); err != nil {
			t.Errorf("%s: the default %q is refused: %v", k.Path, k.Default, err)
		}
		if got := k.get(d, "name"); got != k.Default {
			t.Errorf("%s: the default %q is read as %q", k.Path, k.Default, got)
		}
	}
}
