package broker_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"fleet/pkg/broker"
)

// scenario is one row of what was measured of the brokers that fleet meets.
type scenario struct {
	row  string // the row's number, and what of it
	play func(*scene)
	// lavin is the whole transcript of a LavinMQ, if it differs from RabbitMQ's in
	// more than the texts of its errors; a line that ends in "..." goes on.
	lavin string
}

var scenarios = [][]scenario{
	exclusiveRows, confirmRows, limitRows, declareRows, settleRows, deadLetterRows, exchangeRows, wireRows,
}

// eachRow runs f for every scenario that is of interest, in parallel.
func eachRow(t *testing.T, of func(scenario) bool, f func(t *testing.T, row scenario)) {
	seen := map[string]bool{}
	for _, list := range scenarios {
		for _, row := range list {
			if seen[row.row] {
				t.Errorf("two scenarios are named %s", row.row)
			}
			seen[row.row] = true
			if !of(row) {
				continue
			}
			t.Run(row.row, func(t *testing.T) {
				t.Parallel()
				f(t, row)
			})
		}
	}
}

// TestR53_Differential plays each scenario against a live RabbitMQ and against
// the embedded broker: their clients must see the same, but for deviations.
func TestR53_Differential(t *testing.T) {
	rabbit := liveRabbit(t)
	ours := embedded(t, broker.RabbitMQ)
	eachRow(t, func(scenario) bool { return true }, func(t *testing.T, row scenario) {
		var theirs, our transcript
		var both sync.WaitGroup
		both.Go(func() { theirs = play(rabbit, row.play) })
		both.Go(func() { our = play(ours, row.play) })
		both.Wait()
		compare(t, row.row, theirs, our)
	})
}

func compare(t *testing.T, row string, theirs, our transcript) {
	t.Helper()
	if testing.Verbose() {
		t.Log("RabbitMQ:\n" + theirs.String())
	}
	if theirs.broken != "" {
		t.Errorf("RabbitMQ: %s", theirs.broken)
	}
	if our.broken != "" {
		t.Errorf("embedded: %s", our.broken)
	}
	if d := difference(deviate(t, deviations, row, theirs.lines), our.lines); d != "" {
		t.Errorf("the clients saw different things (- RabbitMQ, + embedded):\n%s", d)
	}
}

// difference shows two transcripts as one, or is empty if they are equal.
func difference(theirs, ours []string) string {
	// longest[i][j] is the length of the longest common part of theirs[i:], ours[j:].
	longest := make([][]int, len(theirs)+1)
	for i := range longest {
		longest[i] = make([]int, len(ours)+1)
	}
	for i := len(theirs) - 1; i >= 0; i-- {
		for j := len(ours) - 1; j >= 0; j-- {
			if theirs[i] == ours[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	var b strings.Builder
	same := true
	for i, j := 0, 0; i < len(theirs) || j < len(ours); {
		switch {
		case i < len(theirs) && j < len(ours) && theirs[i] == ours[j]:
			fmt.Fprintf(&b, "  %s\n", theirs[i])
			i, j = i+1, j+1
		case j == len(ours) || i < len(theirs) && longest[i+1][j] >= longest[i][j+1]:
			fmt.Fprintf(&b, "- %s\n", theirs[i])
			i, same = i+1, false
		default:
			fmt.Fprintf(&b, "+ %s\n", ours[j])
			j, same = j+1, false
		}
	}
	if same {
		return ""
	}
	return b.String()
}
