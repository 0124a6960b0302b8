package scheduling

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/simnode"
)

var (
	karpenter       = flag.String("karpenter", "", "Karpenter's program with its kwok provider, which then adds the nodes of TestAutoscaled")
	karpenterSource = flag.String("karpenter-source", "", "folder of its module, with its definitions")
)

// TestAutoscaled: an autoscaler gets the requests of a whole gang, and no request that a new node would not satisfy. Without Karpenter the
// test itself adds the nodes.
func TestAutoscaled(t *testing.T) {
	s := newStage(t, 1)
	if err := s.client.CoreV1().Nodes().DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	s.leader = s.start()
	if *karpenter == "" {
		s.fromNothing(func() {
			for i := range squad {
				s.kept(fmt.Sprint("bought-", i), map[string]string{pool: "gpu"})
			}
		})
		return
	}
	s.karpenter()
	s.fromNothing(func() {})
	s.boughtForOneAlone()
	s.consolidated()
	s.takenWithout()
}

// fromNothing: all pods of a gang of 4 are marked for the autoscaler while there is no node. The gang is placed as soon as the nodes exist.
func (s *stage) fromNothing(buy func()) {
	s.t.Helper()
	began := time.Now()
	names := s.ranked("quad", squad, onPool(5))
	s.until("all to be marked, or placed already", func() bool {
		all := s.pods()
		return !slices.ContainsFunc(names, func(n string) bool {
			return all[n].Spec.NodeName == "" && reasonOf(all[n]) != corev1.PodReasonUnschedulable
		})
	})
	s.t.Logf("all of %d marked after %v", squad, time.Since(began).Round(time.Millisecond))
	buy()
	s.until("the gang to be placed", s.bound(names...))
	s.t.Logf("placed on %d nodes after %v", len(s.nodes()), time.Since(began).Round(time.Millisecond))
	if n := len(s.nodes()); n != squad {
		s.t.Errorf("there are %d nodes for a gang of %d", n, squad)
	}
}

// pool is the label of nodes that Karpenter adds.
const pool = "karpenter.sh/nodepool"

// onPool makes a pod request a number of devices on nodes of the pool, with the fields that the webhook adds to pods of Jobs.
func onPool(gpus int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeSelector, p.Spec.Tolerations = map[string]string{pool: "gpu"}, nil
		p.Annotations["karpenter.sh/do-not-disrupt"] = "true"
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: *resource.NewQuantity(gpus, resource.DecimalSI)}
	}
}

// kept creates a node whose lease kwok renews.
func (s *stage) kept(name string, labels map[string]string) {
	s.t.Helper()
	room := corev1.ResourceList{
		gpu:                   resource.MustParse("8"),
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, simnode.AliveLabel: "true"}},
		Status:     corev1.NodeStatus{Allocatable: room, Capacity: room},
	}
	maps.Copy(node.Labels, labels)
	if _, err := s.client.CoreV1().Nodes().Create(s.ctx, node, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func reasonOf(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason
		}
	}
	return ""
}

