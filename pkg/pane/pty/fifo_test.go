package pty

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"fleet/pkg/identity"
)

// TestR61_PipeForAStateFile: what lies in the panes' folder may be anything; a
// pipe that nobody writes to must not hold up a gateway's start.
func TestR61_PipeForAStateFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "p")
	b, err := New(dir, []string{"/bin/false"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, string(identity.NewGID())+".json"), 0o600); err != nil {
		t.Fatal(err)
	}
	panes, err := b.List(t.Context())
	if err != nil || len(panes) != 1 {
		t.Fatalf("%d panes, %v", len(panes), err)
	}
	if info, err := panes[0].Info(t.Context()); err == nil {
		t.Errorf("a pipe is a pane: %+v", info)
	}
}
