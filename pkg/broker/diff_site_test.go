package broker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleet/pkg/broker"
	"fleet/pkg/fault"
)

// site is a broker of a test's own, with the hands of its operator. Each returns
// once what it does has happened; restart and crash return with the broker up.
type site interface {
	party() party
	restart() error                 // in order
	crash() error                   // kill -9
	alarm(on bool) error            // the broker runs out of room, or has it again
	disconnect(reason string) error // all connections
	addUser(name string) error      // with its name as password
	removeUser(name string) error
}

// rabbitSite is a RabbitMQ node of .ci/broker.
type rabbitSite struct{ dir, url string }

const siteTool = "../../.ci/broker"

func newRabbitSite(t *testing.T) site {
	t.Helper()
	dir, err := os.MkdirTemp("", "fleet-diff")
	if err != nil {
		t.Fatal(err)
	}
	s := &rabbitSite{dir: dir}
	t.Cleanup(func() {
		if err := s.tool("remove"); err != nil {
			t.Error(err)
		}
	})
	if err := s.tool("start"); err != nil {
		t.Fatal(err)
	}
	return s
}

// tool runs .ci/broker; the node ends with this process.
func (s *rabbitSite) tool(verb string, args ...string) error {
	out, err := s.output(verb, args...)
	if verb == "start" {
		s.url = out
	}
	return err
}

func (s *rabbitSite) output(verb string, args ...string) (string, error) {
	cmd := exec.Command(siteTool, append([]string{verb, s.dir}, args...)...)
	cmd.Env = append(os.Environ(), "FLEET_BROKER_OWNER="+strconv.Itoa(os.Getpid()))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf(".ci/broker %s %v: %w: %s", verb, args, err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

func (s *rabbitSite) ctl(args ...string) error {
	return s.tool("ctl", append([]string{"-q"}, args...)...)
}

func (s *rabbitSite) party() party { return party{"rabbitmq", s.url} }

func (s *rabbitSite) restart() error { return errors.Join(s.tool("stop"), s.tool("start")) }

func (s *rabbitSite) crash() error { return errors.Join(s.tool("kill"), s.tool("start")) }

func (s *rabbitSite) alarm(on bool) error {
	mark := "0.4"
	if on {
		mark = "0"
	}
	if err := s.ctl("set_vm_memory_high_watermark", mark); err != nil {
		return err
	}
	for {
		alarms, err := s.output("ctl", "-q", "eval", "rabbit_alarm:get_alarms().")
		if err != nil || (alarms != "[]") == on {
			return err
		}
	}
}

func (s *rabbitSite) disconnect(reason string) error { return s.ctl("close_all_connections", reason) }

func (s *rabbitSite) addUser(name string) error {
	return errors.Join(s.ctl("add_user", name, name), s.ctl("set_permissions", name, ".*", ".*", ".*"))
}

func (s *rabbitSite) removeUser(name string) error { return s.ctl("delete_user", name) }

// embeddedSite is an embedded broker in this process.
type embeddedSite struct {
	options broker.Options
	address string
	server  *broker.Server
	served  chan error
	users   sync.Map // names beside guest
}

// siteBytes is what an embedded site may store before its publishers are blocked.
const siteBytes = 1 << 20

func newEmbeddedSite(t *testing.T) site {
	t.Helper()
	s := &embeddedSite{address: "127.0.0.1:0"}
	s.options = broker.Options{Dir: filepath.Join(t.TempDir(), "data"), Limits: broker.Limits{Bytes: siteBytes}, Authenticate: s.good}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *embeddedSite) good(user, password string) bool {
	_, known := s.users.Load(user)
	return user == password && (known || user == "guest")
}

func (s *embeddedSite) open() error {
	server, err := broker.Open(s.options)
	// A process that another test forks holds the folder's lock until it execs.
	for over := time.Now().Add(patience); errors.Is(err, fault.Refused) && time.Now().Before(over); {
		time.Sleep(10 * time.Millisecond)
		server, err = broker.Open(s.options)
	}
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	s.server, s.address, s.served = server, l.Addr().String(), make(chan error, 1)
	go func() { s.served <- server.Serve(l) }() // ends with Close
	return nil
}

func (s *embeddedSite) close() error {
	if s.server == nil {
		return nil // it never came back
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := errors.Join(s.server.Close(ctx), <-s.served)
	s.server = nil
	return err
}

func (s *embeddedSite) party() party {
	return party{"embedded", "amqp://guest:guest@" + s.address + "/"}
}

func (s *embeddedSite) restart() error { return errors.Join(s.close(), s.open()) }

func (s *embeddedSite) crash() error { return errors.New("this process can't be killed") }

// alarm fills the broker, or empties it. The filler is a message more than may
// be stored.
func (s *embeddedSite) alarm(on bool) error {
	conn, err := amqp.Dial(s.party().url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	const filler = "filler"
	if on {
		if _, err := ch.QueueDeclare(filler, true, false, false, false, nil); err != nil {
			return err
		}
		err = ch.PublishWithContext(context.Background(), "", filler, false, false, amqp.Publishing{Body: make([]byte, siteBytes+1)})
	} else {
		_, err = ch.QueueDelete(filler, false, false, false)
	}
	if err != nil {
		return err
	}
	for over := time.Now().Add(patience); s.server.Stats().Blocked != on; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(over) {
			return fmt.Errorf("publishers are not blocked (%v) within %s", on, patience)
		}
	}
	return nil
}

func (s *embeddedSite) disconnect(reason string) error {
	for _, c := range s.server.Connections() {
		if !s.server.Disconnect(c.ID, reason) {
			return fmt.Errorf("there is no connection %s", c.ID)
		}
	}
	return nil
}

func (s *embeddedSite) addUser(name string) error { s.users.Store(name, true); return nil }

func (s *embeddedSite) removeUser(name string) error { s.users.Delete(name); return nil }

// childSite is an embedded broker in a process of its own, which can be killed.
type childSite struct {
	site // nothing else can be done with it
	dir  string
	url  string
	cmd  *exec.Cmd
}

func newChildSite(t *testing.T) site {
	t.Helper()
	s := &childSite{dir: filepath.Join(t.TempDir(), "data")}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	return s
}

// start runs the test binary as a broker: TestMain does so if it finds a folder.
func (s *childSite) start() error {
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), "BROKER_CHILD_DIR="+s.dir)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	s.url = "amqp://guest:guest@" + strings.TrimSpace(line) + "/"
	return err
}

func (s *childSite) party() party { return party{"embedded", s.url} }

func (s *childSite) crash() error {
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it ended by a signal
	return errors.Join(err, s.start())
}
