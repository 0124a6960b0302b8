package preemption

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/preemption"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// blocked is a gang that was refused for lack of room, and the snapshot of that refusal.
type blocked struct {
	key      types.NamespacedName
	snapshot gangcache.Snapshot
	nodes    []fwk.NodeInfo
	refusal  gang.Refusal
}

// priority returns the lowest priority of the members; preempts reports whether none of them has the preemption policy
// Never.
func (b *blocked) priority() (priority int32, preempts bool) {
	preempts = true
	for i, m := range b.snapshot.Members {
		if own := corev1helpers.PodPriority(m.Pod); i == 0 || own < priority {
			priority = own
		}
		if policy := m.Pod.Spec.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
			preempts = false
		}
	}
	return priority, preempts
}

// tolerates reports whether a member to be placed tolerates the node's taints.
func (b *blocked) tolerates(logger klog.Logger, node *v1.Node) bool {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable { // the taint follows later
		taints = append(slices.Clone(taints), v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	binding := func(t *v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
	}
	return slices.ContainsFunc(b.snapshot.Members, func(m gangcache.Member) bool {
		if m.State != gangcache.Pending {
			return false
		}
		_, refused := corev1helpers.FindMatchingUntoleratedTaint(logger, taints, m.Pod.Spec.Tolerations, binding, false)
		return !refused
	})
}

// leader is the pod that plans.
func (b *blocked) leader() *v1.Pod {
	at := slices.IndexFunc(b.snapshot.Members, func(m gangcache.Member) bool { return m.Pod.UID == b.snapshot.Leader })
	return b.snapshot.Members[max(0, at)].Pod
}

// degraded reports whether members on nodes wait for others that the gang needs.
func (b *blocked) degraded() bool { return b.snapshot.Degraded() }

// attempt is when a search for room failed, and when it is retried.
type attempt struct {
	next   time.Time
	delays wait.Backoff
	// asked is when this gang first waited for checkpoint ages to be read.
	asked time.Time
	// never: the last attempt to reserve found no room even without any other pod.
	never bool
	// why is the result of the last search, for users, if the gang lacks more than room.
	why string
}

const (
	// searchRetry is the delay after a failed search; it doubles each time, up to searchRetryMax. A search may take most of a second.
	searchRetry    = time.Second
	searchRetryMax = 30 * time.Second
	// searchersAtMost bounds how long a gang waits after a search for the searches of all others.
	searchersAtMost = 5 * time.Minute
)

// searchResult is the result of a search.
type searchResult int

const (
	foundNone searchResult = iota
	foundRoom
	// unreadCheckpoints: the gangs' stored steps must be read first.
	unreadCheckpoints
)

// reserveSearch reports whether a gang or pod may search for room now. If not, again is called when it may.
func (p *Preemptor) reserveSearch(key types.NamespacedName, now time.Time, again func()) bool {
	a := p.tried[key]
	switch {
	case now.Before(a.next): // the retry is scheduled
		return false
	case now.Before(p.nextSearch):
		a.next = p.nextSearch
		p.tried[key] = a
		time.AfterFunc(a.next.Sub(now), again)
		return false
	}
	return true
}

// searched records a search for room and schedules the next one after those of the other searchers: otherwise the first gang in the queue's
// order would take every turn.
func (p *Preemptor) searched(key types.NamespacedName, began time.Time, what searchResult, again func()) {
	now := time.Now()
	took := now.Sub(began)
	others := p.otherSearchers(key)
	p.config.Metrics.searchSeconds.Observe(took.Seconds())
	p.nextSearch = now.Add(planner.Cooldown(took))
	a := p.tried[key]
	switch what {
	case foundNone:
		if a.delays.Duration == 0 {
			a.delays = wait.Backoff{Duration: searchRetry, Factor: 2, Steps: 10, Cap: searchRetryMax}
		}
		a.next, a.asked = now.Add(a.delays.Step()), time.Time{}
	case foundRoom:
		a = attempt{next: now.Add(searchRetry)}
	case unreadCheckpoints: // it keeps its turn
		a.next, others = now.Add(max(searchRetry, planner.Cooldown(took))), 0
		if a.asked.IsZero() {
			a.asked = began
		}
	}
	if turns := min(time.Duration(others)*planner.Cooldown(took+took/5), searchersAtMost); others > 0 &&
		a.next.Before(p.nextSearch.Add(turns)) {
		a.next = p.nextSearch.Add(turns)
	}
	p.tried[key] = a
	p.forgetTried()
	time.AfterFunc(a.next.Sub(now), again)
}

// otherSearchers counts the others that search for room, and drops those that missed their turn.
func (p *Preemptor) otherSearchers(but types.NamespacedName) int {
	n := 0
	for key, a := range p.tried {
		if key != but && !a.next.Before(p.nextSearch.Add(-searchRetry)) {
			n++
		}
	}
	return n
}

// MakeRoom preempts for the gang that was refused in this scheduling cycle for lack of room, or reserves room for it.
func (p *Preemptor) MakeRoom(ctx context.Context, key types.NamespacedName) {
	b, now, logger := p.blocked, time.Now(), klog.FromContext(ctx)
	if b == nil || b.key != key {
		return
	}
	again := func() { p.config.Wake(logger, key) }
	if turn := p.reserveSearch(key, now, again); !turn {
		return
	}
	if h, ok := p.rooms.Get(key); ok && !h.Reserved {
		if now.Before(h.until) {
			return
		}
		p.releaseRoom(logger, key)
	}
	before := p.Why(key)
	what, err := p.lookForRoom(ctx, b, now)
	if err != nil {
		logger.Error(err, "Searching room for a gang", "gang", key)
	}
	if why := p.Why(key); what == foundNone && why != "" && why != before {
		refusal := b.refusal
		refusal.Message += "; " + why
		p.config.Gangs.Refuse(key, &refusal)
		p.config.Publish(key)
	}
	p.searched(key, now, what, again)
}

// forgetTried drops the searches of gangs and pods that no longer wait.
func (p *Preemptor) forgetTried() {
	if len(p.tried) > 2*len(p.config.Gangs.Refused())+16 {
		now := time.Now()
		maps.DeleteFunc(p.tried, func(key types.NamespacedName, a attempt) bool {
			return !p.config.Gangs.Wants(key) && now.Sub(a.next) > searchRetryMax
		})
	}
}

// lookForRoom nominates or reserves room; its result is found where room is held.
func (p *Preemptor) lookForRoom(ctx context.Context, b *blocked, now time.Time) (searchResult, error) {
	priority, preempts := b.priority()
	h, reserved := p.rooms.Get(b.key)
	if reserved && !p.stillGood(ctx, &h, b) {
		klog.FromContext(ctx).Info("A node that is reserved for a gang cannot take it any more", "gang", b.key, "room", h.Text())
		p.releaseRoom(klog.FromContext(ctx), b.key)
		reserved = false
	}
	if preempts {
		may := below(priority)
		if reserved {
			may = orOverdue(may, priority, h.nodes(), now)
		}
		s, err := p.newWhatIf(ctx, b, priority, now, may)
		if err != nil {
			return foundNone, err
		}
		if len(s.world.Units) == 0 {
			p.noteWhy(b.key, "")
		} else {
			if ready := s.weigh(ctx, now); !ready {
				return unreadCheckpoints, nil
			}
			if done, err := p.nominate(ctx, b, s, priority, now); done || err != nil {
				return made(done), err
			}
		}
		if err := p.explain(ctx, b, now); err != nil {
			return foundNone, err
		}
	}
	if reserved || !p.mayReserve(b, priority, now) {
		return made(reserved), nil // units that overrun their time in reserved room are checked every second, or as turns allow
	}
	done, err := p.reserve(ctx, b, priority, preempts, now)
	a := p.tried[b.key]
	a.never = !done && err == nil
	p.tried[b.key] = a
	return made(done), err
}

func made(done bool) searchResult {
	if done {
		return foundRoom
	}
	return foundNone
}

// reserve reports whether it reserved room. It does not if the gang would not fit even without all units.
func (p *Preemptor) reserve(ctx context.Context, b *blocked, priority int32, preempts bool, now time.Time) (bool, error) {
	s, err := p.newWhatIf(ctx, b, priority, now, func(*preemption.Unit) bool { return true })
	if err != nil {
		return false, err
	}
	r, ok := preemption.Reserve(s.world, s.gang, now)
	if !ok {
		return false, nil
	}
	// Room that filters would refuse even then is not reserved: it would exclude others in vain.
	room, _, err := s.check(r.Ended)
	if room == nil {
		return false, err
	}
	p.endReservations(ctx, b)
	p.keepRoom(
		ctx,
		b,
		HeldRoom{
			Holding:     preemption.Holding{Priority: priority, Reserved: true, At: r.At, Preempts: preempts},
			assignments: s.assume(room.assignments),
			domain:      room.domain,
			degraded:    b.degraded(),
			since:       now,
		},
	)
	return true, nil
}

// nominate preempts units, if the gang fits without them, and holds the room that they free.
func (p *Preemptor) nominate(ctx context.Context, b *blocked, s *whatIf, priority int32, now time.Time) (bool, error) {
	c, err := s.choose()
	p.noteWhy(b.key, c.why)
	if c.room == nil {
		return false, err
	}
	_, disturbed, err := p.Disturbed(ctx, b.nodes, b.key, b.leader(), priority, s.taking(c.room.assignments))
	if err != nil {
		return false, err
	}
	if disturbed { // it could not be placed, so preempting would be in vain
		p.rooms.KeepOut(b.leader())
		return false, nil
	}
	d := s.departure(c.victims, c.room.assignments)
	h := HeldRoom{
		Holding:     preemption.Holding{Priority: priority},
		assignments: s.assume(c.room.assignments),
		domain:      c.room.domain,
		conditions:  c.conditions,
		degraded:    b.degraded(),
		since:       now,
		victims:     d.units,
		pods:        len(d.pods),
		until:       now.Add(d.grace + p.config.Args.NominationTimeout.Duration),
	}
	if len(d.pods) == 0 {
		h.victims = []string{"pods that are already terminating"}
	}
	p.keepRoom(ctx, b, h)
	p.config.Metrics.preempted.Add(float64(len(d.pods)))
	go p.evict(
		context.WithoutCancel(ctx),
		eviction{
			beneficiary: "gang " + b.key.String(),
			priority:    priority,
			pods:        d.pods,
			until:       h.until,
			stands:      func() bool { return p.rooms.stands(b.key, h) },
		},
	)
	return true, nil
}

// keepRoom holds room for a gang and logs it.
func (p *Preemptor) keepRoom(ctx context.Context, b *blocked, h HeldRoom) {
	p.rooms.keep(b.key, h)
	refusal := b.refusal
	if at := strings.LastIndex(refusal.Message, "; "); at >= 0 && strings.Contains(refusal.Message[at:], " for it") {
		refusal.Message = refusal.Message[:at]
	}
	refusal.Message += "; " + h.Text()
	klog.FromContext(ctx).Info("Room is held for a gang", "gang", b.key, "room", h.Text(), "nodes", len(h.nodes()))
	p.config.Gangs.Refuse(b.key, &refusal)
	p.config.Publish(b.key)
}

// stillGood reports whether a reservation's nodes can still take the gang: they exist, are healthy, and members tolerate their taints.
func (p *Preemptor) stillGood(ctx context.Context, h *HeldRoom, b *blocked) bool {
	left := map[string]bool{}
	for _, name := range h.nodes() {
		left[name] = true
	}
	for _, n := range b.nodes {
		name := n.Node().Name
		if !left[name] {
			continue
		}
		if _, sick := p.config.Health.Unhealthy(n.Node(), b.key.Namespace); sick || !b.tolerates(klog.FromContext(ctx), n.Node()) {
			return false
		}
		delete(left, name)
	}
	return len(left) == 0
}

// mayReserve reports whether room may be reserved for the gang now.
func (p *Preemptor) mayReserve(b *blocked, priority int32, now time.Time) bool {
	if b.degraded() {
		return true
	}
	if p.config.Gangs.Waited(b.key, now) < p.config.Args.ReservationAfter.Duration {
		return false
	}
	first, ok := p.config.Gangs.FirstBlocked(func(key types.NamespacedName) bool { return key != b.key && p.tried[key].never })
	return ok && first == b.key
}

// endReservations ends those of other gangs that were never complete, before one of them gets a reservation.
func (p *Preemptor) endReservations(ctx context.Context, b *blocked) {
	for key, h := range p.rooms.keys() {
		if h.Reserved && !h.degraded && !b.degraded() && key != b.key {
			p.releaseRoom(klog.FromContext(ctx), key)
		}
	}
}
