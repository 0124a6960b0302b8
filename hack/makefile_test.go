package hack

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestClusterTestsRunWhatIsBuilt: cluster tests depend on the build of the binaries in bin/, which could otherwise come from an earlier
// tree.
func TestClusterTestsRunWhatIsBuilt(t *testing.T) {
	for kept, want := range map[string]bool{"": true, "1": false} {
		plan := exec.Command("make", "-n", "-C", "..", "--no-print-directory", "cluster-nodehealth", "KEPT="+kept)
		plan.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "MAKE") })
		out, err := plan.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		steps := string(out)
		builds, tests := strings.Index(steps, "./cmd/holdfast-node"), strings.Index(steps, "./test/nodehealth")
		if tests < 0 || (builds >= 0) != want || builds > tests {
			t.Errorf("with KEPT=%s the binaries are built: %v, want %v; before the test: %v\n%s", kept, builds >= 0, want, builds < tests, steps)
		}
	}
}
