package plugin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// Dynamic resource allocation. The framework's filter says of one pod and one node whether there are devices for its
// claims, taints of devices included; it knows nothing of members that are planned and not reserved. So a node takes one
// pod with claims at a time that is only planned: where devices are their node's own, what the filter said of each node
// alone then holds for all together. Where they are not, a plan is tried on before it is believed.

// claimSlot is what a pod with claims takes of a node until it is reserved there: each node has one. What is reserved the
// filter knows.
const claimSlot = "resource-claims"

// nobodyLeaves is added to a refusal for lack of such devices: they stay with their claims while it is looked for who could leave.
const nobodyLeaves = "nobody is told to leave, and no room is reserved, for devices of resource claims"

// lacksClaimed says whether a gang was refused for lack of devices of claims.
func lacksClaimed(no *gang.Refusal) bool {
	for c := range no.Excluded {
		if c.Kind == gang.Refused && c.Name == names.DynamicResources {
			return true
		}
	}
	return false
}

// claimed moves what a pod gets by claims to the slot: its extended resources that a device class serves, and its claims.
func (f *fabric) claimed(pod *v1.Pod, asked topology.Resources) topology.Resources {
	claims := len(pod.Spec.ResourceClaims) > 0
	for name := range asked {
		if isDevice(name) && f.byClaim != nil && f.byClaim(v1.ResourceName(name)) {
			delete(asked, name)
			claims = true
		}
	}
	if claims {
		asked[claimSlot] = 1
	}
	return asked
}

// claims are those of members to be placed.
type claims struct {
	// kind tells members apart whose claims are not alike, by name; empty for one without claims.
	kind map[string]string
	// settled have devices for all their claims already, by name.
	settled map[string]bool
}

// readClaims looks at the claims of members to be placed; a refusal says what is wrong with them.
func (s *scout) readClaims() (claims, *gang.Refusal) {
	c := claims{kind: map[string]string{}, settled: map[string]bool{}}
	wanted := 0
	for _, m := range s.roster.Members {
		wanted += flag(m.State == gangcache.Pending)
	}
	no := func(reason, says string) *gang.Refusal {
		return &gang.Refusal{Reason: reason, Wanted: wanted, Nodes: len(s.nodes), Message: says}
	}
	manager := s.p.handle.SharedDRAManager()
	users := map[types.UID]string{}
	for _, m := range s.roster.Members {
		if m.State != gangcache.Pending || len(m.Pod.Spec.ResourceClaims) == 0 {
			continue
		}
		if manager == nil {
			return c, no(gang.Unsupported, fmt.Sprintf(
				"nobody would give pod %s the devices of its resource claim %q: the API server does not serve resource.k8s.io/v1 (resourceclaims, resourceslices, deviceclasses), or feature gate DynamicResourceAllocation is off: have it served and start the scheduler again", m.Pod.Name, m.Pod.Spec.ResourceClaims[0].Name))
		}
		all, err := claimsOf(manager, m.Pod)
		if err != nil {
			return c, no(gang.WaitingForMembers, err.Error())
		}
		text := []any{}
		c.settled[m.Pod.Name] = !asksClass(manager, m.Pod)
		for _, claim := range all {
			if claim.Status.Allocation != nil {
				text = append(text, claim.UID) // it is bound to where that is
				continue
			}
			c.settled[m.Pod.Name] = false
			if other := users[claim.UID]; other != "" && other != m.Pod.Name {
				return c, no(gang.Unsupported, fmt.Sprintf(
					"pods %s and %s share resource claim %s, which has no devices yet: let one pod of no gang have it first, or give each pod its own by resourceClaimTemplateName", other, m.Pod.Name, claim.Name))
			}
			users[claim.UID] = m.Pod.Name
			text = append(text, claim.Spec)
		}
		shape, err := json.Marshal(text)
		if err != nil {
			return c, no(gang.Unsupported, fmt.Sprintf("the resource claims of pod %s cannot be read: %v", m.Pod.Name, err))
		}
		sum := sha256.Sum256(shape)
		c.kind[m.Pod.Name] = string(sum[:])
	}
	return c, nil
}

