package pty

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"time"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// maxConns bounds the memory that clients can cost; a gateway needs one for its
// wait and one for each request under way.
const maxConns = 64

// idleBound is how long a client may think between two requests.
const idleBound = time.Minute

// serve takes connections. It ends when the listener is closed.
func (h *holder) serve() {
	room := make(chan struct{}, maxConns)
	for {
		conn, err := h.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: let some end
			time.Sleep(50 * time.Millisecond)
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			conn.SetDeadline(time.Now().Add(time.Second))
			writeLine(conn, answer{Fault: fault.New(fault.Full, "this holder serves %d connections already", maxConns)})
			conn.Close()
			continue
		}
		h.conns.Add(1)
		go func() { // ends when the client leaves or says nothing for idleBound
			defer func() { conn.Close(); <-room; h.rest.Reset(restAfter); h.conns.Done() }()
			h.converse(conn)
		}()
	}
}

// converse answers one client's requests in order.
func (h *holder) converse(conn *net.UnixConn) {
	if uid, err := peerUID(conn); err != nil || uid != os.Geteuid() {
		conn.SetDeadline(time.Now().Add(time.Second))
		writeLine(conn, answer{Fault: fault.New(fault.Refused, "this holder belongs to another user")})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lines := make(chan []byte)
	go func() { // ends when the client leaves, or with converse, which closes conn
		defer cancel()
		h.listenTo(ctx, conn, lines)
	}()
	greeted := false
	for {
		idle := time.NewTimer(idleBound)
		select {
		case line, ok := <-lines:
			idle.Stop()
			if !ok {
				return
			}
			a, keep := h.answer(ctx, line, &greeted)
			conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if err := writeLine(conn, a); err != nil || !keep {
				return
			}
		case <-idle.C:
			return
		}
	}
}

// listenTo reads lines until the client leaves, so that its leaving is seen
// also while a request is under way.
func (h *holder) listenTo(ctx context.Context, conn net.Conn, lines chan<- []byte) {
	defer close(lines)
	r := bufio.NewReader(conn)
	for {
		line, err := readLine(r, maxLine)
		if errors.Is(err, errLine) {
			conn.SetWriteDeadline(time.Now().Add(time.Second))
			writeLine(conn, answer{Fault: fault.New(fault.Usage, "a request has at most %d bytes", maxLine)})
		}
		if err != nil {
			return
		}
		select {
		case lines <- line:
		case <-ctx.Done():
			return
		}
	}
}

// answer carries one request out. keep is false where the connection is to end.
func (h *holder) answer(ctx context.Context, line []byte, greeted *bool) (a answer, keep bool) {
	h.asked.Store(time.Now().Unix())
	r, err := decodeRequest(line)
	if err != nil {
		// Before hello nothing is certain, not even that the client speaks this
		// protocol; afterwards a request of a later version is an error like others.
		return answer{Fault: fault.From(err), Version: protocolVersion}, *greeted && json.Valid(line)
	}
	if r.Op == opHello {
		if r.GID != h.files.gid {
			return answer{Fault: notHere(r.GID), Version: protocolVersion}, false
		}
		*greeted = true
		return answer{Version: protocolVersion}, true
	}
	if !*greeted {
		return answer{Fault: fault.New(fault.Usage, "a connection starts with hello"), Version: protocolVersion}, false
	}
	return h.carryOut(ctx, r), true
}

func (h *holder) carryOut(ctx context.Context, r request) answer {
	switch r.Op {
	case opInfo:
		s := h.snapshot()
		return answer{Info: &wireInfo{GID: s.GID, PID: s.Child.PID, Started: s.Started, Tags: s.Tags, Exit: s.Exit}}
	case opTag:
		return answer{Fault: h.tag(r.Key, r.Value)}
	case opWrite:
		written, f := h.write(ctx, r)
		return answer{Written: written, Fault: f}
	case opLookup:
		return answer{Written: h.journal.written(r.ID)}
	case opTerminal:
		return h.terminal()
	case opOutput:
		return answer{Output: h.output.tail()}
	case opWait:
		return h.wait(ctx)
	case opClose:
		return h.close(ctx)
	}
	return answer{Fault: fault.New(fault.Usage, "hello comes once")}
}

func (h *holder) tag(key, value string) *fault.Fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	size := len(key) + len(value)
	for k, v := range h.state.Tags {
		if k != key {
			size += len(k) + len(v)
		}
	}
	if size > maxTags {
		return fault.New(fault.Full, "the tags of agent %s would have %d bytes, the limit is %d", h.files.gid, size, maxTags)
	}
	before, had := h.state.Tags[key]
	if h.state.Tags == nil {
		h.state.Tags = map[string]string{}
	}
	if value == "" {
		delete(h.state.Tags, key)
	} else {
		h.state.Tags[key] = value
	}
	if err := h.files.save(&h.state); err != nil {
		delete(h.state.Tags, key)
		if had {
			h.state.Tags[key] = before
		}
		return fault.From(err)
	}
	return nil
}

func (h *holder) terminal() answer {
	t := wireTerminal{BracketedPaste: h.output.bracketed(), QuietMS: h.output.quiet().Milliseconds()}
	var err error
	if t.Canonical, err = canonical(h.raw); err != nil {
		return answer{Fault: fault.From(err)}
	}
	if t.Canonical {
		t.LineBytes = lineBytes
	}
	return answer{Terminal: &t}
}

func (h *holder) wait(ctx context.Context) answer {
	select {
	case <-h.gone:
		return answer{Exit: h.snapshot().Exit}
	case <-ctx.Done():
		return answer{Fault: fault.New(fault.Interrupted, "the client left")}
	}
}

// close asks for the end and answers when the program is gone. The process ends
// soon after; the client waits for that by itself.
func (h *holder) close(ctx context.Context) answer {
	h.ended.Do(func() { close(h.end) })
	return h.wait(ctx)
}

func notHere(gid identity.GID) *fault.Fault {
	return fault.New(fault.NotFound, "the agent %s has no pane here", gid)
}
