package planner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

const (
	// mostMisfits is how often in a row a gang that others gave way to may be refused. Then the others go on for misfitRest, which doubles
	// up to misfitRestMost.
	mostMisfits    = 3
	misfitRest     = time.Second
	misfitRestMost = 30 * time.Second
	// vainShare of the time, and at most vainMost at once, may be spent on checking in vain whether gangs ahead fit. For degraded gangs,
	// whose running members wait, it is ten times that.
	vainShare    = 0.2
	vainMost     = 200 * time.Millisecond
	vainDegraded = 10 * vainMost
	// askedAgain: a refusal for other conditions than room holds for this many times the duration of its check.
	askedAgain = 10
)

// order decides whose turn it is among gangs that wait for room, wherever the scheduling queue has them. It belongs to the scheduling cycle
// except for called.
type order struct {
	answers map[types.NamespacedName]*refused
	misfits map[types.NamespacedName]misfit
	// vain is the remaining time for checks in vain, as of at.
	vain time.Duration
	at   time.Time
	// kept is the number of refusals after the last removal of gangs that are gone.
	kept int

	mu sync.Mutex
	// called are gangs that others gave way to and that were not planned yet. Guarded by mu.
	called map[types.NamespacedName]*called
}

// called is a gang whose turn it is.
type called struct {
	// absent: it did not come in time; others do not wait for it until it comes.
	absent bool
	// after are the retries of those that gave way to it, by the pod that plans.
	after map[types.UID]func()
}

// misfit counts refusals in a row of a gang that was expected to fit.
type misfit struct {
	n     int
	until time.Time
}

func newOrder() *order {
	return &order{
		answers: map[types.NamespacedName]*refused{},
		misfits: map[types.NamespacedName]misfit{},
		vain:    vainMost,
		called:  map[types.NamespacedName]*called{},
	}
}

// Taking is a pod that is about to get a node.
type Taking struct {
	Pod  *v1.Pod
	Node string
}

// GiveWay returns the gang that is ahead in the documented order, waits, fits now, and could use the room that is about to be taken; nil:
// there is none, and the room may be taken. GiveWay wakes that gang; again is called after the gang was planned.
func (p *Planner) GiveWay(
	ctx context.Context,
	nodes []fwk.NodeInfo,
	turn gangcache.Turn,
	taking []Taking,
	again func(),
) (*gangcache.Waiting, error) {
	own, _ := p.gangOf(taking[0].Pod)
	ahead := p.config.Gangs.Ahead(turn, own)
	if len(ahead) == 0 {
		return nil, nil
	}
	p.Follow(nodes)
	now := p.now()
	o := p.order
	o.vain, o.at = min(vainMost, o.vain+time.Duration(vainShare*float64(now.Sub(o.at)))), now
	for i := range ahead {
		w := &ahead[i]
		holds := false
		if a := o.answers[w.Key.Gang]; a != nil {
			holds = a.recheck(&p.gained, p.tree, w.Version, w.Pending, now.UnixNano())
		}
		if holds || o.passed(w.Key.Gang, now) {
			continue
		}
		if o.vain <= 0 && (!w.Key.Degraded || o.vain <= -vainDegraded) {
			continue
		}
		fits, err := p.probe(ctx, nodes, w, turn, taking)
		if err != nil {
			return nil, err
		}
		if fits {
			p.call(ctx, *w, taking[0].Pod.UID, again)
			return w, nil
		}
		checked := p.now()
		o.vain -= checked.Sub(now)
		now = checked
	}
	return nil, nil
}

// probe reports whether a waiting gang could use the room before its turn passes to another, and fits now; it records a refusal.
func (p *Planner) probe(
	ctx context.Context, nodes []fwk.NodeInfo, w *gangcache.Waiting, than gangcache.Turn, taking []Taking,
) (bool, error) {
	snapshot, ok := p.config.Gangs.WaitingInput(w.Key.Gang)
	if !ok || p.Outdated(snapshot) {
		return false, nil
	}
	all := len(snapshot.Else)
	snapshot.Else = slices.DeleteFunc(slices.Clone(snapshot.Else), func(of gangcache.Snapshot) bool { return of.Turn.Compare(than) > 0 })
	uses, err := p.uses(snapshot, taking)
	if err != nil || !uses {
		return false, err
	}
	fits, err := p.askBriefly(ctx, nodes, snapshot, len(snapshot.Else) == all)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Checking whether a gang that is ahead would fit failed", "gang", w.Key.Gang)
	}
	return fits && err == nil, nil
}

