package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestKindsShowWhatWasMeasured compares the table of seconds in kinds.md with the results that test/kinds recorded.
func TestKindsShowWhatWasMeasured(t *testing.T) {
	kept, err := os.ReadFile("../test/kinds/testdata/story.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	titles := map[string]string{"VolcanoJob": "Volcano Job"}
	schedulers := map[string]string{"holdfast": "Holdfast's", "volcano": "Volcano's"}
	want := &strings.Builder{}
	for line := range strings.Lines(string(kept)) {
		var r struct {
			Kind, Scheduler, Waits                         string
			Pods, NodeLostSteps                            int
			Placed, RankKilled, NodeLost, Drained, Resumed float64
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		kind, is := titles[r.Kind]
		if !is {
			kind = r.Kind
		}
		fmt.Fprintf(want, "| %s | %s | %d | `%s` | %.1f | %.1f | %.1f (%d) | %.1f | %.1f |\n", kind, schedulers[r.Scheduler], r.Pods, r.Waits,
			r.Placed, r.RankKilled, r.NodeLost, r.NodeLostSteps, r.Drained, r.Resumed)
	}
	page, err := os.ReadFile("kinds.md")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(want.String(), "\n") < 8 || !strings.Contains(string(page), want.String()) {
		t.Errorf("kinds.md does not have the rows that test/kinds kept; these are they:\n%s", want)
	}
}
