package preemption

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/topology"
)

// survey is a cluster as it would be if some units were gone.
type survey struct {
	p     *Preemptor
	b     *blocked
	gang  gang.Gang
	world yield.World
	// pods are those of each unit, at is where they are, taken what others hold.
	pods  [][]*v1.Pod
	nodes []fwk.NodeInfo
	taken []topology.Taking
	ctx   context.Context
	// reqs is what a member asks for, by name.
	reqs map[string]topology.Resources
}

// survey looks at the cluster without those units that may leave, as filters judge it.
func (p *Preemptor) survey(ctx context.Context, b *blocked, priority int32, now time.Time, may func(*yield.Unit) bool) (*survey, error) {
	s := &survey{p: p, b: b, nodes: b.nodes, ctx: ctx}
	taken, err := p.config.Planner.Expected(b.nodes, b.roster)
	if err != nil {
		return nil, err
	}
	s.taken = taken
	s.units(may, now)
	bare := s.without(func(int) bool { return true })
	s.world.Levels = p.config.Planner.Levels()
	s.world.Nodes = bare.Nodes()
	if s.gang, err = bare.Gang(b.roster); err != nil {
		return nil, err
	}
	s.gang.Topology, err = gangcache.Asks(b.roster.Members[0].Pod, b.roster.Terms)
	s.reqs = map[string]topology.Resources{}
	for _, m := range s.gang.Members {
		if m.Node == "" {
			s.reqs[m.Name] = s.gang.Roles[m.Role].Requests
		}
	}
	return s, err
}

// units sorts the pods on the nodes into what leaves together.
func (s *survey) units(may func(*yield.Unit) bool, now time.Time) {
	fixed := s.p.config.Gangs.Moving()
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
				s.world.Units = append(s.world.Units, yield.Unit{Name: name, Priority: corev1helpers.PodPriority(pod), Leaving: leaving})
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
func (s *survey) add(u int, pod *v1.Pod, info fwk.PodInfo, plain bool, now time.Time) {
	unit := &s.world.Units[u]
	as := s.p.config.Planner.Hold(info)
	delete(as.What, claims.Slot) // what is on its node the filter knows
	one := yield.Pod{Node: pod.Spec.NodeName, What: as.What, Devices: plain, Tenant: as.Tenant, Closed: as.Closed, Spares: as.Spares, SparesAt: as.SparesAt}
	for name := range as.What {
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

// weighed says of each unit what is lost if it leaves. It is false where it is being read what gangs have stored.
func (s *survey) weighed(ctx context.Context, now time.Time) bool {
	if !s.p.worth.known(ctx, now, s.p.tried[s.b.key].asked) {
		return false
	}
	for u := range s.world.Units {
		unit := &s.world.Units[u]
		for i, pod := range s.pods[u] {
			devices := int64(1)
			for name, n := range unit.Pods[i].What {
				if strings.Contains(name, "/") {
					devices = max(devices, n)
				}
			}
			unit.Work += devices * int64(now.Sub(s.p.worth.since(pod)).Seconds())
		}
	}
	return true
}

// without is the cluster as it would be without some units.
func (s *survey) without(gone func(u int) bool) *planner.WhatIf {
	var pods []*v1.Pod
	for u := range s.world.Units {
		if gone(u) {
			pods = append(pods, s.pods[u]...)
		}
	}
	return s.p.config.Planner.Without(s.ctx, s.nodes, pods, s.taken)
}

// keepOnly leaves out units that must stay.
func (s *survey) keepOnly(may func(*yield.Unit) bool) {
	var units []yield.Unit
	var pods [][]*v1.Pod
	for u := range s.world.Units {
		if s.world.Units[u].Leaving || may(&s.world.Units[u]) {
			units, pods = append(units, s.world.Units[u]), append(pods, s.pods[u])
		}
	}
	s.world.Units, s.pods = units, pods
}

// room is where a gang is to be, and how that is called.
type room struct {
	seats  []gang.Seat
	domain string
}

// check asks the framework's filters where the gang fits with some units gone, by their index, and those who leave already,
// and all others there. The answer is nil where it does not.
func (s *survey) check(gone []int) (*room, error) {
	left := s.without(func(u int) bool { return s.world.Units[u].Leaving || slices.Contains(gone, u) })
	placement, no, err := left.Place(s.b.roster)
	if err != nil || no != nil {
		return nil, err
	}
	r := &room{}
	for _, seat := range placement.Seats {
		if s.reqs[seat.Member] != nil {
			r.seats = append(r.seats, seat)
		}
	}
	r.domain = yield.DomainOf(left.Tree(), r.seats)
	return r, nil
}

// takings is what seats take. A gang that wants whole nodes takes all there is.
func (s *survey) takings(seats []gang.Seat) []topology.Taking {
	all := make([]topology.Taking, 0, len(seats))
	whole := map[string]topology.Resources{}
	for i := range s.world.Nodes {
		if s.gang.Topology.Whole {
			whole[s.world.Nodes[i].Name] = s.world.Nodes[i].Free
		}
	}
	for _, seat := range seats {
		what := s.reqs[seat.Member]
		if s.gang.Topology.Whole {
			what = whole[seat.Node]
		}
		all = append(all, topology.Taking{Node: seat.Node, Hold: topology.Hold{What: what, Tenant: true, Closed: s.gang.Topology.Whole}})
	}
	return all
}

// departure is who leaves, by a choice: their pods, their names, and the longest grace of those, and of those who leave
// already, that are where the gang is to be.
type departure struct {
	pods  []*v1.Pod
	units []string
	grace time.Duration
}

func (s *survey) departure(c yield.Choice, seats []gang.Seat) (d departure) {
	for u := range s.world.Units {
		chosen := slices.Contains(c.Victims, u)
		if !chosen && !s.world.Units[u].Leaving {
			continue
		}
		for _, pod := range s.pods[u] {
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil && s.isOn(seats, pod.Spec.NodeName) {
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

func (s *survey) isOn(seats []gang.Seat, node string) bool {
	return slices.ContainsFunc(seats, func(seat gang.Seat) bool { return seat.Node == node })
}

// World is the cluster with all who could be moved taken out, as values. It belongs to the scheduling goroutine; what is
// made of it does not.
func (p *Preemptor) World(ctx context.Context) (yield.World, error) {
	nodes, err := p.config.Framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return yield.World{}, fmt.Errorf("listing the snapshot's nodes: %w", err)
	}
	p.config.Planner.Follow(nodes)
	// Nobody asks, of the lowest priority: all that is held is as good as taken.
	nobody := gangcache.Snapshot{Members: []gangcache.Member{{Pod: &v1.Pod{Spec: v1.PodSpec{Priority: ptr.To[int32](math.MinInt32)}}, State: gangcache.Bound}}}
	s := &survey{p: p, b: &blocked{}, nodes: nodes, ctx: ctx}
	if s.taken, err = p.config.Planner.Expected(nodes, nobody); err != nil {
		return yield.World{}, err
	}
	s.units(func(*yield.Unit) bool { return true }, time.Now())
	s.world.Levels, s.world.Nodes = p.config.Planner.Levels(), s.without(func(int) bool { return true }).Nodes()
	return s.world, nil
}
