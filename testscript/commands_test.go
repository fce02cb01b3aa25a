package testscript_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var commands = map[string]func(*testscript.TestScript, bool, []string){
	"amqp":        cmdAMQP,
	"amqp-proxy":  cmdProxy,
	"await":       cmdAwait,
	"awaitcmd":    cmdAwaitcmd,
	"certificate": cmdCertificate,
	"dlq-read":    cmdDLQRead,
	"gone":        cmdGone,
	"host":        cmdHost,
	"jsonget":     cmdJSONGet,
	"killgw":      cmdKillgw,
	"node":        cmdNode,
	"profile":     cmdProfile,
	"queue-read":  cmdQueueRead,
	"raw-publish": cmdRawPublish,
	"readvar":     cmdReadvar,
	"sigproc":     cmdSigproc,
	"status":      cmdStatus,
	"use":         cmdUse,
	"vhost":       cmdVhost,
}

// waitBound is how long a script waits for one thing. It is generous: it is
// reached only where the thing never comes.
const waitBound = 30 * time.Second

// eventually asks until yes or the bound has passed, and returns the answer.
func eventually(bound time.Duration, yes func() bool) bool {
	const pause = 10 * time.Millisecond
	for end := time.Now().Add(bound); ; time.Sleep(pause) {
		if yes() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func usage(ts *testscript.TestScript, ok bool, text string) {
	if !ok {
		ts.Fatalf("usage: %s", text)
	}
}

// boundOf takes a leading "-for DURATION" off args.
func boundOf(ts *testscript.TestScript, args []string) (time.Duration, []string) {
	if len(args) < 2 || args[0] != "-for" {
		return waitBound, args
	}
	d, err := time.ParseDuration(args[1])
	ts.Check(err)
	return d, args[2:]
}

// cmdStatus: status N COMMAND...
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, "status N COMMAND...")
	if strings.HasPrefix(args[len(args)-1], "&") {
		ts.Fatalf("status has no background; write: expect N COMMAND... &name&")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	if got := exitStatus(err); got != want {
		ts.Fatalf("exit status %d, not %d: %s (%v)", got, want, strings.Join(args[1:], " "), err)
	}
}

// cmdAwait: await FILE REGEX. What matched is in stdout then.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	bound, args := boundOf(ts, args)
	usage(ts, !neg && len(args) == 2, "await [-for DURATION] FILE REGEX")
	file, re := ts.MkAbs(args[0]), compile(ts, args[1])
	var text []byte
	var match string
	found := eventually(bound, func() bool {
		text, _ = os.ReadFile(file) // it may not be there yet
		loc := re.FindIndex(text)
		if loc != nil {
			match = string(text[loc[0]:loc[1]])
		}
		return loc != nil
	})
	if !found {
		ts.Fatalf("within %s no line of %s matched %s; it ends:\n%s", bound, args[0], args[1], tail(string(text)))
	}
	fmt.Fprintln(ts.Stdout(), match)
}

// cmdAwaitcmd: [!] awaitcmd REGEX COMMAND...
func cmdAwaitcmd(ts *testscript.TestScript, neg bool, args []string) {
	bound, args := boundOf(ts, args)
	usage(ts, len(args) >= 2, "[!] awaitcmd [-for DURATION] REGEX COMMAND...")
	re := compile(ts, args[0])
	done := eventually(bound, func() bool {
		_ = ts.Exec(args[1], args[2:]...) // only what it prints counts
		return re.MatchString(ts.ReadFile("stdout")) != neg
	})
	if !done {
		ts.Fatalf("within %s the output of %s did not come to match %s (negated: %t); last:\n%s%s", bound,
			strings.Join(args[1:], " "), args[0], neg, tail(ts.ReadFile("stdout")), tail(ts.ReadFile("stderr")))
	}
}

func compile(ts *testscript.TestScript, s string) *regexp.Regexp {
	re, err := regexp.Compile("(?m)" + s)
	ts.Check(err)
	return re
}

// tail is the readable end of a long text.
func tail(s string) string {
	const most = 2 << 10
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return s
}

// cmdReadvar: readvar VAR FILE.
func cmdReadvar(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "readvar VAR FILE")
	ts.Setenv(args[0], strings.TrimSuffix(ts.ReadFile(args[1]), "\n"))
}

// cmdUse: use NAME.
func cmdUse(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "use NAME")
	ts.Setenv("FLEET_DIR", filepath.Join(worldOf(ts).dir, args[0]))
}

// cmdHost: host NAME...
func cmdHost(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 1, "host NAME...")
	keys := make(map[string]string)
	for _, name := range args {
		init := []string{"fleet", "init", "--host", name}
		if url := ts.Getenv("BROKER"); url != "" {
			// From a file, since it may hold a password.
			file := filepath.Join(worldOf(ts).dir, name+".url")
			ts.Check(os.WriteFile(file, []byte(url+"\n"), 0o600))
			init = append(init, "--broker-file", file)
		} else {
			init = append(init, "--broker", "none")
		}
		in(ts, name, init...)
		in(ts, name, "fleet", "key", "show")
		keys[name] = strings.TrimSpace(ts.ReadFile("stdout"))
	}
	for _, name := range args {
		for _, peer := range args {
			if peer != name {
				in(ts, name, "fleet", "peer", "add", peer, keys[peer])
			}
		}
	}
}

// in runs a command on a host, which must succeed.
func in(ts *testscript.TestScript, host string, command ...string) {
	dir := filepath.Join(worldOf(ts).dir, host)
	if err := ts.Exec("env", append([]string{"FLEET_DIR=" + dir}, command...)...); err != nil {
		ts.Fatalf("%s on %s: %v", strings.Join(command, " "), host, err)
	}
}

// cmdProfile: profile HOST NAME COMMAND...
func cmdProfile(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 3, "profile HOST NAME COMMAND...")
	quoted := make([]string, 0, len(args))
	for _, a := range args[2:] {
		quoted = append(quoted, strconv.Quote(a)) // valid YAML too
	}
	profile := fmt.Sprintf("  %s:\n    command: [%s]\n    evidence: none\n", args[1], strings.Join(quoted, ", "))
	file := filepath.Join(worldOf(ts).dir, args[0], "fleet.yaml")
	const key = "\nprofiles:\n"
	before, after, ok := strings.Cut(ts.ReadFile(file), key)
	if !ok {
		before, after = before+after, ""
	}
	ts.Check(os.WriteFile(file, []byte(before+key+profile+after), 0o600))
}
