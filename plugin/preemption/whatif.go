package preemption

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/preemption"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/topology"
)

// whatIf is the cluster without some units.
type whatIf struct {
	p     *Preemptor
	b     *blocked
	gang  gang.Gang
	world preemption.World
	// pods are those of each unit, nodes their nodes, assumed is room held for others, adding are pods supposed to be on nodes.
	pods    [][]*v1.Pod
	nodes   []fwk.NodeInfo
	assumed []topology.Assumed
	adding  []planner.Taking
	ctx     context.Context
	// until is when filter runs that select victims end.
	until time.Time
	// reqs is what a member requests, by name.
	reqs map[string]topology.Resources
}

// newWhatIf evaluates the cluster without the preemptible units, by the framework's filters.
func (p *Preemptor) newWhatIf(
	ctx context.Context,
	b *blocked,
	priority int32,
	now time.Time,
	may func(*preemption.Unit) bool,
) (*whatIf, error) {
	s := &whatIf{p: p, b: b, nodes: b.nodes, ctx: ctx, until: now.Add(checksFor)}
	taken, err := p.config.Planner.GatherExpected(b.nodes, b.snapshot)
	if err != nil {
		return nil, err
	}
	s.assumed = taken
	s.units(may, now)
	bare, err := s.without(func(int) bool { return true })
	if err != nil {
		return nil, err
	}
	s.world.Levels = p.config.Planner.Levels()
	s.world.Nodes = bare.Nodes()
	if s.gang, err = bare.Gang(b.snapshot); err != nil {
		return nil, err
	}
	s.gang.Topology, err = gangcache.Asks(b.snapshot.Members[0].Pod, b.snapshot.Terms)
	s.reqs = map[string]topology.Resources{}
	for _, m := range s.gang.Members {
		if m.Node == "" {
			s.reqs[m.Name] = s.gang.Roles[m.Role].Requests
		}
	}
	return s, err
}

// units groups the pods on the nodes by what is preempted together.
func (s *whatIf) units(may func(*preemption.Unit) bool, now time.Time) {
	fixed := s.p.config.Gangs.BeingPlaced()
	budgets := s.p.budgets()
	at := map[string]int{}
	devices := map[string]bool{}
	for _, n := range s.nodes {
		for name := range n.GetAllocatable().GetScalarResources() {
			devices[n.Node().Name] = devices[n.Node().Name] || strings.Contains(string(name), "/")
		}
		for _, info := range n.GetPods() {
			pod := info.GetPod()
			key, member := membership.GroupOf(pod)
			if s.p.config.Planner.Attendant(pod) || (member && (key == s.b.key || fixed[key])) {
				continue
			}
			name, leaving := "pod "+pod.Namespace+"/"+pod.Name, pod.DeletionTimestamp != nil || membership.Replaced(pod)
			if member && !leaving {
				name = "gang " + key.String()
			}
			u, known := at[name]
			if !known {
				u = len(s.world.Units)
				at[name] = u
				s.world.Units = append(s.world.Units, preemption.Unit{Name: name, Priority: corev1helpers.PodPriority(pod), Terminating: leaving})
				s.pods = append(s.pods, nil)
			}
			s.add(u, pod, info, !devices[n.Node().Name], now)
			budgets.count(&s.world.Units[u], pod)
		}
	}
	s.world.Allowed = budgets.allowed
	s.keepOnly(may)
}

// add adds a pod to its unit.
func (s *whatIf) add(u int, pod *v1.Pod, info fwk.PodInfo, plain bool, now time.Time) {
	unit := &s.world.Units[u]
	as := s.p.config.Planner.Usage(info)
	delete(as.Resources, claims.Slot) // the filter counts devices of bound pods
	one := preemption.Pod{
		Node:      pod.Spec.NodeName,
		Resources: as.Resources,
		Devices:   plain,
		Tenant:    as.Tenant,
		Exclusive: as.Exclusive,
		Spares:    as.Spares,
		SparesAt:  as.SparesAt,
	}
	for name := range as.Resources {
		one.Devices = one.Devices || strings.Contains(name, "/")
	}
	end := settings.WillEnd(pod, now)
	if len(unit.Pods) == 0 || end.IsZero() || (!unit.End.IsZero() && end.After(unit.End)) {
		unit.End = end
	}
	unit.Priority = max(unit.Priority, corev1helpers.PodPriority(pod))
	unit.Pods = append(unit.Pods, one)
	s.pods[u] = append(s.pods[u], pod)
}

// weigh sets each unit's lost work; ready is false while the gangs' checkpoints are being read.
func (s *whatIf) weigh(ctx context.Context, now time.Time) (ready bool) {
	if known := s.p.lastCheckpoints.ensureKnown(ctx, now, s.p.tried[s.b.key].asked); !known {
		return false
	}
	for u := range s.world.Units {
		unit := &s.world.Units[u]
		for i, pod := range s.pods[u] {
			devices := int64(1)
			for name, n := range unit.Pods[i].Resources {
				if strings.Contains(name, "/") {
					devices = max(devices, n)
				}
			}
			unit.LostWork += devices * int64(now.Sub(s.p.lastCheckpoints.since(pod)).Seconds())
		}
	}
	return true
}

