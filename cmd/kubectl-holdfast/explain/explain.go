// Package explain formats a Gang's status as text: where its pods are, the state in memory and in storage, which pods
// will be replaced and what they wait for, each recovery with its phases and its evidence, and the verdict. The package
// reads nothing but its input. The same objects at the same time give the same text.
package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/protocol"
)

// Explanation has what is known of a gang at one time; -o json and -o yaml print it as it is.
type Explanation struct {
	Namespace string                `json:"namespace"`
	Job       v1alpha1.JobReference `json:"job"`
	Gang      string                `json:"gang"`
	Members   int32                 `json:"members"`
	// StateBytes is the size of the state that one rank keeps in memory; 0: off.
	StateBytes int64 `json:"stateBytes"`
	// Storage is the target of copies of steps; nil: none.
	Storage *v1alpha1.GangStorage `json:"storage,omitempty"`
	// Status is the Gang's, with figures as of At.
	Status v1alpha1.GangStatus `json:"status"`
	// Nodes are the nodes of the gang's present and former pods, with their present verdicts.
	Nodes []NodeWords `json:"nodes,omitempty"`
	// Unread lists what could not be read.
	Unread []string  `json:"unread,omitempty"`
	At     time.Time `json:"at"`
}

// Of explains a Gang as of now. Nodes are the readable ones of NodesOf; unread has the reasons for the others.
func Of(g *v1alpha1.Gang, nodes []corev1.Node, unread []string, now time.Time) Explanation {
	e := Explanation{Namespace: g.Namespace, Job: g.Spec.JobRef, Gang: g.Name, Members: g.Spec.Members, StateBytes: g.Spec.StateBytes,
		Storage: g.Spec.Storage, Status: *g.Status.DeepCopy(), Unread: unread, At: now}
	for i := range nodes {
		e.Nodes = append(e.Nodes, wordsOf(&nodes[i]))
	}
	status.Figures(&e.Status, &g.Spec, e.Status.Run, now)
	return e
}

// Text is the explanation as text.
func (e Explanation) Text() string {
	w := &page.Page{}
	e.head(w)
	e.conditions(w)
	e.members(w)
	e.replacements(w)
	if len(e.Status.Notes) > 0 {
		w.Linef("")
		w.Linef("Notes")
		for _, n := range e.Status.Notes {
			w.Wrapf("  - ", "%s", n)
		}
	}
	if r := e.Status.Run; r != nil {
		e.recoveries(w, r)
		e.nodeCheck(w, r)
		e.hangs(w, r)
		verdict(w, r.Verdict)
	}
	if len(e.Unread) > 0 {
		w.Linef("")
		for _, n := range e.Unread {
			w.Wrapf("note: ", "%s", n)
		}
	}
	return w.String()
}

// hangs names the files that agents keep about the ranks of generations that stood still.
func (e Explanation) hangs(w *page.Page, r *v1alpha1.RunStatus) {
	var names []string
	for _, c := range r.Recoveries {
		if still(c.Cause.Code) {
			names = append(names, fmt.Sprintf("%d-*", c.Generation-1))
		}
	}
	if s := r.Progress.Standstill; s != nil && still(s.Verdict) {
		names = append(names, fmt.Sprintf("%d-*", r.Generation))
	}
	if len(names) == 0 {
		return
	}
	where := "in each pod"
	if e.Storage != nil {
		where += fmt.Sprintf(", or hangs in the job's folder of claim %s", e.Storage.Claim)
	}
	w.Linef("")
	w.Wrapf("", "Stacks and collectives of all ranks that stood still: %s in /run/holdfast/run/hangs %s; the newest 3 stay",
		strings.Join(names, ", "), where)
}