// askBriefly reports whether a gang would be placed now. It records a refusal if that is of all that the gang would have placed.
func (p *Planner) askBriefly(ctx context.Context, nodes []fwk.NodeInfo, of gangcache.Snapshot, all bool) (bool, error) {
	began := p.now()
	p.brief = true
	_, placement, refusal, err := p.First(ctx, nodes, of)
	p.brief = false
	if err != nil || refusal == nil {
		return placement.Placed > 0, err
	}
	if all {
		p.noteRefused(of, refusal, p.now().Sub(began))
	}
	return false, nil
}

// noteRefused records a refusal and what may change it.
func (p *Planner) noteRefused(of gangcache.Snapshot, refusal *gang.Refusal, took time.Duration) {
	r := &refused{
		version: of.Version,
		seen:    p.gained.now(),
		wanted:  refusal.Wanted,
		fit:     refusal.Fits,
		any:     p.conditional || refusal.Undecided || len(refusal.Excluded) == 0,
	}
	if r.any {
		r.until = p.now().Add(askedAgain * took).UnixNano()
	}
	for cause := range refusal.Excluded {
		r.any = r.any || cause.Kind == gang.Spare || cause.Kind == gang.Unlabelled
	}
	r.pending = of.Pending
	var err error
	asks, malformed := gangcache.Asks(of.Members[0].Pod, of.Terms)
	if r.roles, _, err = p.asks(of); err != nil || malformed != nil {
		return
	}
	r.any = r.any || asks.Spares > 0
	r.counted = len(r.roles) == 1 && of.Required == 0 && of.OnNodes() == 0 && asks.SliceLevel == "" && asks.SliceSize == 0 && asks.Block == 0
	key, _ := p.gangOf(of.Members[0].Pod)
	p.order.answers[key] = r
}

// toPlace returns the members that a plan, or one in its Else, would place.
func toPlace(of gangcache.Snapshot) (all []gangcache.Member) {
	for _, one := range append([]gangcache.Snapshot{of}, of.Else...) {
		for _, m := range one.Members {
			if m.State == gangcache.Pending {
				all = append(all, m)
			}
		}
	}
	return all
}

// asks returns what the members to be placed request of a node; whole: they use it exclusively.
func (p *Planner) asks(of gangcache.Snapshot) (roles []topology.Resources, whole bool, err error) {
	seen := map[string]bool{}
	for _, m := range toPlace(of) {
		if seen[m.Role] {
			continue
		}
		seen[m.Role] = true
		info, err := framework.NewPodInfo(m.Pod)
		if err != nil {
			return nil, false, fmt.Errorf("reading the affinity of pod %s: %w", m.Pod.Name, err)
		}
		if asks := p.fabric.asked(info); !slices.ContainsFunc(roles, func(r topology.Resources) bool { return maps.Equal(r, asks) }) {
			roles = append(roles, asks)
		}
		whole = whole || p.fabric.usage(info).Exclusive
	}
	return roles, whole, nil
}

