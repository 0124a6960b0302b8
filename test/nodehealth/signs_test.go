package nodehealth

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	standin "holdfast.dev/holdfast/test/devcluster/nvml"
)

// signs: a missing GPU, a link that is down and unused lanes are reported, also as metrics. The next daemon, which has read the driver only
// in this state, knows them from the Node. Then a user declares that no GPU is missing.
func (w *world) signs(t *testing.T, n *devcluster.Node) {
	w.describe(t, n, `{"metadata":{"labels":{"nvidia.com/gpu.count":"3"}}}`)
	for _, f := range []standin.Fault{{GPU: 0, LinksDown: 1}, {GPU: 1, Lanes: 8}} {
		if err := n.Fail(f); err != nil {
			t.Fatal(err)
		}
	}
	signs := func(action v1alpha1.NodeAction, causes ...string) func(*corev1.Node, v1alpha1.NodeHealth) bool {
		return func(node *corev1.Node, h v1alpha1.NodeHealth) bool {
			for _, c := range causes {
				if !slices.ContainsFunc(h.Evidence, func(e v1alpha1.NodeEvidence) bool { return e.Cause == c }) {
					return false
				}
			}
			return h.Action == action && taint(node) == h.Cause && condition(node) == corev1.ConditionFalse
		}
	}
	_, h := w.until(t, n.Name, "short of a GPU, a link and lanes", signs(v1alpha1.ActionExclude, "GPUMissing", "NVLinkDown", "PCIeDegraded"))
	if h.Cause != "GPUMissing" || h.Seen.GPUs != 3 || h.Seen.NVLinks[n.GPU(0)] != 4 || h.Seen.NVLinks[n.GPU(1)] != 4 {
		t.Errorf("says %+v", h)
	}
	w.measured(t, n, `holdfast_node_verdict{action="Exclude",cause="GPUMissing"} 1`, "holdfast_node_gpus 2", "holdfast_node_gpus_expected 3", "holdfast_node_nvml_round_seconds_count ")
	w.describe(t, n, `{"metadata":{"labels":{"nvidia.com/gpu.count":"2"},"annotations":{"holdfast.dev/gpus":"2"}}}`)
	old := w.daemon(t, n)
	if _, err := n.Exec(w.ctx, "kill", "-9", old["daemon"]); err != nil {
		t.Fatal(err)
	}
	w.another(t, n, old["daemon"])
	w.measured(t, n, "holdfast_node_gpus 2", "holdfast_node_gpus_expected 2") // NVML has responded to the next daemon, and the user's annotation counts
	if _, h := w.until(t, n.Name, "judged by the next daemon", signs(v1alpha1.ActionExclude, "NVLinkDown", "PCIeDegraded")); h.Seen.NVLinks[n.GPU(0)] != 4 {
		t.Errorf("the next daemon says %+v", h)
	}
}

// describe changes keys of the Node, as users and GPU feature discovery do.
func (w *world) describe(t *testing.T, n *devcluster.Node, patch string) {
	t.Helper()
	if _, err := w.kube.CoreV1().Nodes().Patch(w.ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// measured waits until the daemon's metrics have lines with these beginnings. It queries from the node itself, as other hosts may not reach
// it.
func (w *world) measured(t *testing.T, n *devcluster.Node, lines ...string) {
	t.Helper()
	eventually.Holds(t, fmt.Sprintf("metrics on %s with all of %q", n.Name, lines), func() (bool, any) {
		pods, err := w.kube.CoreV1().Pods(v1alpha1.NodeNamespace).List(w.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
		if err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d pods of the daemon on %s: %v", len(pods.Items), n.Name, err)
		}
		text, err := n.Exec(w.ctx, "bash", "-c", `exec 3<>"/dev/tcp/$0/8080" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3`, pods.Items[0].Status.PodIP)
		if err != nil {
			return false, err
		}
		seen := "\n" + text
		return !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(seen, "\n"+l) }), seen
	})
}
