package preemption

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
	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// blocked is a gang that was refused for lack of room, with what that was seen on.
type blocked struct {
	key     types.NamespacedName
	roster  gangcache.Snapshot
	nodes   []fwk.NodeInfo
	refusal gang.Refusal
}

// priority is the lowest of the members', preempts says that none of them forbids to have others leave.
func (b *blocked) priority() (priority int32, preempts bool) {
	preempts = true
	for i, m := range b.roster.Members {
		if own := corev1helpers.PodPriority(m.Pod); i == 0 || own < priority {
			priority = own
		}
		if policy := m.Pod.Spec.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
			preempts = false
		}
	}
	return priority, preempts
}

// tolerates says whether one of the members that are to be placed could go to a node with its taints.
func (b *blocked) tolerates(logger klog.Logger, node *v1.Node) bool {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable { // the taint follows a moment later
		taints = append(slices.Clone(taints), v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	binding := func(t *v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
	}
	return slices.ContainsFunc(b.roster.Members, func(m gangcache.Member) bool {
		if m.State != gangcache.Pending {
			return false
		}
		_, refused := corev1helpers.FindMatchingUntoleratedTaint(logger, taints, m.Pod.Spec.Tolerations, binding, false)
		return !refused
	})
}

// lost says whether members stand on nodes and wait for others.
func (b *blocked) lost() bool {
	return slices.ContainsFunc(b.roster.Members, func(m gangcache.Member) bool { return m.State == gangcache.Bound })
}

// attempt is when room was looked for, in vain, and when that is done again.
type attempt struct {
	next  time.Time
	delay time.Duration
	// asked is when it was first asked what gangs would lose, for a search that was put off until that is read.
	asked time.Time
	// never: the last time that room was to be reserved there would have been none with everybody gone.
	never bool
}

const (
	// lookAgain is after how long room is looked for again that was not found; it doubles with each time, up to
	// lookAgainAtMost. A search may take a good part of a second.
	lookAgain       = time.Second
	lookAgainAtMost = 30 * time.Second
	// turnsAtMost bounds how long one waits after a search for the turns of all others.
	turnsAtMost = 5 * time.Minute
)

// later is a after one more search in vain.
func (a attempt) later(now time.Time) attempt {
	delay := min(max(lookAgain, 2*a.delay), lookAgainAtMost)
	return attempt{next: now.Add(delay), delay: delay, never: a.never}
}

// found is what came of a search.
type found int

const (
	nothing found = iota
	something
	// unread: it must be read first what gangs have stored.
	unread
)

// turnToSearch says whether room may be looked for now, for one of those who wait for it; if not, again is called when it
// may be.
func (p *Preemptor) turnToSearch(key types.NamespacedName, now time.Time, again func()) bool {
	a := p.tried[key]
	switch {
	case now.Before(a.next): // it is under way
		return false
	case now.Before(p.nextSearch):
		a.next = p.nextSearch
		p.tried[key] = a
		time.AfterFunc(a.next.Sub(now), again)
		return false
	}
	return true
}

// searched notes a search for room, and has it made again later: once the others had their turns, because who is first in the
// queue's order would else take every turn there is.
func (p *Preemptor) searched(key types.NamespacedName, began time.Time, what found, again func()) {
	now := time.Now()
	took := now.Sub(began)
	others := p.others(key)
	p.config.Metrics.searched.Observe(took.Seconds())
	p.nextSearch = now.Add(planner.Rest(took))
	a := p.tried[key]
	switch what {
	case nothing:
		a = a.later(now)
	case something:
		a = attempt{next: now.Add(lookAgain)}
	case unread: // its turn is yet to come
		a.next, others = now.Add(max(lookAgain, planner.Rest(took))), 0
		if a.asked.IsZero() {
			a.asked = began
		}
	}
	if turns := min(time.Duration(others)*planner.Rest(took+took/5), turnsAtMost); others > 0 && a.next.Before(p.nextSearch.Add(turns)) {
		a.next = p.nextSearch.Add(turns)
	}
	p.tried[key] = a
	p.forgetTried()
	time.AfterFunc(a.next.Sub(now), again)
}

// others counts who looks for room as well. Who did not come when it was time does so no more.
func (p *Preemptor) others(but types.NamespacedName) int {
	n := 0
	for key, a := range p.tried {
		if key != but && !a.next.Before(p.nextSearch.Add(-lookAgain)) {
			n++
		}
	}
	return n
}

// MakeRoom has others leave for a gang, or names the room that it waits for, if it is the one that was refused in this
// scheduling cycle for lack of room.
func (p *Preemptor) MakeRoom(ctx context.Context, key types.NamespacedName) {
	b, now, logger := p.blocked, time.Now(), klog.FromContext(ctx)
	if b == nil || b.key != key {
		return
	}
	again := func() { p.config.Wake(logger, key) }
	if !p.turnToSearch(key, now, again) {
		return
	}
	if h, ok := p.reservations.Get(key); ok && !h.Reserved {
		if now.Before(h.until) {
			return
		}
		p.letIn(logger, key)
	}
	what, err := p.lookForRoom(ctx, b, now)
	if err != nil {
		logger.Error(err, "Looking for room for a gang", "gang", key)
	}
	p.searched(key, now, what, again)
}

// forgetTried forgets those that nobody waits for any more.
func (p *Preemptor) forgetTried() {
	if len(p.tried) > 2*len(p.config.Gangs.Refused())+16 {
		now := time.Now()
		maps.DeleteFunc(p.tried, func(key types.NamespacedName, a attempt) bool {
			return !p.config.Gangs.Wants(key) && now.Sub(a.next) > lookAgainAtMost
		})
	}
}

// lookForRoom finds something where a hold was made, or stands.
func (p *Preemptor) lookForRoom(ctx context.Context, b *blocked, now time.Time) (found, error) {
	priority, preempts := b.priority()
	h, reserved := p.reservations.Get(b.key)
	if reserved && !p.stillGood(ctx, &h, b) {
		klog.FromContext(ctx).Info("A node that is reserved for a gang cannot take it any more", "gang", b.key, "room", h.Words())
		p.letIn(klog.FromContext(ctx), b.key)
		reserved = false
	}
	if preempts {
		may := below(priority)
		if reserved {
			may = orOverdue(may, priority, h.nodes(), now)
		}
		s, err := p.survey(ctx, b, priority, now, may)
		if err != nil {
			return nothing, err
		}
		if len(s.world.Units) > 0 {
			if !s.weighed(ctx, now) {
				return unread, nil
			}
			if done, err := p.claim(ctx, b, s, priority, now); done || err != nil {
				return made(done), err
			}
		}
	}
	if reserved || !p.mayReserve(b, priority, now) {
		return made(reserved), nil // who overstays in reserved room is looked for every second, or as turns allow
	}
	done, err := p.reserve(ctx, b, priority, preempts, now)
	a := p.tried[b.key]
	a.never = !done && err == nil
	p.tried[b.key] = a
	return made(done), err
}

func made(done bool) found {
	if done {
		return something
	}
	return nothing
}

// reserve reports whether room was reserved: not where the gang would not fit with everybody gone.
func (p *Preemptor) reserve(ctx context.Context, b *blocked, priority int32, preempts bool, now time.Time) (bool, error) {
	s, err := p.survey(ctx, b, priority, now, func(*yield.Unit) bool { return true })
	if err != nil {
		return false, err
	}
	r, ok := yield.Reserve(s.world, s.gang, now)
	if !ok {
		return false, nil
	}
	// What filters would refuse even then is reserved for nobody: it would keep others out in vain.
	room, err := s.check(r.Gone)
	if room == nil {
		return false, err
	}
	p.endReservations(ctx, b)
	p.hold(ctx, b, Reservation{Hold: yield.Hold{Priority: priority, Reserved: true, At: r.At, Preempts: preempts}, seats: s.takings(room.seats), domain: room.domain, lost: b.lost(), since: now})
	return true, nil
}

// below says of a unit that its priority is lower.
func below(priority int32) func(*yield.Unit) bool {
	return func(u *yield.Unit) bool { return u.Priority < priority }
}

// overstay is how long after its declared end a unit is left alone: nobody ends to the second.
const overstay = time.Minute

// orOverdue lets those leave as well who said when they would be over, are not, and stand in reserved room: the
// reservation counted on their word, and without that a wrong one would hold the gang up for ever.
// Not those of higher priority: they would take the room back.
func orOverdue(may func(*yield.Unit) bool, priority int32, reserved []string, now time.Time) func(*yield.Unit) bool {
	return func(u *yield.Unit) bool {
		if may(u) {
			return true
		}
		overdue := u.Priority <= priority && !u.End.IsZero() && now.Sub(u.End) >= overstay && slices.ContainsFunc(u.Pods, func(pod yield.Pod) bool { return slices.Contains(reserved, pod.Node) })
		if overdue {
			u.Name += " (beyond its declared run time)"
		}
		return overdue
	}
}

// claim has units leave, where that makes the gang fit, and holds what they leave for it.
func (p *Preemptor) claim(ctx context.Context, b *blocked, s *survey, priority int32, now time.Time) (bool, error) {
	choice, ok := yield.Choose(s.world, s.gang)
	if !ok {
		return false, nil
	}
	room, err := s.check(choice.Victims)
	if room == nil {
		return false, err
	}
	d := s.departure(choice, room.seats)
	h := Reservation{Hold: yield.Hold{Priority: priority}, seats: s.takings(room.seats), domain: room.domain, lost: b.lost(), since: now,
		yields: d.units, pods: len(d.pods), until: now.Add(d.grace + p.config.Args.ClaimPatience.Duration)}
	if len(d.pods) == 0 {
		h.yields = []string{"pods that end already"}
	}
	p.hold(ctx, b, h)
	p.config.Metrics.preempted.Add(float64(len(d.pods)))
	go p.evict(context.WithoutCancel(ctx), eviction{whom: "gang " + b.key.String(), priority: priority, pods: d.pods, until: h.until, stands: func() bool { return p.reservations.stands(b.key, h) }})
	return true, nil
}

// hold keeps room for a gang and says so.
func (p *Preemptor) hold(ctx context.Context, b *blocked, h Reservation) {
	p.reservations.keep(b.key, h)
	no := b.refusal
	if at := strings.LastIndex(no.Message, "; "); at >= 0 && strings.Contains(no.Message[at:], " for it") {
		no.Message = no.Message[:at]
	}
	no.Message += "; " + h.Words()
	klog.FromContext(ctx).Info("Room is held for a gang", "gang", b.key, "room", h.Words(), "nodes", len(h.nodes()))
	p.config.Gangs.Refuse(b.key, &no)
	p.config.Publish(b.key)
}

// stillGood says whether the nodes of a reservation can still take the gang one day: they are there, well, and members
// tolerate their taints.
func (p *Preemptor) stillGood(ctx context.Context, h *Reservation, b *blocked) bool {
	left := map[string]bool{}
	for _, name := range h.nodes() {
		left[name] = true
	}
	for _, n := range b.nodes {
		name := n.Node().Name
		if !left[name] {
			continue
		}
		if _, sick := p.config.Health.Ill(n.Node()); sick || !b.tolerates(klog.FromContext(ctx), n.Node()) {
			return false
		}
		delete(left, name)
	}
	return len(left) == 0
}

// mayReserve says whether it is the gang's turn to have room reserved.
func (p *Preemptor) mayReserve(b *blocked, priority int32, now time.Time) bool {
	if b.lost() {
		return true
	}
	if p.config.Gangs.Waited(b.key, now) < p.config.Args.ReservationAfter.Duration {
		return false
	}
	first, ok := p.config.Gangs.FirstBlocked(func(key types.NamespacedName) bool { return key != b.key && p.tried[key].never })
	return ok && first == b.key
}

// endReservations ends those for gangs that never were whole, before another one of them gets one.
func (p *Preemptor) endReservations(ctx context.Context, b *blocked) {
	for key, h := range p.reservations.keys() {
		if h.Reserved && !h.lost && !b.lost() && key != b.key {
			p.letIn(klog.FromContext(ctx), key)
		}
	}
}
