package planner

import (
	"context"
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
	"holdfast.dev/holdfast/gang/replay"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// nestedKey marks the state of filter runs that the plugin asked for itself.
const nestedKey fwk.StateKey = "Holdfast/nested"

type nestedMark struct{}

func (nestedMark) Clone() fwk.StateData { return nestedMark{} }

func IsNested(state fwk.CycleState) bool {
	_, err := state.Read(nestedKey)
	return err == nil
}

// NewNestedState is a fresh state for one nested PreFilter and its Filters. It must be a fresh one: plugins
// leave their findings in it, and which of them are skipped stands there only after all PreFilters.
func NewNestedState() fwk.CycleState {
	state := framework.NewCycleState()
	state.Write(nestedKey, nestedMark{})
	return state
}

// scout finds a place for one gang in one scheduling cycle.
type scout struct {
	ctx    context.Context
	p      *Planner
	nodes  []fwk.NodeInfo
	byName map[string]fwk.NodeInfo
	roster gangcache.Snapshot
	// infos[i] is roster.Members[i] as the framework sees it; at finds i by the pod's name.
	infos []fwk.PodInfo
	at    map[string]int
	// kind tells members apart whose claims are not alike.
	kind map[string]string
	// asked is the last thing put to agree; see there.
	asked beside
	// err is what broke inside agree.
	err error
	// tree is what the core is asked about; nodes are as in it. removed are pods that are not there any more in it.
	tree    *topology.Tree
	removed []removal
	// record, where set, is told what the core was asked.
	record *replay.Record
}

func newScout(ctx context.Context, p *Planner, nodes []fwk.NodeInfo, r gangcache.Snapshot) *scout {
	s := &scout{ctx: ctx, p: p, nodes: nodes, tree: p.tree, roster: r, byName: make(map[string]fwk.NodeInfo, len(nodes)), at: make(map[string]int, len(r.Members))}
	for _, n := range nodes {
		s.byName[n.Node().Name] = n
	}
	return s
}

// place asks the core. Rules among members that are more than counts are looked at only if the first answer
// breaks one: then members are placed one by one, each beside those before it.
func (s *scout) place() (gang.Placement, *gang.Refusal, error) {
	asks, err := gangcache.Asks(s.roster.Members[0].Pod, s.roster.Terms)
	if err != nil {
		return gang.Placement{}, &gang.Refusal{Reason: gang.InvalidTopology, Wanted: s.roster.Size, Message: err.Error()}, nil
	}
	needs, no := claims.Read(s.p.config.Framework.SharedDRAManager(), s.roster, len(s.nodes))
	if no != nil {
		return gang.Placement{}, no, nil
	}
	s.kind = needs.Kind
	placement, no, err := s.seek(asks)
	if err == nil && no == nil {
		if no, err = s.tryOn(needs, placement); no != nil && s.record != nil {
			s.record.Answer, s.record.Overruled = replay.AnswerOf(placement, nil), no.Message
		}
	}
	return placement, no, err
}

// seek asks the core for what the gang asks of the fabric.
func (s *scout) seek(asks gang.Topology) (gang.Placement, *gang.Refusal, error) {
	g, delicate, err := s.gang()
	if err != nil {
		return gang.Placement{}, nil, err
	}
	g.Topology = asks
	if s.record != nil {
		s.record.Gang = replay.Of(g)
	}
	placement, no := gang.Place(s.tree, g)
	if no != nil || !delicate {
		return placement, no, nil
	}
	if s.holds(placement) || s.err != nil {
		return placement, nil, s.err
	}
	g.Agree = s.agree
	if s.record != nil {
		s.record.Listen(&g)
	}
	placement, no = gang.Place(s.tree, g)
	return placement, no, s.err
}

// gang translates the roster. delicate: some members have rules that counts cannot express.
func (s *scout) gang() (g gang.Gang, delicate bool, err error) {
	g.Size, g.Min = s.roster.Size, s.roster.Least
	g.Free, g.FreeShown = s.roster.Terms.Free, shown(s.roster.Terms.Free)
	essential := s.roster.Essential()
	roles := map[string]int{}
	for i, m := range s.roster.Members {
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
		like := m.Role + s.kind[m.Pod.Name]
		role, known := roles[like]
		if !known {
			role = len(g.Roles)
			roles[like] = role
			shape, err := s.role(i)
			if err != nil {
				return g, false, err
			}
			g.Roles = append(g.Roles, shape)
			delicate = delicate || touchesOthers(m.Pod)
		}
		member.Role, member.Essential = role, essential[m.Pod.UID]
		g.Members = append(g.Members, member)
	}
	return g, delicate, nil
}

// role runs the framework's filters for one member on every node.
func (s *scout) role(member int) (gang.Role, error) {
	info := s.infos[member]
	role := gang.Role{Requests: s.p.fabric.asked(info), Out: map[string]gang.Cause{}}
	role.Shown = shown(role.Requests)
	state := NewNestedState()
	only, status, by := s.p.config.Framework.RunPreFilterPlugins(s.ctx, state, info.GetPod())
	switch {
	case status.IsRejected():
		cause := causeOf(status, role)
		role.OutAll = &cause
		return role, nil
	case !status.IsSuccess():
		return role, fmt.Errorf("looking for nodes for pod %s: %w", info.GetPod().Name, status.AsError())
	}
	if err := s.suppose(state, info.GetPod()); err != nil {
		return role, err
	}
	known := s.p.verdicts.of(s.roster.Members[member].Role, state, only, s.p.config.Framework.ListPlugins)
	if len(s.removed) > 0 {
		known = nil // these are not the nodes as they are
	}
	var open []fwk.NodeInfo
	for _, n := range s.nodes {
		if cause, sick := s.p.config.Health.Ill(n.Node()); sick { // a node is set aside, and back, without any change of it
			role.Out[n.Node().Name] = gang.Cause{Kind: gang.Unhealthy, Name: cause}
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
		statuses[i] = fwk.NewStatus(fwk.UnschedulableAndUnresolvable).WithPlugin(strings.Join(slices.Sorted(slices.Values(by.UnsortedList())), "+"))
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

// judge translates what filters said of a node.
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

// causeDevicesLost is the cause of a node of which lost is true.
const causeDevicesLost = "DevicesLost"

// lost says whether a node has devices enough, and its device plugin gives too few of them out because it found some of
// them sick. Nobody who leaves changes that.
func lost(node *v1.Node, device v1.ResourceName, asked int64) bool {
	give, have := node.Status.Allocatable[device], node.Status.Capacity[device]
	return give.Value() < asked && asked <= have.Value()
}

// causeOn is causeOf with the taint's key, and with what the node says of its devices.
func causeOn(node *v1.Node, pod *v1.Pod, status *fwk.Status, role gang.Role) gang.Cause {
	cause := causeOf(status, role)
	if cause.Kind == gang.Insufficient && claims.IsExtended(cause.Name) && lost(node, v1.ResourceName(cause.Name), role.Requests[cause.Name]) {
		return gang.Cause{Kind: gang.Unhealthy, Name: causeDevicesLost}
	}
	if cause.Kind == gang.Tainted {
		taint, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *v1.Taint) bool {
			return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
		}, true)
		if found {
			cause.Name = taint.Key
		}
	}
	return cause
}

// insufficient is how the framework's resource filter starts its reasons.
const insufficient = "Insufficient "

// causeOf translates a filter's no. Which resource is lacking the core finds out by itself from the counts.
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

// holds checks a placement that was made by counts alone against the rules among members.
func (s *scout) holds(p gang.Placement) bool {
	var before []gang.Seat
	at := p.At()
	for i, m := range s.roster.Members {
		node, placed := at[m.Pod.Name]
		if m.State != gangcache.Pending || !placed {
			continue
		}
		if _, ok := s.agree(i, node, before); !ok {
			return false
		}
		before = append(before, gang.Seat{Slot: m.Slot.N, Member: m.Pod.Name, Node: node})
	}
	return true
}

// beside is a member next to others; it is kept because the core asks it for one node after another.
type beside struct {
	member int
	seats  []gang.Seat
	state  fwk.CycleState
	status *fwk.Status
	only   *fwk.PreFilterResult
}

// agree asks the framework's filters whether a member may be on a node beside members placed before.
func (s *scout) agree(member int, node string, seats []gang.Seat) (gang.Cause, bool) {
	if s.err == nil {
		s.err = s.ctx.Err() // a preview or a record has a deadline
	}
	if s.err != nil {
		return gang.Cause{}, false
	}
	if s.asked.state == nil || s.asked.member != member || !slices.Equal(s.asked.seats, seats) {
		s.ask(member, seats)
	}
	q := s.asked
	if q.status.IsRejected() {
		return causeOf(q.status, gang.Role{}), false
	}
	if !q.only.AllNodes() && !q.only.NodeNames.Has(node) {
		return gang.Cause{Kind: gang.Refused, Name: "PreFilter"}, false
	}
	on := s.byName[node].Snapshot()
	for _, seat := range seats {
		if seat.Node == node {
			on.AddPodInfo(s.infoOf(seat))
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

// ask runs PreFilter for a member and tells the plugins of the members placed before.
func (s *scout) ask(member int, seats []gang.Seat) {
	pod := s.infos[member].GetPod()
	q := beside{member: member, seats: slices.Clone(seats), state: NewNestedState()}
	q.only, q.status, _ = s.p.config.Framework.RunPreFilterPlugins(s.ctx, q.state, pod)
	if !q.status.IsSuccess() && !q.status.IsRejected() {
		s.err = fmt.Errorf("looking for nodes for pod %s: %w", pod.Name, q.status.AsError())
	}
	if q.status.IsSuccess() {
		if err := s.suppose(q.state, pod); err != nil {
			s.err = err
		}
	}
	if q.status.IsSuccess() && relatesToPods(pod) {
		for _, seat := range seats {
			status := s.p.config.Framework.RunPreFilterExtensionAddPod(s.ctx, q.state, pod, s.infoOf(seat), s.byName[seat.Node])
			if !status.IsSuccess() {
				s.err = fmt.Errorf("supposing pod %s on node %s: %w", seat.Member, seat.Node, status.AsError())
			}
		}
	}
	s.asked = q
}

func (s *scout) infoOf(seat gang.Seat) fwk.PodInfo {
	return s.infos[s.at[seat.Member]]
}

// shown writes resources as people do in a pod: "4" or "500m" cores, "2Gi", "8" devices.
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
