package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/nodes"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// NodeWords is the present state of one node.
type NodeWords struct {
	Name string `json:"name"`
	// Health is the daemon's verdict, Outage the cluster's decision.
	Health *v1alpha1.NodeHealth `json:"health,omitempty"`
	Outage *v1alpha1.NodeOutage `json:"outage,omitempty"`
	// Problem describes an annotation of the node that cannot be read.
	Problem string `json:"problem,omitempty"`
}

func wordsOf(node *corev1.Node) NodeWords {
	n := NodeWords{Name: node.Name}
	var errs [2]error
	n.Health, errs[0] = v1alpha1.NodeHealthOf(node)
	n.Outage, errs[1] = v1alpha1.NodeOutageOf(node)
	for _, err := range errs {
		if err != nil {
			n.Problem = err.Error()
		}
	}
	return n
}

// Line is the node in one line; "": nothing is wrong, or nothing is known.
func (n NodeWords) Line() string {
	switch h, o := n.Health, n.Outage; {
	case n.Problem != "":
		return n.Problem
	case o != nil && o.Dead:
		return fmt.Sprintf("%s: dead", o.Cause)
	case o != nil:
		return fmt.Sprintf("%s: %s", cmp.Or(o.Cause, "?"), o.Decision)
	case h != nil && h.Action != v1alpha1.ActionNone:
		return fmt.Sprintf("%s: %s, nothing decided", h.Cause, h.Action)
	}
	return ""
}

// NodesOf returns the nodes of the gang's pods, and of those that were replaced, sorted.
func NodesOf(g *v1alpha1.Gang) []string {
	var names []string
	for _, m := range g.Status.Members {
		names = append(names, m.Node)
	}
	if r := g.Status.Run; r != nil {
		for _, d := range r.PendingReplacements {
			names = append(names, d.Node)
		}
		for _, rec := range r.Recoveries {
			for _, old := range rec.Replaced {
				names = append(names, old.Node)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return slices.DeleteFunc(names, func(n string) bool { return n == "" })
}

func (e Explanation) words(node string) NodeWords {
	for _, n := range e.Nodes {
		if n.Name == node {
			return n
		}
	}
	return NodeWords{Name: node}
}

// why is the reason of a termination: the text at that time and, if the node still has the same cause, the newest evidence.
func (e Explanation) why(d *v1alpha1.Termination) string {
	text := d.Cause
	if d.Message != "" {
		text += ": " + d.Message
	}
	if d.Dead {
		text += "; its node did not answer, the pod is fenced"
	}
	if h := e.words(d.Node).Health; h != nil && h.Cause == d.Cause && len(h.Evidence) > 0 {
		text += "; " + nodes.Evidence(&h.Evidence[len(h.Evidence)-1])
	}
	return text
}

// replacements prints which pods will be replaced and what they wait for, and which are held.
func (e Explanation) replacements(w *page.Page) {
	var pending []v1alpha1.Termination
	if e.Status.Run != nil {
		pending = e.Status.Run.PendingReplacements
	}
	held := e.held(pending)
	if len(pending)+len(held) == 0 {
		return
	}
	w.Linef("")
	w.Linef("To be replaced")
	for i := range pending {
		d := &pending[i]
		w.Linef("  slot %d: %s on %s, since %s", d.Slot, d.Pod, page.Dash(d.Node), d.At.UTC().Format(time.TimeOnly))
		w.Wrapf("    why:        ", "%s", e.why(d))
		w.Wrapf("    waits for:  ", "%s", e.waitsFor(d))
	}
	if r := e.Status.Run; r != nil {
		more(w, "  ", int(r.PendingPods)-len(pending))
	}
	for _, m := range held {
		o := e.words(m.Node).Outage
		w.Linef("  slot %d: %s on %s would be replaced, but is held", m.Slot, m.Pod, m.Node)
		w.Wrapf("    why:        ", "%s", o.Cause)
		w.Wrapf("    held:       ", "%s", cmp.Or(o.Message, "no reason was given"))
	}
}

// more prints how many pods the Gang does not list.
func more(w *page.Page, indent string, pods int) {
	if pods > 0 {
		w.Linef("%sand %s more", indent, page.Count(pods, "pod", "pods"))
	}
}

// held are members on nodes that would be evicted if the budget allowed it.
func (e Explanation) held(pending []v1alpha1.Termination) []v1alpha1.MemberStatus {
	var held []v1alpha1.MemberStatus
	for _, m := range e.Status.Members {
		o := e.words(m.Node).Outage
		already := slices.ContainsFunc(pending, func(d v1alpha1.Termination) bool { return d.Pod == m.Pod })
		if o != nil && o.Decision == v1alpha1.DecisionHold && m.Pod != "" && !already {
			held = append(held, m)
		}
	}
	return held
}

// waitsFor describes what a pod to be replaced waits for.
func (e Explanation) waitsFor(d *v1alpha1.Termination) string {
	present := slices.ContainsFunc(e.Status.Members, func(m v1alpha1.MemberStatus) bool { return m.Pod == d.Pod })
	run := e.Status.Run
	c := cmp.Or(meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionPlaced), &metav1.Condition{Status: metav1.ConditionTrue})
	placed := c.Status == metav1.ConditionTrue
	switch p := e.Status.Placement; {
	case !present && p != nil && !p.Placed:
		return fmt.Sprintf("a node for the new pod: %s: %s", p.Reason, p.Message)
	case !present && p == nil && !placed:
		return fmt.Sprintf("a node for the new pod: %s: %s", c.Reason, c.Message)
	case !present:
		return "the new pod's agent"
	case run.State == v1alpha1.RunRunning && !d.Dead:
		return "its state to be copied out, or the deadline"
	case run.State == v1alpha1.RunHalting:
		return "the last process of the gang to end"
	}
	return "being released from its job and evicted; if a PodDisruptionBudget refuses that, the job has event EvictionRefused"
}
