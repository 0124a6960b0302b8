package membership

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Other people's APIs that say which pods belong together. A gang of theirs is named as kubectl names the object:
// "podgroups.scheduling.x-k8s.io/NAME". No name of ours holds a slash.
const (
	// Coscheduling is the PodGroup of sigs.k8s.io/scheduler-plugins.
	Coscheduling = "podgroups.scheduling.x-k8s.io"
	// Volcano is Volcano's PodGroup.
	Volcano = "podgroups.scheduling.volcano.sh"
	// Native is Kubernetes's own PodGroup.
	Native = "podgroups.scheduling.k8s.io"
)

// Their keys on pods, written down here because whoever asks about a pod should not link their APIs.
const (
	coschedulingGroup = "scheduling.x-k8s.io/pod-group"
	kubeGroup         = "scheduling.k8s.io/group-name"
	volcanoGroup      = "scheduling.volcano.sh/group-name"
	volcanoTask       = "volcano.sh/task-spec"
	volcanoIndex      = "volcano.sh/task-index"
)

// belonging is one thing on a pod that names a group.
type belonging struct{ api, name, by string }

// belongings lists what names a group on a pod, other than our own label. Volcano has two keys for one thing.
func belongings(pod *corev1.Pod) []belonging {
	var all []belonging
	if name := pod.Labels[coschedulingGroup]; name != "" {
		all = append(all, belonging{Coscheduling, name, "label " + coschedulingGroup})
	}
	for _, key := range []string{kubeGroup, volcanoGroup} {
		name := pod.Annotations[key]
		if last := len(all) - 1; name != "" && (last < 0 || all[last].api != Volcano || all[last].name != name) {
			all = append(all, belonging{Volcano, name, "annotation " + key})
		}
	}
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil && *g.PodGroupName != "" {
		all = append(all, belonging{Native, *g.PodGroupName, "spec.schedulingGroup"})
	}
	return all
}

// GroupOf names the gang that a pod belongs to, whichever API says so; our own label wins. A pod that others' APIs put
// into two groups is in none.
func GroupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	if pod.Labels[v1alpha1.LabelGang] != "" {
		return GangOf(pod)
	}
	if all := belongings(pod); len(all) == 1 && !Replaced(pod) {
		return types.NamespacedName{Namespace: pod.Namespace, Name: all[0].api + "/" + all[0].name}, true
	}
	return types.NamespacedName{}, false
}

// TwoGroups says what is wrong with a pod that others' APIs put into more than one group; "": nothing.
func TwoGroups(pod *corev1.Pod) string {
	all := belongings(pod)
	if len(all) < 2 || pod.Labels[v1alpha1.LabelGang] != "" {
		return ""
	}
	var said []string
	for _, b := range all {
		said = append(said, fmt.Sprintf("%s of %s (%s)", b.name, b.api, b.by))
	}
	return "the pod is in more than one group: " + strings.Join(said, ", ") + "; leave one of them"
}

// OnlyPlaced reports whether a pod has a scheduler of its own choice and is only placed with a group of another API, without
// Holdfast's other features.
func OnlyPlaced(pod *corev1.Pod) bool {
	_, switched := pod.Annotations[v1alpha1.AnnotationEnabled]
	return !switched && pod.Labels[v1alpha1.LabelGang] == "" && len(belongings(pod)) > 0 &&
		pod.Spec.SchedulerName != "" && pod.Spec.SchedulerName != corev1.DefaultSchedulerName
}

// External parts a gang's name into the API that it comes from and the object's name; ok is false for Holdfast's own gangs.
func External(key types.NamespacedName) (api, name string, ok bool) {
	return strings.Cut(key.Name, "/")
}

// GroupSlot is the pod's index, and whether no two members of its gang have the same one. In groups of other APIs it
// only gives the order: pods of two jobs, or of two tasks, may be in one group.
func GroupSlot(pod *corev1.Pod) (n int, unique bool) {
	if pod.Labels[v1alpha1.LabelGang] != "" {
		return GangSlot(pod)
	}
	n, _ = Index(pod)
	return n, false
}

// TaskOf is which of Volcano's tasks a pod is of; "": none.
func TaskOf(pod *corev1.Pod) string {
	if task := pod.Annotations[volcanoTask]; task != "" {
		return task
	}
	return pod.Labels[volcanoTask]
}
