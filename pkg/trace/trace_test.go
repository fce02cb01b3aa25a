package trace

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

func open(t *testing.T, path string) *Writer {
	t.Helper()
	w, err := Open(path, "alpha", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// lines decodes every line of the files, each of which must be whole.
func lines(t *testing.T, paths ...string) []Line {
	t.Helper()
	var all []Line
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewScanner(f)
		for in.Scan() {
			var l Line
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				t.Fatalf("%s: %q: %v", path, in.Text(), err)
			}
			all = append(all, l)
		}
		f.Close()
	}
	return all
}

func TestR50_OneWholeLineAStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	w := open(t, path)
	e := envelope.Envelope{Kind: envelope.Send, ID: envelope.NewID(), Trace: envelope.NewTrace(), From: identity.NewGID(),
		FromHost: "alpha", To: "x", Body: json.RawMessage(`{"text":"never here"}`)}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 50 {
				w.Write(Of(Accepted, e))
			}
		})
	}
	all.Wait()
	got := lines(t, path)
	if len(got) != 1000 {
		t.Errorf("%d lines, want 1000", len(got))
	}
	for _, l := range got {
		if l.Trace != e.Trace || l.Host != "alpha" || l.Step != Accepted || l.At.IsZero() {
			t.Fatalf("%+v", l)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "never here") {
		t.Errorf("R47: the text of a message is in the audit log (%v)", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestR50_RotationLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	w := open(t, path)
	for n := range 3 {
		w.Write(Line{Step: Accepted, Detail: strings.Repeat("x", n)})
		w.bytes = rotateBytes + 1
	}
	got := lines(t, path+".2", path+".1", path)
	if len(got) != 3 || got[0].Detail != "" || got[2].Detail != "xx" {
		t.Errorf("%+v", got)
	}
}

// TestR50_FailedRotation: where the old file can't be put aside, lines go on into
// it.
func TestR50_FailedRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	w := open(t, path)
	for _, taken := range []string{".3", ".4"} { // the first rename of a rotation is onto .4
		if err := os.MkdirAll(path+taken+"/occupied", 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.rotate(); err == nil {
		t.Fatal("the rotation did not fail, so this tests nothing")
	}
	w.bytes = rotateBytes + 1
	w.Write(Line{Step: Accepted, Detail: "one"})
	w.Write(Line{Step: Accepted, Detail: "two"})
	if got := lines(t, path); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}
