//go:build linux

package pty

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleet/pkg/fault"
	"fleet/pkg/pane"
)

var sizes = []int{1, 1023, 1024, 1025, 4096, 8192, 16384, 65537, 1 << 20}

func TestR36_ByteExactBracketed(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	if term, err := p.Terminal(ctxT(t)); err != nil || !term.BracketedPaste || term.Canonical {
		t.Fatalf("%+v, %v", term, err)
	}
	for _, n := range sizes {
		text := pattern(n, 80)
		w, err := p.Write(ctxT(t), pane.Write{ID: fmt.Sprint("n", n), Text: []byte(text), Submit: []byte("\r"), Settle: 20 * time.Millisecond})
		if err != nil || w != pane.Done {
			t.Fatalf("%d bytes: %s, %v", n, w, err)
		}
		var got heard
		words.next(&got)
		if got.Bytes != n || got.Sum != sum([]byte(text)) || !got.Framed {
			t.Errorf("%d bytes: heard %+v", n, got)
		}
	}
}

func TestR36_ByteExactCanonical(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := program(t, b, "line-reader", words.path)
	words.ready()
	term, err := p.Terminal(ctxT(t))
	if err != nil || term.BracketedPaste || !term.Canonical || term.LineBytes != lineBytes {
		t.Fatalf("%+v, %v", term, err)
	}
	texts := []string{strings.Repeat("y", term.LineBytes), strings.Repeat("é", term.LineBytes/2) + "\nx"}
	for _, n := range sizes {
		texts = append(texts, pattern(n, 80), pattern(n, 3000))
	}
	for i, text := range texts {
		writeT(t, p, fmt.Sprint("n", i), text+"\n.")
		var got heard
		words.next(&got)
		if got.Bytes != len(text) || got.Sum != sum([]byte(text)) {
			t.Errorf("%d bytes: heard %+v", len(text), got)
		}
	}
	// LineBytes is the truth: one byte more is lost.
	writeT(t, p, "long", strings.Repeat("z", term.LineBytes+1)+"\n.")
	var got heard
	if words.next(&got); got.Bytes != term.LineBytes {
		t.Errorf("a line of %d bytes came with %d", term.LineBytes+1, got.Bytes)
	}
}

func TestR36_UnframedWhereTheProgramDidNotAsk(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	for _, args := range [][]string{{"raw-reader", words.path}, {"raw-reader", words.path, "l"}} {
		p := program(t, b, args...)
		words.ready()
		writeT(t, p, "a", "x\ny")
		var got heard
		if words.next(&got); got.Framed || got.Bytes != 3 {
			t.Errorf("%v heard %+v", args, got)
		}
	}
}

func TestR36_ControlsAreRefused(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	for i, text := range []string{"a\x1b[201~b", "\x00", "a\rb", "\x7f", "\u009b201~", "\u0080", "\xff", "\xc3", "a\x03"} {
		w, err := p.Write(ctxT(t), pane.Write{ID: fmt.Sprint(i), Text: []byte(text), Submit: []byte("\r")})
		if w != pane.Absent || !errors.Is(err, fault.Usage) {
			t.Errorf("%q: %s, %v", text, w, err)
		}
	}
	for _, id := range []string{"", "a b", "a\nd", "é", strings.Repeat("x", maxID+1)} {
		if w, err := p.Write(ctxT(t), pane.Write{ID: id, Text: []byte("x")}); w != pane.Absent || !errors.Is(err, fault.Usage) {
			t.Errorf("id %q: %s, %v", id, w, err)
		}
	}
	if w, err := p.Write(ctxT(t), pane.Write{ID: "big", Text: []byte(strings.Repeat("x", maxText+1))}); w != pane.Absent || !errors.Is(err, fault.Usage) {
		t.Errorf("big: %s, %v", w, err)
	}
	words.silent()
	text := "\tü\ufffd😀 \u202e kept: inject decides on these"
	writeT(t, p, "fine", text)
	var got heard
	if words.next(&got); got.Sum != sum([]byte(text)) {
		t.Errorf("heard %+v", got)
	}
}

