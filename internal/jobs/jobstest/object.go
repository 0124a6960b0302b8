package jobstest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// Stamps returns the annotations that admission writes on the pod templates of a job of four pods.
func Stamps() map[string]string {
	return map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "4", v1alpha1.AnnotationStateSize: "1Gi"}
}

// Object returns an admitted object of a kind other than batch Job, with four pods: a Volcano Job with task worker, under Volcano's
// scheduler; a JobSet with role data, which ends before training starts, and role worker of two Jobs; or a PyTorchJob with a master and
// three workers. Its annotations opt it in and pin a step. It was created at second 1000.
func Object(
	kind kinds.Kind, name types.NamespacedName, uid types.UID, change ...func(*unstructured.Unstructured),
) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec(kind)}}
	u.SetGroupVersionKind(kind.GroupVersionKind())
	u.SetNamespace(name.Namespace)
	u.SetName(name.Name)
	u.SetUID(uid)
	u.SetCreationTimestamp(metav1.Unix(1000, 0))
	u.SetAnnotations(map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationPinnedCheckpoints: "120@3", "example.com/a": "b"})
	for _, f := range change {
		f(u)
	}
	return u
}

func spec(kind kinds.Kind) map[string]any {
	switch kind.(type) {
	case kinds.VolcanoJob:
		return map[string]any{
			"schedulerName": "volcano",
			"minAvailable":  int64(4),
			"tasks":         []any{map[string]any{"name": "worker", "replicas": int64(4), "template": template()}},
		}
	case kinds.JobSet:
		before := map[string]any{"name": "data", "template": map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
		trains := map[string]any{
			"name":      "worker",
			"replicas":  int64(2),
			"dependsOn": []any{map[string]any{"name": "data", "status": "Complete"}},
			"template":  map[string]any{"spec": map[string]any{"parallelism": int64(2), "completions": int64(2), "template": template()}},
		}
		return map[string]any{"replicatedJobs": []any{before, trains}}
	case kinds.PyTorchJob:
		return map[string]any{"pytorchReplicaSpecs": map[string]any{
			"Master": map[string]any{"replicas": int64(1), "template": template()},
			"Worker": map[string]any{"replicas": int64(3), "template": template()},
		}}
	}
	panic("of no kind that has an object here")
}

func template() map[string]any {
	annotations := map[string]any{}
	for k, v := range Stamps() {
		annotations[k] = v
	}
	return map[string]any{
		"metadata": map[string]any{"annotations": annotations},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "train"}}},
	}
}
