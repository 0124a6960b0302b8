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

// Is reports whether a gang is made by an object of another API.
func Is(key types.NamespacedName) bool {
	_, _, foreign := membership.External(key)
	return foreign
}

// selectorOf is what the pods of a gang have in common that the API server can look for; their namespace, where that is
// no label.
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

// Succeeded lists the pods of a gang that ended well: the informer of a scheduler does not know pods that have ended. In a gang of
// ours they were made for the same job as a member that there is; in a group of another API all count, as Volcano counts them.
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
