package envelope

import "time"

// Kind says what a message is. Kinds that are not in the table below are
// refused as ReasonUnknownKind.
type Kind string

// The kinds (SPEC §1, R2).
const (
	Send      Kind = "SEND"      // a brief or a message, into a worker or for a puller
	Reply     Kind = "REPLY"     // the terminal outcome of a turn: its answer
	Failed    Kind = "FAILED"    // the terminal outcome of a turn: it failed, or never began
	Abandoned Kind = "ABANDONED" // the terminal outcome of a turn: its agent was stopped
	Injected  Kind = "INJECTED"  // receipt: the agent has taken the message
	Deferred  Kind = "DEFERRED"  // receipt: it waits for the agent, for a stated reason
	Held      Kind = "HELD"      // receipt: it lies in a puller's mailbox
	Refused   Kind = "REFUSED"   // receipt: the recipient's gateway does not accept it
	Query     Kind = "QUERY"     // a gateway asks a gateway
	State     Kind = "STATE"     // the answer to a query
	Presence  Kind = "PRESENCE"  // heartbeat or change of a host's agents
)

// Exchange says which of the broker's exchanges carries a kind.
type Exchange int

// The exchanges; topology knows their names.
const (
	ViaMessages Exchange = iota + 1 // bridge.msg
	ViaControl                      // bridge.control
	ViaRoster                       // bridge.roster
)

// Lane says what becomes of a message whose recipient's gateway is away.
type Lane int

// The lanes (R2).
const (
	Durable Lane = iota + 1 // rests in the inbox
	Live                    // worthless without the gateway: key live.<gid>
	Hosts                   // between gateways: key is the host, or roster.<host>
)

// Sender says which gid a kind may come from.
type Sender int

// Who may send a kind.
const (
	ByAgent    Sender = iota + 1 // any agent or operator of the signing host
	ByOperator                   // only the operator's gid, which stands for the gateway
)

// Rule is a kind's row in the table.
type Rule struct {
	Exchange  Exchange
	Lane      Lane
	TTL       time.Duration // how long a live message is worth anything; 0: as long as the queue keeps it
	Mandatory bool          // return it when no queue takes it
	Sender    Sender
	Answers   bool // must name in Re what it answers, and comes only from whom that was addressed to
	Terminal  bool // ends a turn
}

// liveTTL bounds live kinds: a receipt that is later than this finds its waiter
// gone.
const liveTTL = 2 * time.Minute

// rules is the one table of R2.
var rules = map[Kind]Rule{
	Send:      {Exchange: ViaMessages, Lane: Durable, Mandatory: true, Sender: ByAgent},
	Reply:     {Exchange: ViaMessages, Lane: Durable, Mandatory: true, Sender: ByAgent, Answers: true, Terminal: true},
	Failed:    {Exchange: ViaMessages, Lane: Durable, Mandatory: true, Sender: ByAgent, Answers: true, Terminal: true},
	Abandoned: {Exchange: ViaMessages, Lane: Durable, Mandatory: true, Sender: ByAgent, Answers: true, Terminal: true},
	Injected:  {Exchange: ViaMessages, Lane: Live, TTL: liveTTL, Mandatory: true, Sender: ByAgent, Answers: true},
	Deferred:  {Exchange: ViaMessages, Lane: Live, TTL: liveTTL, Mandatory: true, Sender: ByAgent, Answers: true},
	Held:      {Exchange: ViaMessages, Lane: Live, TTL: liveTTL, Mandatory: true, Sender: ByAgent, Answers: true},
	Refused:   {Exchange: ViaMessages, Lane: Live, TTL: liveTTL, Mandatory: true, Sender: ByAgent, Answers: true},
	Query:     {Exchange: ViaControl, Lane: Hosts, TTL: 30 * time.Second, Mandatory: true, Sender: ByOperator},
	State:     {Exchange: ViaMessages, Lane: Live, TTL: 30 * time.Second, Mandatory: true, Sender: ByOperator, Answers: true},
	Presence:  {Exchange: ViaRoster, Lane: Hosts, TTL: 30 * time.Second, Sender: ByOperator},
}

// RuleOf is the kind's row; ok is false for a kind this build does not know.
func RuleOf(k Kind) (rule Rule, ok bool) {
	rule, ok = rules[k]
	return rule, ok
}

// Terminal says whether the kind ends a turn.
func (k Kind) Terminal() bool { return rules[k].Terminal }

// Kinds lists every kind of the table.
func Kinds() []Kind {
	kinds := make([]Kind, 0, len(rules))
	for k := range rules {
		kinds = append(kinds, k)
	}
	return kinds
}
