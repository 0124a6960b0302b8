package scheduling

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
)

const jobSetsDefinition = "testdata/jobsets.yaml"

// testKindsComeAndGo: a kind of job that the cluster serves once the gang controller runs gets Gangs, by the rights that ship; again where
// the kind has gone and come. Batch Jobs get theirs meanwhile.
func (a *asked) testKindsComeAndGo(t *testing.T) {
	for set, batch := range map[string]string{"set-1": "batch-1", "set-2": "batch-2"} {
		a.applyFile(jobSetsDefinition)
		name := types.NamespacedName{Namespace: "default", Name: set}
		obj := jobstest.Object(kinds.JobSet{}, name, "")
		a.until("the kind to be served", func() bool { return a.api.Create(a.ctx, obj) == nil })
		g := &v1alpha1.Gang{}
		a.until("the set's Gang", func() bool { return a.api.Get(a.ctx, name, g) == nil })
		if ref := g.Spec.JobRef; ref.Kind != "JobSet" || ref.UID != string(obj.GetUID()) || g.Spec.Members != 4 {
			t.Errorf("the Gang is %+v", g.Spec)
		}
		if out, err := a.cluster.Kubectl(a.ctx, "delete", "-f", jobSetsDefinition); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		a.jobOfVolcano(batch) // whose pods no scheduler of this cluster places
		a.saying(batch, "waits for Volcano to let it into queue")
	}
}
