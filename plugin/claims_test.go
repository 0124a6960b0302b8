package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const driver = "gpu.example.com"

func deviceClass() *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourcev1.DeviceClassSpec{
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}},
		}}
}

// devices returns a slice of n devices on a node; without a node they are available from every node.
func devices(node string, n int, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "devices-" + node},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:   driver,
			NodeName: &node,
			Pool:     resourcev1.ResourcePool{Name: "pool-" + node, ResourceSliceCount: 1},
		}}
	if node == "" {
		s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true)
	}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("d%d", i), Taints: taints})
	}
	return s
}

// claiming returns the pods of a gang, each with a claim for one device.
func claiming(gangName string, size int) (pods, claims []runtime.Object) {
	for _, p := range gangOf(gangName, size, 0) {
		claim := &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name + "-claim", UID: types.UID("claim-" + p.Name), ResourceVersion: "1",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true)}}},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Name: "device", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: driver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}},
		}
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: ptr.To("device")}}
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "device", ResourceClaimName: &claim.Name}}
		pods, claims = append(pods, p), append(claims, claim)
	}
	return pods, claims
}

// versioned raises the versions of claims with each write, as a real API server does. The fake API server does not.
var versioned = extras{before: func(w *world) {
	var writes atomic.Int64
	w.client.PrependReactor("update", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if update, ok := a.(clienttesting.UpdateAction); ok {
			if claim, ok := update.GetObject().(*resourcev1.ResourceClaim); ok {
				claim.ResourceVersion = fmt.Sprint(1 + writes.Add(1))
			}
		}
		return false, nil, nil
	})
}}

