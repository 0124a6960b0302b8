package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"holdfast.dev/holdfast/cmd/kubectl-holdfast/doctor"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

const namespace = `apply -f - <<{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}`

// TestHealthy: before and after an installation on real kubelets no check fails and each has an answer; pods of the trials start on both
// networks, and nothing of them stays.
func TestHealthy(t *testing.T) {
	c := harness.Start(t, devcluster.Options{Nodes: 2})
	ctx := t.Context()
	kubectl(ctx, t, c, namespace)
	eventually.Holds(t, "the cluster is ready for an installation", func() (bool, any) { // kubelets write leases some seconds after they are ready
		report, code := run(ctx, t, c, "-n", "team-a")
		return code == 0 && report.Stage == doctor.BeforeInstall, report
	})
	if err := c.Install(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "all checks pass", func() (bool, any) {
		report, code := run(ctx, t, c, "-n", "team-a", "--try")
		for _, check := range []string{"Coordinator", "AgentImage", "DNS", "Webhook", "NVML"} {
			if f := find(report, check); f == nil || f.Result != doctor.Pass {
				return false, fmt.Sprintf("%s: %+v", check, report)
			}
		}
		return code == 0, fmt.Sprintf("exit code %d: %+v", code, report)
	})
	t.Log(textOf(ctx, t, c, "--try"))
	eventually.Holds(t, "nothing stays of the trials", func() (bool, any) {
		out, err := c.RunKubectl(ctx, "get", "jobs,pods,gangs", "-n", "team-a", "-o", "name")
		return err == nil && strings.TrimSpace(out) == "", out
	})
}

func textOf(ctx context.Context, t *testing.T, c *harness.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Holdfast(ctx, append([]string{"doctor", "-n", "team-a"}, args...)...)
	if err != nil {
		t.Logf("%v", err)
	}
	return out
}
