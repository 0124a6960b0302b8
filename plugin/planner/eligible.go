package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// nestedKey marks the state of filter runs that the plugin itself started.
const nestedKey fwk.StateKey = "Holdfast/nested"

type nestedMark struct{}

func (nestedMark) Clone() fwk.StateData { return nestedMark{} }

func IsNested(state fwk.CycleState) bool {
	_, err := state.Read(nestedKey)
	return err == nil
}

// NewNestedState returns a fresh state for one nested PreFilter and its Filters. It must be fresh: plugins keep their
// results in it, and which plugins are skipped is known only after all PreFilters.
func NewNestedState() fwk.CycleState {
	state := framework.NewCycleState()
	state.Write(nestedKey, nestedMark{})
	return state
}

// planCycle plans one gang in one scheduling cycle.
type planCycle struct {
	ctx      context.Context
	p        *Planner
	nodes    []fwk.NodeInfo
	byName   map[string]fwk.NodeInfo
	snapshot gangcache.Snapshot
	// infos[i] is snapshot.Members[i] as the framework sees it; at finds i by the pod's name.
	infos []fwk.PodInfo
	at    map[string]int
	// kind is, by member's name, a key that is equal for equal claims.
	kind map[string]string
	// like is equal for members that filters judge alike, coarse for those that they judge alike apart from labels.
	like   []string
	coarse bool
	// questions counts the nodes filtered for each kind, and the checks of members beside others. turn: the plan has its turn for them;
	// waits: it must wait for one.
	questions int
	turn      bool
	waits     *gang.Refusal
	// brief: only a quick answer is wanted whether the gang fits; conditional: more than free resources decides.
	brief, conditional bool
	// asked is the filter state of agree's last call.
	asked beside
	// err is the error that stopped agree.
	err error
	// tree is what the core plans on, nodes are its nodes. removed are pods that the tree lacks, added pods that only the tree has.
	tree           *topology.Tree
	removed, added []supposed
}

func newPlanCycle(ctx context.Context, p *Planner, nodes []fwk.NodeInfo, r gangcache.Snapshot) *planCycle {
	s := &planCycle{
		ctx:      ctx,
		p:        p,
		nodes:    nodes,
		tree:     p.tree,
		snapshot: r,
		byName:   make(map[string]fwk.NodeInfo, len(nodes)),
		at:       make(map[string]int, len(r.Members)),
	}
	for _, n := range nodes {
		s.byName[n.Node().Name] = n
	}
	return s
}

// place calls the core. Rules among members that counts cannot express are checked only if the first answer breaks one: then members are
// placed one by one, each checked beside those before it.
func (s *planCycle) place() (gang.Placement, *gang.Refusal, error) {
	asks, err := gangcache.Asks(s.snapshot.Members[0].Pod, s.snapshot.Terms)
	if err != nil {
		return gang.Placement{}, &gang.Refusal{Reason: gang.InvalidTopology, Wanted: s.snapshot.Size, Message: err.Error()}, nil
	}
	needs, refusal := claims.Read(s.p.config.Framework.SharedDRAManager(), s.snapshot, len(s.nodes))
	if refusal != nil {
		return gang.Placement{}, refusal, nil
	}
	s.kind = needs.Kind
	if refusal := s.sort(); refusal != nil {
		return gang.Placement{}, refusal, nil
	}
	if turn := s.takeTurnFor(0); !turn {
		return gang.Placement{}, s.waits, nil
	}
	began := s.p.now()
	placement, refusal, err := s.search(asks)
	if s.turn {
		s.p.plans.done(s.key(), refusal, began, s.p.now())
	}
	if s.waits != nil {
		return gang.Placement{}, s.waits, nil
	}
	if err == nil && refusal == nil {
		refusal, err = s.dryRunReserve(needs, placement)
	}
	return placement, refusal, err
}

// search calls the core with the gang's topology request.
func (s *planCycle) search(asks gang.Topology) (gang.Placement, *gang.Refusal, error) {
	g, interPodRules, err := s.gang()
	if err != nil {
		return gang.Placement{}, nil, err
	}
	g.Topology = asks
	placement, refusal := gang.Place(s.tree, g)
	s.conditional = s.conditional || interPodRules
	if refusal != nil || !interPodRules {
		return placement, refusal, nil
	}
	if turn := s.takeTurnFor(s.besides(placement.Placed)); !turn {
		return gang.Placement{}, s.waits, nil
	}
	if s.satisfiesRules(placement) || s.err != nil {
		return placement, nil, s.err
	}
	g.Agree = s.agree
	placement, refusal = gang.Place(s.tree, g)
	return placement, refusal, s.err
}

