package planner

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"holdfast.dev/holdfast/plugin/gangcache"
)

// MayKeepAway reports whether pods that are about to be placed may exclude a gang from nodes by more than their resources.
func MayKeepAway(of gangcache.Snapshot, taking []Taking) bool {
	seen := map[string]bool{}
	for _, m := range of.Members {
		if m.State != gangcache.Pending || m.Role != "" && seen[m.Role] {
			continue
		}
		seen[m.Role] = true
		if slices.ContainsFunc(taking, func(t Taking) bool { return keepsOff(t.Pod, m.Pod) }) {
			return true
		}
	}
	return false
}

// keepsOff reports whether a pod on some node may exclude another pod from nodes: by a port, a volume, or a rule of either pod that selects
// the other.
func keepsOff(there, pod *v1.Pod) bool {
	ports := hostPorts(pod)
	if slices.ContainsFunc(hostPorts(there), func(port int32) bool { return slices.Contains(ports, port) }) {
		return true
	}
	if len(judgedVolumes(there.Spec.Volumes)) > 0 && len(judgedVolumes(pod.Spec.Volumes)) > 0 {
		return true
	}
	a, err := framework.NewPodInfo(there)
	if err != nil {
		return true
	}
	b, err := framework.NewPodInfo(pod)
	if err != nil {
		return true
	}
	return selects(a.GetRequiredAntiAffinityTerms(), pod) || selects(b.GetRequiredAntiAffinityTerms(), there) ||
		selects(b.GetRequiredAffinityTerms(), there) || counts(pod, there)
}

func hostPorts(pod *v1.Pod) (ports []int32) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			for _, port := range c.Ports {
				if port.HostPort != 0 {
					ports = append(ports, port.HostPort)
				}
			}
		}
	}
	return ports
}

// selects reports whether a term may select a pod. It does not read the labels of the pod's namespace.
func selects(terms []fwk.AffinityTerm, pod *v1.Pod) bool {
	return slices.ContainsFunc(terms, func(term fwk.AffinityTerm) bool {
		_, byLabels := term.NamespaceSelector.Requirements()
		return (byLabels || term.Namespaces.Has(pod.Namespace)) && term.Selector.Matches(labels.Set(pod.Labels))
	})
}

// counts reports whether a spread constraint of a pod counts the other pod.
func counts(pod, other *v1.Pod) bool {
	return pod.Namespace == other.Namespace &&
		slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c v1.TopologySpreadConstraint) bool {
			selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
			return c.WhenUnsatisfiable == v1.DoNotSchedule && (err != nil || selector.Matches(labels.Set(other.Labels)))
		})
}
