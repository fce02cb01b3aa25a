package mailbox_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"fleet/pkg/mailbox"
)

// children are the programs that the test binary doubles as.
var children = map[string]func(args []string) error{
	"panic": func(args []string) error {
		return withStore(args[0], func(s *mailbox.Store) error {
			return s.Write(context.Background(), func(*mailbox.Tx) error { panic("planted panic") })
		})
	},
	"goexit": func(args []string) error {
		return withStore(args[0], func(s *mailbox.Store) error {
			return s.Write(context.Background(), func(*mailbox.Tx) error { runtime.Goexit(); return nil })
		})
	},
	"count": func(args []string) error {
		return withStore(args[0], func(s *mailbox.Store) error {
			return s.Read(func(tx *mailbox.Tx) error {
				sum, err := tx.Stats(alice)
				fmt.Println(sum.Count)
				return err
			})
		})
	},
	"work": func(args []string) error { return work(args[0], args[1], args[2]) },
}

func withStore(path string, fn func(*mailbox.Store) error) error {
	s, err := mailbox.Open(path, mailbox.Options{})
	if err != nil {
		return err
	}
	return fn(s)
}

const childMark = "mailbox-test-child"

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
func child(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), self, append([]string{childMark, name}, args...)...)
}
