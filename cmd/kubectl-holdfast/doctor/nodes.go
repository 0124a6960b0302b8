package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/nodes"
)

// report is what kubectl holdfast nodes shows.
func (f *Facts) report() nodes.Report {
	return nodes.Of(nodes.Input{Nodes: f.Nodes.Value, Leases: f.Leases.Value}, f.clock())
}

// newest is when a kubelet or a leader last renewed a lease, by its own clock.
func (f *Facts) newest() (at time.Time) {
	for _, leases := range [][]coordinationv1.Lease{f.Leases.Value, f.Leaders.Value} {
		for i := range leases {
			if r := leases[i].Spec.RenewTime; r != nil && r.After(at) {
				at = r.Time
			}
		}
	}
	return at
}

// clock is the time against which ages of leases are measured: this machine's, or the newest lease's if that is earlier, since this
// machine's clock may be ahead of the cluster's.
func (f *Facts) clock() time.Time {
	if at := f.newest(); !at.IsZero() && at.Before(f.At) {
		return at
	}
	return f.At
}

// nodeDaemon checks that a daemon watches each node with GPUs.
func nodeDaemon(f *Facts, j *judgement) {
	if f.Nodes.Unread != "" {
		j.unread("nodes", f.Nodes.Unread)
		return
	}
	var without, plain, broken []string
	watched := 0
	for _, row := range f.report().Nodes {
		switch gpus := nodes.HasNVIDIA(find(f.Nodes.Value, "", row.Name)); {
		case row.Problem != "":
			broken = append(broken, row.Name)
		case row.State == nodes.Unwatched && gpus:
			without = append(without, row.Name)
		case row.State == nodes.Unwatched:
			plain = append(plain, row.Name)
		case row.Health != nil && row.State != nodes.Unknown:
			watched++
		}
	}
	look := "look at its pods: kubectl -n " + f.nodes() + " get pods -o wide"
	if len(without) > 0 {
		j.fail(look, "no holdfast-node has written a verdict on nodes with GPUs: %s", some(without))
	}
	if len(plain) > 0 {
		j.warn(look, "no holdfast-node has written a verdict on %s", some(plain))
	}
	if len(broken) > 0 {
		j.warn("use the kubectl-holdfast of the version that the cluster runs", "annotations cannot be read of %s", some(broken))
	}
	j.pass("holdfast-node watches %d nodes", watched)
}

// nvml checks that daemons find NVIDIA's library on nodes with its GPUs.
func nvml(f *Facts, j *judgement) {
	if f.Nodes.Unread != "" {
		j.unread("nodes", f.Nodes.Unread)
		return
	}
	var missing []string
	found := 0
	for _, row := range f.report().Nodes {
		switch {
		case !nodes.HasNVIDIA(find(f.Nodes.Value, "", row.Name)) || row.State == nodes.Unwatched:
		case row.State != nodes.Unknown && row.Health != nil && len(row.Health.Seen.NVLinks) > 0: // each GPU that NVML listed has an entry
			found++
		default:
			missing = append(missing, row.Name)
		}
	}
	if len(missing) > 0 {
		j.fail("apply component manifests/node-gke or manifests/node-runtime-class, or name the library with --nvml",
			"holdfast-node does not read NVML on nodes with NVIDIA GPUs, so it sees faults only in the kernel log: %s", some(missing))
	}
	if found > 0 {
		j.pass("holdfast-node reads NVML on %d nodes", found)
	}
	if len(j.found) == 0 {
		j.skip("no watched node has NVIDIA GPUs")
	}
}

// Shares of a lease's duration below which the controller's times never are, and its defaults (docs/node-outages.md).
const (
	silentShare   = 0.3
	silentDefault = 12 * time.Second
	// longLease is the duration from which on the detection of a dead node takes noticeably longer.
	longLease = 60 * time.Second
)