// gang translates the snapshot. interPodRules: some members have rules that counts cannot express.
func (s *planCycle) gang() (g gang.Gang, interPodRules bool, err error) {
	g.Size, g.Min, g.Unit = s.snapshot.Size, s.snapshot.Required, s.snapshot.Terms.Unit
	g.Free, g.FreeShown = s.snapshot.Terms.Free, shown(s.snapshot.Terms.Free)
	if s.like == nil {
		if refusal := s.sort(); refusal != nil {
			return g, false, errors.New(refusal.Message)
		}
	}
	interPodRules = s.coarse
	essential := s.snapshot.Essential()
	roles := map[string]int{}
	for i, m := range s.snapshot.Members {
		info, err := framework.NewPodInfo(m.Pod)
		if err != nil {
			return g, false, fmt.Errorf("reading the affinity of pod %s: %w", m.Pod.Name, err)
		}
		s.infos, s.at[m.Pod.Name] = append(s.infos, info), i
		member := gang.Member{Slot: m.Slot.N, Name: m.Pod.Name}
		if m.State != gangcache.Pending {
			member.Node = m.Node
			g.Members = append(g.Members, member)
			continue
		}
		role, known := roles[s.like[i]]
		if !known {
			role = len(g.Roles)
			roles[s.like[i]] = role
			shape, err := s.role(i)
			if err != nil {
				return g, false, err
			}
			g.Roles = append(g.Roles, shape)
			interPodRules = interPodRules || touchesOthers(m.Pod)
		}
		member.Role, member.Essential = role, essential[m.Pod.UID]
		g.Members = append(g.Members, member)
	}
	return g, interPodRules, nil
}

// role runs the framework's filters for one member on every node.
func (s *planCycle) role(member int) (gang.Role, error) {
	info := s.infos[member]
	role := gang.Role{Requests: s.p.fabric.asked(info), Out: map[string]gang.Cause{}}
	role.Shown = shown(role.Requests)
	state := NewNestedState()
	s.conditional = s.conditional || len(info.GetPod().Spec.ResourceClaims) > 0
	only, status, by := s.p.config.Framework.RunPreFilterPlugins(s.ctx, state, info.GetPod())
	switch {
	case status.IsRejected():
		cause := causeOf(status, role)
		role.OutAll, s.conditional = &cause, true
		return role, nil
	case !status.IsSuccess():
		return role, fmt.Errorf("looking for nodes for pod %s: %w", info.GetPod().Name, status.AsError())
	}
	if err := s.simulate(state, info.GetPod()); err != nil {
		return role, err
	}
	known := s.p.verdicts.of(s.snapshot.Members[member].Role, state, only, s.p.config.Framework.ListPlugins)
	s.conditional = s.conditional || known == nil
	if len(s.removed)+len(s.added) > 0 {
		known = nil // remembered verdicts are about the nodes as they are, not about a what-if
	}
	var open []fwk.NodeInfo
	for _, n := range s.nodes {
		if cause, sick := s.p.config.Health.Unhealthy(
			n.Node(),
			info.GetPod().Namespace,
		); sick { // exclusion changes without a change of the Node
			role.Out[n.Node().Name] = gang.Cause{Kind: gang.Unhealthy, Name: cause}
			s.conditional = s.conditional || cause == RejectingNode // it ends after a time
			continue
		}
		v, ok := known.find(n)
		switch {
		case !ok || s.p.awaited[n.Node().Name]:
			open = append(open, n)
		case v.out:
			role.Out[n.Node().Name] = v.cause
		}
	}
	statuses := make([]*fwk.Status, len(open))
	s.p.config.Framework.Parallelizer().Until(s.ctx, len(open), func(i int) {
		if only.AllNodes() || only.NodeNames.Has(open[i].Node().Name) {
			statuses[i] = s.p.config.Framework.RunFilterPluginsWithNominatedPods(s.ctx, state, info.GetPod(), open[i])
			return
		}
		statuses[i] = fwk.NewStatus(fwk.UnschedulableAndUnresolvable).
			WithPlugin(strings.Join(slices.Sorted(slices.Values(by.UnsortedList())), "+"))
	}, "Holdfast")
	if err := s.ctx.Err(); err != nil {
		return role, err
	}
	for i, status := range statuses {
		v, err := judge(open[i].Node(), info.GetPod(), status, role)
		if err != nil {
			return role, err
		}
		if v.out {
			role.Out[open[i].Node().Name] = v.cause
		}
		if !s.p.awaited[open[i].Node().Name] {
			known.keep(open[i], v, len(s.nodes))
		}
	}
	return role, nil
}

