package plugin

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clienttesting "k8s.io/client-go/testing"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// got makes a claim look as a failed binding leaves it: with a device of a node, reserved for these pods.
func got(o runtime.Object, node string, by ...runtime.Object) {
	claim := o.(*resourcev1.ResourceClaim)
	claim.Finalizers = []string{resourcev1.Finalizer}
	claim.Status = resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: claim.Spec.Devices.Requests[0].Name, Driver: driver, Pool: "pool-" + node, Device: "d0"},
			},
		},
		NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node}}}}}},
	}}
	for _, b := range by {
		p := b.(*v1.Pod)
		claim.Status.ReservedFor = append(
			claim.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID},
		)
	}
}

// sick returns a node that is excluded.
func sick(n *v1.Node) *v1.Node {
	n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1alpha1.TaintUnhealthy, Value: "Test", Effect: v1.TaintEffectNoSchedule})
	return n
}

// After a failed binding claims tie members to unusable nodes. These members get other devices. A member on its node keeps its device.
func TestDevicesThatAreLeftOverAreGivenBack(t *testing.T) {
	pods, objects := claiming("g", 3)
	got(objects[0], "a")
	got(objects[1], "b", pods[1])
	got(objects[2], "d", pods[2])
	on(pods[2].(*v1.Pod), "d")
	objects = append(
		objects,
		deviceClass(),
		devices("a", 1),
		devices("b", 1),
		devices("d", 1),
		devices("e", 1, resourcev1.DeviceTaint{Key: "xid", Effect: resourcev1.DeviceTaintEffectNoSchedule}),
		sick(node("a", 0)),
		node("b", 0),
		node("d", 0),
		node("e", 0),
	)
	w := newWorld(t, versioned, append(objects, pods...)...)
	w.until("the two that wait to have no devices", func() bool { return w.allocated("g-0") == "" && w.allocated("g-1") == "" })
	if at := w.allocated("g-2"); at != "pool-d" {
		t.Errorf("the member on its node has a device of %q", at)
	}
	w.attempted()
	claim, err := w.client.ResourceV1().ResourceClaims("ns").Get(w.ctx, "g-1-claim", metav1.GetOptions{})
	if err != nil || len(claim.Status.ReservedFor) > 0 {
		t.Errorf("%+v, %v", claim, err)
	}
	if _, err := w.client.ResourceV1().ResourceSlices().Create(w.ctx, devices("c", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(node("c", 0))
	w.until("all to be bound", w.boundTo(map[string]string{"g-0": "b", "g-1": "c"}))
	if a, b := w.allocated("g-0"), w.allocated("g-1"); a != "pool-b" || b != "pool-c" {
		t.Errorf("devices of %q and %q", a, b)
	}
}

// kube-scheduler created a claim for extended resources, and the binding failed. The claim is deleted.
func TestClaimsForExtendedResourcesThatAreLeftOverAreDeleted(t *testing.T) {
	class := deviceClass()
	class.Spec.ExtendedResourceName = ptr.To("gpu.example.com/whole")
	pods := gangOf("g", 2, 0)
	for _, p := range pods {
		one := v1.ResourceList{"gpu.example.com/whole": resource.MustParse("1")}
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: one, Limits: one}
	}
	_, made := claiming("g", 1)
	special := made[0].(*resourcev1.ResourceClaim)
	special.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	special.OwnerReferences[0].UID = pods[0].UID
	got(special, "a", pods[0])
	named := extras{before: func(w *world) { // names are generated, as a real API server does
		versioned.before(w)
		var made atomic.Int64
		w.client.PrependReactor("create", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if create, ok := a.(clienttesting.CreateAction); ok {
				if claim, ok := create.GetObject().(*resourcev1.ResourceClaim); ok && claim.Name == "" {
					claim.Name = fmt.Sprint(claim.GenerateName, made.Add(1))
					claim.UID, claim.ResourceVersion = types.UID("made-"+claim.Name), "1"
				}
			}
			return false, nil, nil
		})
	}}
	w := newWorld(t, named, special, class, devices("a", 1), devices("b", 1), node("a", 0), node("b", 0))
	w.create(pods[0], pods[1])
	w.until("the claim to be gone", func() bool {
		_, err := w.client.ResourceV1().ResourceClaims("ns").Get(w.ctx, special.Name, metav1.GetOptions{})
		return err != nil
	})
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "*", "g-1": "*"}))
}

// The leader of a refused gang does not reach the framework's own plugin for claims, which would log an error.
func TestClaimsOfARefusedGangAreNotAskedFor(t *testing.T) {
	pods, objects := claiming("g", 2)
	w := newWorld(t, versioned, append(objects, deviceClass(), devices("a", 1), node("a", 0))...)
	w.create(pods...)
	w.until("the gang to be refused", func() bool { return w.placement("g").Reason == v1alpha1.ReasonInsufficientNodes })
	w.attempted()
	state := framework.NewCycleState()
	if _, status := w.plugin.PostFilter(w.ctx, state, pods[0].(*v1.Pod), nil); status.Code() != fwk.UnschedulableAndUnresolvable {
		t.Errorf("the chain goes on after %v", status)
	}
	if _, status, _ := w.plugin.handle.RunPreFilterPlugins(w.ctx, planner.NewNestedState(), pods[0].(*v1.Pod)); !status.IsSuccess() {
		t.Fatal(status)
	}
	state.Write("DynamicResources", plannedNode(""))
	if _, status := w.plugin.PostFilter(w.ctx, state, pods[0].(*v1.Pod), nil); status.Code() != fwk.Unschedulable {
		t.Errorf("the chain ends after %v, though the framework's plugin has looked at the pod", status)
	}
}

