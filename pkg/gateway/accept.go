package gateway

import (
	"context"
	"strings"
	"sync"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/localapi"
	"fleet/pkg/mailbox"
	"fleet/pkg/trace"
)

// sends are the sends of this host whose outcome is awaited.
type sends struct {
	g  *Gateway
	mu sync.Mutex // guards active
	// active holds a send from its acceptance until its first result is known and
	// nobody watches it any more.
	active map[string]*sending
}

// accept is where every message of a local caller enters the fleet. A send whose
// id the caller chose is recorded when it returns, so that a retry finds it, also
// after a kill; one whose id is minted here is recorded soon after (startNew).
func (g *Gateway) accept(ctx context.Context, from localapi.Caller, r api.SendRequest) (*sending, error) {
	if len(r.Text) > g.cfg.Limits.TextBytes {
		return nil, fault.New(fault.Usage, "the text has %d bytes, more than the %d that a message may have", len(r.Text), g.cfg.Limits.TextBytes).
			WithHint("limits.text_bytes in fleet.yaml sets the limit; a file's path may be better sent than its content")
	}
	to, err := g.recipient(from, r)
	if err != nil {
		return nil, g.unresolved(r.To, err)
	}
	if to.GID == from.GID {
		return nil, fault.New(fault.Refused, "%s is the sender itself", r.To).
			WithHint("a message to oneself would never be answered")
	}
	if me := g.agents.get(from.GID); r.Wait && me != nil && me.mailboxFull(ctx) {
		return nil, fault.New(fault.Full, "the own mailbox is full, so an answer would have no place").
			WithHint("`fleet inbox` takes what waits there")
	}
	s, err := g.newSending(from, to, r)
	if err != nil {
		return nil, err
	}
	if r.ID == "" {
		return g.sends.startNew(s)
	}
	return g.sends.start(s)
}

// recipient is the agent that a send is for. What was sent before goes on also
// where the roster does not know its recipient: yet, after a restart, or any
// more, so that its outcome can still be had.
func (g *Gateway) recipient(from localapi.Caller, r api.SendRequest) (api.Agent, error) {
	to, err := g.who.resolve(r.To)
	if err == nil || r.ID == "" {
		return to, err
	}
	row, ok, readErr := g.sentRow(from.GID, sendID(from.GID, r.ID))
	if readErr != nil || !ok || r.To != row.ToName && r.To != row.ToName+"@"+string(row.ToHost) && r.To != string(row.To) {
		return to, err
	}
	return api.Agent{GID: row.To, Name: row.ToName, Host: row.ToHost}, nil
}

// unresolved explains why an address fits nobody. Without a link, an agent of
// another host can't be said to be missing (R13).
func (g *Gateway) unresolved(address string, err error) error {
	_, host, remote := strings.Cut(address, "@")
	if !remote || host == string(g.cfg.Host) || g.bus == nil || fault.From(err).Kind != fault.NotFound {
		return err
	}
	if s := g.bus.State(); s.Link == bus.Down || s.Link == bus.Held {
		return s.Err
	}
	return err
}

// newSending builds the message.
func (g *Gateway) newSending(from localapi.Caller, to api.Agent, r api.SendRequest) (*sending, error) {
	body, err := envelope.Encode(envelope.Text{Text: r.Text})
	if err != nil {
		return nil, err
	}
	id := sendID(from.GID, r.ID)
	if id == "" {
		id = g.mintID(from.GID, to.GID, to.Host)
	}
	e := envelope.Envelope{Kind: envelope.Send, ID: id, Trace: envelope.NewTrace(), From: from.GID,
		FromHost: g.cfg.Host, To: string(to.GID), TS: envelope.At(g.now()), Body: body}
	if r.ExpiresSeconds > 0 {
		e.Exp = envelope.At(g.now().Add(time.Duration(r.ExpiresSeconds * float64(time.Second))))
	}
	s := &sending{g: g, from: e.From, key: sendKey(e.From, e.ID), queue: newQueue[func()](), gone: make(chan struct{}),
		recorded: make(chan struct{}), env: e}
	if r.Wait {
		s.waiters = 1 // before it runs, so that an outcome that is there already finds the waiter
	}
	s.row = sendRow{ID: e.ID, From: e.From, To: to.GID, ToHost: to.Host, ToName: to.Name, Trace: e.Trace,
		Digest: e.Digest(), Created: g.now(), Exp: e.Exp.Time}
	return s, nil
}

// sendID is the id of a message whose sender asked for word: a UUID as it is,
// any other word as what derives from sender and word; empty without a word.
func sendID(from identity.GID, word string) envelope.ID {
	if word == "" {
		return ""
	}
	if id, ok := envelope.ParseID(word); ok {
		return id
	}
	return envelope.DeriveID(string(from), "send "+word)
}

