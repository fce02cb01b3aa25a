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

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestR43_Init(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "fleet")
	created, err := Init(dir, "alpha", "amqps://gw:it's@broker.example/v")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, fileName)
	if want := []string{dir, file, filepath.Join(dir, "host.key")}; !reflect.DeepEqual(created, want) {
		t.Errorf("created %v, want %v", created, want)
	}
	if mode(t, dir) != 0o700 || mode(t, file) != 0o600 || mode(t, filepath.Join(dir, "host.key")) != 0o600 {
		t.Errorf("modes %o %o %o", mode(t, dir), mode(t, file), mode(t, filepath.Join(dir, "host.key")))
	}
	c, err := load(dir, nil)
	if err != nil || c.Host != "alpha" || c.Broker.URL.Reveal() != "amqps://gw:it's@broker.example/v" {
		t.Errorf("%v: %+v", err, c)
	}
	if _, err := identity.LoadSigner(dir); err != nil {
		t.Error(err)
	}
	before, _ := os.ReadFile(file)
	created, err = Init(dir, "beta", "")
	after, _ := os.ReadFile(file)
	if err != nil || len(created) != 0 || string(before) != string(after) {
		t.Errorf("a second time: %v, %v", created, err)
	}
}

func TestInitWithoutBrokerOrHost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "f")
	if _, err := Init(dir, "", ""); err != nil {
		t.Fatal(err)
	}
	if c, err := load(dir, nil); err != nil || !c.Broker.URL.Empty() || c.Host != DefaultHost() {
		t.Errorf("%v: %+v", err, c)
	}
	dir = filepath.Join(t.TempDir(), "f")
	if _, err := Init(dir, "alpha", EmbeddedURL); err != nil {
		t.Fatal(err)
	}
	if c, err := load(dir, nil); err != nil || !c.Broker.Embedded() {
		t.Errorf("%v: %+v", err, c)
	}
}

// What would not load is not written.
func TestInitRefuses(t *testing.T) {
	for name, c := range map[string]struct{ host, url, message string }{
		"plaintext": {"alpha", "amqp://broker.example", "sends the password"},
		"scheme":    {"alpha", "https://gw:" + password + "@h", "starts with neither"},
		"host":      {"Not Valid", "", "is not a host name"},
		"newline":   {"alpha", "amqps://h/\nhost: beta", "white space"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "f")
			_, err := Init(dir, identity.Host(c.host), c.url)
			expect(t, err, c.message, "")
			if strings.Contains(fmt.Sprintf("%+v", *fault.From(err)), password) {
				t.Error("the password is repeated")
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left behind: %v", err)
			}
		})
	}
}

func TestInitTakesOverOnlyAnEmptyDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "f")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if created, err := Init(dir, "alpha", ""); err != nil || len(created) != 2 || mode(t, dir) != 0o700 {
		t.Errorf("an empty directory: %v, %v, %o", created, err, mode(t, dir))
	}
	shared := filepath.Join(t.TempDir(), "s")
	if err := os.MkdirAll(filepath.Join(shared, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Init(shared, "alpha", "")
	expect(t, err, "has mode 0755", "chmod 700")
	if mode(t, shared) != 0o755 {
		t.Error("somebody's directory was closed")
	}
}

// With the comments taken off, the first file loads, and every value that it
// shows as a default is the default.
func TestTemplateShowsTheDefaults(t *testing.T) {
	text := regexp.MustCompile(`(?m)^( *)# ( *[a-z_]+:)`).ReplaceAllString(template("alpha", EmbeddedURL), "$1$2")
	text = strings.NewReplacer("ed25519:KEY", testKey(t, 1).String()).Replace(text)
	c, err := load(home(t, text), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	shown := 0
	for _, s := range c.Settings() {
		if s.Source == SourceDefault {
			continue
		}
		shown++
		for _, k := range Keys() {
			switch {
			case k.Path != s.Key, k.Path == "host", k.Path == "broker.url", k.Path == "broker.ca_file", k.Path == "embedded.certificate", k.Path == "embedded.key",
				k.Path == "embedded.metrics": // an example, where there is no default
			case k.Default != s.Value:
				t.Errorf("%s is shown as %s, the default is %s", s.Key, s.Value, k.Default)
			}
		}
	}
	if shown < 30 {
		t.Errorf("only %d keys are shown:\n%s", shown, text)
	}
}

func TestR31_ProfileEnvironment(t *testing.T) {
	dir := home(t, echo+"    env: {A: 1, B: two}\n    env_file: secrets\n")
	c, err := load(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "secrets")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = c.Profiles["echo"].Environ()
	expect(t, err, "can't read env_file "+path, "")
	write("# mine\n\nB= with = and 'quotes' \r\nTOKEN="+password, 0o600)
	env, err := c.Profiles["echo"].Environ()
	if want := []string{"A=1", "B= with = and 'quotes' ", "TOKEN=" + password}; err != nil || !reflect.DeepEqual(env, want) {
		t.Errorf("%q, %v", env, err)
	}
	write("TOKEN="+password, 0o640)
	_, err = c.Profiles["echo"].Environ()
	expect(t, err, "has mode 0640", "chmod 600")
	for _, bad := range []string{"A=1\nexport X=" + password, "A=1\n" + password, "A=1\n=" + password, "A=1\nX=\x00" + password} {
		write(bad, 0o600)
		_, err = c.Profiles["echo"].Environ()
		expect(t, err, path+":2 is not of the form KEY=VALUE", "")
		if strings.Contains(fmt.Sprintf("%+v", *fault.From(err)), password) {
			t.Errorf("an error repeats the value: %v", err)
		}
	}
}

func TestR45_CAFile(t *testing.T) {
	dir := home(t, "broker: {ca_file: ca.pem}\n")
	c, err := load(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Broker.TLS()
	expect(t, err, "can't read broker.ca_file "+filepath.Join(dir, "ca.pem"), "")
	if err := os.WriteFile(c.Broker.CAFile, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = c.Broker.TLS()
	expect(t, err, "holds no certificate", "BEGIN CERTIFICATE")
	if err := os.WriteFile(c.Broker.CAFile, testCA(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if conf, err := c.Broker.TLS(); err != nil || conf == nil || conf.RootCAs == nil {
		t.Errorf("%v, %v", conf, err)
	}
	if conf, err := (Broker{}).TLS(); conf != nil || err != nil {
		t.Errorf("without a file: %v, %v", conf, err)
	}
}

// FuzzLoad: any file and any variable give a configuration or a fault with a
// place, and what is accepted shows no secret.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(withKeys(f, full)), "FLEET_BROKER_URL=amqps://u:p@h/")
	f.Add([]byte("a: &x [*x]\n"), "FLEET_PROFILES_A_ENV={A: 1}")
	f.Add([]byte("? [a]\n: b\n---\n"), "FLEET_PEERS_B_KEYS=[a")
	f.Add([]byte("\xff\xfeh\x00"), "FLEET_BROKR_URL=")
	f.Add([]byte("[[[[[[[["), "FLEET_")
	f.Fuzz(func(t *testing.T, text []byte, variable string) {
		r := newReader("/x")
		r.file(text)
		r.environment([]string{variable})
		r.finish()
		err := r.fault()
		if err == nil {
			c := r.draft.settle()
			c.Settings()
			return
		}
		m := fault.From(err).Message
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(m, "/x/fleet.yaml:") && !strings.HasPrefix(m, name+": ") {
			t.Errorf("no place: %s", m)
		}
		if len(m) > 1000+len(variable) || len(fault.From(err).Also) >= mostProblems {
			t.Errorf("%d bytes, %d lines", len(m), len(fault.From(err).Also))
		}
	})
}
