package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/mailbox"
	"fleet/pkg/trace"
)

// outbox hands over what this host owes to others until they have it: terminal
// outcomes, and copies for the dead letters. Its rows are in the mailbox file, so
// what is owed survives a kill. One goroutine owns it (run).
type outbox struct {
	g  *Gateway
	in *queue[func()]

	// ---- owned by run
	ctx   context.Context
	lanes map[string]*outLane
	owed  atomic.Int64 // also read from outside
}

// outLane is a line of rows that go one after the other: the outcomes of one
// agent for one other, which must arrive in order (R8).
type outLane struct {
	rows  []outRow
	busy  bool
	pause time.Duration // the back-off after the last failure; 0: none
}

type outRow struct {
	table mailbox.Table
	key   string
	sent  chan struct{} // closed once it is handed over
}

// outcomeLane orders the outcomes of one agent for one other.
func outcomeLane(from, to identity.GID) string { return string(from) + ">" + string(to) }

func newOutbox(g *Gateway) *outbox {
	return &outbox{g: g, in: newQueue[func()](), lanes: map[string]*outLane{}}
}

// add takes over a row that has just been written, and returns what is closed
// once it is handed over.
func (o *outbox) add(table mailbox.Table, key, lane string) <-chan struct{} {
	sent := make(chan struct{})
	o.in.put(func() {
		l := o.lanes[lane]
		if l == nil {
			l = &outLane{}
			o.lanes[lane] = l
		}
		l.rows = append(l.rows, outRow{table, key, sent})
		o.owed.Add(1)
		o.try(lane)
	})
	return sent
}

// load finds the rows that an earlier gateway left.
func (o *outbox) load() error {
	return o.g.store.Read(func(tx *mailbox.Tx) error {
		if err := mailbox.Each(tx, outcomesTable, "", func(key string, r outcomeRow) error {
			o.add(outcomesTable, key, outcomeLane(r.From, r.To))
			return nil
		}); err != nil {
			return err
		}
		return mailbox.Each(tx, deadTable, "", func(key string, _ deadRow) error {
			o.add(deadTable, key, key)
			return nil
		})
	})
}

// run works until ctx ends.
func (o *outbox) run(ctx context.Context) {
	o.ctx = ctx
	if o.g.bus != nil {
		go o.followLink(ctx)
	}
	for ctx.Err() == nil {
		for _, f := range o.in.take(ctx) {
			f()
		}
	}
}

