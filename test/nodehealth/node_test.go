package nodehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth"
	"holdfast.dev/holdfast/test/devcluster"
	standin "holdfast.dev/holdfast/test/devcluster/nvml"
	"holdfast.dev/holdfast/test/harness"
)

const daemonUser = "system:serviceaccount:holdfast-node:holdfast-node"

type world struct {
	c    *devcluster.Cluster
	ctx  context.Context
	kube kubernetes.Interface
}

// TestDaemon: the shipped daemon on two nodes. Long parts run on both concurrently.
func TestDaemon(t *testing.T) {
	if err := standin.Build(filepath.Join(t.TempDir(), standin.Library)); errors.Is(err, standin.ErrNoCompiler) {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	c := devcluster.Start(t, devcluster.Options{Nodes: 2})
	w := install(t, c)
	for _, n := range c.Nodes() {
		w.until(t, n.Name, "healthy", func(n *corev1.Node, h v1alpha1.NodeHealth) bool {
			return h.Action == v1alpha1.ActionNone && condition(n) == corev1.ConditionTrue && h.Boot != ""
		})
	}
	t.Run("both", func(t *testing.T) {
		t.Run("errors, kills and boots", func(t *testing.T) { t.Parallel(); w.errors(t, c.Node("n1")) })
		t.Run("losses and absences", func(t *testing.T) { t.Parallel(); w.losses(t, c.Node("n2")) })
	})
	t.Run("own words alone", w.refusals)
}

func install(t *testing.T, c *devcluster.Cluster) *world {
	t.Helper()
	ctx := context.Background()
	binary(t, "holdfast-node")
	img, err := harness.ProductImage("../..", c.Spec().PythonDir, "holdfast-node")
	if err != nil {
		t.Fatal(err)
	}
	img.Name = "holdfast.dev/holdfast-node:latest" // as in its own manifests
	if err := c.Load(ctx, img); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(ctx, "apply", "-k", "../../manifests/node"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(ctx, "apply", "-f", "../../manifests/controller/policy.yaml"); err != nil {
		t.Fatal(err)
	}
	w := &world{c: c, ctx: ctx, kube: client(t, c, nil)}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := c.Kubectl(ctx, "-n", "holdfast-node", "logs", "-l", "app.kubernetes.io/name=holdfast-node", "--prefix", "--tail=60")
			pods, _ := c.Kubectl(ctx, "-n", "holdfast-node", "describe", "pods")
			t.Logf("logs:\n%s\npods:\n%s", out, pods)
		}
	})
	return w
}

func client(t *testing.T, c *devcluster.Cluster, change func(*rest.Config)) kubernetes.Interface {
	t.Helper()
	cfg, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(cfg)
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

func condition(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == v1alpha1.ConditionHealthy {
			return c.Status
		}
	}
	return ""
}

func taint(n *corev1.Node) string {
	for _, t := range n.Spec.Taints {
		if t.Key == v1alpha1.TaintUnhealthy {
			return t.Value
		}
	}
	return ""
}

// until waits until holds is true of the Node, and returns it and its verdict.
func (w *world) until(
	t *testing.T,
	name, what string,
	holds func(*corev1.Node, v1alpha1.NodeHealth) bool,
) (*corev1.Node, v1alpha1.NodeHealth) {
	t.Helper()
	var n *corev1.Node
	var h v1alpha1.NodeHealth
	eventually.Holds(t, name+" "+what, func() (_ bool, seen any) {
		n, h, seen = w.read(t, name)
		return n.Annotations[v1alpha1.AnnotationHealth] != "" && holds(n, h), seen
	})
	return n, h
}

// stays checks for a while that holds stays true of the Node.
func (w *world) stays(t *testing.T, name, when string, span time.Duration, holds func(*corev1.Node, v1alpha1.NodeHealth) bool) {
	t.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		n, h, text := w.read(t, name)
		if !holds(n, h) {
			t.Fatalf("%s, %s: %s", name, when, text)
		}
	}
}

