package testscript_test

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

func init() { commands["stranger"] = cmdStranger }

// nobody is the user that owns nothing.
const nobody = 65534

// cmdStranger: stranger N REGEX COMMAND... runs as another user of the machine; the
// exit status must be N and stderr must match. COMMAND's program and the
// directories above it must be open to everybody. Only root can do that; for
// others it does nothing.
func cmdStranger(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 3, "stranger N REGEX COMMAND...")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	re := compile(ts, args[1])
	if os.Getuid() != 0 {
		ts.Logf("not root, so nothing was tried")
		return
	}
	var out, errs bytes.Buffer
	cmd := exec.Command(args[2], args[3:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &out, &errs
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "FLEET_DIR=" + ts.Getenv("FLEET_DIR")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if got := exitStatus(cmd.Run()); got != want || !re.Match(errs.Bytes()) || out.Len() > 0 {
		ts.Fatalf("exit status %d, not %d, or stderr does not match %s:\n%s%s", got, want, args[1], out.Bytes(), errs.Bytes())
	}
}