func (e Explanation) head(w *page.Page) {
	s := &e.Status
	phase := string(s.Phase)
	if phase == "" {
		phase = "not checked yet"
	}
	w.Linef("%s: %s", page.JobTitle(e.Namespace, e.Job), phase)
	r := s.Run
	if r == nil || r.Generation == 0 {
		w.Linef("  no generation has run yet; the gang has %s", page.Count(int64(e.Members), "pod", "pods"))
		return
	}
	of := ""
	if out := len(r.Out); out > 0 {
		of = fmt.Sprintf("%d of ", int(e.Members)-out)
	}
	w.Linef(
		"  generation %d, %s on %s%s, %s so far",
		r.Generation,
		page.Count(int64(r.Progress.Ranks), "rank", "ranks"),
		of,
		page.Count(int64(e.Members), "pod", "pods"),
		page.Count(int64(r.Restarts), "restart", "restarts"),
	)
	parts := []string{}
	if s.Step > 0 {
		parts = append(parts, fmt.Sprintf("all ranks finished step %d", s.Step))
	}
	if s.SavedStep > 0 && s.SavedAt != nil {
		parts = append(parts, fmt.Sprintf("all hold step %d in memory (%s ago)", s.SavedStep, page.Age(s.SavedAt.Time, e.At)))
	}
	if share, ok := status.Goodput(r, e.At); ok {
		parts = append(parts, fmt.Sprintf("goodput %.1f%%", 100*share))
	}
	if share := s.CapacityPercent; share != nil {
		parts = append(parts, fmt.Sprintf("capacity %d%%", *share))
	}
	if len(parts) > 0 {
		w.Linef("  %s", strings.Join(parts, ", "))
	}
	e.storage(w, r)
	struck(w, r)
	if r.Verdict == nil && r.WithoutProgress > 0 {
		w.Linef("  %s since the last progress; %d end the job", page.Count(int64(r.WithoutProgress), "restart", "restarts"), protocol.RestartsWithoutProgress)
	}
}

// struck lists the numbers of pods with which the script cannot run.
func struck(w *page.Page, r *v1alpha1.RunStatus) {
	if r.Sizes == nil {
		return
	}
	for _, k := range r.Sizes.Struck {
		w.Linef("  does not go on with %s: generation %d raised %s", page.Count(int64(k.Pods), "pod", "pods"), k.Generation, k.Message)
	}
}

// storage describes what outlives the pods.
func (e Explanation) storage(w *page.Page, r *v1alpha1.RunStatus) {
	switch d := r.Durable; {
	case e.Storage == nil && d == nil:
	case d == nil:
		w.Linef("  no step is in storage yet (claim %s, every %s)", e.Storage.Claim, time.Duration(e.Storage.IntervalSeconds)*time.Second)
	case e.Storage == nil:
		w.Linef("  storage holds step %d (%s ago)", d.Step, page.Age(d.At.Time, e.At))
	default:
		w.Linef("  storage holds step %d (%s ago; claim %s, every %s)", d.Step, page.Age(d.At.Time, e.At), e.Storage.Claim, time.Duration(e.Storage.IntervalSeconds)*time.Second)
	}
}

// titles names conditions as people ask for them, in the order of a job's life.
var titles = []struct{ condition, title string }{
	{v1alpha1.ConditionPlaced, "Placement"}, {v1alpha1.ConditionRunning, "Running"},
	{v1alpha1.ConditionProgressing, "Progressing"}, {v1alpha1.ConditionBusy, "Busy"}, {v1alpha1.ConditionStateInMemory, "State in memory"},
	{v1alpha1.ConditionStandbysReady, "Standbys"}, {v1alpha1.ConditionGoodputKnown, "Goodput"},
	{v1alpha1.ConditionUnprotected, "Unprotected"}, {v1alpha1.ConditionLauncherRestarts, "Whole command"},
	{v1alpha1.ConditionComplete, "Complete"}, {v1alpha1.ConditionFailed, "Failed"},
}