// read returns a Node, its verdict, and both as text.
func (w *world) read(t *testing.T, name string) (*corev1.Node, v1alpha1.NodeHealth, string) {
	t.Helper()
	n, err := w.kube.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var h v1alpha1.NodeHealth
	text, ok := n.Annotations[v1alpha1.AnnotationHealth]
	if ok {
		if err := json.Unmarshal([]byte(text), &h); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return n, h, fmt.Sprintf("%s, taint %q, condition %s", text, taint(n), condition(n))
}

func evicts(cause string) func(*corev1.Node, v1alpha1.NodeHealth) bool {
	return func(n *corev1.Node, h v1alpha1.NodeHealth) bool {
		return h.Action == v1alpha1.ActionEvict && h.Cause == cause && taint(n) == cause && condition(n) == corev1.ConditionFalse
	}
}

func well(n *corev1.Node, h v1alpha1.NodeHealth) bool {
	return h.Action == v1alpha1.ActionNone && taint(n) == "" && condition(n) == corev1.ConditionTrue
}

// fail causes a fault and prints the time until a taint of Holdfast's appeared.
func (w *world) fail(t *testing.T, n *devcluster.Node, f standin.Fault) {
	t.Helper()
	began := time.Now()
	if err := n.Fail(f); err != nil {
		t.Fatal(err)
	}
	w.until(t, n.Name, "tainted", func(n *corev1.Node, _ v1alpha1.NodeHealth) bool { return taint(n) != "" })
	t.Logf("%+v: tainted after %s", f, time.Since(began).Round(time.Millisecond))
}

// daemon returns the daemon's processes by their ids in the node: the daemon itself and its probe.
func (w *world) daemon(t *testing.T, n *devcluster.Node) map[string]string {
	t.Helper()
	out, err := n.Exec(w.ctx, "sh", "-c", `for p in /proc/[0-9]*; do printf '%s ' "${p#/proc/}"; tr '\0' ' ' < $p/cmdline; echo; done 2>/dev/null`)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[1] {
		case "/holdfast-node":
			found["daemon"] = f[0]
		case "/holdfast-nvml":
			found["probe"] = f[0]
		}
	}
	return found
}