// awaitsClaims says whether claims are yet to be made from a pod's templates: it is held back by kube-scheduler until then.
func awaitsClaims(pod *v1.Pod) bool {
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		if _, _, err := resourceclaim.Name(pod, ref); err != nil && ref.ResourceClaimTemplateName != nil && pod.Spec.NodeName == "" {
			return true
		}
	}
	return false
}

// claimsOf lists a pod's claims.
func claimsOf(manager fwk.SharedDRAManager, pod *v1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var all []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, ref)
		switch {
		case err != nil:
			return nil, fmt.Errorf("resource claim %q of pod %s does not exist yet: kube-controller-manager makes it once the pod is there", ref.Name, pod.Name)
		case name == nil:
			continue // it was found that none is needed
		}
		claim, err := manager.ResourceClaims().Get(pod.Namespace, *name)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no resource claim %s, which pod %s names in spec.resourceClaims: create it", *name, pod.Name)
		} else if err != nil {
			return nil, fmt.Errorf("reading resource claim %s of pod %s: %w", *name, pod.Name, err)
		}
		all = append(all, claim)
	}
	return all, nil
}

// elsewhere says whether there are devices that are no node's own, and names their driver.
func elsewhere(manager fwk.SharedDRAManager) (driver string, are bool, err error) {
	all, err := manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return "", false, fmt.Errorf("listing resource slices: %w", err)
	}
	for _, s := range all {
		if s.Spec.NodeName == nil || *s.Spec.NodeName == "" {
			return s.Spec.Driver, true, nil
		}
	}
	return "", false, nil
}

// reserver are the parts of the framework that try a plan on.
type reserver interface {
	RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status
	RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string)
}

// seatOf is a pod on the node that is planned for it.
type seatOf struct {
	pod  *v1.Pod
	node string
}

// tryOn goes through a plan as its members would, one reserved after the other, beside the members of other open plans,
// where they may compete for devices that are no node's own; then all is as it was. One that gets none ends the plan.
func (s *scout) tryOn(c claims, placement gang.Placement) (*gang.Refusal, error) {
	at, got := placement.At(), 0
	var own []seatOf
	for i, m := range s.roster.Members {
		if m.State == gangcache.Pending && at[m.Pod.Name] != "" && !c.settled[m.Pod.Name] && s.p.fabric.asked(s.infos[i])[claimSlot] > 0 {
			own = append(own, seatOf{m.Pod, at[m.Pod.Name]})
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	others := s.rivals()
	if len(own)+len(others) < 2 {
		return nil, nil
	}
	driver, are, err := elsewhere(s.p.handle.SharedDRAManager())
	if err != nil || !are {
		return nil, err
	}
	if no := s.p.trials.again(s.roster, time.Now(), s.again); no != nil {
		return no, nil
	}
	began := time.Now()
	for _, other := range others {
		if undo, err := s.reserve(other); err == nil && undo != nil {
			defer undo() // one that gets nothing will find that out by itself
		}
	}
	for _, one := range own {
		if err := s.ctx.Err(); err != nil {
			return nil, err // a preview or a record has a deadline
		}
		undo, err := s.reserve(one)
		if err != nil {
			return nil, err
		}
		if undo == nil {
			no := &gang.Refusal{Reason: gang.InsufficientNodes, Wanted: placement.Placed, Fits: got, Nodes: len(s.nodes), Message: fmt.Sprintf(
				"%s wanted: %d of those with resource claims get devices together, of which some are no node's own (driver %s); %s", pods(placement.Placed), got, driver, nobodyLeaves)}
			s.p.trials.failed(s.roster, no, began, time.Now())
			return no, nil
		}
		defer undo()
		got++
	}
	return nil, nil
}

// pods counts pods, as people write it.
func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// again has the gang planned again.
func (s *scout) again() {
	if key, ok := s.p.mine(s.roster.Members[0].Pod); ok {
		s.p.wake(klog.FromContext(s.ctx), key)
	}
}

// rivals are members of other open plans that have no devices yet. The framework knows of those only that are reserved.
func (s *scout) rivals() []seatOf {
	manager := s.p.handle.SharedDRAManager()
	key, _ := s.p.mine(s.roster.Members[0].Pod)
	var all []seatOf
	expected := s.p.gangs.Expected()
	for _, node := range slices.Sorted(maps.Keys(expected)) {
		if s.byName[node] == nil {
			continue
		}
		for _, pod := range expected[node] {
			if of, ok := s.p.mine(pod); (ok && of == key) || !hasClaims(manager, pod) || settled(manager, pod) {
				continue
			}
			all = append(all, seatOf{pod, node})
		}
	}
	slices.SortStableFunc(all, func(a, b seatOf) int { return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.pod.UID, b.pod.UID)) })
	return all
}