// allocated returns the pool of the device that a pod got.
func (w *world) allocated(name string) string {
	w.t.Helper()
	claim, err := w.client.ResourceV1().ResourceClaims("ns").Get(w.ctx, name+"-claim", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if claim.Status.Allocation == nil {
		return ""
	}
	return claim.Status.Allocation.Devices.Results[0].Pool
}

// Members with claims are placed one per node, on nodes that have devices for them, not on nodes whose devices are tainted.
func TestMembersGetTheDevicesOfTheirClaims(t *testing.T) {
	pods, objects := claiming("g", 2)
	late, more := claiming("late", 1)
	objects = append(
		append(objects, more...),
		deviceClass(),
		devices("a", 1),
		devices("b", 1),
		devices("c", 1, resourcev1.DeviceTaint{Key: "xid", Effect: resourcev1.DeviceTaintEffectNoSchedule}),
		node("a", 0),
		node("b", 0),
		node("c", 0),
		node("d", 0),
	)
	w := newWorld(t, versioned, objects...)
	w.attempted()
	big, err := w.instances.Preview(w.ctx, gangOf("none", 5, 0))
	if err != nil || !big.Placement.Placed {
		t.Errorf("without claims five share nodes: %+v, %v", big.Placement, err)
	}
	w.create(pods...)
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	for name, want := range map[string]string{"g-0": "pool-a", "g-1": "pool-b"} {
		if got := w.allocated(name); got != want {
			t.Errorf("%s has a device of %q, not of %q", name, got, want)
		}
	}
	w.create(late...)
	w.until("the third to hear why", func() bool { return strings.Contains(w.placement("late").Message, "1 pod wanted, 0 fit: 4 nodes") })
	if said := w.placement("late"); said.Excluded["DynamicResources"] != 4 {
		t.Errorf("said %+v", said)
	}
}

// When a device is added or released, a refused gang is tried again at once.
func TestDevicesThatComeAreUsed(t *testing.T) {
	pods, objects := claiming("g", 2)
	w := newWorld(t, versioned, append(objects, deviceClass(), devices("a", 1), node("a", 0), node("b", 0))...)
	w.create(pods...)
	w.until("the gang to be refused", func() bool { return w.placement("g").Reason == v1alpha1.ReasonInsufficientNodes })
	if _, err := w.client.ResourceV1().ResourceSlices().Create(w.ctx, devices("b", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
}

// If devices belong to no node, the filter cannot show how many members get a device. A dry-run reserve verifies the plan, and leaves no
// device reserved.
func TestDevicesOfAllNodesAreNotGivenTwice(t *testing.T) {
	three, objects := claiming("three", 3)
	two, more := claiming("two", 2)
	objects = append(append(objects, more...), deviceClass(), devices("", 2), node("a", 0), node("b", 0), node("c", 0))
	w := newWorld(t, versioned, objects...)
	w.create(three...)
	w.until("three to be refused", w.says("three", "3 pods wanted: 2 of those with resource claims get devices together, some of which belong to no single node (driver gpu.example.com)"))
	w.attempted()
	for _, name := range []string{"three-0", "three-1", "three-2"} {
		if at := w.where(name); at != "" {
			t.Errorf("%s is on %s", name, at)
		}
	}
	w.create(two...)
	w.until("two to be bound", w.boundTo(map[string]string{"two-0": "*", "two-1": "*"}))
}

func TestClaimsThatCannotBeMet(t *testing.T) {
	pods, objects := claiming("shared", 2)
	both := pods[0].(*v1.Pod).Status.ResourceClaimStatuses[0].ResourceClaimName
	for _, p := range pods {
		p.(*v1.Pod).Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: both}}
	}
	w := newWorld(t, versioned, append(objects, deviceClass(), devices("a", 2), node("a", 0))...)
	w.attempted()
	w.create(pods...)
	w.until("a claim of two to be refused", w.says("shared", "pods shared-0 and shared-1 share resource claim shared-0-claim, which has no devices yet"))
	if got := w.placement("shared").Reason; got != v1alpha1.ReasonUnsupported {
		t.Errorf("reason %s", got)
	}
	unborn, _ := claiming("unborn", 2)
	for _, p := range unborn {
		p.(*v1.Pod).Status.ResourceClaimStatuses = nil
	}
	got, err := w.instances.Preview(w.ctx, []*v1.Pod{unborn[0].(*v1.Pod), unborn[1].(*v1.Pod)})
	if err != nil || got.Placement.Reason != v1alpha1.ReasonUnsupported || !strings.Contains(got.Placement.Message, "a preview does not know which devices pod unborn-0 would get") {
		t.Errorf("%+v, %v", got.Placement, err)
	}
}

// Claims from templates are created after their pods. Until then the gang is incomplete.
func TestAGangWaitsForItsClaims(t *testing.T) {
	pods, objects := claiming("g", 2)
	w := newWorld(t, versioned, deviceClass(), devices("a", 1), devices("b", 1), node("a", 0), node("b", 0))
	var made []*v1.Pod
	for _, o := range pods {
		p := o.(*v1.Pod)
		made = append(made, p.DeepCopy())
		p.Status.ResourceClaimStatuses = nil
		w.create(p)
	}
	w.until("the gang to be known", w.says("g", "0 of 2 pods exist; 2 more wait for kube-controller-manager to create their resource claims"))
	w.attempted()
	for i, o := range objects {
		claim := o.(*resourcev1.ResourceClaim)
		if at := w.where("g-0") + w.where("g-1"); at != "" {
			t.Fatalf("a member is on %s, with %d claims", at, i)
		}
		if _, err := w.client.ResourceV1().ResourceClaims("ns").Create(w.ctx, claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		made[i].ResourceVersion = "2"
		if _, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, made[i], metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
}

// stopper holds a pod back once a plan has named a node for the pod.
type stopper struct {
	pod    string
	plugin atomic.Pointer[Plugin]
}

func (s *stopper) Name() string { return "Stopper" }

func (s *stopper) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	p := s.plugin.Load()
	if p == nil || pod.Name != s.pod {
		return nil
	}
	if key, ok := p.gangOf(pod); ok {
		if _, planned := p.gangs.PlannedNode(key, pod.UID); planned {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "stopped by the test")
		}
	}
	return nil
}

// If devices belong to no node, members of a gang that is planned already get their devices before another gang.
func TestDevicesOfAllNodesAreNotPromisedTwice(t *testing.T) {
	one, objects := claiming("one", 2)
	two, more := claiming("two", 1)
	objects = append(append(objects, more...), deviceClass(), devices("", 2), node("a", 0), node("b", 0), node("c", 0))
	stop, x := &stopper{pod: "one-1"}, versioned
	x.plugins = map[string]frameworkruntime.PluginFactory{
		"Stopper": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return stop, nil },
	}
	w := newWorld(t, x, objects...)
	stop.plugin.Store(w.plugin)
	w.create(one...)
	w.until("the first of one to be bound", w.boundTo(map[string]string{"one-0": "*"}))
	w.create(two...)
	w.until("two to be refused", w.says("two", "1 pod wanted: 0 of those with resource claims get devices together"))
	if at := w.where("two-0"); at != "" {
		t.Errorf("two-0 is on %s", at)
	}
}

// BenchmarkPlanWithDevicesOfAllNodes measures planning of a large gang whose members need a dry-run reserve.
func BenchmarkPlanWithDevicesOfAllNodes(b *testing.B) {
	const size = 1000
	pods, objects := claiming("g", size)
	objects = append(objects, deviceClass(), devices("", size-1))
	for i := range size {
		objects = append(objects, node(fmt.Sprint("n", i), 0))
	}
	x := versioned
	x.follower = true
	w := newWorld(b, x, objects...)
	w.create(pods...)
	w.until("the gang to be known", func() bool { _, missing := w.plugin.gangs.PlanInput(key("g")); return missing == nil })
	r, _ := w.plugin.gangs.PlanInput(key("g"))
	nodes := w.snapshot()
	for b.Loop() {
		if _, refusal, err := w.plugin.planner.Answer(w.ctx, nodes, r); err != nil || refusal == nil {
			b.Fatal(refusal, err)
		}
	}
}
