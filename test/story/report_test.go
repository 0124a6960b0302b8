package story

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func sample() *Report {
	return &Report{
		Started: time.Unix(0, 0).UTC(), Machine: "2 cores", Goodput: "97.1%",
		Chapters: []Chapter{{Title: "Placed together", Took: 12 * time.Second, Saw: []string{"0 of 2 pods bound for 10 s"}}},
		Recoveries: []Recovery{{What: "kill -9 rank 1 <&>", Total: 170, StepsRecomputed: 1, Standbys: 4, Ranks: 4,
			Phases: []Phase{{"detect", 2}, {"decide", 8}, {"stop", 20}, {"start", 5}, {"restore", 40}, {"first step", 95}}}},
		Losses: Losses{Disturbed: []float64{3, 2, 1}, Undisturbed: []float64{3, 2, 1}, Compared: 12, Equal: 12, RestartedAt: []int64{1}},
	}
}

func TestSummaryAndPageShowTheSameFacts(t *testing.T) {
	r := sample()
	var text, html bytes.Buffer
	if err := r.WriteSummary(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WritePage(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"97.1%", "0.17 s", "95 ms", "4 of 4", "Placed together", "0 of 2 pods bound for 10 s"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("summary lacks %q:\n%s", want, text.String())
		}
		if !strings.Contains(html.String(), want) {
			t.Errorf("page lacks %q", want)
		}
	}
	if strings.Contains(html.String(), "<&>") {
		t.Error("page does not escape what it shows")
	}
	if strings.Contains(html.String(), "http://") || strings.Contains(html.String(), "https://") || strings.Contains(html.String(), "ZgotmplZ") {
		t.Error("page is not self-contained")
	}
}

func TestCurvesOfNothing(t *testing.T) {
	if c := curves(Losses{}, 10, 10); c.Disturbed != "" || strings.Contains(c.Low, "NaN") {
		t.Fatalf("curves of nothing = %+v", c)
	}
}