// quiet are conditions that are not printed in their usual state.
var quiet = map[string]metav1.ConditionStatus{
	v1alpha1.ConditionProgressing:      metav1.ConditionTrue,
	v1alpha1.ConditionBusy:             metav1.ConditionFalse,
	v1alpha1.ConditionComplete:         metav1.ConditionFalse,
	v1alpha1.ConditionFailed:           metav1.ConditionFalse,
	v1alpha1.ConditionGoodputKnown:     metav1.ConditionTrue,
	v1alpha1.ConditionUnprotected:      metav1.ConditionFalse,
	v1alpha1.ConditionLauncherRestarts: metav1.ConditionFalse,
}

func (e Explanation) conditions(w *page.Page) {
	if len(e.Status.Conditions) > 0 {
		w.Linef("")
	}
	for _, t := range titles {
		for _, c := range e.Status.Conditions {
			if c.Type != t.condition || quiet[c.Type] == c.Status {
				continue
			}
			w.Wrapf(fmt.Sprintf("%-16s %-5s ", t.title, yes(string(c.Status))), "%s: %s", c.Reason, c.Message)
			switch {
			case c.Type == v1alpha1.ConditionStateInMemory && c.Status == "True" && e.StateBytes > 0:
				w.Linef("%-16s %-5s %s for each rank and slot", "", "", page.Bytes(e.StateBytes))
			case c.Type == v1alpha1.ConditionPlaced && c.Status != "True":
				e.refused(w)
			}
		}
	}
}

// refused prints the scheduler's counts.
func (e Explanation) refused(w *page.Page) {
	p := e.Status.Placement
	if p == nil || p.Placed || e.Status.Phase == v1alpha1.PhaseFinished || e.Status.Phase == v1alpha1.PhaseFailed {
		return
	}
	if p.Reason != v1alpha1.ReasonWaitingForMembers && p.Reason != v1alpha1.ReasonMemberLost { // otherwise no room was searched
		w.Linef("%-16s %-5s %d of %d pods would fit now", "", "", p.Fits, p.Wanted)
	}
	for _, k := range slices.Sorted(maps.Keys(p.Excluded)) {
		w.Linef("%-16s %-5s %s left out: %s", "", "", page.Count(int64(p.Excluded[k]), "node", "nodes"), k)
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

func (e Explanation) members(w *page.Page) {
	if len(e.Status.Members) == 0 {
		return
	}
	w.Linef("")
	var rows [][]string
	for _, m := range e.Status.Members {
		agent := "not attached"
		if m.Attached {
			agent = "attached"
		}
		rows = append(
			rows,
			[]string{
				fmt.Sprint(m.Slot),
				page.Dash(m.Pod),
				page.Dash(m.Node),
				fmt.Sprint(m.Ranks),
				fmt.Sprint(m.StandbysReady),
				agent,
				page.Dash(e.words(m.Node).Line()),
			},
		)
	}
	w.Table("", []string{"Slot", "Pod", "Node", "Ranks", "Standbys", "Agent", "Verdict on the node"}, rows, false)
	if without := e.unlisted(); without != "" {
		w.Linef("no pod is listed for %s", without)
	}
}

// unlisted describes the slots without a pod in the Gang's list: no pod holds them, or the list is full.
func (e Explanation) unlisted() string {
	const shown = 4
	var ranges []string
	next, all := int32(0), int32(0)
	upTo := func(slot int32) { // the slots from next on
		switch n := slot - next; {
		case n == 1:
			ranges = append(ranges, fmt.Sprint(next))
			all++
		case n > 1:
			ranges = append(ranges, fmt.Sprintf("%d to %d", next, slot-1))
			all += n
		}
		next = slot + 1
	}
	for _, m := range e.Status.Members {
		upTo(m.Slot)
	}
	upTo(e.Members)
	switch {
	case all == 0:
		return ""
	case all == 1:
		return "slot " + ranges[0]
	case len(ranges) > shown:
		return fmt.Sprintf("%d slots, such as %s", all, strings.Join(ranges[:shown], ", "))
	}
	return "slots " + strings.Join(ranges, ", ")
}