// judge translates a filter's status for a node.
func judge(node *v1.Node, pod *v1.Pod, status *fwk.Status, role gang.Role) (verdict, error) {
	switch {
	case status.IsSuccess():
		return verdict{}, nil
	case status.IsRejected():
		return verdict{out: true, cause: causeOn(node, pod, status, role)}, nil
	default:
		return verdict{}, fmt.Errorf("filtering node %s for pod %s: %w", node.Name, pod.Name, status.AsError())
	}
}

// causeDevicesLost is the cause of a node for which devicesLost is true.
const causeDevicesLost = "DevicesLost"

// devicesLost reports whether a node has enough devices but its device plugin offers too few, because it found some of
// them unhealthy. Preemption does not change that.
func devicesLost(node *v1.Node, device v1.ResourceName, asked int64) bool {
	give, have := node.Status.Allocatable[device], node.Status.Capacity[device]
	return give.Value() < asked && asked <= have.Value()
}

// causeOn is causeOf with the taint's key and the state of the node's devices.
func causeOn(node *v1.Node, pod *v1.Pod, status *fwk.Status, role gang.Role) gang.Cause {
	cause := causeOf(status, role)
	if cause.Kind == gang.Insufficient && claims.IsExtended(cause.Name) &&
		devicesLost(node, v1.ResourceName(cause.Name), role.Requests[cause.Name]) {
		return gang.Cause{Kind: gang.Unhealthy, Name: causeDevicesLost}
	}
	if cause.Kind == gang.Tainted {
		taint, found := corev1helpers.FindMatchingUntoleratedTaint(
			klog.Background(),
			node.Spec.Taints,
			pod.Spec.Tolerations,
			func(t *v1.Taint) bool {
				return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
			},
			true,
		)
		if found {
			cause.Name = taint.Key
		}
	}
	return cause
}

// insufficient is the prefix of the reasons of the framework's resource filter.
const insufficient = "Insufficient "

// causeOf translates a filter's rejection. The core derives from the counts which resource is lacking.
func causeOf(status *fwk.Status, role gang.Role) gang.Cause {
	switch status.Plugin() {
	case names.NodeUnschedulable:
		return gang.Cause{Kind: gang.Cordoned}
	case names.TaintToleration:
		return gang.Cause{Kind: gang.Tainted}
	case names.NodeResourcesFit:
		for _, reason := range slices.Sorted(slices.Values(status.Reasons())) {
			if name, ok := strings.CutPrefix(reason, insufficient); ok && role.Requests[name] > 0 {
				return gang.Cause{Kind: gang.Insufficient, Name: name}
			}
		}
	}
	return gang.Cause{Kind: gang.Refused, Name: status.Plugin()}
}

// satisfiesRules checks a placement that was computed by counts alone against the rules among members.
func (s *planCycle) satisfiesRules(p gang.Placement) bool {
	var before []gang.Assignment
	at := p.At()
	for i, m := range s.snapshot.Members {
		node, placed := at[m.Pod.Name]
		if m.State != gangcache.Pending || !placed {
			continue
		}
		if _, ok := s.agree(i, node, before); !ok {
			return false
		}
		before = append(before, gang.Assignment{Slot: m.Slot.N, Member: m.Pod.Name, Node: node})
	}
	return true
}

// beside is a member's filter state next to other members. It is reused, because the core checks one node after another.
type beside struct {
	member      int
	assignments []gang.Assignment
	state       fwk.CycleState
	status      *fwk.Status
	only        *fwk.PreFilterResult
}

