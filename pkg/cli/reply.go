package cli

import (
	"context"

	"github.com/spf13/cobra"

	"fleet/pkg/api"
	"fleet/pkg/envelope"
	"fleet/pkg/fault"
	"fleet/pkg/output"
)

func newReply(app *App) *cobra.Command {
	var text textOptions
	cmd := &cobra.Command{
		Use:   "reply [MESSAGE] TEXT",
		Short: "Answer a message; ends its turn",
		Long: `Answer a message that this agent was given; that ends its turn. MESSAGE is the
id in the message's header line; it may be left out when exactly one turn is
open. TEXT is an argument, - for stdin, or a file (--file).

Prints where the reply is: sent (the broker has it), held (in the mailbox of an
agent of this host), or stored (safe here until the broker takes it).`,
		Args: args(quotedText(0, 2)),
		RunE: func(cmd *cobra.Command, a []string) error { return runReply(cmd.Context(), app, text, a) },
	}
	text.flags(cmd)
	return cmd
}

func runReply(ctx context.Context, app *App, o textOptions, a []string) error {
	var r api.ReplyRequest
	arg, given := "", false
	switch {
	case len(a) == 2:
		r.ID, arg, given = a[0], a[1], true
	case len(a) == 1 && o.file != "":
		r.ID = a[0]
	case len(a) == 1:
		arg, given = a[0], true
	}
	if _, ok := envelope.ParseID(arg); ok && r.ID == "" {
		return fault.New(fault.Usage, "the text of the reply is missing: %s is a message's id", arg).
			WithHint("fleet reply %s TEXT", arg)
	}
	text, err := o.read(app, arg, given)
	if err != nil {
		return err
	}
	r.Text = text
	g, err := app.gateway()
	if err != nil {
		return err
	}
	result, err := g.Reply(ctx, r)
	if err != nil {
		return err
	}
	if app.json {
		return app.printer().JSON(result)
	}
	return output.Rows(app.printer(), "reply", replyColumns, []api.ReplyResult{result})
}

var replyColumns = []output.Column[api.ReplyResult]{
	{Title: "state", Cell: func(r api.ReplyResult) string { return r.State }},
	{Title: "id", Cell: func(r api.ReplyResult) string { return string(r.ID) }},
	{Title: "re", Cell: func(r api.ReplyResult) string { return string(r.Re) }},
}
