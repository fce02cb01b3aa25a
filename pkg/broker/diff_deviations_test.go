package broker_test

import (
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// deviation is a place where the embedded broker means to answer otherwise.
type deviation struct {
	row    string
	theirs string // lines of their transcript, indented
	ours   string // what stands there in ours
	why    string // a gateway can't notice it
}

// deviations are those from RabbitMQ. The package comment names each row.
var deviations = []deviation{
	{"tx/select", `
		select: ok
		q has 0 ready, 0 consumers
		commit: ok
		q has 1 ready, 0 consumers`, `
		select: conn 540 NOT_IMPLEMENTED - transactions are not supported; use publisher confirms`,
		"gateways publish with confirms"},
	{"tx/commit_without_select", `
		commit: ch 406 PRECONDITION_FAILED - channel is not transactional`, `
		commit: conn 540 NOT_IMPLEMENTED - transactions are not supported; use publisher confirms`,
		"gateways publish with confirms"},
	{"tx/select_on_a_confirming_channel", `
		select: ch 406 PRECONDITION_FAILED - cannot switch from confirm to tx mode`, `
		select: conn 540 NOT_IMPLEMENTED - transactions are not supported; use publisher confirms`,
		"gateways publish with confirms"},
	{"exchange/headers", `
		declare: ok
		publish {a:"1" b:int64(2)}: ack
		publish {a:"1"}: ack
		publish {c:"1"}: return 312 NO_ROUTE, ack
		publish {}: return 312 NO_ROUTE, ack
		all holds [{a:"1" b:int64(2)}]
		any holds [{a:"1" b:int64(2)} {a:"1"}]`, `
		declare: conn 503 COMMAND_INVALID - unknown exchange type 'headers'`,
		"gateways declare topic, fanout and direct exchanges only"},
	{"exchange/predeclared", `
		passive amq.headers: ok
		passive amq.match: ok`, `
		passive amq.headers: ch 404 NOT_FOUND - no exchange 'amq.headers' in vhost '/'
		passive amq.match: ch 404 NOT_FOUND - no exchange 'amq.match' in vhost '/'`,
		"gateways use no headers exchange"},
	{"B11/priority", `
		q holds [high higher middle low none]`, `
		q holds [low none high higher middle]`,
		"gateways declare no x-max-priority; messages keep their order"},
	{"consume/priority", `
		high gets m1`, `
		low gets m1`,
		"gateways consume alone"},
	{"B13/offers", `
		consumer_priorities: bool(true)`, `
		consumer_priorities: nil`,
		"gateways consume alone"},
	{"B13/offers", `
		direct_reply_to: bool(true)`, `
		direct_reply_to: nil`,
		"gateways answer over their own queues"},
	{"B13/login", `
		an identity beside the user: end`, `
		an identity beside the user: connection.close 403 ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile. (class 0, method 0)`,
		"a client library sends none; we say why we hang up"},
	{"B13/login", `
		malformed response: end
		unknown mechanism: end`, `
		malformed response: connection.close 403 ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile. (class 0, method 0)
		unknown mechanism: connection.close 503 COMMAND_INVALID - unknown authentication mechanism 'MAGIC' (class 10, method 11)`,
		"a client library does neither; we say why we hang up"},
	{"wire/tuning", `
		no limits: end`, `
		no limits: connection.close 530 NOT_ALLOWED - frame_max=0 < 4096 min size (class 10, method 31)`,
		"a client library keeps to what it was offered; we say why we hang up"},
	{"wire/tuning", `
		more channels: end
		larger frames: end
		tiny frames: end`, `
		more channels: connection.close 530 NOT_ALLOWED - channel_max=2048 > 2047 max size (class 10, method 31)
		larger frames: connection.close 530 NOT_ALLOWED - frame_max=131073 > 131072 max size (class 10, method 31)
		tiny frames: connection.close 530 NOT_ALLOWED - frame_max=4095 < 4096 min size (class 10, method 31)`,
		"a client library keeps to what it was offered; we say why we hang up"},
	{"wire/out_of_order_handshake", `
		tune-ok before start-ok: end
		channel.open before start-ok: end
		open before tune-ok: end`, `
		tune-ok before start-ok: connection.close 503 COMMAND_INVALID - unexpected method connection.tune-ok (class 10, method 31)
		channel.open before start-ok: connection.close 501 FRAME_ERROR ...
		open before tune-ok: connection.close 503 COMMAND_INVALID - unexpected method connection.open (class 10, method 40)`,
		"a client library keeps the order; we say why we hang up"},
	{"wire/channels", `
		a channel over the maximum: channel.open-ok`, `
		a channel over the maximum: connection.close 530 NOT_ALLOWED - number of channels opened (2047) has reached the negotiated channel_max (2047) (class 20, method 10)`,
		"a client library keeps to the maximum"},
	{"wire/bad_frames", `
		cancel-ok that nobody asked for: connection.close 503 COMMAND_INVALID - unimplemented method (class 60, method 31)`, `
		cancel-ok that nobody asked for: basic.qos-ok`,
		"basic.cancel-ok answers a basic.cancel; we take it at any time"},
	{"wire/bad_content", `
		properties cut short: connection.close 541 INTERNAL_ERROR (class 0, method 0)`, `
		properties cut short: connection.close 502 SYNTAX_ERROR - properties: ends before its last field (class 60, method 0)`,
		"either ends the connection of a client that can't encode"},
	{"R03/restart", `
		get from q: m3, 1 left
		m3 exchange="" key="q" mode=2 expiration="600000" headers={a:"b"}
		get from q: m4, 0 left
		m4 exchange="" key="q" mode=2`, `
		get from q: m3*, 1 left
		m3* exchange="" key="q" mode=2 expiration="600000" headers={a:"b"}
		get from q: m4*, 0 left
		m4* exchange="" key="q" mode=2`,
		"gateways tell repeats by the message's id; RabbitMQ does the same after a kill"},
	{"R03/order_after_a_restart", `
		q holds [m1* m3* m4* m5 m6]`, `
		q holds [m1* m3* m4* m5* m6*]`,
		"gateways tell repeats by the message's id; RabbitMQ does the same after a kill"},
	{"R04/user_removed", `
		its connection: conn 320 CONNECTION_FORCED - user 'somebody' is deleted`, `
		its connection: lives`,
		"a login is asked for when a connection opens; whoever removes a user restarts the broker, or disconnects"},
}

// lavinDeviations are those from LavinMQ, with its answers.
var lavinDeviations = []deviation{
	{"B07/delayed_message_exchange", `
		declare: ok`, `
		declare: conn 503 COMMAND_INVALID - unknown exchange type 'x-delayed-message'`,
		"gateways delay nothing in the broker"},
	{"confirm/flow_off", `
		flow off: ok`, `
		flow off: conn 540 NOT_IMPLEMENTED - active=false`,
		"gateways pause an inbox by basic.cancel"},
	{"R03/restart", `
		q holds [m1 m2]`, `
		q holds [m1]`,
		"m2 was transient; gateways publish with delivery mode 2"},
	{"B05/behind_a_held_one", `
		q has 1 ready, 0 consumers
		dlq has 0 ready, 0 consumers`, `
		q has 0 ready, 0 consumers
		dlq has 1 ready, 0 consumers`,
		"an inbox counts one less for a moment; the message dies in the same way"},
	{"B20/trailing_dot", `
		publish m1: return 312 NO_ROUTE, ack`, `
		publish m1: ack`,
		"no key of a gateway ends in a dot"},
}

// deviate puts our lines in the place of theirs. It fails the test if theirs are
// not there: then the deviation is out of date.
func deviate(t *testing.T, list []deviation, row string, lines []string) []string {
	t.Helper()
	text := strings.Join(lines, "\n") + "\n"
	for _, d := range list {
		if d.row != row {
			continue
		}
		theirs := strings.Join(linesOf(d.theirs), "\n") + "\n"
		if !strings.Contains(text, theirs) {
			t.Errorf("a deviation of %s is out of date, the other broker does not say\n%s", row, theirs)
			continue
		}
		text = strings.Replace(text, theirs, strings.Join(linesOf(d.ours), "\n")+"\n", 1)
	}
	if text == "\n" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// wholeWord says whether a text has the word as such, and not only at the start
// of a longer one.
func wholeWord(text, word string) bool {
	return regexp.MustCompile(`(^|\s|\()` + regexp.QuoteMeta(word) + `([^\w/]|$)`).MatchString(text)
}

// TestR53_DeviationsAreDocumented holds the package comment to the table.
func TestR53_DeviationsAreDocumented(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "broker.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, list := range scenarios {
		for _, s := range list {
			rows[s.row] = true
		}
	}
	for _, list := range [][]outage{outageRows, crashRows} {
		for _, o := range list {
			rows[o.row] = true
		}
	}
	for _, d := range deviations {
		if !wholeWord(file.Doc.Text(), d.row) {
			t.Errorf("the package comment does not name the deviation %s (%s)", d.row, d.why)
		}
	}
	for row := range rows {
		named := func(d deviation) bool { return d.row == row }
		if wholeWord(file.Doc.Text(), row) && !slices.ContainsFunc(deviations, named) && !slices.ContainsFunc(lavinDeviations, named) {
			t.Errorf("the package comment names %s, which is no deviation", row)
		}
	}
	for _, list := range [][]deviation{deviations, lavinDeviations} {
		for _, d := range list {
			if !rows[d.row] {
				t.Errorf("there is no row %s to deviate from", d.row)
			}
			if d.why == "" || d.theirs == d.ours {
				t.Errorf("the deviation %s needs a reason and a difference", d.row)
			}
		}
	}
}
