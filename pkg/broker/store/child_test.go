package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"fleet/pkg/broker/store"
)

// children are the programs that the test binary doubles as.
var children = map[string]func(args []string) error{
	"script":  scriptChild,
	"hold":    holdChild,
	"fail":    failChild,
	"million": millionChild,
	"count":   countChild,
}

const childMark = "store-test-child"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == childMark {
		if err := children[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is the command that runs one of the children.
func child(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), self, append([]string{childMark, name}, args...)...)
}

// scriptChild carries out so many steps of a script, and says after each fsync
// how many are durable.
func scriptChild(args []string) error {
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	steps, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	a, _, err := act(small(args[0]), seed, func(n int) { fmt.Printf("%d\n", n) })
	if err != nil {
		return err
	}
	fmt.Println("open")
	for range steps {
		if _, err := a.step(); err != nil {
			return err
		}
	}
	return a.s.Close()
}

// holdChild opens a store, says so, and holds it until its input ends.
func holdChild(args []string) error {
	s, _, err := store.Open(store.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	fmt.Println("open")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return s.Close()
}

// failChild appends messages one after another until the store fails, and says
// how many were durable.
func failChild(args []string) error {
	failed := make(chan error, 2)
	o := store.Options{Dir: args[0], SegmentBytes: 32 << 10, Failed: func(err error) { failed <- err }}
	s, r, err := store.Open(o)
	if err != nil {
		return err
	}
	n := r.LastSeq
	for ; n < 1000; n++ {
		s.Append(n+1, content(n+1), []store.Place{{Queue: 1, Durable: true}}, true)
		if err = s.Sync(context.Background()); err != nil {
			break
		}
	}
	if err == nil {
		return errors.New("it has not failed")
	}
	ref, at := s.Append(n+2, content(n+2), []store.Place{{Queue: 1, Durable: true}}, true)
	fmt.Println(n, ref == store.Ref{}, at > s.Appended(), errors.Is(<-failed, s.Close()), len(failed))
	return nil
}
