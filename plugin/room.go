package plugin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/replay"
	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/internal/translate"
	"holdfast.dev/holdfast/topology"
)

// blocked is a gang that was refused for lack of room, with what that was seen on.
type blocked struct {
	key     types.NamespacedName
	roster  roster
	nodes   []fwk.NodeInfo
	refusal gang.Refusal
}

// priority is the lowest of the members', preempts says that none of them forbids to have others leave.
func (b *blocked) priority() (priority int32, preempts bool) {
	preempts = true
	for i, m := range b.roster.members {
		if own := corev1helpers.PodPriority(m.pod); i == 0 || own < priority {
			priority = own
		}
		if policy := m.pod.Spec.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
			preempts = false
		}
	}
	return priority, preempts
}

// lost says whether members stand on nodes and wait for others.
func (b *blocked) lost() bool {
	return slices.ContainsFunc(b.roster.members, func(m member) bool { return m.state == bound })
}

// attempt is when room was looked for, in vain, and when that is done again.
type attempt struct {
	next  time.Time
	delay time.Duration
}

const (
	// lookAgain is after how long room is looked for again that was not found; it doubles with each time, up to
	// lookAgainAtMost. A search may take a good part of a second.
	lookAgain       = time.Second
	lookAgainAtMost = 30 * time.Second
)

// makeRoom has others leave for a gang that was refused, or names the room that it waits for. It runs in the scheduling
// cycle, after the refusal.
func (p *Plugin) makeRoom(ctx context.Context, b *blocked) {
	now := time.Now()
	if h, ok := p.holds.get(b.key); ok && (!h.Reserved || p.stillGood(&h, b.nodes)) && now.Before(p.tried[b.key].next) {
		return
	} else if ok && !h.Reserved {
		if now.Before(h.until) {
			return
		}
		p.holds.drop(b.key)
	}
	a := p.tried[b.key]
	if now.Before(a.next) {
		return
	}
	logger := klog.FromContext(ctx)
	done, err := p.lookForRoom(ctx, b, now)
	if err != nil {
		logger.Error(err, "Looking for room for a gang", "gang", b.key)
	}
	a.delay = min(max(lookAgain, 2*a.delay), lookAgainAtMost)
	if done {
		a.delay = 0
	}
	a.next = now.Add(max(a.delay, lookAgain))
	p.tried[b.key] = a
	if len(p.tried) > 2*len(p.ledger.refused())+16 {
		maps.DeleteFunc(p.tried, func(key types.NamespacedName, _ attempt) bool { return !p.ledger.wants(key) })
	}
	key := b.key
	time.AfterFunc(time.Until(a.next), func() { p.wake(logger, key) })
}

// lookForRoom reports whether a hold was made.
func (p *Plugin) lookForRoom(ctx context.Context, b *blocked, now time.Time) (bool, error) {
	priority, preempts := b.priority()
	_, reserved := p.holds.get(b.key)
	if preempts {
		s, err := p.survey(ctx, b, priority, now, func(of int32) bool { return of < priority })
		if err != nil {
			return false, err
		}
		if len(s.world.Units) > 0 && p.worth.known(now, func() { p.wake(klog.FromContext(ctx), b.key) }) {
			if done, err := p.claim(ctx, b, s, priority, now); done || err != nil {
				return done, err
			}
		}
	}
	if reserved || !p.mayReserve(b, priority, now) {
		return reserved, nil
	}
	s, err := p.survey(ctx, b, priority, now, func(int32) bool { return true })
	if err != nil {
		return false, err
	}
	r, ok := yield.Reserve(s.world, s.gang, now)
	if !ok {
		return false, nil
	}
	p.endReservations(b)
	p.hold(ctx, b, hold{Hold: yield.Hold{Priority: priority, Reserved: true, At: r.At, Preempts: preempts}, seats: s.takings(r.Seats), domain: r.Domain, lost: b.lost(), since: now})
	return true, nil
}

// claim has units leave, where that makes the gang fit, and holds what they leave for it.
func (p *Plugin) claim(ctx context.Context, b *blocked, s *survey, priority int32, now time.Time) (bool, error) {
	choice, ok := yield.Choose(s.world, s.gang)
	if !ok {
		return false, nil
	}
	placement, fits, err := s.check(choice)
	if err != nil || !fits {
		return false, err
	}
	h := hold{Hold: yield.Hold{Priority: priority}, seats: s.takings(placement), domain: choice.Domain, lost: b.lost(), since: now}
	var leave []*v1.Pod
	grace := time.Duration(0)
	for u := range s.world.Units {
		unit := &s.world.Units[u]
		chosen := slices.Contains(choice.Victims, u)
		if !chosen && !unit.Leaving {
			continue
		}
		for _, pod := range s.pods[u] {
			if chosen {
				leave = append(leave, pod)
			}
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil && s.isOn(placement, pod.Spec.NodeName) {
				grace = max(grace, time.Duration(*own)*time.Second)
			}
		}
		if chosen {
			h.yields = append(h.yields, unit.Name)
			h.pods += len(unit.Pods)
		}
	}
	if len(choice.Victims) == 0 {
		h.yields = []string{"pods that end already"}
	}
	h.until = now.Add(grace + p.args.ClaimPatience.Duration)
	p.hold(ctx, b, h)
	p.measures.preempted.Add(float64(len(leave)))
	go p.evict(context.WithoutCancel(ctx), b.key, leave, h.until)
	return true, nil
}

