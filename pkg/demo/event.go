package demo

import (
	"time"

	"fleet/pkg/api"
	"fleet/pkg/fault"
	"fleet/pkg/trace"
)

// Event is one thing that a demo tells: the one field that is set.
type Event struct {
	Step    string       `json:"step,omitempty"`    // what comes now, in a line
	Command *Command     `json:"command,omitempty"` // what is run for it
	Fact    string       `json:"fact,omitempty"`    // what is worth knowing
	Reply   *string      `json:"reply,omitempty"`   // the worker's
	Roster  *api.Roster  `json:"roster,omitempty"`  // as alpha sees it
	Trace   []trace.Line `json:"trace,omitempty"`   // of brief and reply, from both hosts, by time
	Kept    *Kept        `json:"kept,omitempty"`    // it goes on running
	End     *End         `json:"end,omitempty"`     // of the player; Run returns it

	// Waiting is how long nothing has happened. It never crosses the pipe.
	Waiting time.Duration `json:"-"`
}

// Command is a command as one would type it on a host.
type Command struct {
	Host string `json:"host"`
	Line string `json:"line"`
}

// Kept is a demo that was left running.
type Kept struct {
	Dir     string `json:"dir"`
	Program string `json:"program"` // a copy that stays as long
	Alpha   string `json:"alpha"`   // the FLEET_DIR of each host
	Beta    string `json:"beta"`
}

// End is how the play ended; no fault: well.
type End struct {
	Fault *fault.Fault `json:"fault,omitempty"`
}

// Result is a whole demo. `--json` prints it.
type Result struct {
	Steps   []Step       `json:"steps"`
	Reply   string       `json:"reply"`
	Roster  api.Roster   `json:"roster"`
	Trace   []trace.Line `json:"trace"`
	Kept    *Kept        `json:"kept,omitempty"`
	Seconds float64      `json:"seconds"`
}

// Step is one step of it.
type Step struct {
	Text     string    `json:"text"`
	Commands []Command `json:"commands,omitempty"`
	Facts    []string  `json:"facts,omitempty"`
}

// add makes e a part of the result. Commands and facts belong to the step before.
func (r *Result) add(e Event) {
	if e.Step != "" || len(r.Steps) == 0 {
		r.Steps = append(r.Steps, Step{Text: e.Step})
	}
	now := &r.Steps[len(r.Steps)-1]
	switch {
	case e.Command != nil:
		now.Commands = append(now.Commands, *e.Command)
	case e.Fact != "":
		now.Facts = append(now.Facts, e.Fact)
	case e.Reply != nil:
		r.Reply = *e.Reply
	case e.Roster != nil:
		r.Roster = *e.Roster
	case e.Trace != nil:
		r.Trace = e.Trace
	case e.Kept != nil:
		r.Kept = e.Kept
	}
}