// uses reports whether a gang could use room that is about to be taken: the node would take fewer of its members afterwards, or more than
// room decides.
func (p *Planner) uses(of gangcache.Snapshot, taking []Taking) (bool, error) {
	roles, whole, err := p.asks(of)
	if err != nil || whole || p.tree.Claimed(topology.Root) {
		return true, err
	}
	for _, m := range toPlace(of) {
		if touchesOthers(m.Pod) || len(m.Pod.Spec.ResourceClaims) > 0 {
			return true, nil
		}
	}
	mark := p.tree.Mark()
	defer p.tree.Undo(mark)
	before := map[int][]int{}
	for _, t := range taking {
		info, err := framework.NewPodInfo(t.Pod)
		if err != nil {
			return false, fmt.Errorf("reading the affinity of pod %s: %w", t.Pod.Name, err)
		}
		usage := p.fabric.usage(info)
		i, ok := p.tree.Find(t.Node)
		if !ok {
			continue
		}
		if usage.Exclusive || touchesOthers(t.Pod) {
			return true, nil
		}
		if before[i] == nil {
			before[i] = p.rooms(i, roles)
		}
		p.tree.Assume(i, usage)
	}
	for i, had := range before {
		if !slices.Equal(had, p.rooms(i, roles)) {
			return true, nil
		}
	}
	return false, nil
}

// rooms returns how many members of each kind a node takes.
func (p *Planner) rooms(node int, roles []topology.Resources) []int {
	rooms := make([]int, len(roles))
	for k, asks := range roles {
		rooms[k] = p.tree.Room(node, asks, 1<<16)
	}
	return rooms
}

// passed reports whether others need not wait for a gang now: it did not come when it was called, or it was refused repeatedly though it
// was expected to fit.
func (o *order) passed(key types.NamespacedName, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.called[key]
	return c != nil && c.absent || now.Before(o.misfits[key].until)
}

// call wakes a gang whose turn it is. A gang whose last plan could not be followed is planned again without a call.
func (p *Planner) call(ctx context.Context, w gangcache.Waiting, by types.UID, again func()) {
	o, key, logger := p.order, w.Key.Gang, klog.FromContext(ctx)
	o.mu.Lock()
	c := o.called[key]
	if c == nil {
		c = &called{after: map[types.UID]func(){}}
		o.called[key] = c
		time.AfterFunc(comes, func() { o.miss(key, c) })
	}
	c.after[by] = again
	o.mu.Unlock()
	if w.GivenUp == 0 {
		go p.config.Wake(logger, key)
	}
}

// miss retries the others if a gang did not come in time.
func (o *order) miss(key types.NamespacedName, c *called) {
	o.mu.Lock()
	if o.called[key] != c {
		o.mu.Unlock()
		return
	}
	after := c.after
	c.absent, c.after = true, map[types.UID]func(){}
	o.mu.Unlock()
	for _, again := range after {
		again()
	}
}

// Decided records that a gang was planned, with its refusal or nil, and retries the pods that gave way to it.
func (p *Planner) Decided(of gangcache.Snapshot, refusal *gang.Refusal, took time.Duration) {
	key, _ := p.gangOf(of.Members[0].Pod)
	o := p.order
	o.mu.Lock()
	c := o.called[key]
	delete(o.called, key)
	o.mu.Unlock()
	switch {
	case refusal == nil:
		delete(o.answers, key)
		delete(o.misfits, key)
	default:
		p.noteRefused(of, refusal, took)
		if c != nil {
			o.misfit(key, p.now())
		}
	}
	o.forget(p.config.Gangs.Knows)
	if c != nil {
		go func() {
			for _, again := range c.after {
				again()
			}
		}()
	}
}

// misfit counts a refusal of a gang that others gave way to.
func (o *order) misfit(key types.NamespacedName, now time.Time) {
	m := o.misfits[key]
	if m.n++; m.n >= mostMisfits {
		m.until = now.Add(min(misfitRestMost, misfitRest<<min(m.n-mostMisfits, 5)))
	}
	o.misfits[key] = m
}

// forget drops gangs that are gone once their number has doubled.
func (o *order) forget(exists func(types.NamespacedName) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.answers)+len(o.misfits)+len(o.called) < 2*o.kept+64 {
		return
	}
	maps.DeleteFunc(o.called, func(key types.NamespacedName, _ *called) bool { return !exists(key) })
	maps.DeleteFunc(o.answers, func(key types.NamespacedName, _ *refused) bool { return !exists(key) })
	maps.DeleteFunc(o.misfits, func(key types.NamespacedName, _ misfit) bool { return !exists(key) })
	o.kept = len(o.answers) + len(o.misfits) + len(o.called)
}
