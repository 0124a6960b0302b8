package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestSilencesShowWhatWasSeen compares the table of silences in annotations.md with what test/hang recorded.
func TestSilencesShowWhatWasSeen(t *testing.T) {
	kept, err := os.ReadFile("../test/hang/testdata/silences.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want := &strings.Builder{}
	for line := range strings.Lines(string(kept)) {
		var r struct {
			Part, What, Result string
			Restarts           int
			Seen               []struct {
				Verdict string
				After   float64
				Ends    bool
			}
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		seen := []string{}
		for _, s := range r.Seen {
			ends := ""
			if s.Ends {
				ends = ", restart"
			}
			seen = append(seen, fmt.Sprintf("`%s` after %.0f s%s", s.Verdict, s.After, ends))
		}
		if len(seen) == 0 {
			seen = append(seen, "nothing")
		}
		fmt.Fprintf(want, "| %s | %s | `%s` |\n", r.What, strings.Join(seen, "; "), r.Result)
	}
	page, err := os.ReadFile("annotations.md")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(want.String(), "\n") < 16 || !strings.Contains(string(page), want.String()) {
		t.Errorf("annotations.md does not have the rows that test/hang kept; these are they:\n%s", want)
	}
}