// hold keeps room for a gang and says so.
func (p *Plugin) hold(ctx context.Context, b *blocked, h hold) {
	p.holds.keep(b.key, h)
	no := b.refusal
	if at := strings.LastIndex(no.Message, "; "); at >= 0 && strings.Contains(no.Message[at:], " for it") {
		no.Message = no.Message[:at]
	}
	no.Message += "; " + h.words()
	klog.FromContext(ctx).Info("Room is held for a gang", "gang", b.key, "room", h.words(), "nodes", len(h.nodes()))
	p.ledger.refuse(b.key, &no)
	p.status.soon(b.key)
}

// stillGood says whether the nodes of a reservation can still take the gang one day.
func (p *Plugin) stillGood(h *hold, nodes []fwk.NodeInfo) bool {
	good := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		if _, sick := p.ill(n.Node()); !sick && !n.Node().Spec.Unschedulable {
			good[n.Node().Name] = true
		}
	}
	for _, name := range h.nodes() {
		if !good[name] {
			return false
		}
	}
	return true
}

// mayReserve says whether it is the gang's turn to have room reserved.
func (p *Plugin) mayReserve(b *blocked, priority int32, now time.Time) bool {
	if b.lost() {
		return true
	}
	if p.ledger.waited(b.key, now) < p.args.ReservationAfter.Duration {
		return false
	}
	first, ok := p.ledger.firstBlocked()
	return ok && first == b.key
}

// endReservations ends those for gangs that never were whole, before another one of them gets one.
func (p *Plugin) endReservations(b *blocked) {
	for key, h := range p.holds.keys() {
		if h.Reserved && !h.lost && !b.lost() && key != b.key {
			p.holds.drop(key)
		}
	}
}

// firstBlocked is the first gang in the queue's order of those that never were whole and are refused for lack of room.
func (l *ledger) firstBlocked() (first types.NamespacedName, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var best turn
	var most int32
	for key, g := range l.groups {
		if g.refusal == nil || g.refusal.Reason != gang.InsufficientNodes || g.counts[bound] > 0 || g.first() == nil {
			continue
		}
		priority := corev1helpers.PodPriority(g.first().pod)
		turn := turn{since: g.began(), gang: key}
		if !ok || priority > most || (priority == most && turn.compare(best) < 0) {
			first, best, most, ok = key, turn, priority, true
		}
	}
	return first, ok
}

// survey is a cluster as it would be if some units were gone.
type survey struct {
	p     *Plugin
	b     *blocked
	gang  gang.Gang
	world yield.World
	// pods are those of each unit, at is where they are, taken what others hold.
	pods  [][]*v1.Pod
	nodes []fwk.NodeInfo
	taken []replay.Taking
	ctx   context.Context
	// reqs is what a member asks for, by name.
	reqs map[string]topology.Resources
}

// survey looks at the cluster without those units that may leave, as filters judge it.
func (p *Plugin) survey(ctx context.Context, b *blocked, priority int32, now time.Time, may func(priority int32) bool) (*survey, error) {
	s := &survey{p: p, b: b, nodes: b.nodes, ctx: ctx}
	taken, err := p.expected(b.nodes, b.roster)
	if err != nil {
		return nil, err
	}
	s.taken = taken
	s.units(may, now)
	bare, removed := s.without(func(int) bool { return true })
	s.world.Levels = p.fabric.levels
	s.world.Nodes = s.told(bare)
	scout := newScout(ctx, p, bare, b.roster)
	scout.removed = removed
	if s.gang, _, err = scout.gang(); err != nil {
		return nil, err
	}
	s.gang.Topology, err = translate.GangTopology(b.roster.members[0].pod)
	s.reqs = map[string]topology.Resources{}
	for _, m := range s.gang.Members {
		if m.Node == "" {
			s.reqs[m.Name] = s.gang.Roles[m.Role].Requests
		}
	}
	return s, err
}

// told is how the tree is told of nodes, less what others hold.
func (s *survey) told(nodes []fwk.NodeInfo) []topology.Node {
	all := s.p.told(nodes)
	at := make(map[string]int, len(all))
	for i := range all {
		at[all[i].Name] = i
	}
	for _, t := range s.taken {
		i, ok := at[t.Node]
		if !ok {
			continue
		}
		h := t.Hold
		for what, v := range h.What {
			all[i].Free[what] -= v
		}
		all[i].Used, all[i].Closed = all[i].Used || h.Tenant, all[i].Closed || h.Closed
		if h.Tenant {
			all[i].Tenants++
		}
		if h.Spares > all[i].Spares {
			all[i].Spares, all[i].SparesAt = h.Spares, h.SparesAt
		}
	}
	return all
}

