package nodehealth

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
)

// repairing is a DaemonSet with the tolerations of the driver's DaemonSet in NVIDIA's GPU Operator.
const repairing = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: repairing, namespace: default}
spec:
  selector: {matchLabels: {app: repairing}}
  template:
    metadata: {labels: {app: repairing}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %s}
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      containers: [{name: driver, image: "holdfast.dev/holdfast-node:latest", imagePullPolicy: Never, command: [sleep, "3600"]}]
`

// repairs: a node is given up because a GPU needs a reset. While an annotation requests it, the daemon releases all GPUs and admits pods
// that repair the node. Then it opens the GPUs again. It does the same while NVIDIA's operator replaces the driver.
func (w *world) repairs(t *testing.T, n *devcluster.Node) {
	if _, err := w.c.KubectlIn(w.ctx, fmt.Sprintf(repairing, n.Name), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the DaemonSet is seen and has no node", func() (bool, any) {
		d, err := w.kube.AppsV1().DaemonSets("default").Get(w.ctx, "repairing", metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.DesiredNumberScheduled == 0, d
	})
	released := func(cause string) func(*corev1.Node, v1alpha1.NodeHealth) bool {
		return func(node *corev1.Node, h v1alpha1.NodeHealth) bool {
			return reason(node) == v1alpha1.CauseGPUsReleased && h.Released != "" && h.Cause == cause &&
				effect(node) == corev1.TaintEffectPreferNoSchedule
		}
	}
	began := time.Now()
	w.describe(t, n, `{"metadata":{"annotations":{"holdfast.dev/release-gpus":"reset"}}}`)
	_, h := w.until(t, n.Name, "released", released("GPUNeedsReset"))
	t.Logf("released %s after the request", time.Since(began).Round(time.Millisecond))
	if h.Action != v1alpha1.ActionEvict || !strings.Contains(h.Message, "annotation holdfast.dev/release-gpus=reset") {
		t.Errorf("says %+v", h)
	}
	w.closed(t, n)
	eventually.Holds(t, "a pod that repairs the node is placed there", func() (bool, any) {
		pods, err := w.kube.CoreV1().Pods("default").List(w.ctx, metav1.ListOptions{LabelSelector: "app=repairing"})
		return err == nil && len(pods.Items) == 1 && pods.Items[0].Spec.NodeName == n.Name, pods
	})
	if err := n.Heal(); err != nil { // the GPU is reset
		t.Fatal(err)
	}
	w.closed(t, n)
	began = time.Now()
	w.describe(t, n, `{"metadata":{"annotations":{"holdfast.dev/release-gpus":null}}}`)
	w.until(t, n.Name, "well after the repair", well)
	t.Logf("well %s after the repair", time.Since(began).Round(time.Millisecond))
	w.describe(t, n, `{"metadata":{"labels":{"nvidia.com/gpu-driver-upgrade-state":"pod-restart-required"}}}`)
	w.until(t, n.Name, "released for the driver", released(v1alpha1.CauseGPUsReleased))
	w.closed(t, n)
	w.describe(t, n, `{"metadata":{"labels":{"nvidia.com/gpu-driver-upgrade-state":"validation-required"}}}`)
	w.until(t, n.Name, "well after the upgrade", well)
}

// closed checks that no process of the node has the driver's library open, and so none of its files.
func (w *world) closed(t *testing.T, n *devcluster.Node) {
	t.Helper()
	out, err := n.Exec(w.ctx, "sh", "-c", `grep -l libnvidia-ml /proc/[0-9]*/maps 2>/dev/null; true`)
	if err != nil {
		t.Fatal(err)
	}
	if procs := w.daemon(t, n); procs["probe"] != "" || procs["daemon"] == "" || out != "" {
		t.Errorf("while the GPUs are released %v are at work, and these have the library: %s", procs, out)
	}
}

func reason(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == v1alpha1.ConditionHealthy {
			return c.Reason
		}
	}
	return ""
}

func effect(n *corev1.Node) corev1.TaintEffect {
	for _, t := range n.Spec.Taints {
		if t.Key == v1alpha1.TaintUnhealthy {
			return t.Effect
		}
	}
	return ""
}