// without returns the cluster without some units.
func (s *whatIf) without(gone func(u int) bool) (*planner.WhatIf, error) {
	var pods []*v1.Pod
	for u := range s.world.Units {
		if gone(u) {
			pods = append(pods, s.pods[u]...)
		}
	}
	return s.p.config.Planner.Without(s.ctx, s.nodes, pods, s.adding, s.assumed)
}

// keepOnly drops the units that must not be preempted.
func (s *whatIf) keepOnly(may func(*preemption.Unit) bool) {
	var units []preemption.Unit
	var pods [][]*v1.Pod
	for u := range s.world.Units {
		if s.world.Units[u].Terminating || may(&s.world.Units[u]) {
			units, pods = append(units, s.world.Units[u]), append(pods, s.pods[u])
		}
	}
	s.world.Units, s.pods = units, pods
}

// room is where a gang would be placed, and its domain's name.
type room struct {
	assignments []gang.Assignment
	domain      string
}

// check runs the framework's filters: where does the gang fit without the units given by index and without terminating ones, with all
// others present? room is nil if it does not fit; refusal has the reason.
func (s *whatIf) check(gone []int) (*room, *gang.Refusal, error) {
	away := sets.New(gone...)
	left, err := s.without(func(u int) bool { return s.world.Units[u].Terminating || away.Has(u) })
	if err != nil {
		return nil, nil, err
	}
	placement, refusal, err := left.Place(s.b.snapshot)
	if err != nil || refusal != nil {
		return nil, refusal, err
	}
	r := &room{}
	for _, assignment := range placement.Assignments {
		if s.reqs[assignment.Member] != nil {
			r.assignments = append(r.assignments, assignment)
		}
	}
	r.domain = preemption.DomainOf(left.Tree(), r.assignments)
	return r, nil, nil
}

// assume returns what assignments use. A gang with exclusive nodes uses all of each node.
func (s *whatIf) assume(assignments []gang.Assignment) []topology.Assumed {
	all := make([]topology.Assumed, 0, len(assignments))
	whole := map[string]topology.Resources{}
	for i := range s.world.Nodes {
		if s.gang.Topology.Whole {
			whole[s.world.Nodes[i].Name] = s.world.Nodes[i].Free
		}
	}
	for _, assignment := range assignments {
		what := s.reqs[assignment.Member]
		if s.gang.Topology.Whole {
			what = whole[assignment.Node]
		}
		all = append(
			all,
			topology.Assumed{Node: assignment.Node, Usage: topology.Usage{Resources: what, Tenant: true, Exclusive: s.gang.Topology.Whole}},
		)
	}
	return all
}

// evictionPlan is a selection to carry out: the victims' pods, their names, and the longest grace period of these and of terminating pods
// on the gang's nodes.
type evictionPlan struct {
	pods  []*v1.Pod
	units []string
	grace time.Duration
}

func (s *whatIf) departure(victims []int, assignments []gang.Assignment) (d evictionPlan) {
	leave := sets.New(victims...)
	for u := range s.world.Units {
		chosen := leave.Has(u)
		if !chosen && !s.world.Units[u].Terminating {
			continue
		}
		for _, pod := range s.pods[u] {
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil && s.isOn(assignments, pod.Spec.NodeName) {
				d.grace = max(d.grace, time.Duration(*own)*time.Second)
			}
		}
		if chosen {
			d.pods = append(d.pods, s.pods[u]...)
			d.units = append(d.units, s.world.Units[u].Name)
		}
	}
	return d
}

func (s *whatIf) isOn(assignments []gang.Assignment, node string) bool {
	return slices.ContainsFunc(assignments, func(assignment gang.Assignment) bool { return assignment.Node == node })
}

// World returns the cluster without all movable pods, as values. Call it in the scheduling goroutine; its result may be used elsewhere.
func (p *Preemptor) World(ctx context.Context) (preemption.World, error) {
	nodes, err := p.config.Framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return preemption.World{}, fmt.Errorf("listing the snapshot's nodes: %w", err)
	}
	p.config.Planner.Follow(nodes)
	// A query of the lowest priority: all held room counts as taken.
	nobody := gangcache.Snapshot{
		Members: []gangcache.Member{{Pod: &v1.Pod{Spec: v1.PodSpec{Priority: ptr.To[int32](preemption.Lowest)}}, State: gangcache.Bound}},
	}
	s := &whatIf{p: p, b: &blocked{}, nodes: nodes, ctx: ctx}
	if s.assumed, err = p.config.Planner.GatherExpected(nodes, nobody); err != nil {
		return preemption.World{}, err
	}
	s.units(func(*preemption.Unit) bool { return true }, time.Now())
	bare, err := s.without(func(int) bool { return true })
	if err != nil {
		return preemption.World{}, err
	}
	s.world.Levels, s.world.Nodes = p.config.Planner.Levels(), bare.Nodes()
	return s.world, nil
}