// units sorts the pods on the nodes into what leaves together.
func (s *survey) units(may func(int32) bool, now time.Time) {
	fixed := s.p.ledger.moving()
	budgets := s.p.budgets()
	at := map[string]int{}
	devices := map[string]bool{}
	for _, n := range s.nodes {
		for name := range n.GetAllocatable().GetScalarResources() {
			devices[n.Node().Name] = devices[n.Node().Name] || strings.Contains(string(name), "/")
		}
		for _, info := range n.GetPods() {
			pod := info.GetPod()
			key, member := translate.GroupOf(pod)
			if s.p.fabric.attendant(pod) || (member && (key == s.b.key || fixed[key])) {
				continue
			}
			name, leaving := "pod "+pod.Namespace+"/"+pod.Name, pod.DeletionTimestamp != nil || translate.Replaced(pod)
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
	what := asked(info)
	var as topology.Node
	s.p.fabric.tenant(&as, pod)
	one := yield.Pod{Node: pod.Spec.NodeName, What: what, Devices: plain, Tenant: as.Tenants > 0, Closed: as.Closed, Spares: as.Spares, SparesAt: as.SparesAt}
	weight := int64(1)
	for name, n := range what {
		if strings.Contains(name, "/") {
			one.Devices = true
			weight = max(weight, n)
		}
	}
	end := translate.WillEnd(pod, now)
	if len(unit.Pods) == 0 || end.IsZero() || (!unit.End.IsZero() && end.After(unit.End)) {
		unit.End = end
	}
	unit.Priority = max(unit.Priority, corev1helpers.PodPriority(pod))
	unit.Work += weight * int64(now.Sub(s.p.worth.since(pod)).Seconds())
	unit.Pods = append(unit.Pods, one)
	s.pods[u] = append(s.pods[u], pod)
}

// keepOnly leaves out units that must stay.
func (s *survey) keepOnly(may func(int32) bool) {
	var units []yield.Unit
	var pods [][]*v1.Pod
	for u := range s.world.Units {
		if s.world.Units[u].Leaving || may(s.world.Units[u].Priority) {
			units, pods = append(units, s.world.Units[u]), append(pods, s.pods[u])
		}
	}
	s.world.Units, s.pods = units, pods
}

// without is the nodes as they would be without some units.
func (s *survey) without(gone func(u int) bool) (nodes []fwk.NodeInfo, removed []removal) {
	at := make(map[string]int, len(s.nodes))
	nodes = slices.Clone(s.nodes)
	for i, n := range nodes {
		at[n.Node().Name] = i
	}
	copied := map[int]bool{}
	for u := range s.world.Units {
		if !gone(u) {
			continue
		}
		for _, pod := range s.pods[u] {
			i, ok := at[pod.Spec.NodeName]
			if !ok {
				continue
			}
			if !copied[i] {
				copied[i], nodes[i] = true, nodes[i].Snapshot()
			}
			info := infoOn(nodes[i], pod)
			if info == nil || nodes[i].RemovePod(klog.FromContext(s.ctx), pod) != nil {
				continue
			}
			removed = append(removed, removal{info: info, node: s.nodes[i]})
		}
	}
	return nodes, removed
}

func infoOn(n fwk.NodeInfo, pod *v1.Pod) fwk.PodInfo {
	for _, info := range n.GetPods() {
		if info.GetPod().UID == pod.UID {
			return info
		}
	}
	return nil
}

// check asks the framework's filters about a choice: those who are to leave gone, all others there.
func (s *survey) check(c yield.Choice) (seats []gang.Seat, fits bool, err error) {
	nodes, removed := s.without(func(u int) bool { return s.world.Units[u].Leaving || slices.Contains(c.Victims, u) })
	scout := newScout(s.ctx, s.p, nodes, s.b.roster)
	scout.removed, scout.tree = removed, topology.New(s.p.fabric.levels, s.told(nodes)...)
	placement, no, err := scout.place()
	if err != nil || no != nil {
		return nil, false, err
	}
	for _, seat := range placement.Seats {
		if s.reqs[seat.Member] != nil {
			seats = append(seats, seat)
		}
	}
	return seats, true, nil
}

// takings is what seats take. A gang that wants whole nodes takes all there is.
func (s *survey) takings(seats []gang.Seat) []replay.Taking {
	all := make([]replay.Taking, 0, len(seats))
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
		all = append(all, replay.Taking{Node: seat.Node, Hold: topology.Hold{What: what, Tenant: true, Closed: s.gang.Topology.Whole}})
	}
	return all
}

func (s *survey) isOn(seats []gang.Seat, node string) bool {
	return slices.ContainsFunc(seats, func(seat gang.Seat) bool { return seat.Node == node })
}

// moving lists gangs that are on their way to their nodes: they are not asked to leave now.
func (l *ledger) moving() map[types.NamespacedName]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[types.NamespacedName]bool{}
	for key, g := range l.groups {
		if g.open || g.counts[reserved] > 0 {
			all[key] = true
		}
	}
	return all
}
