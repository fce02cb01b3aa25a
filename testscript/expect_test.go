package testscript_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// expectMain is the program `expect N COMMAND...`: it runs COMMAND with its own
// streams, hands signals on, and exits 0 if COMMAND's exit status is N.
func expectMain() int {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: expect N COMMAND...")
		return 2
	}
	want, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "expect: %s is not an exit status\n", os.Args[1])
		return 2
	}
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "expect: %v\n", err)
		return 2
	}
	go func() { // ends with the process
		for s := range caught {
			_ = cmd.Process.Signal(s) // it may have ended just now
		}
	}()
	got := exitStatus(cmd.Wait())
	if got != want {
		fmt.Fprintf(os.Stderr, "expect: exit status %d, not %d: %v\n", got, want, cmd.Args)
		return 1
	}
	return 0
}

// exitStatus is a shell's view of how a command ended: 128 and the signal's
// number for one that a signal ended; -1 for one that never ran.
func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return -1
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return exit.ExitCode()
}
