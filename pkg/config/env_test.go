package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"fleet/pkg/fault"
)

func TestR55_EveryKeyHasAVariable(t *testing.T) {
	dir := home(t, "host: gamma\nbroker:\n  heartbeat: 9s\n")
	c, err := load(dir, []string{
		"FLEET_HOST=alpha", "FLEET_BROKER_URL=amqps://h/a=b", "FLEET_BROKER_QUEUE_TYPE=quorum", "FLEET_BROKER_CA_FILE=/ca",
		"FLEET_QUEUES_INBOX_TTL=2s", "FLEET_QUEUES_WORKER_EXPIRES=5s", "FLEET_QUEUES_INBOX_MESSAGES=3", "FLEET_MAILBOX_BYTES=1KiB",
		"FLEET_PEERS_BUILD_BOX_KEYS=" + testKey(t, 1).String(),
		"FLEET_PEERS_BETA_KEYS=[" + testKey(t, 2).String() + ", " + testKey(t, 3).String() + "]",
		"FLEET_PROFILES_MY_ECHO_COMMAND=[sh, -c, 'a b']", "FLEET_PROFILES_MY_ECHO_EVIDENCE=none",
		"FLEET_PROFILES_MY_ECHO_ENV={A: 1, B: two}", "FLEET_PROFILES_MY_ECHO_ENV_FILE=e", "FLEET_PROFILES_MY_ECHO_READY_QUIET=1s",
		"FLEET_PROFILES_MY_ECHO_GROUPS=builders",
		"HOME=/nowhere", "PATH=/bin", "FLEET_DIR=/x", "FLEET_TOKEN=t", "FLEET_TEST_BROKERS=x", "NOFLEET_HOST=x",
	})
	if err != nil {
		t.Fatal(err)
	}
	p := c.Profiles["my-echo"]
	if c.Host != "alpha" || c.Broker.URL.Reveal() != "amqps://h/a=b" || c.Broker.QueueType != "quorum" || c.Broker.Heartbeat != 9*time.Second ||
		c.Broker.Limits.InboxTTL != 2*time.Second || c.Broker.Limits.InboxMessages != 3 || c.Mailbox.Bytes != 1024 || c.Broker.CAFile != "/ca" {
		t.Errorf("got %+v", c)
	}
	if len(c.Peers["build-box"].Keys) != 1 || len(c.Peers["beta"].Keys) != 2 {
		t.Errorf("peers %+v", c.Peers)
	}
	if !reflect.DeepEqual(p.Command, []string{"sh", "-c", "a b"}) || p.Env["B"] != "two" || p.EnvFile != filepath.Join(dir, "e") ||
		p.Ready.Quiet != time.Second || !reflect.DeepEqual(p.Groups, []string{"builders"}) {
		t.Errorf("profile %+v", p)
	}
	for _, k := range Keys() {
		variable := strings.NewReplacer("HOST", "BETA", "PROFILE", "ECHO").Replace(k.Variable())
		if k.Path == "host" || strings.HasPrefix(k.Path, "profiles.") {
			variable = strings.Replace(k.Variable(), "PROFILE_", "ECHO_", 1)
		}
		found, _, err := newReader("/").keyOf(variable)
		if err != nil || found == nil || found.Path != k.Path {
			t.Errorf("%s does not set %s: %v, %v", variable, k.Path, found, err)
		}
	}
}