// followLink tries everything again as soon as the broker is back. It ends with
// ctx.
func (o *outbox) followLink(ctx context.Context) {
	for ctx.Err() == nil {
		changed := o.g.bus.Changed()
		if o.g.bus.State().Link == linkUp {
			o.in.put(func() {
				for name := range o.lanes {
					o.try(name)
				}
			})
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// try starts on the first row of a lane, unless one is under way.
func (o *outbox) try(name string) {
	l := o.lanes[name]
	if l == nil || l.busy {
		return
	}
	if len(l.rows) == 0 {
		delete(o.lanes, name)
		return
	}
	l.busy = true
	r := l.rows[0]
	go func() { // ends with the hand-over or ctx
		err := o.handOver(o.ctx, r)
		o.in.put(func() { o.settle(name, l, r, err) })
	}()
}

// settle goes on to the next row, or plans the next try.
func (o *outbox) settle(name string, l *outLane, r outRow, err error) {
	l.busy = false
	if err == nil {
		close(r.sent)
		l.rows, l.pause = l.rows[1:], 0
		o.owed.Add(-1)
		o.try(name)
		return
	}
	o.g.log.Debug("what is owed stays stored", "table", string(r.table), "key", r.key, "why", err)
	l.pause = min(max(2*l.pause, 250*time.Millisecond), 15*time.Second)
	time.AfterFunc(l.pause, func() { o.in.put(func() { o.try(name) }) })
}

// handOver delivers one row and forgets it. An error leaves the row.
func (o *outbox) handOver(ctx context.Context, r outRow) error {
	var line trace.Line
	var err error
	if r.table == deadTable {
		line, err = o.giveDead(ctx, r.key)
	} else {
		line, err = o.giveOutcome(ctx, r.key)
	}
	if err != nil {
		return err
	}
	if line.Step != "" {
		o.g.audit.Write(line)
	}
	// A crash before this is on disk hands it over again, under the same id.
	o.g.store.Later(func(tx *mailbox.Tx) error { return mailbox.Delete(tx, r.table, r.key) }, func(err error) {
		if err != nil {
			o.g.log.Error("can't forget what was handed over", "table", string(r.table), "key", r.key, "err", err)
		}
	})
	return nil
}

func (o *outbox) giveDead(ctx context.Context, key string) (trace.Line, error) {
	row, ok, err := readRow[deadRow](o.g, deadTable, key)
	if err != nil || !ok {
		return trace.Line{}, err
	}
	line := trace.Line{Step: trace.Refused, Reason: string(row.Reason), Detail: "a copy is with the dead letters"}
	if e, err := stored(row.Sealed); err == nil {
		reason, detail := line.Reason, line.Detail
		line = trace.Of(trace.Refused, e)
		line.Reason, line.Detail = reason, detail
	}
	return line, o.g.bury(ctx, row)
}

// giveOutcome hands an outcome to an agent of this host, to the broker, or, when
// its recipient is gone, to the dead letters.
func (o *outbox) giveOutcome(ctx context.Context, key string) (trace.Line, error) {
	g := o.g
	row, ok, err := readRow[outcomeRow](g, outcomesTable, key)
	if err != nil || !ok {
		return trace.Line{}, err
	}
	e, err := stored(row.Sealed)
	if err != nil {
		return trace.Line{}, err
	}
	gone := g.now().Sub(row.Stored) > g.layout.Limits.InboxTTL
	if row.ToHost == g.cfg.Host {
		target := g.agents.get(row.To)
		if target != nil && !gone {
			return trace.Line{}, target.handIn(ctx, e, row.Sealed)
		}
		gone = true
	}
	if !gone {
		return trace.Of(trace.Published, e), g.publish(ctx, e, row.Sealed)
	}
	line := trace.Of(trace.Refused, e)
	line.Reason, line.Detail = string(envelope.ReasonUndeliverable), "its recipient is gone"
	if g.bus == nil {
		g.log.Warn("an outcome has no recipient any more, and no broker keeps it", "id", e.ID, "trace", e.Trace)
		return line, nil
	}
	return line, g.bury(ctx, deadRow{Sealed: row.Sealed, Reason: envelope.ReasonUndeliverable, ID: e.ID, Kind: e.Kind})
}

// handIn gives an outcome to an agent of this host and waits until it is kept.
func (a *agent) handIn(ctx context.Context, e envelope.Envelope, sealed envelope.Sealed) error {
	kept := make(chan error, 1)
	a.post(func() { a.arrive(arrival{env: e, sealed: sealed, result: func(err error) { kept <- err }}) })
	select {
	case err := <-kept:
		return err
	case <-a.ended:
		return fault.New(fault.NotFound, "agent %s has ended", a.name)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stored decodes a message that was verified before it was stored.
func stored(s envelope.Sealed) (e envelope.Envelope, err error) {
	if err = json.Unmarshal(s.Bytes, &e); err != nil {
		err = errors.Join(errors.New("a stored message is damaged"), err)
	}
	return e, err
}

// readRow reads one row.
func readRow[T any](g *Gateway, table mailbox.Table, key string) (row T, ok bool, err error) {
	err = g.store.Read(func(tx *mailbox.Tx) (err error) {
		row, ok, err = mailbox.Get[T](tx, table, key)
		return err
	})
	return row, ok, err
}

// owing counts the rows that are still here.
func (o *outbox) owing() int { return int(o.owed.Load()) }
