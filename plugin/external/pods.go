package external

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

// Is reports whether a gang is a group of another API.
func Is(key types.NamespacedName) bool {
	_, _, foreign := membership.External(key)
	return foreign
}

// selectorOf returns a label selector for the pods of a gang; empty: they have no label in common, and the namespace is listed.
func selectorOf(key types.NamespacedName) string {
	api, name, foreign := membership.External(key)
	switch {
	case !foreign:
		return labels.SelectorFromSet(labels.Set{v1alpha1.LabelGang: key.Name}).String()
	case api == membership.Coscheduling:
		return labels.SelectorFromSet(labels.Set{coscheduling.PodGroupLabel: name}).String()
	}
	return ""
}

// Succeeded queries the API server for the gang's pods that succeeded: a scheduler's informer drops pods that have ended. For a Holdfast
// gang it counts pods of the same job as the given member; for a group of another API all count, as in Volcano.
func Succeeded(ctx context.Context, client kubernetes.Interface, key types.NamespacedName, member *v1.Pod) ([]*v1.Pod, error) {
	list, err := client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: selectorOf(key),
		FieldSelector: fields.OneTermEqualSelector("status.phase", string(v1.PodSucceeded)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing pods of gang %s: %w", key, err)
	}
	job := membership.JobUID(member)
	var ended []*v1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		if of, ok := membership.GroupOf(pod); !ok || of != key || pod.Status.Phase != v1.PodSucceeded || pod.DeletionTimestamp != nil {
			continue
		}
		if Is(key) || membership.JobUID(pod) == job {
			ended = append(ended, pod)
		}
	}
	return ended, nil
}
