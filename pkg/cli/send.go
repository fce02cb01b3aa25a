package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/client"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/output"
)

type sendOptions struct {
	text    textOptions
	request api.SendRequest
	timeout time.Duration
	expires time.Duration
}

func newSend(app *App) *cobra.Command {
	var o sendOptions
	cmd := &cobra.Command{
		Use:   "send AGENT [MESSAGE]",
		Short: "Send an agent a message",
		Long: `Send an agent a message and print what became of it: injected (the agent has
it), deferred (it waits for the agent), held (it lies in the agent's mailbox),
or queued_offline (it rests on the broker until the agent's gateway is back).
With --wait, wait for the agent's reply and print that.

AGENT is a name, NAME@HOST, an agent id or a unique prefix of one. MESSAGE is
an argument, - for stdin, or a file (--file). The same --id sends a message
only once, however often the command is run: it prints the first result again.`,
		Example: `  fleet send worker@beta --wait 'run the tests of package bus'
  git diff | fleet send reviewer@beta --wait -`,
		Args: args(quotedText(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			text := ""
			if len(a) == 2 {
				text = a[1]
			}
			return runSend(cmd.Context(), app, o, a[0], text, len(a) == 2)
		},
	}
	o.text.flags(cmd)
	cmd.Flags().BoolVar(&o.request.Wait, "wait", false, "wait for the agent's reply and print it")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 30*time.Minute, "give up waiting after this; the reply then goes to the inbox")
	cmd.Flags().StringVar(&o.request.ID, "id", "", "send under this `ID` (a UUID or any word), so that a retry is the same message")
	cmd.Flags().DurationVar(&o.expires, "expires", 0, "the message is useless if the agent has not taken it after this")
	cmd.Flags().BoolVar(&o.request.RequireLive, "require-live", false, "refuse if the agent's gateway is away")
	return cmd
}

func runSend(ctx context.Context, app *App, o sendOptions, to, arg string, given bool) error {
	text, err := o.text.read(app, arg, given)
	if err != nil {
		return err
	}
	if o.expires < 0 || o.timeout <= 0 {
		return fault.New(fault.Usage, "--expires and --timeout are durations such as 30s or 10m")
	}
	o.request.To, o.request.Text = to, text
	o.request.TimeoutSeconds, o.request.ExpiresSeconds = o.timeout.Seconds(), o.expires.Seconds()
	g, err := app.gateway()
	if err != nil {
		return err
	}
	p := app.printer()
	var last api.Event
	id := o.request.ID
	err = g.Send(ctx, o.request, func(e api.Event) error {
		id = string(e.ID)
		last = e
		if !e.Last {
			note(p, e, o.request.Wait)
		}
		return nil
	})
	if err != nil {
		return sendFault(ctx, err, id, o.request.Wait)
	}
	return showSent(ctx, app, p, g, o.request, last)
}

// note tells people on the way what is worth knowing.
func note(p *output.Printer, e api.Event, wait bool) {
	switch {
	case e.Warning != "":
		p.Say("fleet: warning: %s", e.Warning)
	case e.Step == api.StepUnknown:
		p.Say("fleet: %s; still asking (id %s)", e.Detail, e.ID)
	case e.Step == api.StepDeferred && wait:
		p.Say("fleet: %s", e.Detail)
	}
}

// sendFault adds to an error how to go on with the message.
func sendFault(ctx context.Context, err error, id string, wait bool) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		f := fault.New(fault.Interrupted, "interrupted")
		if id == "" {
			return f
		}
		f = f.WithID(id).WithHint("the message is on its way all the same; fleet send --id %s, with the same agent and text, goes on with it", id)
		if wait {
			f = f.WithHint("the reply will be in the inbox: fleet inbox --re %s --wait", id)
		}
		return f
	}
	f := fault.From(err)
	if f.Kind == fault.NoGateway && id != "" && f.ID == "" {
		f = f.WithID(id).WithHint("start it again with `fleet gateway run`, and go on with fleet send --id %s and the same agent and text", id)
	}
	return f
}

var eventColumns = []output.Column[api.Event]{
	{Title: "state", Cell: func(e api.Event) string { return e.Step }},
	{Title: "id", Cell: func(e api.Event) string { return string(e.ID) }},
	{Title: "to", Cell: func(e api.Event) string { return eventAddress(e) }},
	{Title: "evidence", Cell: func(e api.Event) string { return e.Evidence }},
	{Title: "detail", Cell: func(e api.Event) string { return e.Detail }},
}

func eventAddress(e api.Event) string {
	if e.ToName == "" {
		return string(e.To)
	}
	return e.ToName + "@" + string(e.ToHost)
}

// showSent prints the last event. A reply is acknowledged once it is printed, so
// that one that was not stays in the inbox.
func showSent(ctx context.Context, app *App, p *output.Printer, g *client.Client, r api.SendRequest, e api.Event) error {
	if e.Warning != "" {
		p.Say("fleet: warning: %s", e.Warning)
	}
	if e.Fault != nil {
		if e.Step == api.StepFailed && e.Message != "" {
			p.Fail(e.Fault)
			ack(ctx, p, g, []envelope.ID{e.Message})
			return reported{e.Fault}
		}
		return e.Fault
	}
	var err error
	switch {
	case app.json:
		err = p.JSON(e)
	case e.Step == api.StepReply:
		err = p.Text(e.Text)
	default:
		err = output.Rows(p, "sent", eventColumns, []api.Event{e})
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if e.Message != "" {
		ack(ctx, p, g, []envelope.ID{e.Message})
	}
	return nil
}

// ackBound is how long a command tries to acknowledge what it has printed.
const ackBound = 5 * time.Second

// ack tells the gateway that the messages have been printed, also to the next one
// if this one has just gone. What has been printed has been delivered, so a failure
// is worth a warning and no more.
func ack(ctx context.Context, p *output.Printer, g *client.Client, ids []envelope.ID) {
	// Printed is printed: a Ctrl-C now must not make the message come again.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackBound)
	defer cancel()
	for {
		_, err := g.Ack(ctx, api.AckRequest{IDs: ids})
		if err == nil {
			return
		}
		if fault.From(err).Kind == fault.NoGateway {
			select {
			case <-time.After(knock):
				continue
			case <-ctx.Done():
			}
		}
		p.Say("fleet: warning: what was printed may come again in the inbox: %s", err)
		return
	}
}
