// Package testscript_test runs the scripts of this folder: each says in its
// first line which behaviour it proves and which requirements that is.
//
// A script owns its world: FLEET_DIRs under $D (a short path, because a unix
// socket's has a limit), gateways, agents, and on the broker a virtual host of
// its own. Scripts run in parallel. All that runs with $D in its environment,
// arguments, working directory or open files is killed at the end. It knows the
// product only by its command line.
//
// Beside testscript's own commands a script has these, which stand in for what
// is not the product. VAR is the name of a variable that they set.
//
//	host NAME...                  fleet init in $D/NAME with broker $BROKER; several are made each other's peers
//	use NAME                      FLEET_DIR=$D/NAME from here on
//	profile HOST NAME COMMAND...  a profile in HOST's fleet.yaml, evidence none
//	status N COMMAND...           run; the exit status must be N; stdout and stderr stay for later lines
//	expect N COMMAND... &x&       the same as a program, for the background (wait x)
//	await FILE REGEX              until a line of FILE matches
//	[!] awaitcmd REGEX COMMAND... run again until stdout matches [no more]
//	jsonget VAR FILE PATH         PATH like .agents[name=worker].gid or .hosts[0]; FILE may be stdout
//	readvar VAR FILE              the file's text without the last line end
//	killgw HOST SIGNAL            signal the gateway in $D/HOST; for TERM, INT and KILL wait for its end
//	sigproc SIGNAL PID|FILE       signal a process; likewise
//	vhost VAR...                  the URL of a virtual host that nobody used before
//	rabbit VERB NAME [VAR]        a node of the script's own: start (sets VAR), stop, kill, pause, resume, wipe
//	amqp-proxy VERB NAME ...      a proxy between gateway and broker; see proxy_test.go
//	raw-publish, queue-read, dlq-read, amqp ...   see amqp_test.go
//	agent ...                     a program for a profile; see agent_test.go
//
// Waits are bounded by 30 s, or by -for DURATION as first argument. Conditions:
// [broker] a broker is there, [broker:NAME] it is this one, [quorum] the queues
// are quorum queues, [rabbit] own nodes can be started.
package testscript_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"fleet/pkg/bus/proxy"
	"fleet/pkg/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"fleet":  func() { os.Exit(cli.Main()) },
		"agent":  func() { os.Exit(agentMain()) },
		"expect": func() { os.Exit(expectMain()) },
		"prompt": func() { os.Exit(promptMain()) },
	})
}

// scriptBound ends a script that hangs in a background process.
const scriptBound = 5 * time.Minute

func TestScripts(t *testing.T) {
	brokers, err := parseBrokers(os.Getenv("FLEET_TEST_BROKERS"))
	if err != nil {
		t.Fatal(err)
	}
	if len(brokers) == 0 {
		if os.Getenv("FLEET_TEST_REQUIRE_BROKER") != "" {
			t.Fatal("FLEET_TEST_REQUIRE_BROKER is set, but FLEET_TEST_BROKERS names no broker; .ci/test starts one")
		}
		brokers = []broker{{name: "none"}}
	}
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir:                ".",
				Setup:              func(env *testscript.Env) error { return setup(env, b) },
				Condition:          b.condition,
				Cmds:               commands,
				RequireUniqueNames: true,
			})
		})
	}
}

// world is what one script owns.
type world struct {
	dir     string // $D
	broker  broker
	nodes   map[string]string // directories of own RabbitMQ nodes
	held    map[string]raw    // exclusive consumers, by URL and queue
	proxies map[string]*proxy.Proxy
	atEnd   []func() // in reverse order
}

type worldKey struct{}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

// setup gives a script its world and sees to its end.
func setup(env *testscript.Env, b broker) error {
	dir, err := os.MkdirTemp("/tmp", "f")
	if err != nil {
		return fmt.Errorf("make the script's folder: %w", err)
	}
	w := &world{dir: dir, broker: b, nodes: map[string]string{}, held: map[string]raw{},
		proxies: map[string]*proxy.Proxy{}}
	env.Values[worldKey{}] = w
	env.Setenv("D", dir)
	env.Setenv("FLEET_DIR", filepath.Join(dir, "here"))
	env.Setenv("NO_COLOR", "1")
	home := filepath.Join(dir, "home") // where agents start
	if err := os.Mkdir(home, 0o700); err != nil {
		return fmt.Errorf("make the script's home: %w", err)
	}
	env.Setenv("HOME", home)
	// Race reports of all processes go into files, because nobody reads a dead
	// gateway's stderr. The pause before each exit of a race-enabled binary would
	// be the scripts' main cost.
	env.Setenv("GORACE", "atexit_sleep_ms=10 log_path="+filepath.Join(dir, "race"))
	if q := os.Getenv("FLEET_TEST_QUEUE_TYPE"); q != "" {
		env.Setenv("FLEET_BROKER_QUEUE_TYPE", q)
	}

	t := env.T().(testing.TB)
	overdue := time.AfterFunc(scriptBound, func() {
		t.Errorf("the script did not end within %s; its processes were killed", scriptBound)
		killAllOf(dir)
	})
	env.Defer(func() {
		overdue.Stop()
		if t.Failed() {
			showLogs(t, dir)
		}
		for i := len(w.atEnd) - 1; i >= 0; i-- {
			w.atEnd[i]()
		}
		if left := killAllOf(dir); len(left) > 0 {
			t.Errorf("processes survived the script's end: %v", left)
		}
		races, _ := filepath.Glob(filepath.Join(dir, "race.*"))
		for _, name := range races {
			text, _ := os.ReadFile(name)
			t.Errorf("data race in %s:\n%s", filepath.Base(name), text)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the script's folder: %v", err)
		}
	})
	return nil
}

// showLogs prints the end of each log that the script's gateways wrote.
func showLogs(t testing.TB, dir string) {
	const most = 8 << 10
	logs, _ := filepath.Glob(filepath.Join(dir, "*", "*.log"))
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil || len(text) == 0 {
			continue
		}
		if len(text) > most {
			text = text[len(text)-most:]
		}
		t.Logf("end of %s:\n%s", strings.TrimPrefix(name, dir+"/"), text)
	}
}