// startNew begins a send whose id has just been minted, so that it can't have
// been sent before. Its record goes to the disk with the next commit, and nobody
// waits for that: should the gateway be killed before, the id itself proves whom
// the message was for (mintID), and a retry of it learns from the recipient's side
// what this one would have known.
func (x *sends) startNew(s *sending) (*sending, error) {
	var err error
	if s.env, s.sealed, err = envelope.Seal(s.env, x.g.signer, x.g.cfg.Limits); err != nil {
		return nil, err
	}
	s.watchers = 1
	close(s.recorded)
	key, row := s.key, s.row
	x.mu.Lock()
	x.active[key] = s
	x.mu.Unlock()
	x.g.store.Later(func(tx *mailbox.Tx) error { return mailbox.Set(tx, sendsTable, key, row) }, func(err error) {
		if err != nil {
			x.g.log.Error("can't record a send", "id", row.ID, "trace", row.Trace, "err", err)
		}
	})
	x.g.audit.Write(trace.Of(trace.Accepted, s.env))
	s.emit(api.Event{Step: api.StepAccepted})
	return s, nil
}

// start records the send and begins it, or joins the one that has its id. It waits
// for the disk, and not only for as long as the caller does: others may have joined.
func (x *sends) start(s *sending) (*sending, error) {
	for {
		x.mu.Lock()
		other := x.active[s.key]
		if other == nil {
			x.active[s.key] = s
			s.watchers++ // until the caller watches, so that it does not end before
			x.mu.Unlock()
			if err := x.begin(s); err != nil {
				return nil, err
			}
			return s, nil
		}
		joined := other.join(s.waiters > 0)
		x.mu.Unlock()
		if !joined { // it is ending this very moment
			<-other.gone
			continue
		}
		<-other.recorded
		if other.failed {
			continue // whatever was wrong with it may not be wrong with this one
		}
		if other.row.Digest != s.row.Digest {
			other.leave(s.waiters > 0)
			return nil, x.conflict(s.row.ID)
		}
		if s.waiters > 0 {
			other.queue.put(other.catchUp)
		}
		return other, nil
	}
}

// begin records a send that can be found already, and runs it.
func (x *sends) begin(s *sending) error {
	known, err := x.record(s)
	if err != nil {
		x.drop(s)
		s.failed = true
		close(s.recorded)
		close(s.gone)
		return err
	}
	close(s.recorded)
	if !known {
		x.g.audit.Write(trace.Of(trace.Accepted, s.env))
	}
	s.emit(api.Event{Step: api.StepAccepted})
	return nil
}

func (x *sends) conflict(id envelope.ID) error {
	return fault.New(fault.Conflict, "message %s was sent before with another text or to another agent", id).
		WithHint("an id stands for one message: use another id, or send the same text again")
}

// record writes the send's row, or takes over the row that is there.
func (x *sends) record(s *sending) (known bool, err error) {
	var row sendRow
	err = x.g.store.Write(x.g.ctx, func(tx *mailbox.Tx) (err error) {
		if row, known, err = mailbox.Get[sendRow](tx, sendsTable, s.key); err != nil {
			return err
		}
		if !known {
			row = s.row
			if row.Outcome, err = findOutcome(tx, row); err != nil {
				return err
			}
			return mailbox.Set(tx, sendsTable, s.key, row)
		}
		if row.Digest != s.row.Digest {
			return x.conflict(row.ID)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	s.row = row
	s.env.Trace = s.row.Trace
	s.env.Exp = envelope.At(s.row.Exp)
	if s.row.Exp.IsZero() {
		s.env.Exp = envelope.Time{}
	}
	s.env, s.sealed, err = envelope.Seal(s.env, x.g.signer, x.g.cfg.Limits)
	return known, err
}

// findOutcome looks whether the outcome of a send without a record is there
// already: a gateway was killed between the two.
func findOutcome(tx *mailbox.Tx, row sendRow) (*outcomeNote, error) {
	heads, err := tx.Heads(row.From, 0, 1<<30)
	if err != nil {
		return nil, err
	}
	for _, m := range heads {
		if m.Re == row.ID && m.Kind.Terminal() && m.From == row.To {
			return &outcomeNote{Seq: m.Seq, Kind: m.Kind}, nil
		}
	}
	return nil, nil
}

func (x *sends) drop(s *sending) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.active[s.key] == s {
		delete(x.active, s.key)
	}
}

func (x *sends) find(from identity.GID, id envelope.ID) *sending {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.active[sendKey(from, id)]
}

// receipt takes what a recipient's gateway, or an agent of this host, says of a
// message.
func (x *sends) receipt(from identity.GID, id envelope.ID, kind envelope.Kind, r envelope.Receipt) {
	if s := x.find(from, id); s != nil {
		s.queue.put(func() { s.heard(kind, r) })
	}
}

// filled ends the waits of a sender whose own mailbox has become full: an answer
// would have no place (R11).
func (x *sends) filled(from identity.GID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.active {
		if s.from == from {
			s.queue.put(func() {
				if s.isAwaited() {
					s.fail(fault.New(fault.Full, "the own mailbox has filled up, so an answer would have no place").
						WithHint("`fleet inbox` takes what waits there; fleet send --id %s --wait, with the same agent and text, goes on with this message", s.row.ID))
				}
			})
		}
	}
}

// mailboxFull asks the agent.
func (a *agent) mailboxFull(ctx context.Context) bool {
	full := false
	if err := a.ask(ctx, func() { full = a.full() }); err != nil {
		return false
	}
	return full
}
