package explain

import (
	"fmt"
	"strings"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/elastic/waiting"
	"holdfast.dev/holdfast/internal/protocol"
)

// tailLines is the number of lines of a failing rank's output that a recovery shows; a verdict shows all.
const tailLines = 8

func (e Explanation) recoveries(w *page.Page, r *v1alpha1.RunStatus) {
	if len(r.Recoveries) == 0 {
		return
	}
	w.Linef("")
	w.Linef("Recoveries, oldest first")
	for i := range r.Recoveries {
		e.recovery(w, &r.Recoveries[i])
	}
}

func (e Explanation) recovery(w *page.Page, r *v1alpha1.Recovery) {
	w.Linef("")
	w.Linef("  %s  to generation %d: %s", r.DetectedAt.UTC().Format("15:04:05.000"), r.Generation, causeLine(&r.Cause))
	lastWords(w, r.Cause.Message)
	if r.RanksBefore > 0 {
		w.Linef("    %s instead of %d", page.Count(int64(r.Ranks), "rank", "ranks"), r.RanksBefore)
	}
	total, reached, took, by := int64(0), "", strings.Repeat(" ", 10), detected(r)
	if r.DetectMs != nil { // from the last step on
		total, took = *r.DetectMs, fmt.Sprintf("%7d ms", *r.DetectMs)
		if !still(r.Cause.Code) {
			by += ", after ranks had stood still"
		}
	}
	w.Wrapf(fmt.Sprintf("    %-10s %s  ", "detect", took), "%s", by)
	for _, p := range phases(r) {
		if p.ms == nil {
			continue
		}
		reached = p.name
		if p.within == nil {
			total += *p.ms
		}
		w.Wrapf(fmt.Sprintf("    %-10s %7d ms  ", p.name, *p.ms), "%s", p.evidence)
		if p.name == "replace" {
			e.replaced(w, r)
		}
	}
	if r.ReplaceMs == nil {
		e.replaced(w, r)
	}
	switch {
	case reached == "":
		w.Linef("    no phase reported yet")
	case r.FirstStepMs == nil:
		w.Linef("    %-10s %7d ms  up to %s; first step not reported yet", "total", total, reached)
	default:
		w.Linef("    %-10s %7d ms", "total", total)
	}
}

// phase is one part of a recovery; a phase within another is not added to the total.
type phase struct {
	name     string
	ms       *int64
	within   *int64
	evidence string
}

func phases(r *v1alpha1.Recovery) []phase {
	decide := phase{"decide", r.DecideMs, r.DrainMs, "the coordinator ordered a halt; until the last agent had the order"}
	if r.DrainMs != nil {
		decide.evidence += ", within the drain"
	}
	return []phase{
		{"drain", r.DrainMs, nil, fmt.Sprintf("until the state of %s was copied to storage", page.Count(max(len(r.Replaced), int(r.ReplacedPods)), "pod to be replaced", "pods to be replaced"))},
		decide,
		{"stop", r.StopMs, nil, "until the last process ended" + waited(r.Waited)},
		{"replace", r.ReplaceMs, nil, "until the agent of the last new pod was attached; the other pods kept their containers"},
		{"fetch", r.FetchMs, nil, fmt.Sprintf("until step %d was brought from storage", r.RestoreStep)},
		{"check", r.CheckMs, nil, "until the node check was over, with the replacement of pods that it named"},
		{"start", r.StartMs, nil, fmt.Sprintf("%d of %s continued in a warm standby", r.Standbys, page.Count(int64(r.Ranks), "rank", "ranks"))},
		{"restore", r.RestoreMs, nil, restored(r)},
		{"first step", r.FirstStepMs, nil, again(r)},
	}
}

// waited describes the pod that was waited for.
func waited(w *v1alpha1.Waited) string {
	if w == nil {
		return ""
	}
	return fmt.Sprintf("; longest waited for: %s in slot %d, which handled SIGTERM for %d ms", page.Count(int64(w.Ranks), "rank", "ranks"), w.Slot, w.Ms)
}

// again describes the recomputed steps.
func again(r *v1alpha1.Recovery) string {
	if r.StepsRecomputed == nil {
		return "the number of recomputed steps is unknown"
	}
	return page.Count(*r.StepsRecomputed, "step", "steps") + " done again"
}

