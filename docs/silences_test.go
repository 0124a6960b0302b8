package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
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

// TestManySilencesShowWhatWasSeen compares the table of many healthy silences in annotations.md with what test/hang recorded: none was
// ended.
func TestManySilencesShowWhatWasSeen(t *testing.T) {
	kept, err := os.ReadFile("../test/hang/testdata/many.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	type kind struct {
		n           int
		least, most float64
		verdicts    map[string]int
	}
	kinds, all := map[string]*kind{}, 0
	for line := range strings.Lines(string(kept)) {
		var r struct {
			What     string
			Seconds  float64
			Restarts int
			Seen     []struct{ Verdict string }
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		k := kinds[r.What]
		if k == nil {
			k = &kind{least: r.Seconds, verdicts: map[string]int{}}
			kinds[r.What] = k
		}
		all++
		k.n, k.least, k.most = k.n+1, min(k.least, r.Seconds), max(k.most, r.Seconds)
		for _, s := range r.Seen {
			k.verdicts[s.Verdict]++
		}
		if r.Restarts > 0 || len(r.Seen) == 0 {
			t.Errorf("a silence was ended, or was not looked at: %s", line)
		}
	}
	want := &strings.Builder{}
	for _, what := range slices.Sorted(maps.Keys(kinds)) {
		k, verdicts := kinds[what], []string{}
		for _, v := range slices.Sorted(maps.Keys(k.verdicts)) {
			verdicts = append(verdicts, fmt.Sprintf("`%s` %d", v, k.verdicts[v]))
		}
		fmt.Fprintf(want, "| %s | %d | %.0f to %.0f | %s | 0 |\n", what, k.n, k.least, k.most, strings.Join(verdicts, ", "))
	}
	fmt.Fprintf(want, "| all | %d | | | 0 |\n", all)
	page, err := os.ReadFile("annotations.md")
	if err != nil {
		t.Fatal(err)
	}
	if all < manySilences || !strings.Contains(string(page), want.String()) {
		t.Errorf("annotations.md does not have the rows of the %d silences that test/hang kept; these are they:\n%s", all, want)
	}
}

// manySilences is how many silences the table has at least.
const manySilences = 200
