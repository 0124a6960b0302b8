// Package handover translates between a gang and Volcano, for a gang that Volcano's scheduler places. The package
// builds the gang's PodGroup from one pod of each role, and reads Volcano's messages from that PodGroup or from the
// user's own. The package is pure: the same objects give the same group and the same text. Volcano reorders parts of
// its messages each time; the text has them in a fixed order.
package handover

import (
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Scheduler is the name of Volcano's scheduler in pods.
const Scheduler = "volcano"

// Kind is Volcano's PodGroup.
var Kind = schema.GroupVersionKind{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroup"}

// Volcano's keys. They are repeated here because the controller does not link Volcano's API.
const (
	// GroupKey is the annotation of a pod that names its PodGroup.
	GroupKey = "scheduling.k8s.io/group-name"
	// MinMemberKey is the annotation of a Job with the minimum, for a PodGroup that Volcano creates.
	MinMemberKey = "scheduling.volcano.sh/group-min-member"
	// QueueKey is the annotation that names the queue.
	QueueKey = "scheduling.volcano.sh/queue-name"
	// ModeKey and TierKey are annotations that request a place in the fabric.
	ModeKey = "volcano.sh/network-topology-mode"
	TierKey = "volcano.sh/network-topology-highest-tier"

	taskKey = "volcano.sh/task-spec"
	prefix  = "volcano.sh/"
)

// ofPods are Volcano's annotations that describe one pod, or that are fields of the PodGroup.
var ofPods = map[string]bool{taskKey: true, "volcano.sh/task-index": true, ModeKey: true, TierKey: true}

// labelsOfGroups are keys that Volcano reads as labels of a PodGroup, too.
var labelsOfGroups = []string{"volcano.sh/preemptable", "volcano.sh/cooldown-time"}

// Is reports whether Volcano places a pod.
func Is(pod *corev1.Pod) bool { return pod.Spec.SchedulerName == Scheduler }

// Stamps returns the annotations that a pod of a gang gets if Volcano places it and the pod has none under these keys.
func Stamps(gang, role string) map[string]string {
	return map[string]string{GroupKey: gang, taskKey: role}
}

// Inherited reports whether Volcano reads this annotation of a Job on the Job's pods, or copies it to their PodGroup.
func Inherited(key string) bool { return key == QueueKey || strings.HasPrefix(key, prefix) }

// Role is a part of a gang whose pods come from one template.
type Role struct {
	Pods int32
	// Like is one of these pods.
	Like *corev1.Pod
}

// PodGroup returns the PodGroup of a gang, from one pod of each role. There is at least one role. Fields that a PodGroup has once come from
// the first role.
func PodGroup(gang string, roles ...Role) *unstructured.Unstructured {
	like := roles[0].Like
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(Kind)
	u.SetNamespace(like.Namespace)
	u.SetName(gang)
	labels, annotations := map[string]string{v1alpha1.LabelGang: gang}, map[string]string{}
	for _, key := range labelsOfGroups {
		if value, is := like.Labels[key]; is {
			labels[key] = value
		}
	}
	maps.Copy(annotations, like.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return !strings.HasPrefix(key, prefix) || ofPods[key] })
	u.SetLabels(labels)
	if len(annotations) > 0 {
		u.SetAnnotations(annotations)
	}
	spec := map[string]any{"minResources": resources(roles)}
	least, tasks := int64(0), map[string]any{}
	for _, r := range roles {
		least += int64(r.Pods)
		if task := r.Like.Annotations[taskKey]; task != "" {
			sum, _ := tasks[task].(int64)
			tasks[task] = sum + int64(r.Pods)
		}
	}
	if spec["minMember"] = least; len(tasks) > 0 {
		spec["minTaskMember"] = tasks
	}
	if queue := like.Annotations[QueueKey]; queue != "" {
		spec["queue"] = queue
	}
	if class := like.Spec.PriorityClassName; class != "" {
		spec["priorityClassName"] = class
	}
	if place := networkTopology(like.Annotations); place != nil {
		spec["networkTopology"] = place
	}
	u.Object["spec"] = spec
	return u
}

// resources returns the sum of what all pods request.
func resources(roles []Role) map[string]any {
	all := corev1.ResourceList{}
	for _, r := range roles {
		for name, one := range resourcehelper.PodRequests(r.Like, resourcehelper.PodResourcesOptions{}) {
			one.Mul(int64(r.Pods))
			sum, had := all[name]
			if had {
				one.Add(sum)
			}
			all[name] = one
		}
	}
	texts := map[string]any{}
	for name, sum := range all {
		texts[string(name)] = sum.String()
	}
	return texts
}

// networkTopology returns what a pod's annotations request of the fabric, as Volcano reads them; nil: nothing.
func networkTopology(annotations map[string]string) map[string]any {
	mode, hasMode := annotations[ModeKey]
	tier, hasTier := annotations[TierKey]
	if !hasMode && !hasTier {
		return nil
	}
	place := map[string]any{"mode": "hard"}
	if strings.EqualFold(mode, "soft") {
		place["mode"] = "soft"
	}
	if n, err := strconv.Atoi(tier); err == nil {
		place["highestTierAllowed"] = int64(n)
	}
	return place
}