// leases checks that kubelets renew leases, and after what time a dead node is known.
func leases(f *Facts, j *judgement) {
	if f.Nodes.Unread != "" || f.Leases.Unread != "" {
		j.unread("nodes and their leases", f.Nodes.Unread, f.Leases.Unread)
		return
	}
	var without, stale, down, long []string
	longest := time.Duration(0)
	for i := range f.Nodes.Value {
		n := &f.Nodes.Value[i]
		l := find(f.Leases.Value, corev1.NamespaceNodeLease, n.Name)
		if l == nil || l.Spec.RenewTime == nil {
			without = append(without, n.Name)
			continue
		}
		switch age := overdue(l, f.clock()); {
		case age > 0 && isReady(n):
			stale = append(stale, fmt.Sprintf("%s (%s)", n.Name, age))
		case age > 0:
			down = append(down, fmt.Sprintf("%s (%s)", n.Name, age))
		}
		d := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
		if longest = max(longest, d); d > longLease {
			long = append(long, fmt.Sprintf("%s (%s)", n.Name, d))
		}
	}
	if age := f.At.Sub(f.newest()); len(without) < len(f.Nodes.Value) && age > longest+late {
		j.add(Unknown, "set this machine's clock, and run the command again; if it is right, see whether kubelets reach the API server",
			"no lease was renewed for %s by this machine's clock (%s)", age.Round(time.Second), f.At.UTC().Format(time.RFC3339))
	}
	const rights = "see whether their kubelets run, and may write leases in namespace kube-node-lease"
	if len(without) > 0 {
		j.fail(rights, "nodes have no lease, so their death is not seen: %s", some(without))
	}
	if len(stale) > 0 {
		j.fail(rights, "kubelets of nodes that are Ready have not renewed their leases, so Holdfast may take the nodes for dead: %s", some(stale))
	}
	if len(down) > 0 {
		j.warn("look at the machines; kubectl holdfast nodes shows what Holdfast decided about them", "leases of nodes that are not Ready were not renewed: %s", some(down))
	}
	after := max(silentDefault, time.Duration(silentShare*float64(longest))).Round(time.Second)
	if len(long) > 0 {
		j.warn("set nodeLeaseDurationSeconds of kubelets to 40 (its default) or less", "kubelets with long leases: %s; their death is seen after up to %s", some(long), after)
	}
	j.pass("leases of %d nodes; a dead node is seen after %s", len(f.Nodes.Value)-len(without)-len(stale)-len(down), after)
}

// isReady reports whether the API server shows a node as Ready.
func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// taints names the DaemonSets that do not run on nodes which Holdfast has tainted.
func taints(f *Facts, j *judgement) {
	if f.DaemonSets.Unread != "" {
		j.unread("DaemonSets", f.DaemonSets.Unread)
		return
	}
	var shut []string
	for i := range f.DaemonSets.Value {
		if d := &f.DaemonSets.Value[i]; !tolerates(d, v1alpha1.TaintUnhealthy) || !tolerates(d, v1alpha1.TaintOutage) {
			shut = append(shut, d.Namespace+"/"+d.Name)
		}
	}
	if len(shut) > 0 {
		j.warn("give those that repair or monitor nodes tolerations for holdfast.dev/unhealthy and holdfast.dev/outage (GPU Operator: daemonsets.tolerations)",
			"pods of these DaemonSets are not created on nodes that Holdfast has tainted: %s", some(shut))
	}
	j.pass("%d DaemonSets tolerate Holdfast's taints", len(f.DaemonSets.Value)-len(shut))
}

func tolerates(d *appsv1.DaemonSet, key string) bool {
	for _, t := range d.Spec.Template.Spec.Tolerations {
		if (t.Key == key || t.Key == "") && t.Operator == corev1.TolerationOpExists &&
			(t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) {
			return true
		}
	}
	return false
}

// nodeMarks names the nodes that keep Holdfast's taints.
func nodeMarks(f *Facts, j *judgement) {
	if f.Nodes.Unread != "" {
		j.unread("nodes", f.Nodes.Unread)
		return
	}
	var tainted []string
	for i := range f.Nodes.Value {
		for _, t := range f.Nodes.Value[i].Spec.Taints {
			if strings.HasPrefix(t.Key, v1alpha1.Prefix) {
				tainted = append(tainted, f.Nodes.Value[i].Name)
				break
			}
		}
	}
	if len(tainted) > 0 {
		j.warn("after Holdfast's removal run kubectl taint nodes --all holdfast.dev/unhealthy- and holdfast.dev/outage-, and cordon nodes that are broken",
			"nodes have taints that no component removes later: %s", some(tainted))
		return
	}
	j.pass("no node has a taint of Holdfast; annotations holdfast.dev/… remain on nodes until they are removed")
}
