package explain

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// nodeCheck describes the newest node check: its result, the measured speeds, and which pods it named and why.
func (e Explanation) nodeCheck(w *page.Page, r *v1alpha1.RunStatus) {
	n := r.NodeCheck
	if n == nil {
		return
	}
	head := fmt.Sprintf("Node check before generation %d: %s", n.Generation, n.Result)
	if n.Rounds > 0 {
		head += ", " + page.Count(int64(n.Rounds), "round", "rounds")
	}
	switch {
	case n.EndedAt != nil:
		head += fmt.Sprintf(" in %s", page.Age(n.StartedAt.Time, n.EndedAt.Time))
	case n.Result == "UnderWay":
		head += fmt.Sprintf(" for %s", page.Age(n.StartedAt.Time, e.At))
	}
	if n.Replaced > 0 {
		head += ", " + page.Count(int64(n.Replaced), "pod", "pods") + " replaced"
	}
	w.Linef("")
	w.Linef("%s", head)
	if n.Decides {
		w.Wrapf("  ", "the same failure occurred twice: unless the check has a pod replaced, the job ends")
	}
	for _, s := range n.Speeds {
		w.Wrapf("  ", "%s, %s: %s", s.Model, page.Count(int64(s.Pods), "pod", "pods"), speeds(s))
	}
	for _, p := range n.Named {
		w.Wrapf("  - ", "slot %d, %s: %s", p.Slot, p.Cause, p.Message)
	}
	if more := int(n.Replaced) - len(n.Named); more > 0 && len(n.Named) > 0 {
		w.Linef("  - %s more", page.Count(int64(more), "pod", "pods"))
	}
	for line := range strings.SplitSeq(n.Message, "\n") {
		if line != "" && !named(n, line) {
			w.Wrapf("  - ", "%s", line)
		}
	}
}

// named reports whether a line of the message is the evidence about a named pod, which may be shortened there.
func named(n *v1alpha1.NodeCheck, line string) bool {
	for _, p := range n.Named {
		if p.Message != "" && strings.HasPrefix(line, strings.TrimSuffix(p.Message, "…")) {
			return true
		}
	}
	return false
}

func speeds(s v1alpha1.ModelSpeeds) string {
	var parts []string
	if s.Alone > 0 {
		parts = append(parts, fmt.Sprintf("alone %s at least, median %s", si(s.Alone, "FLOP/s"), si(s.AloneMedian, "FLOP/s")))
	}
	if s.Pair > 0 {
		parts = append(parts, fmt.Sprintf("in pairs %s at least, median %s", si(s.Pair, "B/s"), si(s.PairMedian, "B/s")))
	}
	return strings.Join(parts, "; ")
}

// si is a figure with three digits and a prefix of its unit.
func si(v int64, unit string) string {
	f, prefixes := float64(v), []string{"", "k", "M", "G", "T", "P"}
	for len(prefixes) > 1 && f >= 999.5 {
		f, prefixes = f/1000, prefixes[1:]
	}
	return fmt.Sprintf("%.3g %s%s", f, prefixes[0], unit)
}
