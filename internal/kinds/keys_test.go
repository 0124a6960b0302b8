package kinds

import (
	"testing"

	vcbatch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
)

// TestKeysOfVolcano compares the keys in this package with Volcano's own module, whose types the product does not link.
func TestKeysOfVolcano(t *testing.T) {
	for ours, theirs := range map[string]string{
		volcanoTask:                             vcbatch.TaskSpecKey,
		volcanoIndex:                            vcbatch.TaskIndex,
		volcanoVersion:                          vcbatch.JobVersion,
		VolcanoJob{}.GroupVersionKind().Group:   vcbatch.SchemeGroupVersion.Group,
		VolcanoJob{}.GroupVersionKind().Version: vcbatch.SchemeGroupVersion.Version,
	} {
		if ours != theirs {
			t.Errorf("%q is written down, %q is the key", ours, theirs)
		}
	}
}
