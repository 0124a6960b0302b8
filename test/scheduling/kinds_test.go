package scheduling

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
)

const jobSetsDefinition = "testdata/jobsets.yaml"

// testKindsComeAndGo: the cluster begins to serve a kind of job after the gang controller has started. Jobs of the kind get Gangs, with the
// rights of the manifests, also after the kind was removed and served again. Batch Jobs get Gangs all the time.
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
		a.jobOfVolcano(batch) // a Volcano Job: no scheduler of this cluster places its pods
		a.saying(batch, "waits for Volcano to let it into queue")
	}
}
