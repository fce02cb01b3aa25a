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
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// broker is what one round of the scripts meets: a program of which each script
// has processes of its own, or one of FLEET_TEST_BROKERS, which stands already
// and gives each script a virtual host of its own.
type broker struct {
	name    string
	program []string // its command line; --listen HOST:PORT is added
	url     string   // of one that stands
}

// The embedded broker, and what gives LavinMQ's answers in its place.
var (
	embedded = broker{name: "embedded", program: []string{"fleet", "broker", "run", "--json"}}
	lavinmq  = broker{name: "lavinmq", program: []string{"lavin"}}
)

// rounds lists the brokers to run the scripts against. Quorum queues are for
// those that stand: the embedded broker has none.
func rounds(list string, quorum bool) ([]broker, error) {
	standing, err := parseBrokers(list)
	if err != nil || quorum {
		return standing, err
	}
	all := []broker{embedded}
	if !slices.ContainsFunc(standing, func(b broker) bool { return b.name == lavinmq.name }) {
		all = append(all, lavinmq)
	}
	return append(all, standing...), nil
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
		brokers = append(brokers, broker{name: name, url: address})
	}
	return brokers, nil
}

// quorum says whether durable queues are quorum queues in this run.
func quorum() bool { return os.Getenv("FLEET_TEST_QUEUE_TYPE") == "quorum" }

// condition answers the scripts' own conditions.
func (b broker) condition(cond string) (bool, error) {
	name, arg, _ := strings.Cut(cond, ":")
	switch name {
	case "broker":
		if arg == "" {
			return false, errors.New("[broker] is always so; a broker's name is missing: [broker:NAME]")
		}
		return arg == b.name, nil
	case "quorum":
		return b.program == nil && quorum(), nil
	case "node":
		return b.hasNodes(), nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}

// hasNodes says whether a script can have a node of this broker to itself.
func (b broker) hasNodes() bool {
	if b.program != nil {
		return true
	}
	_, err := os.Stat("/usr/lib/rabbitmq/bin/rabbitmq-server")
	return err == nil && strings.HasPrefix(b.name, "rabbitmq")
}

// at is the URL of a virtual host of a broker that stands.
func (b broker) at(vhost string) string {
	u, err := url.Parse(b.url)
	if err != nil {
		return ""
	}
	u.Path, u.RawPath = "/"+vhost, ""
	return u.String()
}

// cmdVhost: vhost VAR...
func cmdVhost(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 1, "vhost VAR...")
	w := worldOf(ts)
	for _, name := range args {
		if w.broker.program != nil { // it has one virtual host
			address, err := w.start("node-" + name)
			ts.Check(err)
			ts.Setenv(name, address)
			continue
		}
		p, err := poolOf(w.broker)
		ts.Check(err)
		vhost, err := p.take()
		ts.Check(err)
		ts.Setenv(name, w.broker.at(vhost))
	}
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

// pool hands out virtual hosts of a broker that stands, each once.
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
