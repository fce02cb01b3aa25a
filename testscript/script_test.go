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
//	host NAME...                  fleet init in $D/NAME with broker $BROKER, else none; several are made each other's peers
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
//	gone GLOB                     until no process of the script runs and no file matches
//	vhost VAR...                  the URL of a broker, or of a virtual host of one, that nobody used before
//	node VERB NAME [VAR]          a broker of the script's own: start (VAR is its URL), stop, kill, pause, resume,
//	                              wipe (kill, and lose all messages and queues)
//	certificate DIR NAME...       a TLS certificate for hosts of these names: broker.pem, broker.key and ca.pem
//	amqp-proxy VERB NAME ...      a proxy between gateway and broker; see proxy_test.go
//	raw-publish, queue-read, dlq-read, amqp ...   see amqp_test.go
//	agent ...                     a program for a profile; see agent_test.go
//
// Waits are bounded by 30 s, or by -for DURATION as first argument.
//
// All scripts run against the embedded broker, of which each has a process of its
// own. Those that ask for a broker run again with one that gives LavinMQ's answers
// (lavin_test.go), and against each of FLEET_TEST_BROKERS (name=url,...), each of
// which is a subtest with its name: embedded, lavinmq, rabbitmq. With
// FLEET_TEST_QUEUE_TYPE=quorum only FLEET_TEST_BROKERS count. Conditions:
// [broker:NAME] the broker is this one, [quorum] the queues are quorum queues,
// [node] a script can have a node of it to itself.
package testscript_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
		"lavin":  func() { os.Exit(lavinMain()) },
	})
}

// scriptBound ends a script that hangs in a background process.
const scriptBound = 5 * time.Minute

func TestScripts(t *testing.T) {
	brokers, err := rounds(os.Getenv("FLEET_TEST_BROKERS"), quorum())
	if err != nil {
		t.Fatal(err)
	}
	if len(brokers) == 0 {
		t.Fatal("FLEET_TEST_QUEUE_TYPE is quorum, but FLEET_TEST_BROKERS names no broker that has such queues")
	}
	all, asking := scriptFiles(t)
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) {
			files := asking
			if b.name == embedded.name {
				files = all
			}
			testscript.Run(t, testscript.Params{
				Files:              files,
				Setup:              func(env *testscript.Env) error { return setup(env, b) },
				Condition:          b.condition,
				Cmds:               commands,
				RequireUniqueNames: true,
			})
		})
	}
}

// asksForBroker finds the line of a script that gets it a broker.
var asksForBroker = regexp.MustCompile(`(?m)^(\[[^]]*\] *)*(vhost|node start) `)

// scriptFiles lists the scripts of this folder, and of them those that ask for a
// broker: to the others it makes no difference which there is.
func scriptFiles(t *testing.T) (all, asking []string) {
	for name, text := range scripts(t) {
		all = append(all, name)
		if asksForBroker.MatchString(text) {
			asking = append(asking, name)
		}
	}
	slices.Sort(all)
	slices.Sort(asking)
	return all, asking
}

// world is what one script owns.
type world struct {
	t       testing.TB
	dir     string // $D
	broker  broker
	nodes   map[string]node // own brokers
	held    map[string]raw  // exclusive consumers, by URL and queue
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
	t := env.T().(testing.TB)
	w := &world{t: t, dir: dir, broker: b, nodes: map[string]node{}, held: map[string]raw{},
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
	gorace, value, _ := strings.Cut(raceReports(dir), "=")
	env.Setenv(gorace, value)
	if q := os.Getenv("FLEET_TEST_QUEUE_TYPE"); q != "" {
		env.Setenv("FLEET_BROKER_QUEUE_TYPE", q)
	}

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

// raceReports is what a process of a script needs in its environment. Race reports
// of all go into files of the script's folder, because nobody reads a dead
// gateway's stderr. The pause before each exit of a race-enabled binary would be
// the scripts' main cost.
func raceReports(dir string) string {
	return "GORACE=atexit_sleep_ms=10 log_path=" + filepath.Join(dir, "race")
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
