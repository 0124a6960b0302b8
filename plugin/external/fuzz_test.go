package external

import (
	"encoding/json"
	"strings"
	"testing"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/plugin/gangcache"
)

// FuzzPodGroup: a PodGroup with any content either yields terms with a limited size of at least one and no negative request, or is refused
// with a remedy.
func FuzzPodGroup(f *testing.F) {
	for _, text := range []string{
		`{"metadata":{"name":"g"},"spec":{"minMember":4,"minResources":{"cpu":"1500m","nvidia.com/gpu":"32"},"scheduleTimeoutSeconds":120}}`,
		`{"metadata":{"name":"g"},"spec":{"minMember":-1,"minResources":{"cpu":"-5","memory":"1e99"},"scheduleTimeoutSeconds":-3}}`,
		`{"metadata":{"name":"g"},"spec":{"minMember":2147483647,"minTaskMember":{"a":2147483647,"b":2147483647,"c":-1},"queue":"q","networkTopology":{"mode":"hard","highestTierAllowed":-2}}}`,
		`{"metadata":{"name":"g","annotations":{"holdfast.dev/spares":"1"}}}`, `{"spec":{"subGroupPolicy":[{}]}}`,
		`{"spec":{"schedulingPolicy":{"gang":{"minCount":4}},"schedulingConstraints":{"topology":[{"key":"rack"}]},"resourceClaims":[{"name":"x"}]}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var theirs coscheduling.PodGroup
		if json.Unmarshal(text, &theirs) == nil {
			terms, err := coschedulingTerms(&theirs)
			sound(t, text, terms, err)
		}
		var volcanos vcscheduling.PodGroup
		if json.Unmarshal(text, &volcanos) == nil {
			terms, err := volcanoTerms(&volcanos)
			sound(t, text, terms, err)
		}
		var native schedulingv1beta1.PodGroup
		if json.Unmarshal(text, &native) == nil {
			terms, err := nativeTerms(&native)
			sound(t, text, terms, err)
		}
	})
}

func sound(t *testing.T, text []byte, terms gangcache.Terms, err error) {
	t.Helper()
	if err != nil {
		if !strings.Contains(err.Error(), ": ") || len(err.Error()) > 500+8*len(text) {
			t.Fatalf("refused with %v", err)
		}
		return
	}
	if terms.Size < 1 || terms.Min < 1 || terms.Min > terms.Size || terms.Timeout < 0 {
		t.Fatalf("%s makes %+v", text, terms)
	}
	for name, n := range terms.Free {
		if n < 0 {
			t.Fatalf("%s asks for %d of %s", text, n, name)
		}
	}
	for task, n := range terms.Tasks {
		if n < 1 {
			t.Fatalf("%s has %d pods of task %s", text, n, task)
		}
	}
}
