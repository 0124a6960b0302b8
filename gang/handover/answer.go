package handover

import (
	"cmp"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/gang"
)

// EventReason is the reason of Volcano's events about a PodGroup that it does not place.
const EventReason = unschedulable

// unschedulable is the type of Volcano's condition on such a PodGroup.
const unschedulable = "Unschedulable"

// maxText bounds the text of Volcano that is repeated.
const maxText = 400

// View is what is known of a gang that Volcano places.
type View struct {
	// Name is the name of the PodGroup in the gang's pods.
	Name string
	// Group is that PodGroup; nil: it was not read, for the reason in Problem.
	Group   *Group
	Problem string
	// Size is the number of the gang's pods, OnNodes how many are on nodes.
	Size, OnNodes int
	// Begun: ranks of the gang have run. Then a pod without a node replaces one that is gone, if other pods are on nodes.
	Begun bool
	// Queue is Volcano's last message about the PodGroup's queue, Pod its message about a pod that waits; empty: none.
	Queue, Pod string
}

// Group is the content of a PodGroup.
type Group struct {
	MinMember int64
	// Kind is the kind of the object that controls the PodGroup, and whose controller writes its minimum; the zero value: none.
	Kind  schema.GroupKind
	Queue string
	// Waiting: Volcano has not admitted the PodGroup to its queue.
	Waiting bool
	// Unschedulable is why Volcano does not place the PodGroup; empty: Volcano places it, or has written nothing.
	Unschedulable string
}

// Read reads a PodGroup. Fields that cannot be read are left out.
func Read(u *unstructured.Unstructured) Group {
	var read struct {
		Spec struct {
			MinMember int64  `json:"minMember"`
			Queue     string `json:"queue"`
		} `json:"spec"`
		Status struct {
			Phase      string `json:"phase"`
			Conditions []struct {
				Type               string                 `json:"type"`
				Status             corev1.ConditionStatus `json:"status"`
				Message            string                 `json:"message"`
				LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
			} `json:"conditions"`
		} `json:"status"`
	}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &read)
	g := Group{
		MinMember: read.Spec.MinMember,
		Queue:     cmp.Or(read.Spec.Queue, "default"),
		Waiting:   read.Status.Phase == "" || read.Status.Phase == "Pending",
	}
	if ref := metav1.GetControllerOfNoCopy(u); ref != nil {
		g.Kind = schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	}
	var since metav1.Time // Volcano leaves the older of its two conditions unchanged
	for _, c := range read.Status.Conditions {
		if c.Status != corev1.ConditionTrue || c.LastTransitionTime.Before(&since) {
			continue
		}
		since, g.Unschedulable = c.LastTransitionTime, ""
		if c.Type == unschedulable {
			g.Unschedulable = Text(c.Message)
		}
	}
	return g
}

// origin matches the name of a pod without a node in Volcano's text: another pod in each of its cycles.
var origin = regexp.MustCompile(`Origin reason is [^ :]+: `)

// Text returns Volcano's message as text for users.
func Text(said string) string {
	return cause.Tail(cause.Printable(origin.ReplaceAllString(said, "")), maxText)
}

// PodText returns Volcano's message about a pod that waits for a node; empty: none.
func PodText(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return Text(c.Message)
		}
	}
	return ""
}

// Answer returns the placement status of a gang of which not all pods are on nodes, in place of an answer of Holdfast's scheduler.
func (v View) Answer() v1alpha1.PlacementStatus {
	if v.Group == nil {
		return v1alpha1.PlacementStatus{
			Reason:  v1alpha1.ReasonVolcanoNoGroup,
			Message: fmt.Sprintf("Volcano places no pod without its PodGroup %s: %s", v.Name, v.Problem),
		}
	}
	said := cmp.Or(v.Group.Unschedulable, v.Pod, "it has said no reason yet")
	if v.Group.Waiting {
		said = cmp.Or(v.Queue, said)
	}
	switch {
	case v.Begun && v.OnNodes > 0: // otherwise the job was suspended, and all of it waits
		return v1alpha1.PlacementStatus{
			Reason: v1alpha1.ReasonVolcanoBelowMinimum,
			Message: fmt.Sprintf("%d of %s on nodes; Volcano holds no room for the rest, and another job may take it: %s",
				v.OnNodes, gang.Count(v.Size, "pod is", "pods are"), said),
		}
	case v.Group.Waiting:
		return v1alpha1.PlacementStatus{
			Reason:  v1alpha1.ReasonVolcanoQueued,
			Message: fmt.Sprintf("PodGroup %s waits for Volcano to let it into queue %s: %s", v.Name, v.Group.Queue, said),
		}
	}
	return v1alpha1.PlacementStatus{
		Reason:  v1alpha1.ReasonVolcanoUnschedulable,
		Message: fmt.Sprintf("Volcano does not place PodGroup %s of queue %s: %s", v.Name, v.Group.Queue, said),
	}
}

// minimums has, for each kind whose controller creates PodGroups, the field from which that controller takes the minimum.
var minimums = map[schema.GroupKind]string{
	{Group: "batch.volcano.sh", Kind: "Job"}:    "set spec.minAvailable of the Volcano Job to %d",
	{Group: "kubeflow.org", Kind: "PyTorchJob"}: "create the PyTorchJob with spec.runPolicy.schedulingPolicy.minAvailable: %d, or without",
}

// Note returns what is wrong with a PodGroup that a user, or the kind's controller, created or changed; empty: nothing.
func (v View) Note() string {
	if v.Group == nil || v.Group.MinMember >= int64(v.Size) {
		return ""
	}
	remedy := cmp.Or(minimums[v.Group.Kind], "set its spec.minMember to %d")
	return fmt.Sprintf("PodGroup %s has minMember %d, and the gang has %s: Volcano may place some of them and leave the others waiting; "+remedy,
		v.Name, v.Group.MinMember, gang.Count(v.Size, "pod", "pods"), v.Size)
}