// detected describes which component detected the failure first.
func detected(r *v1alpha1.Recovery) string {
	switch c := r.Cause.Code; {
	case c == v1alpha1.CauseWentBack || c == v1alpha1.CauseCheckRequested:
		return "requested by a user"
	case c == v1alpha1.CauseGangGrows:
		return "the coordinator, once all ranks stayed at one step"
	case still(c):
		return "from the last step until looks at all ranks had the verdict and its time was over"
	case len(r.Replaced) > 0 && r.Replaced[0].Cause == v1alpha1.CauseHardwareSuspected:
		return fmt.Sprintf("the agent in slot %d", r.Cause.Slot)
	case c == v1alpha1.CauseRankKilled || c == v1alpha1.CauseRankFailed || c == v1alpha1.CauseRestoreFailed ||
		c == v1alpha1.CausePortConflict ||
		c == v1alpha1.CauseSizeStruck ||
		c == v1alpha1.CauseRanksLost ||
		c == v1alpha1.CauseContainerRestarted ||
		c == v1alpha1.CauseLauncherStarted:
		if r.Cause.Slot < 0 {
			return "the coordinator"
		}
		return fmt.Sprintf("the agent in slot %d", r.Cause.Slot)
	case len(r.Replaced) > 0 && r.Replaced[0].Cause == v1alpha1.CauseDeleted:
		return fmt.Sprintf("the API server: pod %s is being deleted", r.Replaced[0].Pod)
	case len(r.Replaced) > 0 && (r.Replaced[0].Cause == v1alpha1.CauseNodeShutdown || r.Replaced[0].Cause == v1alpha1.CauseEvicted):
		return fmt.Sprintf("the agent of pod %s, which was ordered to end, and its node", r.Replaced[0].Pod)
	case len(r.Replaced) > 0 && r.Replaced[0].Cause == v1alpha1.CauseAgentUnreachable:
		return fmt.Sprintf("the coordinator: the agent of pod %s did not report", r.Replaced[0].Pod)
	case len(r.Replaced) > 0 && r.Replaced[0].Cause == v1alpha1.CauseHaltTimeout:
		return fmt.Sprintf("the coordinator: what pod %s ran did not end", r.Replaced[0].Pod)
	case len(r.Replaced) > 0 && r.Replaced[0].Dead:
		return fmt.Sprintf("the controller: neither node %s nor an agent on it reported", r.Replaced[0].Node)
	case len(r.Replaced) > 0:
		return fmt.Sprintf("holdfast-node on %s, and the outage budget let its pods go", r.Replaced[0].Node)
	case c == v1alpha1.CausePodLost:
		return fmt.Sprintf("the coordinator: the pod of slot %d does not exist any more", r.Cause.Slot)
	}
	return "the coordinator"
}

// still reports whether looks at ranks find a cause.
func still(c string) bool { return waiting.Kind(c).Stands() || c == v1alpha1.CauseHangTimeout }

// replaced describes which pod replaced which, and why.
func (e Explanation) replaced(w *page.Page, rec *v1alpha1.Recovery) {
	for i := range rec.Replaced {
		r := &rec.Replaced[i]
		to := "no new pod was seen (yet)"
		if r.By != "" {
			to = fmt.Sprintf("%s on %s", r.By, page.Dash(r.NewNode))
		}
		w.Linef("      slot %d: %s on %s -> %s", r.Slot, r.Pod, page.Dash(r.Node), to)
		w.Wrapf("        ", "%s", e.why(&r.Termination))
	}
	more(w, "      ", int(rec.ReplacedPods)-len(rec.Replaced))
}

// lastWords prints the end of the first failing rank's output.
func lastWords(w *page.Page, message string) {
	message = strings.TrimSpace(message)
	if message == "" {
		return
	}
	lines := strings.Split(message, "\n")
	if skipped := len(lines) - tailLines; skipped > 0 {
		w.Linef("    | (%s more)", page.Count(skipped, "line", "lines"))
		lines = lines[skipped:]
	}
	for _, l := range lines {
		w.Linef("    | %s", l)
	}
}

func restored(r *v1alpha1.Recovery) string {
	switch {
	case r.RestoreStep == 0 && r.ResumedAt != nil && *r.ResumedAt > 0:
		return fmt.Sprintf("from step %d, of the script's own checkpoint", *r.ResumedAt)
	case r.RestoreStep == 0:
		return "from the beginning, or the script's own checkpoint"
	case r.FetchMs != nil:
		return fmt.Sprintf("from step %d, in memory or brought there from storage", r.RestoreStep)
	}
	return fmt.Sprintf("from step %d in memory", r.RestoreStep)
}

func verdict(w *page.Page, v *v1alpha1.Verdict) {
	if v == nil {
		return
	}
	w.Linef("")
	w.Linef("Verdict at %s: %s, exit code %d", v.At.UTC().Format(time.RFC3339), v.Reason, v.ExitCode)
	if meaning := meanings[v.Reason]; meaning != "" {
		w.Linef("  %s", meaning)
	}
	if v.Cause == nil {
		return
	}
	w.Linef("  %s", causeLine(v.Cause))
	for _, l := range strings.Split(strings.TrimSpace(v.Cause.Message), "\n") {
		w.Linef("    | %s", l)
	}
}

var meanings = map[string]string{
	v1alpha1.ReasonFinished:         "all ranks ended with exit code 0",
	v1alpha1.ReasonSameFailureTwice: "the same failure came twice without progress in between: a bug in the script, which a restart does not fix",
	v1alpha1.ReasonNoProgress:       fmt.Sprintf("%d restarts without progress", protocol.RestartsWithoutProgress),
	v1alpha1.ReasonMaxRestarts:      "as many restarts as --max-restarts or holdfast.dev/max-restarts allows",
	v1alpha1.ReasonMemberEnded:      "ranks failed when other pods had ended with 0, without which the gang cannot run again",
	v1alpha1.ReasonRefused:          "the launcher requests something that is not supported; change its command line as shown below",
}

func causeLine(c *v1alpha1.Cause) string {
	if c.Code == v1alpha1.ReasonRefused {
		return fmt.Sprintf("%s in slot %d", c.Code, c.Slot)
	}
	line := c.Code
	if c.Rank >= 0 && c.Slot >= 0 {
		line += fmt.Sprintf(", rank %d in slot %d", c.Rank, c.Slot)
	}
	if c.ExitCode != 0 {
		line += fmt.Sprintf(", exit code %d", c.ExitCode)
	}
	if c.Suspect != "" {
		line += fmt.Sprintf("; hardware is suspected: %s", c.Suspect)
	}
	if c.Cascade > 0 {
		line += fmt.Sprintf("; %s ended because of it", page.Count(int64(c.Cascade), "further rank", "further ranks"))
	}
	return line
}
