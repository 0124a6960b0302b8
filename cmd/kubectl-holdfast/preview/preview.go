// Package preview shows what Holdfast would do with a job before the job is created: the changes in the job and in each
// of its pods, the added memory, and where its pods would be placed now, or why not. All of it comes from the API
// server and the scheduler.
package preview

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// Answers are what the API server made of dry runs, and the scheduler of the pods.
type Answers struct {
	// Plain and Job are the Job without a key of ours and as it is in the file, as they would be stored.
	Plain, Job *batchv1.Job
	// PlainPod and Pod are the first pod of each; nil where Unshown says why.
	PlainPod, Pod *corev1.Pod
	Unshown       string
	// Warnings are what the API server said beside its answers.
	Warnings []string
	// Where is the scheduler's answer; nil where Unasked says why.
	Where   *v1alpha1.PreviewResponse
	Unasked string
	// Nodes are those of the cluster; none where Unread says why.
	Nodes  []corev1.Node
	Unread string
	// Quotas are those of the namespace; none where QuotasUnread says why.
	Quotas       []corev1.ResourceQuota
	QuotasUnread string
}

// Preview is what would become of a Job; -o json and -o yaml print it as it is.
type Preview struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Members   int32  `json:"members"`
	// JobDiff and PodDiff are unified diffs from what would be without Holdfast.
	JobDiff string `json:"jobDiff,omitempty"`
	PodDiff string `json:"podDiff,omitempty"`
	Unshown string `json:"unshown,omitempty"`
	// Injection is what the webhook says that it did to each pod.
	Injection *v1alpha1.Injection `json:"injection,omitempty"`
	// State is what state in memory takes; nil: none is kept.
	State *State `json:"state,omitempty"`
	// Storage is what steps take of the claim; nil: none are copied there.
	Storage  *Storage `json:"storage,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Where is where the pods would land now, or why not.
	Where   *v1alpha1.PreviewResponse `json:"where,omitempty"`
	Unasked string                    `json:"unasked,omitempty"`
	// Quotas are those that the pods do not fit into now, or that were not compared.
	Quotas []Short `json:"quotas,omitempty"`
	// QuotasUnread is why none was read.
	QuotasUnread string `json:"quotasUnread,omitempty"`
}

// Of is the preview that follows from what was answered.
func Of(a Answers) (Preview, error) {
	p := Preview{
		Namespace: a.Job.Namespace,
		Job:       a.Job.Name,
		Members:   1,
		Unshown:   a.Unshown,
		Warnings:  slices.Compact(slices.Clone(a.Warnings)),
		Where:     a.Where,
		Unasked:   a.Unasked,
	}
	if a.Job.Spec.Parallelism != nil {
		p.Members = *a.Job.Spec.Parallelism
	}
	var err error
	if p.JobDiff, err = diff("Job", jobText, a.Plain, a.Job); err != nil {
		return p, err
	}
	if a.Pod == nil {
		return p, nil
	}
	if text := a.Pod.Annotations[v1alpha1.AnnotationInjection]; text != "" {
		p.Injection = &v1alpha1.Injection{}
		if err := json.Unmarshal([]byte(text), p.Injection); err != nil {
			return p, fmt.Errorf("reading the annotation %s that the webhook wrote: %w", v1alpha1.AnnotationInjection, err)
		}
	}
	p.State, p.Storage = p.state(a), p.storage(a)
	p.Quotas, p.QuotasUnread = Quotas(a.Quotas, a.Pod, p.Members), a.QuotasUnread
	p.PodDiff, err = diff("Pod", podText, a.PlainPod, a.Pod)
	return p, err
}

// Fits reports whether the pods would all be made and placed now; known is false where neither quotas nor the scheduler say no, and the
// scheduler was not asked.
func (p Preview) Fits() (fits, known bool) {
	if slices.ContainsFunc(p.Quotas, func(s Short) bool { return s.Resource != "" }) {
		return false, true
	}
	return p.Where != nil && p.Where.Placement.Placed, p.Where != nil
}

// Text is the preview for people.
func (p Preview) Text() string {
	w := &page.Page{}
	w.Linef("Job %s/%s: %s, placed together; nothing was created", p.Namespace, p.Job, page.Count(p.Members, "pod", "pods"))
	for _, warning := range p.Warnings {
		w.Wrapf("  warning: ", "%s", warning)
	}
	changes(w, "The Job", p.JobDiff, "")
	changes(w, "Each pod", p.PodDiff, p.Unshown)
	p.memory(w)
	w.Linef("")
	for _, s := range p.Quotas {
		w.Wrapf("Quota: ", "%s", s.text())
	}
	if p.QuotasUnread != "" {
		w.Wrapf("Quota: ", "not compared: %s", p.QuotasUnread)
	}
	p.where(w)
	return w.String()
}

func changes(w *page.Page, what, diff, unshown string) {
	w.Linef("")
	switch {
	case unshown != "":
		w.Wrapf(what+": ", "not shown: %s", unshown)
	case diff == "":
		w.Linef("%s: stays as it is", what)
	default:
		w.Linef("%s changes (- without Holdfast, + with it)", what)
		for i, l := range strings.Split(strings.TrimRight(diff, " \n"), "\n") {
			if i >= 2 { // the names of the two sides stand above
				w.Linef("  %s", l)
			}
		}
	}
}

func (p Preview) memory(w *page.Page) {
	i := p.Injection
	if i == nil {
		return
	}
	w.Linef("")
	if i.MemoryAdded > 0 {
		w.Linef("Memory: %s more for each pod, for %s", page.Bytes(i.MemoryAdded), page.Count(i.Ranks, "rank", "ranks"))
	} else {
		w.Linef("Memory: none added")
	}
	if p.State != nil {
		p.State.text(w)
	} else {
		w.Linef("  state in memory: off")
	}
	if i.ShmBytes > 0 {
		w.Linef("  shared memory: %s at /dev/shm", page.Bytes(i.ShmBytes))
	}
	standbys := "off"
	if i.Standbys {
		standbys = "one for each rank"
		if more := i.MemoryAdded - p.stateTotal() - i.ShmBytes; more > 0 {
			standbys += fmt.Sprintf("; %s with the agent", page.Bytes(more))
		}
	}
	w.Linef("  warm standbys: %s", standbys)
	if p.Storage != nil {
		p.Storage.text(w)
	}
	for _, n := range i.Notes {
		w.Wrapf("  - ", "%s", n)
	}
}

// stateTotal is what a pod's state takes.
func (p Preview) stateTotal() int64 {
	if p.State == nil {
		return 0
	}
	return p.State.Total
}

func (p Preview) where(w *page.Page) {
	if p.Where == nil {
		w.Wrapf("Where: ", "not queried: %s", p.Unasked)
		return
	}
	r := p.Where
	if r.Placement.Placed {
		which := "all"
		if placed := int32(len(r.Assignments)); placed < p.Members {
			which = fmt.Sprintf("%d of %s", placed, page.Count(p.Members, "pod", "pods"))
		}
		w.Linef("Where: %s would be placed now; %s looked at", which, page.Count(r.Nodes, "node was", "nodes were"))
		var rows [][]string
		for _, s := range r.Assignments {
			rows = append(rows, []string{fmt.Sprint(s.Slot), s.Node})
		}
		w.Table("  ", []string{"SLOT", "NODE"}, rows, true)
		for _, l := range r.Losses {
			w.Wrapf("  ", "%s", p.loss(l))
		}
		return
	}
	w.Wrapf("Where: ", "would not be placed now: %s: %s", r.Placement.Reason, r.Placement.Message)
	w.Linef("  %d of %s would fit", r.Placement.Fits, page.Count(r.Placement.Wanted, "pod", "pods"))
	for _, x := range r.Excluded {
		names := strings.Join(x.Nodes, ", ")
		if more := int(x.Count) - len(x.Nodes); more > 0 && names != "" {
			names += fmt.Sprintf(" and %d more", more)
		}
		w.Wrapf("  ", "%s: %s: %s", page.Count(x.Count, "node takes none", "nodes take none"), x.Cause, page.Dash(names))
	}
}

// loss is how the gang would go on after the loss of nodes.
func (p Preview) loss(l v1alpha1.PreviewLoss) string {
	again := "no other node has room for them"
	if l.Replaced > 0 {
		again = page.Count(l.Replaced, "gets", "get") + " another node"
	}
	ends := fmt.Sprintf("goes on with %d of %s", l.Pods, page.Count(p.Members, "pod", "pods"))
	if l.Pods < l.Min {
		ends = fmt.Sprintf("waits, with %d of at least %s", l.Pods, page.Count(l.Min, "pod", "pods"))
	}
	if l.Idle > 0 {
		ends += "; " + page.Count(l.Idle, "more waits", "more wait") + " for the rest of their block"
	}
	return fmt.Sprintf("if %s lost, with %s: %s; %s",
		page.Count(len(l.Nodes), "node is", "nodes are"), page.Count(l.Lost, "pod", "pods"), again, ends)
}