// A pod of no gang reaches that plugin only if the plugin has looked at the pod, which it also does for an extended resource of a device
// class.
func TestClaimsOfSinglePodsAreAskedForOnce(t *testing.T) {
	class := deviceClass()
	class.Spec.ExtendedResourceName = ptr.To("gpu.example.com/whole")
	x := versioned
	x.follower = true // the test runs in place of the scheduling goroutine
	w := newWorld(t, x, class, node("a", 0))
	w.snapshot()
	plain, byClass, claims := pod("plain", 0), pod("class", 0), pod("claims", 0)
	byClass.Spec.Containers[0].Resources.Requests = v1.ResourceList{"gpu.example.com/whole": resource.MustParse("1")}
	claims.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To("claims-device")}}
	seen := framework.NewCycleState()
	seen.Write("DynamicResources", plannedNode(""))
	for state, want := range map[fwk.CycleState][3]fwk.Code{
		framework.NewCycleState(): {fwk.UnschedulableAndUnresolvable, fwk.UnschedulableAndUnresolvable, fwk.UnschedulableAndUnresolvable},
		seen:                      {fwk.UnschedulableAndUnresolvable, fwk.Unschedulable, fwk.Unschedulable},
	} {
		for i, one := range []*v1.Pod{plain, byClass, claims} {
			if _, status := w.plugin.PostFilter(w.ctx, state, one, nil); status.Code() != want[i] {
				t.Errorf("pod %s: %v, not %v", one.Name, status, want[i])
			}
		}
	}
}

// If the cluster serves no claims, a gang with claims is refused with that reason. Other gangs are placed.
func TestClaimsThatNobodyServes(t *testing.T) {
	featuregatetesting.SetFeatureGateEmulationVersionDuringTest(t, utilfeature.DefaultFeatureGate, version.MustParse("1.34"))
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.DynamicResourceAllocation, false)
	w := newWorld(t, extras{}, node("a", 1), node("b", 1))
	for _, name := range []string{"named", "template"} {
		pods, _ := claiming(name, 2)
		for _, o := range pods {
			p := o.(*v1.Pod)
			p.Status.ResourceClaimStatuses = nil
			if name == "named" {
				p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To(p.Name + "-claim")}}
			}
			w.create(p)
		}
		w.until("the gang to be refused", w.says(name, `pod `+name+`-0 cannot get the devices of its resource claim "device": the API server does not serve resource.k8s.io/v1`))
		if got := w.placement(name).Reason; got != v1alpha1.ReasonUnsupported {
			t.Errorf("reason %s", got)
		}
	}
	plain := gangOf("plain", 2, 1)
	w.create(plain[0], plain[1])
	w.until("a gang without claims to be bound", w.boundTo(map[string]string{"plain-0": "*", "plain-1": "*"}))
	if at := w.where("named-0") + w.where("named-1") + w.where("template-0"); at != "" {
		t.Errorf("a pod with claims is on %s", at)
	}
}

// busy is a release round that runs until over is set.
type busy struct{ over atomic.Bool }

func (*busy) Release(context.Context, types.NamespacedName, gangcache.Snapshot, []fwk.NodeInfo) {}

func (b *busy) ReleaseFirst(context.Context, types.NamespacedName, gangcache.Snapshot, []fwk.NodeInfo) bool {
	return !b.over.Load()
}

// While devices of a gang are being released the gang is not planned: a member that got its node would lose its devices there.
func TestAGangIsPlannedOnceDevicesAreGivenBack(t *testing.T) {
	pods, objects := claiming("g", 2)
	w := newWorld(t, versioned, append(objects, deviceClass(), devices("a", 1), devices("b", 1), node("a", 0), node("b", 0))...)
	round := &busy{}
	w.plugin.claims = round
	w.create(pods...)
	w.until("the gang to hear that it waits", func() bool { return len(w.failures("g-0", "g-1")) > 0 })
	w.attempted()
	if at := w.where("g-0") + w.where("g-1"); at != "" {
		t.Errorf("a member is on %s", at)
	}
	round.over.Store(true)
	w.plugin.wake(klog.Background(), key("g"))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "*", "g-1": "*"}))
}

// asker counts the shapes of pods for which a plugin ran filters.
type asker struct{ asked atomic.Int64 }

func (*asker) Name() string { return "Asker" }

func (a *asker) PreFilter(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if planner.IsNested(state) {
		a.asked.Add(1)
	}
	return nil, fwk.NewStatus(fwk.Skip)
}

func (*asker) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// If claims tie all members of a large gang to nodes, the claims are released first. Otherwise each member would be a shape of its own, and
// filters would check all nodes for each.
func TestManyThatAreTiedGiveBackFirst(t *testing.T) {
	const size = 100
	pods, objects := claiming("g", size)
	objects = append(objects, deviceClass())
	for i := range size {
		at := fmt.Sprint("n", i)
		got(objects[i], at)
		objects = append(objects, devices(at, 1), node(at, 0))
	}
	count, x := &asker{}, versioned
	x.plugins = map[string]frameworkruntime.PluginFactory{
		"Asker": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return count, nil },
	}
	w := newWorld(t, x, objects...)
	w.create(pods...)
	all := map[string]string{}
	for i := range size {
		all[fmt.Sprint("g-", i)] = "*"
	}
	w.until("all to be bound", w.boundTo(all))
	if asked := count.asked.Load(); asked >= size {
		t.Errorf("filters were asked for %d shapes", asked)
	}
}
