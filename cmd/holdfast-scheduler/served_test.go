package main

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/features"
)

func resources(names ...string) []metav1.APIResource {
	var all []metav1.APIResource
	for _, n := range names {
		all = append(all, metav1.APIResource{Name: n})
	}
	return all
}

// TestGatesFollowWhatIsServed: feature gates whose resources are not served are switched off, and the gates that depend on them. No other
// gate is.
func TestGatesFollowWhatIsServed(t *testing.T) {
	for _, c := range []struct {
		name   string
		served []metav1.APIResource
		off    []featuregate.Feature
	}{
		{"all", resources("resourceclaims", "resourceclaims/status", "resourceslices", "deviceclasses", "devicetaintrules"), nil},
		{"no taint rules", resources("resourceclaims", "resourceslices", "deviceclasses"), []featuregate.Feature{features.DRADeviceTaintRules}},
		{"nothing", nil, []featuregate.Feature{features.DRADeviceTaintRules, features.DynamicResourceAllocation, features.DRADeviceTaints, features.DRAExtendedResource}},
	} {
		t.Run(c.name, func(t *testing.T) {
			gates, effective := utilfeature.DefaultMutableFeatureGate.DeepCopy(), compatibility.DefaultBuildEffectiveVersion()
			if err := gates.SetFromMap(map[string]bool{"NominatedNodeNameForExpectation": false}); err != nil { // as in the manifests
				t.Fatal(err)
			}
			lacks := missing(gates, c.served)
			if err := switchOff(gates, effective, lacks); err != nil {
				t.Fatal(err)
			}
			if errs := append(gates.Validate(), effective.Validate()...); len(errs) > 0 {
				t.Error(errs)
			}
			for _, gate := range c.off {
				if gates.Enabled(gate) {
					t.Errorf("%s is on", gate)
				}
			}
			if len(missing(gates, c.served)) > 0 {
				t.Error("something is watched that is not served")
			}
			if len(c.off) < 2 &&
				(!gates.Enabled(features.DynamicResourceAllocation) ||
					!effective.EmulationVersion().EqualTo(apiversion.MajorMinor(effective.BinaryVersion().Major(), effective.BinaryVersion().Minor()))) {
				t.Error("more is off than must be")
			}
			if !gates.Enabled(features.SchedulerAsyncPreemption) || gates.Enabled(features.NominatedNodeNameForExpectation) {
				t.Error("other gates were touched")
			}
		})
	}
}
