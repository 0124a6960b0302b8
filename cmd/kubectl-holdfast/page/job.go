package page

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// volcanoJob has the kind and the plural of Kubernetes' own Job.
var volcanoJob = kinds.VolcanoJob{}.GroupVersionKind().GroupKind()

// JobWord is what kubectl takes for a kind of job: job, vcjob, jobset, pytorchjob.
func JobWord(kind schema.GroupKind) string {
	if kind == volcanoJob {
		return "vcjob"
	}
	return strings.ToLower(kind.Kind)
}

// JobName names a job for kubectl: job/train.
func JobName(ref v1alpha1.JobReference) string {
	return JobWord(KindOf(ref)) + "/" + ref.Name
}

// JobTitle names a job in a heading: Job team-a/train.
func JobTitle(namespace string, ref v1alpha1.JobReference) string {
	kind := ref.Kind
	if k, ok := kinds.Of(KindOf(ref)); ok {
		kind = kinds.Title(k)
	}
	return fmt.Sprintf("%s %s/%s", kind, namespace, ref.Name)
}

// KindOf is the kind of a job that a Gang was made for.
func KindOf(ref v1alpha1.JobReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
}
