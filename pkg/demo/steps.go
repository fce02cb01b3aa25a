package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/config"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/trace"
)

// step is one step of the play. text says what it does, in the imperative, since
// an error puts "can't" before it.
type step struct {
	text string
	take func(context.Context) error
	logs []string // of the processes that know why it failed
}

// sent is what the play needs of the brief's outcome.
type sent struct {
	Trace envelope.Trace `json:"trace"`
	Text  string         `json:"text"`
}

// steps are the play. end is called where a process ends that should stay.
func (p *player) steps(end context.CancelCauseFunc) []step {
	return []step{
		{"make a directory for it all", p.begin, nil},
		{"start a broker, which speaks AMQP 0-9-1 on a loopback port",
			func(ctx context.Context) error { return p.startBroker(ctx, end) }, []string{brokerName}},
		{"make two hosts, each with a directory, a configuration and a key", p.makeHosts, []string{brokerName}},
		{"introduce them, so that each accepts what the other signs", p.introduce, nil},
		{"say on beta what a worker is: any program that reads its terminal", p.addProfile, nil},
		{"start both gateways, and wait until they see the broker and each other",
			func(ctx context.Context) error { return p.startGateways(ctx, end) }, []string{beta, alpha}},
		{"start a worker on beta, and wait until alpha has heard of it",
			func(ctx context.Context) error { return p.startWorker(ctx, end) }, []string{beta}},
		{"send it a brief from alpha, and wait for the reply", p.sendBrief, []string{alpha, beta}},
		{"show what became of brief and reply, from the audit logs of both hosts", p.showTrace, nil},
		{"show who is where, as alpha sees it", p.showRoster, []string{alpha}},
	}
}

func (p *player) begin(context.Context) error {
	p.fact("it is %s; alpha$ stands for FLEET_DIR=%s", p.dir, p.host(alpha))
	if !p.options.Keep {
		return nil
	}
	return p.copyProgram()
}

// hub is the FLEET_DIR of the broker.
const hub = "hub"

// urlFile is where the broker says how it is reached.
func (p *player) urlFile() string { return filepath.Join(p.host(hub), "broker", "url") }

func (p *player) startBroker(ctx context.Context, end context.CancelCauseFunc) error {
	if err := p.run(end, brokerName, hub, "the broker", fault.NoBroker, "broker", "run", "--listen", "127.0.0.1:0"); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(p.urlFile()); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := pause(ctx, knock); err != nil {
			return err
		}
	}
}

func (p *player) makeHosts(ctx context.Context) error {
	for _, host := range []string{alpha, beta} {
		var made struct {
			Key string `json:"key"`
		}
		if err := p.fleet(ctx, host, &made, "init", "--host", host, "--broker-file", p.urlFile()); err != nil {
			return err
		}
		p.key[host] = made.Key
	}
	return nil
}

func (p *player) introduce(ctx context.Context) error {
	if err := p.fleet(ctx, alpha, nil, "peer", "add", beta, p.key[beta]); err != nil {
		return err
	}
	return p.fleet(ctx, beta, nil, "peer", "add", alpha, p.key[alpha])
}

// profileName is the worker's profile in beta's fleet.yaml.
const profileName = "scripted"

func (p *player) addProfile(context.Context) error {
	quoted := make([]string, 0, 4)
	for _, word := range []string{p.program, "demo-worker", "--work", p.options.Work.String()} {
		quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", "''")+"'")
	}
	profile := "  " + profileName + ":\n" +
		"    command: [" + strings.Join(quoted, ", ") + "]\n" +
		"    dir: '" + p.host(beta) + "'\n" +
		"    evidence: none   # a plain program: what was typed counts as taken\n"
	file := filepath.Join(p.host(beta), "fleet.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read beta's configuration: %w", err)
	}
	const key = "\nprofiles:\n"
	before, after, found := strings.Cut(string(text), key)
	if !found {
		before, after = string(text), ""
	}
	if err := os.WriteFile(file, []byte(before+key+profile+after), 0o600); err != nil {
		return fmt.Errorf("write beta's configuration: %w", err)
	}
	p.fact("in %s stands now, under profiles:\n%s", file, strings.TrimSuffix(profile, "\n"))
	return nil
}