func TestR36_OneIDIsTypedOnce(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	if w := lookupT(t, p, "x"); w != pane.Absent {
		t.Errorf("before: %s", w)
	}
	// The terminal is busy, so that the others have to wait for their turn.
	busy := make(chan error, 1)
	go func() {
		_, err := p.Write(ctxT(t), pane.Write{ID: "busy", Text: []byte("busy"), Submit: []byte("\r"), Settle: time.Second})
		busy <- err
	}()
	for lookupT(t, p, "busy") == pane.Absent {
		time.Sleep(time.Millisecond)
	}
	// Two gateways, several workers each, one id.
	others, err := backendIn(t, b.dir).List(ctxT(t))
	if err != nil || len(others) != 1 {
		t.Fatalf("%v, %v", others, err)
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			q := []pane.Pane{p, others[0]}[i%2]
			w, err := q.Write(ctxT(t), pane.Write{ID: "x", Text: []byte("once"), Submit: []byte("\r"), Settle: 30 * time.Millisecond})
			if err != nil || w != pane.Done {
				t.Errorf("%s, %v", w, err)
			}
		})
	}
	wg.Wait()
	writeT(t, p, "x", "other text, same id")
	writeT(t, p, "y", "next")
	var got heard
	if err := <-busy; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"busy", "once", "next"} {
		if words.next(&got); got.Head != want {
			t.Errorf("heard %+v, want %s", got, want)
		}
	}
	words.silent()
	if w := lookupT(t, others[0], "x"); w != pane.Done {
		t.Errorf("after: %s", w)
	}
}

func TestR36_HundredInOrder(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	for i := range 100 {
		writeT(t, p, fmt.Sprint("n", i), fmt.Sprintf("message %d\nand more", i))
	}
	for i := range 100 {
		var got heard
		if words.next(&got); got.Head != fmt.Sprintf("message %d\nand more", i) {
			t.Fatalf("%d: heard %+v", i, got)
		}
	}
	words.silent()
}

func TestR36_WritersDoNotInterleave(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	sums := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 10 {
		text := strings.Repeat(fmt.Sprintf("writer %d ", i), 2000)
		sums[sum([]byte(text))] = true
		wg.Go(func() {
			w, err := p.Write(ctxT(t), pane.Write{ID: fmt.Sprint(i), Text: []byte(text), Submit: []byte("\r"), Settle: time.Millisecond})
			if err != nil || w != pane.Done {
				t.Errorf("%s, %v", w, err)
			}
		})
	}
	for range 10 {
		var got heard
		if words.next(&got); !sums[got.Sum] {
			t.Errorf("heard %+v", got)
		}
		delete(sums, got.Sum)
	}
	wg.Wait()
}

func TestR36_ProgramThatDoesNotRead(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBackend(t)
	words, gate := newFIFO(t, "words"), newFIFO(t, "gate")
	p := program(t, b, "deaf", words.path, gate.path)
	words.ready()
	text := pattern(1<<20, 80)
	bounded := func(id, text string) (pane.Written, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		return p.Write(ctx, pane.Write{ID: id, Text: []byte(text), Submit: []byte("\r")})
	}
	if w, err := bounded("big", text); w != pane.Partial || !errors.Is(err, fault.TimedOut) {
		t.Errorf("big: %s, %v", w, err)
	}
	if w := lookupT(t, p, "big"); w != pane.Partial {
		t.Errorf("big is %s", w)
	}
	if w, err := bounded("next", "next"); w != pane.Absent || !errors.Is(err, fault.TimedOut) {
		t.Errorf("next: %s, %v", w, err)
	}
	if w := lookupT(t, p, "next"); w != pane.Absent {
		t.Errorf("next is %s", w)
	}
	if w, err := bounded("big", text); w != pane.Partial || err == nil {
		t.Errorf("big again: %s, %v", w, err)
	}
	if info := infoT(t, p); info.Dead { // everything else still works
		t.Errorf("info %+v", info)
	}
	if _, err := gate.file.WriteString("read now\n"); err != nil {
		t.Fatal(err)
	}
	// The text was begun, so it arrives whole and once, and what waits comes after.
	writeT(t, p, "last", "last")
	var ready string
	words.next(&ready)
	var got heard
	if words.next(&got); got.Sum != sum([]byte(text)) {
		t.Errorf("heard %+v", got)
	}
	if words.next(&got); got.Head != "last" {
		t.Errorf("heard %+v", got)
	}
	if w := lookupT(t, p, "big"); w != pane.Done {
		t.Errorf("big is %s", w)
	}
	words.silent()
}

func TestR36_ProgramEndsInTheMiddle(t *testing.T) {
	b := newBackend(t)
	words, gate := newFIFO(t, "words"), newFIFO(t, "gate")
	p := program(t, b, "deaf", words.path, gate.path)
	words.ready()
	result := make(chan error, 1)
	go func() {
		w, err := p.Write(ctxT(t), pane.Write{ID: "big", Text: []byte(pattern(1<<20, 80))})
		if w != pane.Partial {
			err = fmt.Errorf("%s, %w", w, err)
		}
		result <- err
	}()
	for lookupT(t, p, "big") == pane.Absent {
		time.Sleep(time.Millisecond)
	}
	unix.Kill(infoT(t, p).PID, unix.SIGKILL)
	if err := <-result; !errors.Is(err, fault.AgentFailed) || strings.HasPrefix(err.Error(), string(pane.Absent)) {
		t.Errorf("got %v", err)
	}
	if w := lookupT(t, p, "big"); w != pane.Partial {
		t.Errorf("big is %s", w)
	}
	if exit, err := p.Wait(ctxT(t)); err != nil || exit.Signal != "killed" {
		t.Errorf("%+v, %v", exit, err)
	}
}

