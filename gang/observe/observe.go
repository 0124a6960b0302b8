// Package observe computes what Holdfast would have done about the failures of an observed job, and the time that this
// would have saved. The time is the observed time until a pod was back, minus the median of real recoveries on this
// cluster, and is marked as an estimate. If one of the two values was not measured, there is no estimate.
package observe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is what Holdfast would have done.
type Kind int

const (
	// Restart: all ranks are restarted in their present pods.
	Restart Kind = iota
	// Replace: the one pod is replaced, the others stay.
	Replace
)

// Reasons of a Finding.
const (
	WouldRestart = "WouldRestart"
	WouldReplace = "WouldReplace"
)

// kept is the most findings.
const kept = 10

// Failure is one failure observed from outside the pod.
type Failure struct {
	Kind      Kind
	Pod, Node string
	// Cause is a text on the failure.
	Cause string
	// At is when it failed, Back when its replacement ran; zero: not yet, or unknown.
	At, Back time.Time
}

// Figures are the durations of recoveries, from the first observed failure to the first new step, that Holdfast measured on other
// jobs of this cluster.
type Figures struct{ Restarts, Replacements []time.Duration }

// Finding is what Holdfast would have done about one failure.
type Finding struct {
	Reason, Pod string
	// Head describes the failure; it changes only when the pod is back. Tail is what Holdfast would have done.
	Head, Tail string
}

// Text returns the whole finding as one sentence.
func (f Finding) Text() string { return f.Head + ": " + f.Tail }

// Of returns the newest findings on failures, oldest first.
func Of(failures []Failure, known Figures) []Finding {
	failures = slices.Clone(failures)
	slices.SortStableFunc(failures, func(a, b Failure) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Kind, b.Kind))
	})
	if n := len(failures) - kept; n > 0 {
		failures = failures[n:]
	}
	findings := make([]Finding, 0, len(failures))
	for _, f := range failures {
		findings = append(findings, f.finding(known))
	}
	return findings
}

func (f Failure) finding(known Figures) Finding {
	out := Finding{Reason: WouldRestart, Pod: f.Pod}
	does, measured := "all ranks would have been restarted in their present pods", known.Restarts
	if f.Kind == Replace {
		out.Reason, measured = WouldReplace, known.Replacements
		does = "only this pod would be replaced, on another node, within the outage budget"
	}
	out.Head = fmt.Sprintf("%s: pod %s on node %s %s at %s", out.Reason, f.Pod, cmp.Or(f.Node, "?"), f.Cause, f.At.UTC().Format("2006-01-02 15:04:05Z"))
	away := f.Back.Sub(f.At)
	if back := !f.Back.IsZero() && away >= 0; back {
		out.Head += fmt.Sprintf(" and ran again after %s", short(away))
	} else {
		away = -1
	}
	out.Tail = does + estimate(away, measured)
	return out
}

// estimate returns the time that would have been saved, with its basis; away below 0: unknown.
func estimate(away time.Duration, measured []time.Duration) string {
	if len(measured) == 0 {
		return "; no estimate: no such recovery was measured on this cluster yet"
	}
	m := median(measured)
	basis := fmt.Sprintf("about %s, the median of %d measured on this cluster", short(m), len(measured))
	switch {
	case away < 0:
		return fmt.Sprintf("; that takes %s", basis)
	case away <= m:
		return fmt.Sprintf("; that takes %s: nothing saved", basis)
	}
	return fmt.Sprintf("; that takes %s: an estimated %s saved, work since the last checkpoint not counted", basis, short(away-m))
}

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return (d[(len(d)-1)/2] + d[len(d)/2]) / 2
}

// short formats a duration to one tenth of a second, or to whole seconds if it is long.
func short(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// News returns the findings that are not among the given texts of earlier findings.
func News(findings []Finding, reported []string) []Finding {
	var news []Finding
	for _, f := range findings {
		if !slices.ContainsFunc(reported, func(h string) bool { return strings.HasPrefix(h, f.Head+":") }) {
			news = append(news, f)
		}
	}
	return news
}