// settled says whether all that a pod gets by claims it has.
func settled(manager fwk.SharedDRAManager, pod *v1.Pod) bool {
	all, err := claimsOf(manager, pod)
	return err == nil && !asksClass(manager, pod) && !slices.ContainsFunc(all, func(c *resourcev1.ResourceClaim) bool { return c.Status.Allocation == nil })
}

// reserve has a member reserved on a node as in a cycle of its own; undo is nil where filters do not let it.
func (s *scout) reserve(one seatOf) (undo func(), err error) {
	state := newNestedState()
	only, status, _ := s.p.nested.RunPreFilterPlugins(s.ctx, state, one.pod)
	if status.IsRejected() || (status.IsSuccess() && !only.AllNodes() && !only.NodeNames.Has(one.node)) {
		return nil, nil
	}
	if status.IsSuccess() {
		status = s.p.handle.RunFilterPluginsWithNominatedPods(s.ctx, state, one.pod, s.byName[one.node])
	}
	if status.IsRejected() {
		return nil, nil
	}
	if status.IsSuccess() {
		status = s.p.nested.RunReservePluginsReserve(s.ctx, state, one.pod, one.node)
	}
	undo = func() { s.p.nested.RunReservePluginsUnreserve(context.WithoutCancel(s.ctx), state, one.pod, one.node) }
	if !status.IsSuccess() {
		undo()
		return nil, fmt.Errorf("trying node %s for pod %s: %w", one.node, one.pod.Name, status.AsError())
	}
	return undo, nil
}

// trials remembers plans that were tried on in vain: a trial takes time for each member, in which nobody is scheduled, so all
// of them together take no more of it than searches for room may. It belongs to the scheduling cycle.
type trials map[types.UID]*trial

type trial struct {
	no    gang.Refusal
	until time.Time
	// asked: somebody asked too early, and is told when it is time.
	asked bool
}

// again is the last answer, where it is too early for another one. Only what is planned is paced; questions are answered.
func (t trials) again(r gangcache.Snapshot, now time.Time, wake func()) *gang.Refusal {
	last := t[r.Leader]
	if r.Leader == "" || last == nil || !now.Before(last.until) {
		return nil
	}
	if !last.asked {
		last.asked = true
		time.AfterFunc(last.until.Sub(now), wake)
	}
	no := last.no
	return &no
}

func (t trials) failed(r gangcache.Snapshot, no *gang.Refusal, began, now time.Time) {
	if r.Leader == "" {
		return
	}
	delete(t, r.Leader)
	maps.DeleteFunc(t, func(_ types.UID, old *trial) bool { return now.After(old.until) })
	t[r.Leader] = &trial{no: *no, until: now.Add(restFor(now.Sub(began)) * time.Duration(len(t)+1))}
}

// served says which extended resources pods get by claims: those of a device class that no node has by itself, as device
// plugins give it. Where some nodes have it, it is counted there, and nodes of the class are not used.
type served struct {
	handle fwk.Handle

	mu sync.Mutex
	// native says of resources whether a node has them, as of looked. Guarded by mu.
	native map[v1.ResourceName]bool
	looked time.Time
}

// lookAtNodesEvery bounds how often all nodes are looked at for that.
const lookAtNodesEvery = 5 * time.Second

func (s *served) byClaim(name v1.ResourceName) bool {
	manager := s.handle.SharedDRAManager()
	if manager == nil || manager.DeviceClassResolver().GetDeviceClass(name) == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.native == nil || now.Sub(s.looked) > lookAtNodesEvery {
		s.native, s.looked = map[v1.ResourceName]bool{}, now
	}
	native, known := s.native[name]
	if !known {
		nodes, err := s.handle.SnapshotSharedLister().NodeInfos().List()
		native = err != nil || slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return n.GetAllocatable().GetScalarResources()[name] > 0 })
		s.native[name] = native
	}
	return !native
}
