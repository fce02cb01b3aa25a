package demo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// header is the line that comes before a brief: its id, its sender, how many lines
// follow. The README shows one.
var header = regexp.MustCompile(`^\[fleet (\S+) from (\S+), (\d+) lines?\b.*\]$`)

// Work is the scripted worker: it reads briefs from in, its terminal, works on
// each for a while, which can be seen on out, and answers by `fleet reply`. It
// stands in for an agent, and knows no more of fleet than one does. It returns when
// in or ctx ends, and fails where a reply fails.
func Work(ctx context.Context, program string, work time.Duration, in io.Reader, out io.Writer) error {
	lines := make(chan string)
	go func() { // ends with the process: nothing interrupts a read from a terminal
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- strings.TrimRight(s.Text(), "\r")
		}
	}()
	say(out, "waiting for a brief\n")
	for {
		line, more := next(ctx, lines)
		if !more {
			return ctx.Err()
		}
		m := header.FindStringSubmatch(line)
		if m == nil {
			continue // the echo of nothing, or somebody's typing
		}
		n, _ := strconv.Atoi(m[3]) // digits; too many: 0
		brief := make([]string, 0, min(n, mostBrief))
		for len(brief) < n && more {
			if line, more = next(ctx, lines); more {
				brief = append(brief, line)
			}
		}
		if err := pretend(ctx, work, out); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, program, "reply", m[1], answer(m[2], brief))
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("reply: %w: %s", err, text)
		}
		say(out, " answered\n")
	}
}

// answer is what the worker has to say: what it read, and what it made of it.
func answer(from string, brief []string) string {
	text := strings.Join(brief, "\n")
	return fmt.Sprintf("the worker has read %q from %s: %d bytes, %d words", text, from, len(text), len(strings.Fields(text)))
}

// next is the next line, unless in or ctx ends.
func next(ctx context.Context, lines <-chan string) (string, bool) {
	select {
	case line, more := <-lines:
		return line, more
	case <-ctx.Done():
		return "", false
	}
}

// pretend is work that one can watch.
func pretend(ctx context.Context, work time.Duration, out io.Writer) error {
	const look = 250 * time.Millisecond
	say(out, "working ")
	end := time.NewTimer(work)
	defer end.Stop()
	dot := time.NewTicker(look)
	defer dot.Stop()
	for {
		select {
		case <-dot.C:
			say(out, ".")
		case <-end.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// say writes to the worker's terminal, which may hang up any time.
func say(out io.Writer, text string) { _, _ = io.WriteString(out, text) }
