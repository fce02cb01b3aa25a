package roster

import (
	"encoding/json"
	"regexp"
	"time"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// About is the value of the field `about` in the bodies of the roster's QUERY
// and STATE: other parts of the gateway ask other things with these kinds.
const About = "roster"

// The kinds of PRESENCE body.
const (
	isBeat   = "beat"
	isChange = "change"
	isLeave  = "leave"
)

// presence is the body of PRESENCE.
type presence struct {
	Is  string `json:"is"`
	Inc uint64 `json:"inc"`
	Seq uint64 `json:"seq"` // one count for all PRESENCE of an incarnation

	// beat: the version that the roster has, and its digest.
	RV      uint64 `json:"rv,omitempty"`
	Hash    string `json:"hash,omitempty"`
	Agents  int    `json:"agents,omitempty"`
	EveryMS int64  `json:"every_ms,omitempty"` // the next heartbeat comes within
	TS      int64  `json:"ts,omitempty"`       // the sender's clock, Unix ms

	// change: from version From to RV, whose digest is Hash.
	From uint64         `json:"from,omitempty"`
	Up   []row          `json:"up,omitempty"`
	Gone []identity.GID `json:"gone,omitempty"`

	// Profiles stand in every heartbeat if they are short, and in a change and in
	// STATE in full. Absent: not told here.
	Profiles *[]string `json:"profiles,omitempty"`
}

// query is the body of QUERY: what the asker has, so that an answer may be
// short.
type query struct {
	About string `json:"about"`
	Inc   uint64 `json:"inc,omitempty"`
	RV    uint64 `json:"rv,omitempty"`
	Hash  string `json:"hash,omitempty"`
}

// state is the body of STATE: the whole roster of one host at one version, in
// Parts messages that are told apart by Part, or the word that nothing changed.
type state struct {
	About    string   `json:"about"`
	Inc      uint64   `json:"inc"`
	Seq      uint64   `json:"seq"`
	RV       uint64   `json:"rv"`
	Hash     string   `json:"hash"`
	EveryMS  int64    `json:"every_ms"`
	Version  string   `json:"version,omitempty"`
	Same     bool     `json:"same,omitempty"` // the asker has this version
	Part     int      `json:"part,omitempty"` // from 0
	Parts    int      `json:"parts,omitempty"`
	Profiles []string `json:"profiles,omitempty"`
	Rows     []row    `json:"rows,omitempty"`
}

// row is an agent on the wire.
type row struct {
	GID       identity.GID `json:"gid"`
	Name      string       `json:"name,omitempty"`
	Role      string       `json:"role"`
	State     string       `json:"state"`
	Groups    []string     `json:"groups,omitempty"`
	Profile   string       `json:"profile,omitempty"`
	Since     int64        `json:"since,omitempty"` // Unix ms
	Undrained int          `json:"undrained,omitempty"`
	Oldest    int64        `json:"oldest,omitempty"` // Unix ms
}

func rowOf(a Agent) row {
	return row{GID: a.GID, Name: a.Name, Role: a.Role, State: a.State, Groups: a.Groups, Profile: a.Profile,
		Since: toMS(a.Since), Undrained: a.Undrained, Oldest: toMS(a.UndrainedOldest)}
}

func (w row) agent(host identity.Host) Agent {
	return Agent{GID: w.GID, Name: w.Name, Role: w.Role, Host: host, State: w.State, Groups: w.Groups, Profile: w.Profile,
		Since: fromMS(w.Since), Undrained: w.Undrained, UndrainedOldest: fromMS(w.Oldest)}
}

// Sizes in bytes. What is accepted is more than what is sent, so that a later
// release may send a little more.
const (
	mostChange     = 60 << 10 // of a delta's rows; the body stays below 64 KiB
	mostPart       = 250 << 10
	takesPresence  = 128 << 10
	takesQuery     = 4 << 10
	takesState     = 1 << 20
	mostParts      = 1024
	mostProfiles   = 256 // names a host offers
	beatProfiles   = 256 // bytes of profile names in a heartbeat
	shortestBeat   = 50 * time.Millisecond
	longestBeat    = time.Hour
	longestVersion = 64
)

// encode is v as JSON. The types here always encode.
func encode(v any) json.RawMessage {
	b, err := envelope.Encode(v)
	if err != nil {
		panic("roster: a body of its own does not encode: " + err.Error())
	}
	return b
}

// every is the announced interval, bounded: a host may not stay alive for ever
// by announcing a year, nor be aged at once by announcing nothing.
func every(ms int64) time.Duration {
	if ms > longestBeat.Milliseconds() {
		return longestBeat
	}
	return max(time.Duration(ms)*time.Millisecond, shortestBeat)
}

// hashForm is the digest of a roster's history.
var hashForm = regexp.MustCompile(`^[0-9a-f]{16}$`)

// versionForm is what a program's version may look like.
var versionForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_-]*$`)

// cleanVersion is v if it can be shown, else empty.
func cleanVersion(v string) string {
	if len(v) > longestVersion || !versionForm.MatchString(v) {
		return ""
	}
	return v
}

// cleanProfiles keeps the names among what a host says it offers.
func cleanProfiles(names []string) []string {
	return sortedNames(names[:min(len(names), mostProfiles)])
}
