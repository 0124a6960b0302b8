package membership

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// APIs of other projects that group pods. The name of such a gang is that of its object as kubectl spells it:
// "podgroups.scheduling.x-k8s.io/NAME". Names of Holdfast's own gangs contain no slash.
const (
	// Coscheduling is the PodGroup of sigs.k8s.io/scheduler-plugins.
	Coscheduling = "podgroups.scheduling.x-k8s.io"
	// Volcano is Volcano's PodGroup.
	Volcano = "podgroups.scheduling.volcano.sh"
	// Native is the PodGroup of Kubernetes.
	Native = "podgroups.scheduling.k8s.io"
)

// Keys of these APIs on pods. They are repeated here so that callers do not link these APIs.
const (
	coschedulingGroup = "scheduling.x-k8s.io/pod-group"
	kubeGroup         = "scheduling.k8s.io/group-name"
	volcanoGroup      = "scheduling.volcano.sh/group-name"
	volcanoTask       = "volcano.sh/task-spec"
	volcanoIndex      = "volcano.sh/task-index"
)

// belonging is one field of a pod that names a group.
type belonging struct{ api, name, by string }

// belongings returns the fields of a pod that name a group, except Holdfast's own label. Volcano has two keys for the same.
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

// GroupOf returns the gang that a pod belongs to, by any API. Holdfast's own label takes precedence. A pod that other APIs put into two
// groups is in none.
func GroupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	if pod.Labels[v1alpha1.LabelGang] != "" {
		return GangOf(pod)
	}
	if all := belongings(pod); len(all) == 1 && !Replaced(pod) {
		return types.NamespacedName{Namespace: pod.Namespace, Name: all[0].api + "/" + all[0].name}, true
	}
	return types.NamespacedName{}, false
}

// TwoGroups returns what is wrong with a pod that other APIs put into more than one group; "": nothing.
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

// OnlyPlaced reports whether a pod is only placed with a group of another API, without Holdfast's other functions.
func OnlyPlaced(pod *corev1.Pod) bool {
	_, switched := pod.Annotations[v1alpha1.AnnotationEnabled]
	return !switched && pod.Labels[v1alpha1.LabelGang] == "" && len(belongings(pod)) > 0 &&
		pod.Spec.SchedulerName != "" && pod.Spec.SchedulerName != corev1.DefaultSchedulerName
}

// External splits the name of a gang into the API and the object's name; ok is false for Holdfast's own gangs.
func External(key types.NamespacedName) (api, name string, ok bool) {
	return strings.Cut(key.Name, "/")
}

// GroupSlot returns the pod's index, and whether no two members of its gang have the same index. In groups of other APIs the index only
// orders pods, because pods of two jobs or tasks may be in one group.
func GroupSlot(pod *corev1.Pod) (n int, unique bool) {
	if pod.Labels[v1alpha1.LabelGang] != "" {
		return GangSlot(pod)
	}
	n, _ = Index(pod)
	return n, false
}

// TaskOf returns the task of a Volcano Job to which a pod belongs; "": none.
func TaskOf(pod *corev1.Pod) string {
	if task := pod.Annotations[volcanoTask]; task != "" {
		return task
	}
	return pod.Labels[volcanoTask]
}