func TestR16_HolderKilledInTheMiddle(t *testing.T) {
	b := newBackend(t)
	words, gate := newFIFO(t, "words"), newFIFO(t, "gate")
	p := program(t, b, "deaf", words.path, gate.path)
	words.ready()
	result := make(chan error, 1)
	go func() {
		w, err := p.Write(ctxT(t), pane.Write{ID: "big", Text: []byte(pattern(1<<20, 80))})
		if w != pane.Partial || err == nil {
			err = fmt.Errorf("got %s, %v", w, err)
		} else {
			err = nil
		}
		result <- err
	}()
	for lookupT(t, p, "big") == pane.Absent {
		time.Sleep(time.Millisecond)
	}
	unix.Kill(holderOf(t, p).PID, unix.SIGKILL)
	if err := <-result; err != nil {
		t.Error(err)
	}
	if w := lookupT(t, p, "big"); w != pane.Partial {
		t.Errorf("big is %s", w)
	}
}

func TestR36_SubmitWaitsUntilTheTextIsRead(t *testing.T) {
	b := newBackend(t)
	words, gate := newFIFO(t, "words"), newFIFO(t, "gate")
	p := program(t, b, "deaf", words.path, gate.path)
	words.ready()
	term, err := p.Terminal(ctxT(t))
	if err != nil || term.Canonical {
		t.Fatalf("%+v, %v", term, err)
	}
	done := make(chan pane.Written, 1)
	go func() {
		w, _ := p.Write(ctxT(t), pane.Write{ID: "a", Text: []byte("text"), Submit: []byte("\r"), Settle: time.Millisecond})
		done <- w
	}()
	for lookupT(t, p, "a") == pane.Absent {
		time.Sleep(time.Millisecond)
	}
	select {
	case w := <-done:
		t.Fatalf("submitted (%s) before the text was read", w)
	case <-time.After(300 * time.Millisecond):
	}
	if _, err := gate.file.WriteString("read now\n"); err != nil {
		t.Fatal(err)
	}
	if w := <-done; w != pane.Done {
		t.Errorf("got %s", w)
	}
}

func TestR36_JournalForgetsOnlyOldWrites(t *testing.T) {
	dir := t.TempDir()
	j, err := createJournal(dir + "/g.writes")
	if err != nil {
		t.Fatal(err)
	}
	id := func(i int) string { return fmt.Sprint("write-", i) }
	const n = 5 * keepWrites
	for i := range n {
		_, fresh, err := j.claim(id(i))
		if err != nil || !fresh {
			t.Fatalf("%d: %v, %v", i, fresh, err)
		}
		if _, fresh, _ := j.claim(id(i)); fresh {
			t.Fatalf("%d was claimed twice", i)
		}
		if err := j.end(id(i), i%7 != 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := n - keepWrites; i < n; i++ {
		want := pane.Done
		if i%7 == 0 {
			want = pane.Partial
		}
		if w := j.written(id(i)); w != want {
			t.Fatalf("%d is %s in memory", i, w)
		}
		if i%100 != 0 && i != n-1 {
			continue
		}
		if w, err := lookupJournal(j.path, id(i)); w != want || err != nil {
			t.Fatalf("%d is %s in the file, %v", i, w, err)
		}
	}
	if len(j.known) > 4*keepWrites || len(j.order) != len(j.known) {
		t.Errorf("%d ids are known, %d in order", len(j.known), len(j.order))
	}
	if w, err := lookupJournal(j.path, "write-"); w != pane.Absent || err != nil {
		t.Errorf("a prefix is %s, %v", w, err)
	}
	// A torn line is no claim: the byte that it announces was not typed.
	j.file.WriteString("p torn")
	if w, err := lookupJournal(j.path, "torn"); w != pane.Absent || err != nil {
		t.Errorf("torn is %s, %v", w, err)
	}
}

func TestR36_NoClaimNoByte(t *testing.T) {
	b := newBackend(t)
	words := newFIFO(t, "words")
	p := composer(t, b, words)
	// The holder's files may not grow any more: the claim can't be written.
	limit := unix.Rlimit{Cur: 0, Max: 0}
	if err := unix.Prlimit(holderOf(t, p).PID, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	w, err := p.Write(ctxT(t), pane.Write{ID: "a", Text: []byte("x"), Submit: []byte("\r")})
	if w != pane.Absent || !errors.Is(err, fault.Failed) {
		t.Errorf("%s, %v", w, err)
	}
	words.silent()
}
