package claims

import (
	"fmt"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/plugintest"
)

// known has the claims that a scheduler knows, by name.
type known struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	claims map[string]*resourcev1.ResourceClaim
}

func (k *known) ResourceClaims() fwk.ResourceClaimTracker { return k }

func (k *known) DeviceClassResolver() fwk.DeviceClassResolver { return noClasses{} }

func (k *known) GetPendingAllocation(types.UID) *resourcev1.AllocationResult { return nil }

func (k *known) Get(_, name string) (*resourcev1.ResourceClaim, error) {
	if c := k.claims[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("there is no claim %s", name)
}

// noClasses serve no extended resource.
type noClasses struct{ fwk.DeviceClassResolver }

func (noClasses) GetDeviceClass(v1.ResourceName) *resourcev1.DeviceClass { return nil }

// pending is a Gangs for which no member has a node.
type pending bool

func (p pending) IsPending(types.NamespacedName, types.UID) bool { return bool(p) }

// after is an answer that is given once the test allows it.
type after struct {
	may <-chan struct{}
	Gangs
}

func (a after) IsPending(gang types.NamespacedName, uid types.UID) bool {
	<-a.may
	return a.Gangs.IsPending(gang, uid)
}

// leftBehind returns pods of a gang whose claims have devices on a node that no pod can have.
func leftBehind(size int) (gangcache.Snapshot, *known) {
	gang, k := gangcache.Snapshot{Size: size}, &known{claims: map[string]*resourcev1.ResourceClaim{}}
	for _, p := range plugintest.Gang("g", size, 0) {
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.Name)}}
		claim.Status.Allocation = &resourcev1.AllocationResult{NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"gone"}}}}}}}
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: p.UID}}
		k.claims[p.Name] = claim
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To(p.Name)}}
		gang.Members = append(gang.Members, gangcache.Member{Pod: p})
	}
	return gang, k
}

type nodeInfo struct {
	fwk.NodeInfo
	node *v1.Node
}

func (n nodeInfo) Node() *v1.Node { return n.node }

// Only claims of members without a node are released. A gang that was to be planned during the release is planned after it.
func TestStaleClaimsAreReleased(t *testing.T) {
	nodes := []fwk.NodeInfo{nodeInfo{node: plugintest.Node("a", 0)}}
	for _, c := range []struct {
		name  string
		state gangcache.State
		still bool
		want  bool
	}{
		{"on no node", gangcache.Pending, true, true},
		{"on its way to one since", gangcache.Pending, false, false},
		{"on a node", gangcache.Bound, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			gang, manager := leftBehind(1)
			gang.Members[0].State = c.state
			client, woken := fake.NewClientset(manager.claims["g-0"]), 0
			asked := make(chan struct{}) // the round lasts until ReleaseFirst was called for the gang
			r := NewReleaser(client, manager, after{asked, pending(c.still)}, func(klog.Logger, types.NamespacedName) { woken++ })
			r.Release(t.Context(), plugintest.Key("g"), gang, nodes)
			waits := r.ReleaseFirst(t.Context(), plugintest.Key("g"), gang, nodes)
			close(asked)
			synctest.Wait()
			claim, err := client.ResourceV1().ResourceClaims("ns").Get(t.Context(), "g-0", metav1.GetOptions{})
			if err != nil || (claim.Status.Allocation == nil) != c.want || (len(claim.Status.ReservedFor) == 0) != c.want {
				t.Errorf("%s: the claim is %+v, %v", c.name, claim, err)
			}
			if begun := c.state == gangcache.Pending; waits != begun || (woken == 1) != begun {
				t.Errorf("%s: the gang waits: %v, and was planned %d times", c.name, waits, woken)
			}
		})
	}
}

// If many claims tie members to nodes, all of these claims are released before the gang is planned.
func TestManyThatAreTiedWait(t *testing.T) {
	nodes := []fwk.NodeInfo{nodeInfo{node: plugintest.Node("a", 0)}}
	for size, want := range map[int]bool{mostTied: false, mostTied + 1: true} {
		synctest.Test(t, func(t *testing.T) {
			gang, manager := leftBehind(size)
			r := NewReleaser(fake.NewClientset(), manager, pending(true), func(klog.Logger, types.NamespacedName) {})
			if got := r.ReleaseFirst(t.Context(), plugintest.Key("g"), gang, nodes); got != want {
				t.Errorf("%d that are tied wait: %v", size, got)
			}
		})
	}
}

// At most one release round runs for a gang.
func TestRoundsOfReleases(t *testing.T) {
	var all rounds
	over, free := all.begin(plugintest.Key("g"))
	if _, twice := all.begin(plugintest.Key("g")); !free || twice {
		t.Fatalf("a round begins: %v, and another: %v", free, twice)
	}
	if _, other := all.begin(plugintest.Key("h")); !other {
		t.Error("another gang waits for it")
	}
	if !all.await(plugintest.Key("g")) || !over() {
		t.Error("nobody says that the gang is to be planned now")
	}
	if all.await(plugintest.Key("g")) {
		t.Error("a round that is over is awaited")
	}
}
