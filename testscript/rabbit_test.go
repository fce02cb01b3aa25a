package testscript_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// broker is one of FLEET_TEST_BROKERS. An empty url is no broker.
type broker struct {
	name string
	url  string
}

// parseBrokers reads "name=url,name=url".
func parseBrokers(list string) ([]broker, error) {
	var brokers []broker
	for item := range strings.SplitSeq(list, ",") {
		if item == "" {
			continue
		}
		name, address, ok := strings.Cut(item, "=")
		u, err := url.Parse(address)
		if !ok || err != nil || u.Host == "" {
			return nil, fmt.Errorf("FLEET_TEST_BROKERS must read name=amqp://..., not %q", item)
		}
		brokers = append(brokers, broker{name, address})
	}
	return brokers, nil
}

// condition answers the scripts' own conditions.
func (b broker) condition(cond string) (bool, error) {
	name, arg, _ := strings.Cut(cond, ":")
	switch name {
	case "broker":
		return b.url != "" && (arg == "" || arg == b.name), nil
	case "quorum":
		return os.Getenv("FLEET_TEST_QUEUE_TYPE") == "quorum", nil
	case "rabbit":
		_, err := os.Stat("/usr/lib/rabbitmq/bin/rabbitmq-server")
		return err == nil, nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}

// at is the URL of a virtual host of the broker.
func (b broker) at(vhost string) string {
	u, err := url.Parse(b.url)
	if err != nil {
		return ""
	}
	u.Path, u.RawPath = "/"+vhost, ""
	return u.String()
}

// nodeTool is .ci/broker, from this folder.
const nodeTool = "../.ci/broker"

// tool runs .ci/broker; the nodes it starts end with this process.
func tool(args ...string) (string, error) {
	cmd := exec.Command(nodeTool, args...)
	cmd.Env = append(os.Environ(), "FLEET_BROKER_OWNER="+strconv.Itoa(os.Getpid()))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// pool hands out virtual hosts, each once.
type pool struct {
	mu    sync.Mutex
	free  []string // guarded by mu, as is taken
	taken string   // folder with one file for each that was handed out
}

var (
	poolsMu sync.Mutex
	pools   = map[string]*pool{} // by broker name; guarded by poolsMu
)

func poolOf(b broker) (*pool, error) {
	poolsMu.Lock()
	defer poolsMu.Unlock()
	if p := pools[b.name]; p != nil {
		return p, nil
	}
	p := &pool{taken: os.Getenv("FLEET_TEST_TAKEN")}
	if list := os.Getenv("FLEET_TEST_VHOSTS"); list != "" {
		p.free = strings.Split(list, ",")
	}
	if p.taken == "" {
		// The node's name in the folder's keeps two nodes' lists apart.
		sum := sha256.Sum256([]byte(b.url + os.Getenv("FLEET_TEST_BROKER_DIR")))
		p.taken = filepath.Join(os.TempDir(), fmt.Sprintf("fleet-vhosts-%x", sum[:6]))
	}
	p.taken = filepath.Join(p.taken, b.name)
	if err := os.MkdirAll(p.taken, 0o700); err != nil {
		return nil, fmt.Errorf("make the list of used virtual hosts: %w", err)
	}
	pools[b.name] = p
	return p, nil
}

// take returns a virtual host that nobody took before, also no other process.
func (p *pool) take() (string, error) {
	const more = 16
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.free) > 0 {
			name := p.free[0]
			p.free = p.free[1:]
			f, err := os.OpenFile(filepath.Join(p.taken, name), os.O_CREATE|os.O_EXCL, 0o600)
			if err == nil {
				return name, f.Close()
			}
			if !errors.Is(err, fs.ErrExist) {
				return "", fmt.Errorf("mark virtual host %s as used: %w", name, err)
			}
		}
		dir := os.Getenv("FLEET_TEST_BROKER_DIR")
		if dir == "" {
			return "", errors.New("every virtual host of FLEET_TEST_VHOSTS is used; see .ci/test")
		}
		names, err := tool("vhosts", dir, strconv.Itoa(more))
		if err != nil {
			return "", fmt.Errorf("make virtual hosts: %w", err)
		}
		p.free = strings.Fields(names)
	}
}

// cmdVhost: vhost VAR...
func cmdVhost(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 1, "vhost VAR...")
	b := worldOf(ts).broker
	if b.url == "" {
		ts.Fatalf("there is no broker; begin the script with: [!broker] skip 'needs a broker'")
	}
	p, err := poolOf(b)
	ts.Check(err)
	for _, name := range args {
		vhost, err := p.take()
		ts.Check(err)
		ts.Setenv(name, b.at(vhost))
	}
}

// nodes bounds how many scripts have a node of their own at a time: starting one
// takes seconds of a core.
var nodes = make(chan struct{}, 2)

// cmdRabbit: rabbit VERB NAME [VAR].
func cmdRabbit(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && (len(args) == 2 || len(args) == 3 && args[0] == "start"),
		"rabbit start|stop|kill|pause|resume|wipe NAME [VAR]")
	w, verb, name := worldOf(ts), args[0], args[1]
	dir := w.nodes[name]
	if dir == "" {
		if verb != "start" {
			ts.Fatalf("no node %s was started", name)
		}
		if len(w.nodes) == 0 {
			nodes <- struct{}{}
			w.atEnd = append(w.atEnd, func() { <-nodes })
		}
		dir = filepath.Join(w.dir, "rabbit-"+name)
		w.nodes[name] = dir
		w.atEnd = append(w.atEnd, func() { _, _ = tool("remove", dir) }) // killAllOf would end it too
	}
	out, err := tool(verb, dir)
	ts.Check(err)
	if len(args) == 3 {
		ts.Setenv(args[2], out)
	}
}
