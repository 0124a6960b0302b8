// Package explain says in words what a Gang's status says in fields: where its pods are, what is kept in
// memory, each recovery phase by phase with its evidence, and the verdict. It promises that the same
// objects at the same time give the same text, and that it reads nothing but what it is given.
package explain

import (
	"fmt"
	"strings"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/translate"
)

// Explanation is what is known of a gang at one time; -o json and -o yaml print it as it is.
type Explanation struct {
	Namespace string                `json:"namespace"`
	Job       v1alpha1.JobReference `json:"job"`
	Gang      string                `json:"gang"`
	Members   int32                 `json:"members"`
	// StateBytes is the size of the state that one rank keeps in memory; 0: off.
	StateBytes int64 `json:"stateBytes"`
	// Status is the Gang's, with figures as of At.
	Status v1alpha1.GangStatus `json:"status"`
	At     time.Time           `json:"at"`
}

// Of is the explanation of a Gang as of now.
func Of(g *v1alpha1.Gang, now time.Time) Explanation {
	e := Explanation{Namespace: g.Namespace, Job: g.Spec.JobRef, Gang: g.Name, Members: g.Spec.Members, StateBytes: g.Spec.StateBytes, Status: *g.Status.DeepCopy(), At: now}
	translate.Figures(&e.Status, e.Status.Run, now)
	return e
}

// Text is the explanation for people.
func (e Explanation) Text() string {
	w := &page{}
	e.head(w)
	e.conditions(w)
	e.members(w)
	if len(e.Status.Notes) > 0 {
		w.linef("")
		w.linef("Notes")
		for _, n := range e.Status.Notes {
			w.linef("  - %s", n)
		}
	}
	if r := e.Status.Run; r != nil {
		e.recoveries(w, r)
		verdict(w, r.Verdict)
	}
	return w.String()
}

type page struct{ strings.Builder }

func (p *page) linef(format string, args ...any) {
	fmt.Fprintf(p, format, args...)
	p.WriteByte('\n')
}

func (e Explanation) head(w *page) {
	s := &e.Status
	phase := string(s.Phase)
	if phase == "" {
		phase = "not looked at yet"
	}
	w.linef("%s %s/%s: %s", e.Job.Kind, e.Namespace, e.Job.Name, phase)
	r := s.Run
	if r == nil || r.Generation == 0 {
		w.linef("  no generation has run yet; the gang has %s", count(int64(e.Members), "pod", "pods"))
		return
	}
	w.linef("  generation %d, %s on %s, %s so far", r.Generation, count(int64(r.Progress.Ranks), "rank", "ranks"), count(int64(e.Members), "pod", "pods"), count(int64(r.Restarts), "restart", "restarts"))
	parts := []string{}
	if s.Step > 0 {
		parts = append(parts, fmt.Sprintf("all ranks finished step %d", s.Step))
	}
	if s.SavedStep > 0 {
		parts = append(parts, fmt.Sprintf("all hold step %d in memory (%s ago)", s.SavedStep, s.Saved))
	}
	if s.Goodput != "" {
		parts = append(parts, "goodput "+s.Goodput)
	}
	if len(parts) > 0 {
		w.linef("  %s", strings.Join(parts, ", "))
	}
	if r.Verdict == nil && r.WithoutProgress > 0 {
		w.linef("  %s since the last progress; 10 end the job", count(int64(r.WithoutProgress), "restart", "restarts"))
	}
}

// titles names conditions as people ask for them, in the order of a job's life.
var titles = []struct{ condition, title string }{
	{v1alpha1.ConditionPlaced, "Placement"}, {v1alpha1.ConditionRunning, "Running"}, {v1alpha1.ConditionStateInMemory, "State in memory"},
	{v1alpha1.ConditionStandbysReady, "Standbys"}, {v1alpha1.ConditionFinished, "Finished"},
}

func (e Explanation) conditions(w *page) {
	w.linef("")
	for _, t := range titles {
		for _, c := range e.Status.Conditions {
			if c.Type != t.condition || c.Type == v1alpha1.ConditionFinished && c.Status != "True" {
				continue
			}
			w.linef("%-16s %-5s %s: %s", t.title, yes(string(c.Status)), c.Reason, c.Message)
			if c.Type == v1alpha1.ConditionStateInMemory && c.Status == "True" && e.StateBytes > 0 {
				w.linef("%-16s %-5s %s for each rank and slot", "", "", bytes(e.StateBytes))
			}
		}
	}
	p := e.Status.Placement
	if p == nil || p.Placed {
		return
	}
	w.linef("%-16s %-5s %d of %d pods would fit now", "", "", p.Fits, p.Wanted)
	for _, k := range sorted(p.Excluded) {
		w.linef("%-16s %-5s %s", "", "", fmt.Sprintf("%s left out: %s", count(int64(p.Excluded[k]), "node", "nodes"), k))
	}
}

