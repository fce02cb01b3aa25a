package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/client"
	"fleet/pkg/envelope"
	"fleet/pkg/output"
)

type inboxOptions struct {
	request api.InboxRequest
	peek    bool
	timeout time.Duration
}

func newInbox(app *App) *cobra.Command {
	var o inboxOptions
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "Take what waits in the caller's mailbox",
		Long: `Print what waits in the caller's mailbox, oldest first, and take it out once it
is printed. The operator's mailbox is shared by all scripts of the host, so it is
taken only with a filter or with --all.`,
		Example: `  fleet inbox --re MESSAGE --wait
  fleet inbox --peek --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runInbox(cmd.Context(), app, o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.peek, "peek", false, "only look; take nothing out")
	f.BoolVar(&o.request.All, "all", false, "take everything, also as the operator")
	f.BoolVar(&o.request.Wait, "wait", false, "wait for at least one message")
	f.BoolVar(&o.request.Follow, "follow", false, "go on with what comes; with --json one document a line")
	f.DurationVar(&o.timeout, "timeout", 0, "give up waiting after this (0: never)")
	f.StringVar(&o.request.Re, "re", "", "only what answers `MESSAGE`")
	f.StringVar(&o.request.Trace, "trace", "", "only what belongs to `TRACE`")
	f.StringVar(&o.request.From, "from", "", "only what comes from `AGENT`")
	f.IntVar(&o.request.Most, "limit", 0, "at most so many messages (0: all)")
	return cmd
}

var messageColumns = []output.Column[api.Message]{
	{Title: "id", Cell: func(m api.Message) string { return string(m.ID) }},
	{Title: "kind", Cell: func(m api.Message) string { return string(m.Kind) }},
	{Title: "from", Cell: func(m api.Message) string { return m.FromName + "@" + string(m.FromHost) }},
	{Title: "re", Cell: func(m api.Message) string { return string(m.Re) }},
	{Title: "text", Cell: messageText},
}

func messageText(m api.Message) string {
	if m.Detail != "" {
		return m.Detail
	}
	return m.Text
}

func runInbox(ctx context.Context, app *App, o inboxOptions) error {
	o.request.Lease = !o.peek
	o.request.Within = o.timeout.Seconds()
	g, err := app.gateway()
	if err != nil {
		return err
	}
	if o.request.Follow {
		return followInbox(ctx, app, g, o)
	}
	var found []api.Message
	err = g.Inbox(ctx, o.request, func(m api.Message) error {
		found = append(found, m)
		return nil
	})
	if err != nil {
		return err
	}
	p := app.printer()
	if err := output.Rows(p, "messages", messageColumns, found); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if o.peek || len(found) == 0 {
		return nil
	}
	ids := make([]envelope.ID, len(found))
	for i, m := range found {
		ids[i] = m.ID
	}
	ack(ctx, p, g, ids)
	return nil
}

// followInbox prints and takes one message after the other.
func followInbox(ctx context.Context, app *App, g *client.Client, o inboxOptions) error {
	p := app.printer()
	return g.Inbox(ctx, o.request, func(m api.Message) error {
		var err error
		if app.json {
			err = p.Line(m)
		} else {
			err = output.Rows(p, "messages", messageColumns, []api.Message{m})
		}
		if err != nil || o.peek {
			return err
		}
		ack(ctx, p, g, []envelope.ID{m.ID})
		return nil
	})
}
