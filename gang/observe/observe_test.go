package observe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/golden"
)

// Each testdata/NAME.txt is a script: lines "restart|replace POD NODE AT BACK CAUSE…" and "measured restart|replace DURATION…", then a line
// "->", then the findings. Times are in seconds; "-" means none.
func TestFindings(t *testing.T) {
	golden.Each(t, "testdata/*.txt", func(t *testing.T, file, text string) {
		script, _, _ := strings.Cut(text, "->\n")
		got := script + "->\n"
		for _, f := range Of(parse(t, script)) {
			got += f.Text() + "\n"
		}
		golden.File(t, file, got)
	})
}

func parse(t *testing.T, script string) (failures []Failure, known Figures) {
	t.Helper()
	kinds := map[string]Kind{"restart": Restart, "replace": Replace}
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		w := strings.Fields(line)
		if w[0] == "measured" {
			for _, text := range w[2:] {
				d := length(t, text)
				if w[1] == "restart" {
					known.Restarts = append(known.Restarts, d)
				} else {
					known.Replacements = append(known.Replacements, d)
				}
			}
			continue
		}
		failures = append(
			failures,
			Failure{Kind: kinds[w[0]], Pod: w[1], Node: w[2], At: moment(t, w[3]), Back: moment(t, w[4]), Cause: strings.Join(w[5:], " ")},
		)
	}
	return failures, known
}

func length(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func moment(t *testing.T, s string) time.Time {
	t.Helper()
	if s == "-" {
		return time.Time{}
	}
	return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC).Add(length(t, s))
}

// A finding is new when the failure is seen and when the pod is back, whatever else is measured meanwhile.
func TestNews(t *testing.T) {
	f := Failure{Pod: "p", Node: "n", Cause: "ended", At: moment(t, "1s")}
	first := Of([]Failure{f}, Figures{})
	if n := News(first, []string{"a note"}); len(n) != 1 {
		t.Fatalf("%d news", len(n))
	}
	received := []string{first[0].Text()}
	if n := News(Of([]Failure{f}, Figures{Restarts: []time.Duration{time.Second}}), received); len(n) != 0 {
		t.Errorf("what was measured on another job is reported as news: %v", n)
	}
	f.Back = moment(t, "9s")
	if n := News(Of([]Failure{f}, Figures{}), received); len(n) != 1 {
		t.Errorf("%d news of a pod that is back", len(n))
	}
}

func TestKeepsTheNewest(t *testing.T) {
	var all []Failure
	for i := range 25 {
		all = append(all, Failure{Pod: fmt.Sprint(i), At: moment(t, fmt.Sprintf("%ds", 25-i))})
	}
	if got := Of(all, Figures{}); len(got) != kept || got[kept-1].Pod != "0" {
		t.Errorf("%d findings, the last of pod %s", len(got), got[len(got)-1].Pod)
	}
}