// karpenter starts Karpenter with a pool of two node types, of which the larger one is allowed.
func (s *stage) karpenter() {
	s.t.Helper()
	files := []string{filepath.Join(*karpenterSource, "pkg/apis/crds"), filepath.Join(*karpenterSource, "kwok/apis/crds")}
	for _, f := range append(files, "testdata/karpenter/pool.yaml") {
		s.until("the API server to take "+f, func() bool {
			out, err := s.cluster.Kubectl(s.ctx, "apply", "--server-side", "-f", f)
			if err != nil {
				s.t.Logf("%s: %v: %s", f, err, out)
			}
			return err == nil
		})
	}
	log, err := os.Create(filepath.Join(s.t.TempDir(), "karpenter.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.ctx, *karpenter, "--disable-leader-election=true", fmt.Sprintf("--metrics-port=%d", freePort(s.t)),
		fmt.Sprintf("--health-probe-port=%d", freePort(s.t)), "--instance-types-file-path=testdata/karpenter/types.json")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "SYSTEM_NAMESPACE=kube-system")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			lines := strings.Split(string(text), "\n")
			s.t.Logf("Karpenter said at last:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
}

// claims returns the nodes that Karpenter has added and not removed, by name, with their types.
func (s *stage) claims() map[string]string {
	s.t.Helper()
	config, err := s.cluster.Config()
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := client.Resource(schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[string]string{}
	for _, c := range list.Items {
		all[c.GetName()] = c.GetLabels()[corev1.LabelInstanceTypeStable]
	}
	return all
}

// boughtForOneAlone: no node is added for a gang whose pods are larger than any node, nor for a gang that no node would help. One node is
// added for a single pod that is created after them.
func (s *stage) boughtForOneAlone() {
	s.t.Helper()
	huge := s.ranked("huge", 2, onPool(16))
	s.until("Karpenter to have no node for it", func() bool {
		events, err := s.client.CoreV1().Events("default").List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + huge[1] + ",reason=FailedScheduling"})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Source.Component == "karpenter" })
	})
	for _, name := range []string{"rack-0", "rack-1"} {
		s.kept(name, map[string]string{clique: "c0"})
	}
	wired := s.ranked("wired", 3, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationTopologyRequired] = "nvlink" })
	s.until("the gang to be refused by the domain", func() bool { return reasonOf(s.pods()[wired[0]]) == v1alpha1.ReasonInsufficientNodes })
	for _, name := range wired {
		if reasonOf(s.pods()[name]) == corev1.PodReasonUnschedulable {
			s.t.Errorf("%s asks for a node", name)
		}
	}
	alone := member("alone", 0, 1, "alone-0")
	onPool(5)(alone)
	delete(alone.Annotations, "karpenter.sh/do-not-disrupt")
	s.create(alone)
	s.until("the single pod to be placed", s.bound("alone-0"))
	if got := s.claims(); len(got) != squad+1 {
		s.t.Errorf("added were %v, for a gang of %d and one pod", got, squad)
	}
}

// consolidated: once a cheaper type suffices for all pods, the node of the movable pod is replaced. The nodes of the gang stay.
func (s *stage) consolidated() {
	s.t.Helper()
	before := s.pods()
	old := before["alone-0"].Spec.NodeName
	allow := []byte(`[{"op":"replace","path":"/spec/template/spec/requirements/3/values","value":["g-8","g-5"]}]`)
	if out, err := s.cluster.Kubectl(s.ctx, "patch", "nodepool", "gpu", "--type=json", "-p", string(allow)); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	began := time.Now()
	s.until("the node of the pod that may move to go", func() bool {
		return !slices.ContainsFunc(s.nodes(), func(n corev1.Node) bool { return n.Name == old })
	})
	for slot := range squad {
		node := before[fmt.Sprintf("quad-%d", slot)].Spec.NodeName
		s.until("Karpenter to say why it leaves node "+node, func() bool {
			events, err := s.client.CoreV1().Events("").List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + node + ",reason=DisruptionBlocked"})
			return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, "do-not-disrupt") })
		})
	}
	s.t.Logf("consolidated after %v, bought are %v", time.Since(began).Round(time.Second), s.claims())
	now := s.pods()
	for slot := range squad {
		name := fmt.Sprintf("quad-%d", slot)
		was, is := before[name], now[name]
		if is == nil || is.UID != was.UID || is.Spec.NodeName != was.Spec.NodeName || is.DeletionTimestamp != nil {
			s.t.Errorf("%s did not stay on %s", name, was.Spec.NodeName)
		}
	}
	kept := 0
	for _, kind := range s.claims() {
		if kind == "g-8" {
			kept++
		}
	}
	if kept != squad {
		s.t.Errorf("of the %d nodes of the gang %d are left", squad, kept)
	}
}

// takenWithout shows that the annotation protects the nodes: without it the node of a member is replaced like that of the movable pod.
// Before that Karpenter reported why it leaves the node, so it did consider the node.
func (s *stage) takenWithout() {
	s.t.Helper()
	const bare = "quad-0"
	node := s.pods()[bare].Spec.NodeName
	began := time.Now()
	patch := []byte(`{"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":null}}}`)
	if _, err := s.client.CoreV1().Pods("default").Patch(s.ctx, bare, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.until("the node of the member without the annotation to go", func() bool {
		return !slices.ContainsFunc(s.nodes(), func(n corev1.Node) bool { return n.Name == node })
	})
	s.t.Logf("without the annotation the node of a member was taken after %v", time.Since(began).Round(time.Second))
}
