package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestChecksShowWhatWasSeen compares the table of node checks in designs/node-check.md with what test/nodecheck recorded.
func TestChecksShowWhatWasSeen(t *testing.T) {
	kept, err := os.ReadFile("../test/nodecheck/testdata/checks.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want := &strings.Builder{}
	for line := range strings.Lines(string(kept)) {
		var r struct {
			What, Result string
			Replaced     int
			Seconds      float64
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(want, "| %s | `%s` | %d | %.0f s |\n", r.What, r.Result, r.Replaced, r.Seconds)
	}
	page, err := os.ReadFile("designs/node-check.md")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(want.String(), "\n") < 2 || !strings.Contains(string(page), want.String()) {
		t.Errorf("designs/node-check.md does not have the rows that test/nodecheck kept; these are they:\n%s", want)
	}
}
