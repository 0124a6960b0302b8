package hang

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/test/harness"
)

var record = flag.Bool("record", false, "write what was seen into "+results)

// results has one line for each silence.
const results = "testdata/silences.jsonl"

// row is what was seen of one silence.
type row struct {
	Part string `json:"part"`
	Name string `json:"name"`
	What string `json:"what"`
	// Seen are the verdicts in their order, Restarts the number of restarts.
	Seen     []seen `json:"seen"`
	Restarts int    `json:"restarts"`
	// Result is how the job ended.
	Result string `json:"result"`
}

// seen is one verdict. After is the time since the last step in seconds.
type seen struct {
	Verdict string  `json:"verdict"`
	After   float64 `json:"after"`
	Ends    bool    `json:"ends,omitempty"`
	Text    string  `json:"text"`
}

// taken notes a verdict, unless it is the one before.
func (r *row) taken(verdict, text string, after time.Duration) {
	if n := len(r.Seen); n == 0 || r.Seen[n-1].Verdict != verdict {
		r.Seen = append(r.Seen, seen{Verdict: verdict, After: math.Round(after.Seconds()*10) / 10, Text: text})
	}
}

// ended notes a restart and its cause.
func (r *row) ended(code, text string, after time.Duration) {
	r.Restarts++
	r.Seen = append(r.Seen, seen{Verdict: code, After: math.Round(after.Seconds()*10) / 10, Ends: true, Text: text})
}

func (r *row) String() string {
	out := &strings.Builder{}
	for _, s := range r.Seen {
		ends := ""
		if s.Ends {
			ends = ", ends"
		}
		fmt.Fprintf(out, " | %s after %.1f s%s: %s", s.Verdict, s.After, ends, s.Text)
	}
	return out.String()
}

// write says what was seen, and with -record keeps it in place of what was seen before.
func (r *row) write(t *testing.T) {
	t.Helper()
	t.Logf("%s: %d restarts, %s%s", r.Name, r.Restarts, r.Result, r)
	if !*record || t.Failed() {
		return
	}
	harness.KeepRow(t, results, *r, func(a, b row) int { return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Name, b.Name)) })
}
