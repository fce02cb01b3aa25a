package testscript_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

// node is a broker that one script has to itself.
type node interface {
	// do carries out a verb of `node` and returns the node's URL, which stays the
	// same over restarts.
	do(verb string) (string, error)
	// end ends the node with its script.
	end() error
}

// rabbits bounds how many scripts have nodes of RabbitMQ at a time: starting one
// takes seconds of a core.
var rabbits = make(chan struct{}, 2)

// cmdNode: node VERB NAME [VAR].
func cmdNode(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && (len(args) == 2 || len(args) == 3 && args[0] == "start"),
		"node start|stop|kill|pause|resume|wipe NAME [VAR]")
	w, verb, name := worldOf(ts), args[0], "node-"+args[1]
	var address string
	var err error
	switch n := w.nodes[name]; {
	case n != nil:
		address, err = n.do(verb)
	case verb == "start":
		address, err = w.start(name)
	default:
		ts.Fatalf("no node %s was started", args[1])
	}
	ts.Check(err)
	if len(args) == 3 {
		ts.Setenv(args[2], address)
	}
}

// start makes a node and starts it, and returns its URL.
func (w *world) start(name string) (string, error) {
	if w.nodes[name] != nil {
		return "", fmt.Errorf("%s was started already", name)
	}
	dir := filepath.Join(w.dir, name)
	var n node
	if w.broker.program == nil {
		if len(w.nodes) == 0 {
			rabbits <- struct{}{}
			w.atEnd = append(w.atEnd, func() { <-rabbits })
		}
		n = rabbit(dir)
	} else {
		n = &process{dir: dir, program: w.broker.program}
	}
	w.nodes[name] = n
	w.atEnd = append(w.atEnd, func() {
		if err := n.end(); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	})
	return n.do("start")
}

// rabbit is the folder of a RabbitMQ node.
type rabbit string

func (r rabbit) do(verb string) (string, error) { return tool(verb, string(r)) }

func (r rabbit) end() error {
	_, err := tool("remove", string(r))
	return err
}

// process is a broker's program with a FLEET_DIR of its own. It has one caller
// at a time.
type process struct {
	dir     string
	program []string
	address string // where it listens, once it has run
	url     string
	cmd     *exec.Cmd     // nil while it does not run
	ended   chan struct{} // closed when cmd has ended
	err     error         // how; readable then
}

func (p *process) do(verb string) (string, error) {
	var err error
	switch verb {
	case "start":
		err = p.launch()
	case "stop":
		err = p.stop()
	case "kill", "wipe":
		err = p.kill()
		if err == nil && verb == "wipe" { // its logins stay, since clients keep the URL
			err = os.RemoveAll(filepath.Join(p.dir, "broker", "data"))
		}
	case "pause", "resume":
		sig := syscall.SIGSTOP
		if verb == "resume" {
			sig = syscall.SIGCONT
		}
		err = p.signal(sig)
	default:
		err = fmt.Errorf("no such verb: %s", verb)
	}
	return p.url, err
}

// end ends it in order, also where it stands still.
func (p *process) end() error {
	if p.cmd == nil {
		return nil
	}
	_ = p.signal(syscall.SIGCONT) // it may have ended, which stop finds
	return p.stop()
}

// stop ends it in order; any other end than that with status 0 is an error.
func (p *process) stop() error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if !p.gone() {
		_ = p.kill()
		return fmt.Errorf("it did not end of TERM within %s", waitBound)
	}
	if p.err != nil {
		return fmt.Errorf("it ended with: %w", p.err)
	}
	return nil
}

func (p *process) kill() error {
	if p.cmd == nil {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	if !p.gone() {
		return fmt.Errorf("it did not end of KILL within %s", waitBound)
	}
	return nil
}

// signal fails where the process has ended by itself.
func (p *process) signal(sig syscall.Signal) error {
	if p.cmd == nil {
		return errors.New("it does not run")
	}
	select {
	case <-p.ended:
		p.cmd = nil
		return fmt.Errorf("it has ended by itself: %v", p.err)
	default:
		return p.cmd.Process.Signal(sig)
	}
}

// gone waits for the end.
func (p *process) gone() bool {
	if !eventually(waitBound, func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	}) {
		return false
	}
	p.cmd = nil
	return true
}

// launch starts it and waits until it serves. Its port is chosen once; another
// process may take it between choice and use, so a few are tried.
func (p *process) launch() error {
	if p.cmd != nil {
		return nil
	}
	if p.address != "" {
		return p.run(p.address)
	}
	var err error
	for range 5 {
		address := "127.0.0.1:" + strconv.Itoa(freePort())
		if err = p.run(address); err == nil {
			p.address = address
			return nil
		}
	}
	return err
}

// ready is what a broker's program prints when it serves.
type ready struct {
	Event   string `json:"event"`
	URLFile string `json:"url_file"`
}

// run starts it at an address, and waits until it says that it serves or has
// ended.
func (p *process) run(address string) error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "broker.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.program[0], append(p.program[1:len(p.program):len(p.program)], "--listen", address)...)
	cmd.Env = append(os.Environ(), "FLEET_DIR="+p.dir, raceReports(filepath.Dir(p.dir)))
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	said, ended := make(chan string, 1), make(chan struct{})
	go func() { // ends with the process
		defer close(ended)
		lines := bufio.NewReader(out)
		if line, err := lines.ReadString('\n'); err == nil {
			said <- line
		}
		_, _ = io.Copy(io.Discard, lines) // until it ends
		p.err = cmd.Wait()
	}()
	p.cmd, p.ended = cmd, ended
	var line string
	if !eventually(waitBound, func() bool {
		select {
		case line = <-said:
			return true
		case <-ended:
			return true
		default:
			return false
		}
	}) || line == "" {
		err := p.kill()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%s does not serve (%v, %v):\n%s", strings.Join(cmd.Args, " "), err, p.err, tail(string(text)))
	}
	return p.learn(line)
}

// learn takes the URL from the file that a ready node names.
func (p *process) learn(line string) error {
	var r ready
	if err := json.Unmarshal([]byte(line), &r); err != nil || r.Event != "ready" {
		return fmt.Errorf("it says %q when it is ready, not a document with the event and url_file", line)
	}
	text, err := os.ReadFile(r.URLFile)
	if err != nil {
		return err
	}
	address := strings.TrimSpace(string(text))
	if p.url != "" && address != p.url {
		return fmt.Errorf("its URL was another before it was started again: %s, now %s", p.url, address)
	}
	p.url = address
	return nil
}

// freePort is a loopback port at which nobody listens, outside the range from
// which the kernel serves others.
func freePort() int {
	const low, high = 10000, 32000
	for {
		port := low + rand.IntN(high-low)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			_ = l.Close() // nobody has connected
			return port
		}
	}
}
