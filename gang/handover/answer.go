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

// EventReason is the reason of Volcano's events about a group that it does not place.
const EventReason = unschedulable

// unschedulable is the type of the condition that says so.
const unschedulable = "Unschedulable"

// maxText bounds what of Volcano's words is repeated.
const maxText = 400

// View is what is known of a gang that Volcano places.
type View struct {
	// Name is that of the PodGroup that its pods name.
	Name string
	// Group is that group; nil: it was not read, for the reason in Problem.
	Group   *Group
	Problem string
	// Size is how many pods the gang has, OnNodes how many are on nodes.
	Size, OnNodes int
	// Begun: the gang's ranks have run, so that where other pods are on nodes, one without replaces one that is gone.
	Begun bool
	// Queue is what Volcano said of the group's queue last, Pod of a pod that waits; empty: nothing.
	Queue, Pod string
}

// Group is what a PodGroup says.
type Group struct {
	MinMember int64
	// Kind is that of the object that controls it, and so writes its minimum; the zero value: none.
	Kind  schema.GroupKind
	Queue string
	// Waiting: Volcano has not let the group into its queue.
	Waiting bool
	// Unschedulable is why Volcano does not place the group; empty: it does, or has not said.
	Unschedulable string
}

// Read reads a PodGroup. What cannot be read is left out.
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
	var since metav1.Time // Volcano leaves the older one of its two conditions as it was
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

// origin is how Volcano names, in each of its cycles another one, a pod that found no node.
var origin = regexp.MustCompile(`Origin reason is [^ :]+: `)

// Text is what Volcano said, for people.
func Text(said string) string {
	return cause.Tail(cause.Printable(origin.ReplaceAllString(said, "")), maxText)
}

// PodText is what Volcano says of a pod that waits for a node; empty: nothing.
func PodText(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return Text(c.Message)
		}
	}
	return ""
}

// Answer takes the place of the answer of Holdfast's scheduler, for a gang of which not all pods are on nodes.
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
	case v.Begun && v.OnNodes > 0: // else the job was suspended, and waits as a whole
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

// minimums say where the controller of a kind that makes its own group reads the group's minimum.
var minimums = map[schema.GroupKind]string{
	{Group: "batch.volcano.sh", Kind: "Job"}:    "set spec.minAvailable of the Volcano Job to %d",
	{Group: "kubeflow.org", Kind: "PyTorchJob"}: "create the PyTorchJob with spec.runPolicy.schedulingPolicy.minAvailable: %d, or without",
}

// Note is what is wrong with a group that a user made or changed, or the controller of a kind; empty: nothing.
func (v View) Note() string {
	if v.Group == nil || v.Group.MinMember >= int64(v.Size) {
		return ""
	}
	remedy := cmp.Or(minimums[v.Group.Kind], "set its spec.minMember to %d")
	return fmt.Sprintf("PodGroup %s has minMember %d, and the gang has %s: Volcano may place some of them and leave the others waiting; "+remedy,
		v.Name, v.Group.MinMember, gang.Count(v.Size, "pod", "pods"), v.Size)
}
