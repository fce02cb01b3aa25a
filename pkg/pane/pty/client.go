package pty

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// quickBound is how long a holder may take for what needs no program: it is
// stopped or the machine is in trouble where that is not enough.
const quickBound = 5 * time.Second

// failure is a call without an answer. sent says whether the whole request left
// for the holder, which may then have carried it out, or may yet.
type failure struct {
	err  error
	sent bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// call sends one request on a connection of its own and returns the answer. It
// blocks until the answer is there or ctx ends; a missing answer is a *failure.
// The answer's own fault is not an error here.
func call(ctx context.Context, f files, r request) (answer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", f.socket())
	if err != nil {
		return answer{}, &failure{err: reason(ctx, fmt.Errorf("reach holder: %w", err))}
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	// Both lines go at once: hello's answer is read before the request's, and a
	// holder that refuses hello does not look at what follows.
	var lines bytes.Buffer
	err = writeLine(&lines, request{Op: opHello, Version: protocolVersion, GID: f.gid})
	if err == nil {
		err = writeLine(&lines, r)
	}
	if err != nil {
		return answer{}, &failure{err: err}
	}
	if _, err := conn.Write(lines.Bytes()); err != nil {
		return answer{}, &failure{err: reason(ctx, fmt.Errorf("ask holder: %w", err))}
	}
	in := bufio.NewReader(conn)
	hello, err := readAnswer(in)
	if err == nil && hello.Fault != nil {
		return answer{}, &failure{err: hello.Fault}
	}
	var a answer
	if err == nil {
		a, err = readAnswer(in)
	}
	if err != nil {
		return answer{}, &failure{err: reason(ctx, fmt.Errorf("hear holder: %w", err)), sent: true}
	}
	return a, nil
}

// quick is call with a bound of its own, for what a holder answers at once.
func quick(ctx context.Context, f files, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, quickBound)
	defer cancel()
	return call(ctx, f, r)
}

func readAnswer(in *bufio.Reader) (answer, error) {
	line, err := readLine(in, maxAnswer)
	if err != nil {
		return answer{}, err
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, errors.New("the holder's answer is not of the pty protocol")
	}
	return a, nil
}

// reason prefers why ctx ended over the deadline error that this caused.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
