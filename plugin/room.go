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
	"holdfast.dev/holdfast/gang/yield"
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

// later is a after one more search in vain.
func (a attempt) later(now time.Time, took time.Duration) attempt {
	delay := max(min(max(lookAgain, 2*a.delay), lookAgainAtMost), restFor(took))
	return attempt{next: now.Add(delay), delay: delay}
}

// restFor is how long after a search no other is made for the same gang: nobody is scheduled during one, so they take no
// more than one part in twenty of the time.
func restFor(took time.Duration) time.Duration { return 20 * took }

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
		p.status.soon(b.key)
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
	took := time.Since(now)
	p.measures.searched.Observe(took.Seconds())
	if a = a.later(now, took); done {
		a = attempt{next: now.Add(max(lookAgain, restFor(took)))}
	}
	p.tried[b.key] = a
	p.forgetTried()
	key := b.key
	time.AfterFunc(time.Until(a.next), func() { p.wake(logger, key) })
}

// forgetTried forgets those that nobody waits for any more.
func (p *Plugin) forgetTried() {
	if len(p.tried) > 2*len(p.ledger.refused())+16 {
		now := time.Now()
		maps.DeleteFunc(p.tried, func(key types.NamespacedName, a attempt) bool {
			return !p.ledger.wants(key) && now.Sub(a.next) > lookAgainAtMost
		})
	}
}

// lookForRoom reports whether a hold was made.
func (p *Plugin) lookForRoom(ctx context.Context, b *blocked, now time.Time) (bool, error) {
	priority, preempts := b.priority()
	h, reserved := p.holds.get(b.key)
	if preempts {
		may := below(priority)
		if reserved {
			may = orOverdue(may, h.nodes(), now)
		}
		s, err := p.survey(ctx, b, priority, now, may)
		if err != nil {
			return false, err
		}
		if len(s.world.Units) > 0 && s.weighed(ctx, now, func() { p.wake(klog.FromContext(ctx), b.key) }) {
			if done, err := p.claim(ctx, b, s, priority, now); done || err != nil {
				return done, err
			}
		}
	}
	if reserved || !p.mayReserve(b, priority, now) {
		return reserved, nil
	}
	s, err := p.survey(ctx, b, priority, now, func(*yield.Unit) bool { return true })
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

// below says of a unit that its priority is lower.
func below(priority int32) func(*yield.Unit) bool {
	return func(u *yield.Unit) bool { return u.Priority < priority }
}

// overstay is how long after its declared end a unit is left alone: nobody ends to the second.
const overstay = time.Minute

// orOverdue lets those leave as well who said when they would be over, are not, and stand in reserved room: the
// reservation counted on their word, and without that a wrong one would hold the gang up for ever.
func orOverdue(may func(*yield.Unit) bool, reserved []string, now time.Time) func(*yield.Unit) bool {
	return func(u *yield.Unit) bool {
		if may(u) {
			return true
		}
		overdue := !u.End.IsZero() && now.Sub(u.End) >= overstay && slices.ContainsFunc(u.Pods, func(pod yield.Pod) bool { return slices.Contains(reserved, pod.Node) })
		if overdue {
			u.Name += " (beyond its declared run time)"
		}
		return overdue
	}
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
	d := s.departure(choice, placement)
	h := hold{Hold: yield.Hold{Priority: priority}, seats: s.takings(placement), domain: choice.Domain, lost: b.lost(), since: now,
		yields: d.units, pods: len(d.pods), until: now.Add(d.grace + p.args.ClaimPatience.Duration)}
	if len(d.pods) == 0 {
		h.yields = []string{"pods that end already"}
	}
	p.hold(ctx, b, h)
	p.measures.preempted.Add(float64(len(d.pods)))
	go p.evict(context.WithoutCancel(ctx), eviction{whom: "gang " + b.key.String(), pods: d.pods, until: h.until, stands: func() bool { return p.holds.stands(b.key, h) }})
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
			p.status.soon(key)
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
