package doctor

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/nodes"
)

// report is what kubectl holdfast nodes shows.
func (f *Facts) report() nodes.Report {
	return nodes.Of(nodes.Input{Nodes: f.Nodes.Value, Leases: f.Leases.Value}, f.At)
}

// node finds a Node by its name.
func (f *Facts) node(name string) *corev1.Node {
	for i := range f.Nodes.Value {
		if f.Nodes.Value[i].Name == name {
			return &f.Nodes.Value[i]
		}
	}
	return nil
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
		switch gpus := nodes.HasNVIDIA(f.node(row.Name)); {
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
	const look = "look at its pods: kubectl -n holdfast-node get pods -o wide"
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
		case !nodes.HasNVIDIA(f.node(row.Name)) || row.State == nodes.Unwatched:
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
	durations := map[string]time.Duration{}
	for i := range f.Leases.Value {
		l := &f.Leases.Value[i]
		durations[l.Name] = time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
	}
	var without, long []string
	longest := time.Duration(0)
	for i := range f.Nodes.Value {
		name := f.Nodes.Value[i].Name
		d, ok := durations[name]
		if !ok {
			without = append(without, name)
			continue
		}
		if longest = max(longest, d); d > longLease {
			long = append(long, fmt.Sprintf("%s (%s)", name, d))
		}
	}
	after := max(silentDefault, time.Duration(silentShare*float64(longest))).Round(time.Second)
	if len(without) > 0 {
		j.fail("see whether their kubelets run, and may write leases in namespace kube-node-lease", "nodes have no lease, so their death is not seen: %s", some(without))
	}
	if len(long) > 0 {
		j.warn("set nodeLeaseDurationSeconds of kubelets to 40 (its default) or less", "kubelets with long leases: %s; their death is seen after up to %s", some(long), after)
	}
	j.pass("leases of %d nodes; a dead node is seen after %s", len(f.Nodes.Value)-len(without), after)
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