// agree runs the framework's filters for a member on a node beside the members placed before.
func (s *planCycle) agree(member int, node string, assignments []gang.Assignment) (gang.Cause, bool) {
	if s.err == nil {
		s.err = s.ctx.Err() // a preview has a deadline
	}
	s.questions++
	if s.err != nil {
		return gang.Cause{}, false
	}
	if turn := s.takeTurnFor(0); !turn {
		return gang.Cause{}, false
	}
	if s.asked.state == nil || s.asked.member != member || !slices.Equal(s.asked.assignments, assignments) {
		s.ask(member, assignments)
	}
	q := s.asked
	if q.status.IsRejected() {
		return causeOf(q.status, gang.Role{}), false
	}
	if !q.only.AllNodes() && !q.only.NodeNames.Has(node) {
		return gang.Cause{Kind: gang.Refused, Name: "PreFilter"}, false
	}
	on := s.byName[node].Snapshot()
	for _, assignment := range assignments {
		if assignment.Node == node {
			on.AddPodInfo(s.infoOf(assignment))
		}
	}
	status := s.p.config.Framework.RunFilterPluginsWithNominatedPods(s.ctx, q.state, s.infos[member].GetPod(), on)
	switch {
	case status.IsSuccess():
		return gang.Cause{}, true
	case !status.IsRejected():
		s.err = fmt.Errorf("filtering node %s for pod %s: %w", node, s.infos[member].GetPod().Name, status.AsError())
	}
	return causeOf(status, gang.Role{}), false
}

// ask adds the members placed before a member to the plugins' state. If the member before had the same kind, ask reuses that state, so that
// the cost for a gang of one kind is linear in its pods, not quadratic.
func (s *planCycle) ask(member int, assignments []gang.Assignment) {
	pod := s.infos[member].GetPod()
	q := beside{member: member, state: NewNestedState()}
	if last := s.asked; s.extends(member, assignments) {
		q, q.member = last, member
	} else {
		s.questions++
		q.only, q.status, _ = s.p.config.Framework.RunPreFilterPlugins(s.ctx, q.state, pod)
		if !q.status.IsSuccess() && !q.status.IsRejected() {
			s.err = fmt.Errorf("looking for nodes for pod %s: %w", pod.Name, q.status.AsError())
		}
		if q.status.IsSuccess() {
			if err := s.simulate(q.state, pod); err != nil {
				s.err = err
			}
		}
	}
	added := assignments[len(q.assignments):]
	if q.status.IsSuccess() {
		for _, assignment := range added {
			other := s.infoOf(assignment)
			if !relatesToPods(pod) && len(other.GetRequiredAntiAffinityTerms()) == 0 {
				continue
			}
			s.questions++
			status := s.p.config.Framework.RunPreFilterExtensionAddPod(s.ctx, q.state, pod, other, s.byName[assignment.Node])
			if !status.IsSuccess() {
				s.err = fmt.Errorf("supposing pod %s on node %s: %w", assignment.Member, assignment.Node, status.AsError())
			}
		}
	}
	q.assignments = append(q.assignments, added...)
	s.asked = q
}

// extends reports whether the state of the last call also holds for a member. Pods with claims or volumes each have a state of their own.
func (s *planCycle) extends(member int, assignments []gang.Assignment) bool {
	last := s.asked
	if last.state == nil || s.coarse || s.like[last.member] != s.like[member] || len(last.assignments) > len(assignments) ||
		!last.status.IsSuccess() {
		return false
	}
	pod := s.infos[member].GetPod()
	return s.p.fabric.asked(s.infos[member])[claims.Slot] == 0 && len(pod.Spec.ResourceClaims) == 0 &&
		len(judgedVolumes(pod.Spec.Volumes)) == 0 &&
		slices.Equal(last.assignments, assignments[:len(last.assignments)])
}

// besides estimates the number of checks for n members beside one another.
func (s *planCycle) besides(n int) int {
	if n > 0 && s.alike() {
		return 2 * n
	}
	return n + n*(n-1)/2
}

// alike reports whether all members to be placed are of one kind.
func (s *planCycle) alike() bool {
	kind := ""
	for i, m := range s.snapshot.Members {
		if m.State != gangcache.Pending {
			continue
		}
		if kind != "" && s.like[i] != kind {
			return false
		}
		kind = s.like[i]
	}
	return !s.coarse
}

func (s *planCycle) infoOf(assignment gang.Assignment) fwk.PodInfo {
	return s.infos[s.at[assignment.Member]]
}

// shown formats resources as a pod's spec does: "4" or "500m" cores, "2Gi", "8" devices.
func shown(r topology.Resources) map[string]string {
	shown := make(map[string]string, len(r))
	for name, n := range r {
		switch v1.ResourceName(name) {
		case v1.ResourceCPU:
			shown[name] = resource.NewMilliQuantity(n, resource.DecimalSI).String()
		case v1.ResourceMemory, v1.ResourceEphemeralStorage:
			shown[name] = resource.NewQuantity(n, resource.BinarySI).String()
		default:
			shown[name] = strconv.FormatInt(n, 10)
		}
	}
	return shown
}