func yes(status string) string {
	switch status {
	case "True":
		return "yes"
	case "False":
		return "no"
	}
	return "?"
}

func (e Explanation) members(w *page) {
	if len(e.Status.Members) == 0 {
		return
	}
	w.linef("")
	w.linef("Slot  Pod                             Node                  Ranks  Standbys  Agent")
	for _, m := range e.Status.Members {
		agent := "not attached"
		if m.Attached {
			agent = "attached"
		}
		w.linef("%-4d  %-30s  %-20s  %5d  %8d  %s", m.Slot, dash(m.Pod), dash(m.Node), m.Ranks, m.StandbysReady, agent)
	}
}

func (e Explanation) recoveries(w *page, r *v1alpha1.RunStatus) {
	if len(r.Recoveries) == 0 {
		return
	}
	w.linef("")
	w.linef("Recoveries, oldest first")
	for i := range r.Recoveries {
		recovery(w, &r.Recoveries[i])
	}
}

func recovery(w *page, r *v1alpha1.Recovery) {
	w.linef("")
	w.linef("  %s  to generation %d: %s", r.DetectedAt.UTC().Format("15:04:05.000"), r.Generation, causeLine(&r.Cause))
	if m := lastLine(r.Cause.Message); m != "" {
		w.linef("    %s", m)
	}
	total, reached := int64(0), ""
	for _, p := range []struct {
		name     string
		ms       *int64
		evidence string
	}{
		{"decide", r.DecideMs, "until the last agent had the order to halt"},
		{"stop", r.StopMs, "until the last process was gone"},
		{"start", r.StartMs, fmt.Sprintf("%d of %s continued in a warm standby", r.Standbys, count(int64(r.Ranks), "rank", "ranks"))},
		{"restore", r.RestoreMs, restored(r)},
		{"first step", r.FirstStepMs, fmt.Sprintf("%s done again", count(r.StepsRecomputed, "step", "steps"))},
	} {
		if p.ms == nil {
			continue
		}
		total += *p.ms
		reached = p.name
		w.linef("    %-10s %7d ms  %s", p.name, *p.ms, p.evidence)
	}
	switch {
	case reached == "":
		w.linef("    no phase is known yet")
	case r.FirstStepMs == nil:
		w.linef("    %-10s %7d ms  up to %s; no first step was told (yet)", "total", total, reached)
	default:
		w.linef("    %-10s %7d ms", "total", total)
	}
}

func restored(r *v1alpha1.Recovery) string {
	if r.RestoreStep == 0 {
		return "from the beginning, or the script's own checkpoint"
	}
	return fmt.Sprintf("from step %d in memory", r.RestoreStep)
}

func verdict(w *page, v *v1alpha1.Verdict) {
	if v == nil {
		return
	}
	w.linef("")
	w.linef("Verdict at %s: %s, exit code %d", v.At.UTC().Format(time.RFC3339), v.Reason, v.ExitCode)
	if meaning := meanings[v.Reason]; meaning != "" {
		w.linef("  %s", meaning)
	}
	if v.Cause == nil {
		return
	}
	w.linef("  %s", causeLine(v.Cause))
	for _, l := range strings.Split(strings.TrimSpace(v.Cause.Message), "\n") {
		w.linef("    | %s", l)
	}
}

var meanings = map[string]string{
	v1alpha1.ReasonFinished:         "all ranks ended with exit code 0",
	v1alpha1.ReasonSameFailureTwice: "the same failure came twice with no new step that all ranks hold in between: a bug in the script, which a restart does not mend",
	v1alpha1.ReasonNoProgress:       "10 restarts brought no step that was not reached before",
	v1alpha1.ReasonRefused:          "the launcher asked for something that cannot be honoured; change its command line as said below",
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
	if c.Cascade > 0 {
		line += fmt.Sprintf("; %s ended because of it", count(int64(c.Cascade), "further rank", "further ranks"))
	}
	return line
}