func TestR55_EnvironmentBeatsFile(t *testing.T) {
	dir := home(t, echo+"    when: always\nhost: gamma\nbroker: {url: amqps://file}\n")
	c, err := load(dir, []string{"FLEET_HOST=alpha", "FLEET_BROKER_URL=", "FLEET_PROFILES_ECHO_WHEN=idle"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "alpha" || !c.Broker.URL.Empty() || c.Profiles["echo"].When != WhenIdle || len(c.Profiles) != 1 {
		t.Errorf("got %+v", c)
	}
}

// A name in a variable means the part that is written so in capitals.
func TestVariableFindsTheName(t *testing.T) {
	text := strings.Replace(echo, "echo", "a.b_c", 1)
	c, err := load(home(t, text), []string{"FLEET_PROFILES_A_B_C_WHEN=always"})
	if err != nil || c.Profiles["a.b_c"].When != WhenAlways {
		t.Errorf("%v %+v", err, c.Profiles)
	}
	text += strings.Replace(strings.Replace(echo, "profiles:\n", "", 1), "echo", "a-b-c", 1)
	_, err = load(home(t, text), []string{"FLEET_PROFILES_A_B_C_WHEN=always"})
	expect(t, err, "FLEET_PROFILES_A_B_C_WHEN: it means the profile a-b-c and a.b_c alike", fileName)
}

func TestC53_MisspeltVariables(t *testing.T) {
	for variable, hint := range map[string]string{
		"FLEET_BROKER_ULR":             "did you mean FLEET_BROKER_URL?",
		"FLEET_BROKR_URL":              "did you mean FLEET_BROKER_URL?",
		"FLEET_BROKERR_QUEUE":          "did you mean FLEET_BROKER_QUEUE?",
		"FLEET_BROKER_COLOUR":          "the keys of broker",
		"FLEET_HOTS":                   "did you mean FLEET_HOST?",
		"FLEET_PROFILES_ECHO_COLOUR":   "the keys of profiles",
		"FLEET_PEERS_KEYS":             "the keys of peers",
		"FLEET_PEERS_BETA_KEYS":        "fleet key show",
		"FLEET_PEERS__KEYS":            "the keys of peers",
		"FLEET_MAILBOX_MESSAGES":       "",
		"FLEET_PROFILES_X_READY_QUIET": "500ms",
		"FLEET_PROFILES_X_COMMAND":     "",
		"FLEET_PROFILES_X_ENV":         "",
	} {
		value := "x"
		if strings.HasSuffix(variable, "X_COMMAND") {
			value = "[broken"
		}
		_, err := load(home(t, ""), []string{variable + "=" + value})
		if variable == "FLEET_PROFILES_X_COMMAND" {
			// Not the YAML of a list, so it is the program's name; evidence is missing.
			expect(t, err, variable+": profiles.x does not say which evidence", "evidence: none")
			continue
		}
		if !errors.Is(err, fault.Config) || !strings.HasPrefix(fault.From(err).Message, variable+": ") || !strings.Contains(fault.From(err).Hint, hint) {
			t.Errorf("%s: %+v, want %s", variable, fault.From(err), hint)
		}
	}
	for _, other := range []string{"FLEET_GID", "FLEET_LOG", "FLEET_SERVER_ADDRESS", "FLEET_", "FLEET_BROKER", "FLEET_X_"} {
		if _, err := load(home(t, ""), []string{other + "=x"}); err != nil {
			t.Errorf("%s belongs to somebody else: %v", other, err)
		}
	}
}

// What is reported first does not depend on the order of the environment.
func TestC53_SameMistakeFirst(t *testing.T) {
	dir := home(t, "")
	_, one := load(dir, []string{"FLEET_HOTS=x", "FLEET_BROKER_ULR=x"})
	_, two := load(dir, []string{"FLEET_BROKER_ULR=x", "FLEET_HOTS=x"})
	if !reflect.DeepEqual(fault.From(one), fault.From(two)) {
		t.Errorf("%v, then %v", one, two)
	}
}

func TestR46_FindDir(t *testing.T) {
	none := func(string) string { return "" }
	passwd := func() (string, error) { return "/home/eve", nil }
	for _, c := range []struct {
		name   string
		getenv func(string) string
		want   string
	}{
		{"passwd home", none, "/home/eve/.fleet"},
		{"FLEET_DIR", func(k string) string { return map[string]string{"FLEET_DIR": "/srv/fleet/"}[k] }, "/srv/fleet"},
		{"not HOME", func(k string) string { return map[string]string{"HOME": "/elsewhere"}[k] }, "/home/eve/.fleet"},
	} {
		if got, err := FindDir(c.getenv, passwd); err != nil || got != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
	got, err := FindDir(func(string) string { return "rel" }, passwd)
	if cwd, _ := os.Getwd(); err != nil || got != filepath.Join(cwd, "rel") {
		t.Errorf("a relative FLEET_DIR gives %s, %v", got, err)
	}
	_, err = FindDir(none, func() (string, error) { return "", &misfit{message: "no home", hint: "set FLEET_DIR"} })
	expect(t, err, "no home", "FLEET_DIR")
}

// Neither HOME nor anything else in the environment is needed, as in cron, and
// HOME has no say.
func TestR58_PasswdHomeWithoutEnvironment(t *testing.T) {
	t.Setenv("HOME", "/elsewhere")
	first, err := passwdHome()
	if err != nil || first == "/elsewhere" {
		t.Fatalf("%s, %v", first, err)
	}
	os.Unsetenv("HOME")
	os.Unsetenv("USER")
	if again, err := passwdHome(); err != nil || again != first {
		t.Errorf("without HOME: %s, %v", again, err)
	}
	_, err = homeOf(1<<30 + 7)
	if m, ok := err.(*misfit); !ok || !strings.Contains(m.hint, "FLEET_DIR") {
		t.Errorf("a user without an entry: %v", err)
	}
}

func TestLoadUsesOverrideThenEnvironment(t *testing.T) {
	flag, env := home(t, "host: by-flag\n"), home(t, "host: by-env\n")
	t.Setenv("FLEET_DIR", env)
	for dir, want := range map[string]string{flag: "by-flag", "": "by-env"} {
		if c, err := Load(Override{Dir: dir}); err != nil || string(c.Host) != want {
			t.Errorf("--dir %q: %s, %v", dir, c.Host, err)
		}
	}
}

func TestR46_DirIsPrivate(t *testing.T) {
	dir := home(t, "")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := load(dir, nil)
	expect(t, err, "has mode 0755, so other users can reach the gateway", "chmod 700 "+dir)
	_, err = load(filepath.Join(dir, "none"), nil)
	expect(t, err, "there is no directory "+filepath.Join(dir, "none"), "fleet init")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = load(file, nil)
	expect(t, err, "is not a directory", "")
	if err := os.MkdirAll(filepath.Join(dir, "d", fileName), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = load(filepath.Join(dir, "d"), nil)
	expect(t, err, "is not a file", "")
}

func TestSocketPathFits(t *testing.T) {
	base := home(t, "")
	name := strings.Repeat("x", mostSocketPath-len(base)-len("/")-len("/gateway.sock"))
	for add, ok := range map[string]bool{"": true, "x": false} {
		dir := filepath.Join(base, name+add)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		c, err := load(dir, nil)
		if ok && (err != nil || len(c.Paths().Socket()) != mostSocketPath) {
			t.Errorf("%d bytes: %v", len(c.Paths().Socket()), err)
		}
		if !ok {
			expect(t, err, "a unix socket takes 103", "shorter FLEET_DIR")
		}
	}
}

func TestDefaultHost(t *testing.T) {
	for name, want := range map[string]string{
		"Alpha.example.org": "alpha", "build_box": "build-box", "-x-": "x", "": "host", "...": "host", "ÄÖ": "host",
		strings.Repeat("a", 62) + "-b": strings.Repeat("a", 62), "7": "7",
	} {
		if got := string(hostFrom(name)); got != want {
			t.Errorf("%q gives %s, want %s", name, got, want)
		}
	}
}