func (p *player) startGateways(ctx context.Context, end context.CancelCauseFunc) error {
	for _, host := range []string{alpha, beta} {
		if err := p.run(end, host, host, host+"'s gateway", fault.NoGateway, "gateway", "run"); err != nil {
			return err
		}
	}
	if err := p.fleet(ctx, alpha, nil, "gateway", "wait", "--broker", "--peer", beta); err != nil {
		return err
	}
	return p.fleet(ctx, beta, nil, "gateway", "wait", "--broker", "--peer", alpha)
}

func (p *player) startWorker(ctx context.Context, end context.CancelCauseFunc) error {
	var r api.SpawnResult
	if err := p.fleet(ctx, beta, &r, "spawn", workerName, "--profile", profileName); err != nil {
		return err
	}
	p.fact("the worker's process is %d", r.PID)
	go p.watchWorker(end)
	return p.fleet(ctx, alpha, nil, "gateway", "wait", "--agent", workerName+"@"+beta)
}

func (p *player) sendBrief(ctx context.Context) error {
	if err := p.fleet(ctx, alpha, &p.sent, "send", workerName+"@"+beta, "--wait", p.options.Brief); err != nil {
		return err
	}
	p.tell(Event{Reply: &p.sent.Text})
	return nil
}

// settle is how long the traces of a reply may take to be everywhere: in the files,
// and in the roster of the other host, which hears of changes once a second.
const settle = 2 * time.Second

// showTrace waits until the reply's sender, too, has noted that the broker has it:
// the reply may be faster.
func (p *player) showTrace(ctx context.Context) error {
	until := time.Now().Add(settle)
	for {
		lines, err := p.flow(p.sent.Trace)
		if err != nil {
			return err
		}
		whole := slices.ContainsFunc(lines, func(l trace.Line) bool {
			return l.Host == beta && l.Kind == envelope.Reply && l.Step == trace.Published
		})
		if whole || time.Now().After(until) {
			p.tell(Event{Trace: lines})
			return nil
		}
		if err := pause(ctx, knock); err != nil {
			return err
		}
	}
}

// showRoster waits until alpha has heard that the worker is idle again.
func (p *player) showRoster(ctx context.Context) error {
	p.typed(alpha, "roster")
	for until := time.Now().Add(settle); ; {
		var r api.Roster
		if err := p.ask(ctx, alpha, &r, "roster"); err != nil {
			return err
		}
		busy := slices.ContainsFunc(r.Agents, func(a api.Agent) bool { return a.Name == workerName && a.State != "idle" })
		if !busy || time.Now().After(until) {
			p.tell(Event{Roster: &r})
			return nil
		}
		if err := pause(ctx, 10*knock); err != nil {
			return err
		}
	}
}

// pause fails with its cause where ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// flow is what both hosts' audit logs say of one flow, by time. The hosts have one
// clock.
func (p *player) flow(id envelope.Trace) ([]trace.Line, error) {
	var all []trace.Line
	for _, host := range []string{alpha, beta} {
		lines, err := p.audit(host)
		if err != nil {
			return nil, err
		}
		for _, l := range lines {
			if l.Trace == id {
				all = append(all, l)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b trace.Line) int { return a.At.Compare(b.At) })
	return all, nil
}

// audit reads a host's audit log. A demo's is never rotated.
func (p *player) audit(host string) ([]trace.Line, error) {
	f, err := os.Open(config.PathsOf(p.host(host)).Audit())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer f.Close()
	var lines []trace.Line
	in := bufio.NewScanner(f)
	for in.Scan() {
		var l trace.Line
		if json.Unmarshal(in.Bytes(), &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines, in.Err()
}

// watchWorker ends the play where the worker has died and no command has failed of
// it: one that waits for the worker to appear would wait long. It ends with the play.
func (p *player) watchWorker(end context.CancelCauseFunc) {
	const look, patience = 200 * time.Millisecond, 2 * time.Second
	for tick := time.Tick(look); !p.ending.Load() && !p.kept.Load(); <-tick {
		if died, _ := p.workerDied(); died {
			time.Sleep(patience)
			end(fault.New(fault.TimedOut, "no command failed of it within %s", patience))
			return
		}
	}
}

// workerDied says whether beta has seen its worker end, and how.
func (p *player) workerDied() (died bool, how string) {
	lines, _ := p.audit(beta) // unreadable: nobody has seen it
	for _, l := range lines {
		if l.Step == trace.Died {
			return true, l.Detail
		}
	}
	return false, ""
}