// errors: the GPU reports Xid 79. The daemon is killed before the node is rebooted. Later a driver hangs for ever, while only the kernel
// log has the cause.
func (w *world) errors(t *testing.T, n *devcluster.Node) {
	w.fail(t, n, standin.Fault{GPU: 1, Xid: 79})
	_, before := w.until(t, n.Name, "evicted", evicts("GPUOffTheBus"))
	if len(before.Devices) != 1 || before.Devices[0] != n.GPU(1) || before.Next == "" || len(before.Evidence) == 0 {
		t.Errorf("says too little: %+v", before)
	}
	// The evidence names the source that reported the error first, which may be either.
	w.measured(t, n, `holdfast_node_signals_total{kind="xid",source="kmsg"} 1`, `holdfast_node_signals_total{kind="xid",source="nvml"} 1`)
	w.until(t, n.Name, "short of a GPU", func(n *corev1.Node, _ v1alpha1.NodeHealth) bool {
		q := n.Status.Allocatable["nvidia.com/gpu"]
		return q.Value() == 1
	})
	old := w.daemon(t, n)
	if old["daemon"] == "" || old["probe"] == "" {
		t.Fatalf("daemon and probe: %v", old)
	}
	if _, err := n.Exec(w.ctx, "kill", "-9", old["daemon"]); err != nil {
		t.Fatal(err)
	}
	w.another(t, n, old["daemon"])
	// The next daemon keeps the verdict of the previous one and its start time, also after it has read the earlier records of this boot.
	w.measured(t, n, `holdfast_node_verdict{action="Evict",cause="GPUOffTheBus"} 1`, `holdfast_node_signals_total{kind="xid",source="kmsg"} 1`)
	w.stays(t, n.Name, "after a kill", 3*time.Second, func(node *corev1.Node, h v1alpha1.NodeHealth) bool {
		return h.Action == v1alpha1.ActionEvict && h.Since.Equal(&before.Since) && taint(node) == "GPUOffTheBus"
	})
	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	if err := n.PowerOn(); err != nil {
		t.Fatal(err)
	}
	_, after := w.until(t, n.Name, "well after a boot", well)
	if after.Boot == before.Boot {
		t.Errorf("the boot id is still %s", after.Boot)
	}
	w.fail(t, n, standin.Fault{Hang: true})
	w.until(t, n.Name, "excluded while the driver hangs", func(n *corev1.Node, h v1alpha1.NodeHealth) bool {
		return h.Cause == "DriverHangs" && taint(n) == "DriverHangs"
	})
	w.until(t, n.Name, "evicted while the driver hangs", evicts("DriverHangs"))
	if err := n.LogKernel("<3>NVRM: Xid (PCI:0000:11:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."); err != nil {
		t.Fatal(err)
	}
	_, reported := w.until(t, n.Name, "evicted for the cause in the kernel log", evicts("GPUOffTheBus"))
	if !slices.ContainsFunc(reported.Evidence, func(e v1alpha1.NodeEvidence) bool {
		return e.Source == string(nodehealth.Kmsg) && e.Device == n.GPU(1) && e.Cause == "GPUOffTheBus"
	}) {
		t.Errorf("the kernel log is not named as the source of %s: %+v", n.GPU(1), reported.Evidence)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	w.until(t, n.Name, "well again", well)
}

// another waits for a daemon with another process id.
func (w *world) another(t *testing.T, n *devcluster.Node, old string) {
	t.Helper()
	eventually.Holds(t, "another daemon on "+n.Name, func() (bool, any) {
		now := w.daemon(t, n)
		return now["daemon"] != "" && now["daemon"] != old && now["probe"] != "", now
	})
}

// losses: signs of a slow node, a GPU that is lost without a record in the log and returns, and a GPU that is lost while the API server is
// unreachable. It also measures the cost of the idle daemon.
func (w *world) losses(t *testing.T, n *devcluster.Node) {
	w.cost(t, n)
	w.signs(t, n)
	began := time.Now()
	if err := n.Fail(standin.Fault{GPU: 0, Lost: true}); err != nil {
		t.Fatal(err)
	}
	w.until(t, n.Name, "evicted", evicts("GPULost"))
	t.Logf("lost without a log line: reported after %s", time.Since(began).Round(time.Millisecond))
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	w.until(t, n.Name, "well again", well)
	if err := n.Cut(w.ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.Fail(standin.Fault{GPU: 1, Xid: 95}); err != nil {
		t.Fatal(err)
	}
	w.measured(t, n, `holdfast_node_verdict{action="Evict",cause="GPUNeedsReset"} 1`) // the daemon has the verdict, but cannot report it
	w.stays(t, n.Name, "while it cannot report", 12*time.Second, well)                // longer than one request of the daemon may take
	if err := n.Mend(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.until(t, n.Name, "evicted once it reports", evicts("GPUNeedsReset"))
	w.repairs(t, n)
}

// cost measures CPU time and memory of the idle daemon and its probe. The promise is half a percent of a core and 64 MiB. A busy machine
// charges more for the same work, so one of several measurements must keep it.
func (w *world) cost(t *testing.T, n *devcluster.Node) {
	t.Helper()
	const (
		span    = 10 * time.Second
		promise = 0.5 // percent
		spans   = 6
	)
	pids := w.daemon(t, n)
	if len(pids) != 2 {
		t.Fatalf("daemon and probe: %v", pids)
	}
	least, most := 100.0, 0
	for i := 0; i < spans && least > promise; i++ {
		before, _, _ := w.usage(t, n, pids)
		time.Sleep(span) // the measured time
		after, kib, _ := w.usage(t, n, pids)
		least, most = min(least, float64(after-before)/100/span.Seconds()*100), max(most, kib) // 100 ticks are a second
	}
	t.Logf("daemon and probe: %.1f %% of a core, %d MiB", least, most>>10)
	if least > promise {
		t.Errorf("%.1f %% of a core in the best of %d spans", least, spans)
	}
	if most > 64<<10 {
		t.Errorf("%d KiB of memory", most)
	}
	_, _, rights := w.usage(t, n, pids)
	for _, right := range []string{"Uid: 65532 65532 65532 65532", "Gid: 65532 65532 65532 65532", "Groups: 65532", "CapBnd: 0000000000000000", "CapEff: 0000000000000000", "NoNewPrivs: 1"} {
		for _, role := range []string{"daemon", "probe"} {
			if !slices.Contains(rights[role], right) {
				t.Errorf("the %s is not %s: %v", role, right, rights[role])
			}
		}
	}
}

// usage is what the processes have used so far: ticks of a processor, KiB of memory; and their capabilities.
func (w *world) usage(t *testing.T, n *devcluster.Node, pids map[string]string) (ticks, kib int, rights map[string][]string) {
	t.Helper()
	rights = map[string][]string{}
	for role, pid := range pids {
		out, err := n.Exec(w.ctx, "cat", "/proc/"+pid+"/stat", "/proc/"+pid+"/status")
		if err != nil {
			t.Fatal(err)
		}
		stat, status, _ := strings.Cut(out, "\n")
		f := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		ticks += user + system
		for line := range strings.Lines(status) {
			if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				size, _ := strconv.Atoi(strings.Fields(v)[0])
				kib += size
			}
			rights[role] = append(rights[role], strings.Join(strings.Fields(line), " "))
		}
	}
	return ticks, kib, rights
}

// refusals: with the rights of a node's daemon an attacker can write nothing on other nodes, and on its own node only Holdfast's keys. The
// controller can write only its own two keys.
func (w *world) refusals(t *testing.T) {
	if _, err := w.c.KubectlIn(w.ctx, controllerMayPatchNodes, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	as := func(user, node string) kubernetes.Interface {
		return client(t, w.c, func(cfg *rest.Config) {
			cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated", "system:serviceaccounts"}}
			if node != "" {
				cfg.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
			}
		})
	}
	daemon, nowhere, controller := as(daemonUser, "n1"), as(daemonUser, ""), as("system:serviceaccount:holdfast-system:holdfast-controller", "n1")
	// The API server may apply a right a moment after it has accepted it.
	eventually.Succeeds(t, "the controller may patch Nodes", func() error {
		_, err := controller.CoreV1().
			Nodes().
			Patch(w.ctx, "n2", types.MergePatchType, []byte(`{"metadata":{"annotations":{"holdfast.dev/outage":"{}"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	health := `{"metadata":{"annotations":{"holdfast.dev/health":"{}"}}}`
	for _, c := range []struct {
		what        string
		as          kubernetes.Interface
		node        string
		kind        types.PatchType
		patch       string
		subresource string
		refused     string
	}{
		{"another node", daemon, "n2", types.MergePatchType, health, "", "may change the Node that it runs on"},
		{"a token of no node", nowhere, "n1", types.MergePatchType, health, "", "may change the Node that it runs on"},
		{"another annotation", daemon, "n1", types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`, "", "no annotation of a Node but holdfast.dev/health"},
		{"another annotation by status", daemon, "n1", types.MergePatchType, `{"metadata":{"annotations":{"holdfast.dev/outage":"b"}}}`, "status", "no annotation of a Node but holdfast.dev/health"},
		{"a label", daemon, "n1", types.MergePatchType, `{"metadata":{"labels":{"a":"b"}}}`, "", "may not change labels"},
		{"another taint", daemon, "n1", types.MergePatchType, `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`, "", "no taint of a Node but"},
		{"our taint that evicts", daemon, "n1", types.MergePatchType, `{"spec":{"taints":[{"key":"holdfast.dev/unhealthy","effect":"NoExecute"}]}}`, "", "only with effect NoSchedule"},
		{"our taint that lets in", daemon, "n1", types.MergePatchType, `{"spec":{"taints":[{"key":"holdfast.dev/unhealthy","effect":"PreferNoSchedule"}]}}`, "", ""},
		{"controller: own taint that lets in", controller, "n2", types.MergePatchType, `{"spec":{"taints":[{"key":"holdfast.dev/outage","effect":"PreferNoSchedule"}]}}`, "", ""},
		{"cordon", daemon, "n1", types.MergePatchType, `{"spec":{"unschedulable":true}}`, "", "may not change the spec"},
		{"another condition", daemon, "n1", types.StrategicMergePatchType, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status", "no condition but HoldfastHealthy"},
		{"capacity", daemon, "n1", types.MergePatchType, `{"status":{"capacity":{"a.b/c":"5"}}}`, "status", "may not change the status"},
		{"own words", daemon, "n1", types.MergePatchType, `{"metadata":{"annotations":{"holdfast.dev/health":"{}"}},"spec":{"taints":[{"key":"holdfast.dev/unhealthy","value":"X","effect":"NoSchedule"}]}}`, "", ""},
		{"own condition", daemon, "n1", types.StrategicMergePatchType, `{"status":{"conditions":[{"type":"HoldfastHealthy","status":"False"}]}}`, "status", ""},
		{"controller: the daemon's word", controller, "n1", types.MergePatchType, health, "", "no annotation of a Node but holdfast.dev/outage"},
		{"controller: another taint", controller, "n2", types.MergePatchType, `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`, "", "no taint of a Node but holdfast.dev/outage"},
		{"controller: cordon", controller, "n2", types.MergePatchType, `{"spec":{"unschedulable":true}}`, "", "may not change the spec"},
		{"controller: own word", controller, "n2", types.MergePatchType, `{"metadata":{"annotations":{"holdfast.dev/outage":"{}"}}}`, "", ""},
	} {
		var sub []string
		if c.subresource != "" {
			sub = []string{c.subresource}
		}
		_, err := c.as.CoreV1().
			Nodes().
			Patch(w.ctx, c.node, c.kind, []byte(c.patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, sub...)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: refused: %v", c.what, err)
		case c.refused != "" && (!apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v; want a refusal with %q", c.what, err, c.refused)
		}
	}
}

// controllerMayPatchNodes is the right in the controller's own role.
const controllerMayPatchNodes = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-controller}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-controller}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-controller}
subjects: [{kind: User, name: "system:serviceaccount:holdfast-system:holdfast-controller", apiGroup: rbac.authorization.k8s.io}]
`
