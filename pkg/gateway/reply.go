package gateway

import (
	"context"
	"strings"
	"time"

	"fleet/pkg/api"
	"fleet/pkg/bus"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/localapi"
)

// sentBound is how long `reply` waits for the broker before it says "stored". The
// reply is safe by then; waiting only makes the word better.
const sentBound = 2 * time.Second

// Reply ends the caller's turn with its answer.
func (g *Gateway) Reply(ctx context.Context, from localapi.Caller, r api.ReplyRequest) (api.ReplyResult, error) {
	a := g.agents.get(from.GID)
	if a == nil {
		return api.ReplyResult{}, fault.New(fault.NotFound, "agent %s is not registered", from.GID)
	}
	if len(r.Text) > g.cfg.Limits.TextBytes {
		return api.ReplyResult{}, fault.New(fault.Usage, "the text has %d bytes, more than the %d that a message may have",
			len(r.Text), g.cfg.Limits.TextBytes)
	}
	message, err := a.messageOf(ctx, r.ID)
	if err != nil {
		return api.ReplyResult{}, err
	}
	done := make(chan replied, 1)
	a.post(func() { a.reply(message, r.Text, func(r replied) { done <- r }) })
	select {
	case ans := <-done:
		if ans.err == nil && ans.sent != nil && g.awaitSent(ctx, ans.sent) {
			ans.result.State = "sent"
		}
		return ans.result, ans.err
	case <-a.ended:
		return api.ReplyResult{}, errStopping(a)
	case <-ctx.Done():
		return api.ReplyResult{}, ctx.Err()
	}
}

// messageOf reads the id that a reply names: whole, or a prefix that fits one
// open turn.
func (a *agent) messageOf(ctx context.Context, word string) (envelope.ID, error) {
	if word == "" {
		return "", nil
	}
	if id, ok := envelope.ParseID(word); ok {
		return id, nil
	}
	var fits []envelope.ID
	if err := a.ask(ctx, func() {
		for _, t := range a.turns.All() {
			if strings.HasPrefix(string(t.Message), strings.ToLower(word)) {
				fits = append(fits, t.Message)
			}
		}
	}); err != nil {
		return "", err
	}
	switch len(fits) {
	case 1:
		return fits[0], nil
	case 0:
		return "", fault.New(fault.Stale, "no open turn has a message %q", word).
			WithHint("the header line names the message; it may have been answered already")
	default:
		return "", fault.New(fault.Ambiguous, "%d open turns have messages that start with %q", len(fits), word)
	}
}

// replied is what became of a reply. sent, where it is not nil, is closed once
// the broker has it.
type replied struct {
	result api.ReplyResult
	sent   <-chan struct{}
	err    error
}

// awaitSent waits a moment for the outbox to hand a reply over.
func (g *Gateway) awaitSent(ctx context.Context, sent <-chan struct{}) bool {
	if g.bus == nil || g.bus.State().Link != bus.Up {
		return false
	}
	timer := time.NewTimer(sentBound)
	defer timer.Stop()
	select {
	case <-sent:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
