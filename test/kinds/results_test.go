package kinds

import (
	"cmp"
	"encoding/json"
	"flag"
	"testing"

	"holdfast.dev/holdfast/test/harness"
)

var record = flag.Bool("record", false, "write the measured times into "+results)

// results has one line for each cell that was played.
const results = "testdata/story.jsonl"

// row is what was seen of one kind under one scheduler. Times are in seconds, up to the first step of the last rank; Placed is from when
// there was room.
type row struct {
	Kind      string `json:"kind"`
	Scheduler string `json:"scheduler"`
	Pods      int64  `json:"pods"`
	// Waits is the reason while there was no room.
	Waits  string  `json:"waits"`
	Placed float64 `json:"placed"`
	Rank   float64 `json:"rankKilled"`
	Node   float64 `json:"nodeLost"`
	// NodeSteps is how many steps were done again after the node was lost.
	NodeSteps int64   `json:"nodeLostSteps"`
	Drain     float64 `json:"drained"`
	Resume    float64 `json:"resumed"`
	Losses    int     `json:"losses"`
	// Failed is why a script that fails in the same way each time ended the job.
	Failed string `json:"failed"`
}

// write says what was seen, and with -record keeps it in place of what was seen before.
func (r row) write(t *testing.T) {
	t.Helper()
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", line)
	if !*record || t.Failed() {
		return
	}
	harness.KeepRow(t, results, r, compareRows)
}

func compareRows(a, b row) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Scheduler, b.Scheduler))
}
