package planner

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/plugintest"
)

// history is a cluster in which gangs and single pods are created, lose pods and end, and nodes are added and cordoned. Pods are tried in
// any order, wherever the scheduling queue would hold them.
type history struct {
	*stage
	rng   *rand.Rand
	seed  int64
	nodes map[string]*v1.Node
	pods  map[types.UID]*v1.Pod
	made  int
	// gaveWay counts how often a gang or pod gave way.
	gaveWay int
}

// entity is a gang or a single pod that waits.
type entity struct {
	turn gangcache.Turn
	gang bool
	pod  *v1.Pod
}

func (h *history) step() {
	switch k := h.rng.Intn(12); {
	case k < 2:
		h.arrive()
	case k < 3:
		h.node()
	case k < 5:
		h.cordon()
	case k < 6:
		h.lose()
	case k < 7:
		h.end()
	default:
		if all := h.entities(); len(all) > 0 {
			h.try(all[h.rng.Intn(len(all))])
		}
	}
}

func (h *history) node() {
	h.made++
	n := labelled(node(fmt.Sprintf("n%d-%d", h.seed, h.made), int64(1+h.rng.Intn(4))), "topology.kubernetes.io/zone", fmt.Sprint("z", h.rng.Intn(2)))
	h.nodes[n.Name] = n
	h.Add(n)
}

func (h *history) arrive() {
	h.made++
	name, priority, gpus, size := fmt.Sprintf("g%d-%d", h.seed, h.made), int32(h.rng.Intn(2)), int64(1+h.rng.Intn(2)), 1+h.rng.Intn(3)
	pods := []*v1.Pod{pod(name, gpus)}
	if h.rng.Intn(3) > 0 {
		pods = gangOf(name, size, gpus)
	}
	least := 1 + h.rng.Intn(2*size)
	asks := []string{"", "", v1alpha1.AnnotationTopologyRequired, v1alpha1.AnnotationWholeNodes}[h.rng.Intn(4)]
	for _, p := range pods {
		p.CreationTimestamp, p.Spec.Priority = metav1.NewTime(plugintest.At(int64(h.rng.Intn(5)))), &priority
		if p.Annotations != nil { // from the size on, all are needed
			p.Annotations[v1alpha1.AnnotationGangMin] = fmt.Sprint(least)
		}
		switch {
		case p.Annotations == nil:
		case asks == v1alpha1.AnnotationTopologyRequired:
			p.Annotations[asks] = "zone"
		case asks != "":
			p.Annotations[asks] = "true"
		}
		h.see(p)
	}
}

func (h *history) see(p *v1.Pod) {
	h.pods[p.UID] = p
	if key, ok := h.planner.gangOf(p); ok {
		h.planner.config.Gangs.Enqueued(key, p, func() bool { return true })
		h.planner.config.Gangs.Observe(key, p)
	}
}

func (h *history) cordon() {
	if names := slices.Sorted(maps.Keys(h.nodes)); len(names) > 0 {
		was := h.nodes[names[h.rng.Intn(len(names))]]
		is := was.DeepCopy()
		is.Spec.Unschedulable = !is.Spec.Unschedulable
		h.nodes[is.Name] = is
		h.Cache().UpdateNode(klog.Background(), was, is)
	}
}

// bound returns the pods that have a node: of gangs only, or all.
func (h *history) bound(gangs bool) []*v1.Pod {
	var all []*v1.Pod
	for _, p := range h.pods {
		if p.Spec.NodeName != "" && (!gangs || p.Labels[v1alpha1.LabelGang] != "") {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return all
}

// lose makes a gang lose a pod and get another one.
func (h *history) lose() {
	if all := h.bound(true); len(all) > 0 {
		p := all[h.rng.Intn(len(all))]
		h.gone(p)
		h.made++
		next := p.DeepCopy()
		next.Name, next.UID, next.Spec.NodeName = fmt.Sprintf("%s-r%d", p.Name, h.made), types.UID(fmt.Sprintf("%s-r%d", p.UID, h.made)), ""
		next.CreationTimestamp = metav1.NewTime(plugintest.At(10))
		h.see(next)
	}
}

// end makes a gang or a single pod end.
func (h *history) end() {
	if all := h.bound(false); len(all) > 0 {
		of := all[h.rng.Intn(len(all))]
		for _, p := range slices.Collect(maps.Values(h.pods)) {
			if p == of || of.Labels[v1alpha1.LabelGang] != "" && p.Labels[v1alpha1.LabelGang] == of.Labels[v1alpha1.LabelGang] {
				h.gone(p)
			}
		}
	}
}

func (h *history) gone(p *v1.Pod) {
	delete(h.pods, p.UID)
	if key, ok := h.planner.gangOf(p); ok {
		h.planner.config.Gangs.Forget(key, p.UID)
	}
	if p.Spec.NodeName != "" {
		if err := h.Cache().RemovePod(klog.Background(), p); err != nil {
			h.t.Fatal(err)
		}
	}
}

// entities returns all that wait, in the documented order, computed only from the pods.
func (h *history) entities() []entity {
	gangs := map[string][]*v1.Pod{}
	var all []entity
	for _, p := range h.pods {
		if name := p.Labels[v1alpha1.LabelGang]; name != "" {
			gangs[name] = append(gangs[name], p)
		} else if p.Spec.NodeName == "" {
			all = append(all, entity{gangcache.TurnOf(p), false, p})
		}
	}
	for name, pods := range gangs {
		if e := entityOf(name, pods); e.pod != nil {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b entity) int { return a.turn.Compare(b.turn) })
	return all
}

// entityOf returns a gang that waits. The pods of an elastic gang that has its minimum wait since they exist, not since the first pod does.
func entityOf(name string, pods []*v1.Pod) entity {
	e, on := entity{gang: true}, 0
	size := len(pods)
	least := membership.GangMin(pods[0], size)
	e.turn.Key.Since = pods[0].CreationTimestamp.Time
	for _, p := range pods {
		if p.CreationTimestamp.Time.Before(e.turn.Key.Since) {
			e.turn.Key.Since = p.CreationTimestamp.Time
		}
		if p.Spec.NodeName != "" {
			on++
		} else if e.pod == nil || leads(p, e.pod, least < size) {
			e.pod = p
		}
	}
	if e.pod == nil {
		return e
	}
	if on >= least {
		e.turn.Key.Since = e.pod.CreationTimestamp.Time
	}
	e.turn.Priority, e.turn.Key.Gang, e.turn.Key.Slot = *e.pod.Spec.Priority, key(name), gangcache.SlotOf(e.pod).N
	e.turn.Key.Degraded = on > 0 && on < least
	return e
}

// leads reports whether a pod leads rather than another.
func leads(p, than *v1.Pod, elastic bool) bool {
	if made := than.CreationTimestamp.Time; elastic && !p.CreationTimestamp.Time.Equal(made) {
		return p.CreationTimestamp.Time.Before(made)
	}
	return gangcache.SlotOf(p).N < gangcache.SlotOf(than).N
}

var key = plugintest.Key

// plan returns where an entity would be placed; nil: nowhere.
func (h *history) plan(e entity) (of gangcache.Snapshot, taking []Taking) {
	of = asked([]*v1.Pod{e.pod})
	if e.gang {
		snapshot, ok := h.planner.config.Gangs.WaitingInput(e.turn.Key.Gang)
		if !ok {
			h.t.Fatalf("gang %s does not wait", e.turn.Key.Gang)
		}
		of = snapshot
	}
	chosen, placement, refusal, err := h.planner.First(h.t.Context(), h.Nodes(), of)
	if err != nil {
		h.t.Fatal(err)
	}
	if refusal != nil {
		if e.gang {
			h.planner.Decided(of, refusal, 0)
		}
		return of, nil
	}
	at := placement.At()
	for _, m := range chosen.Members {
		if node := at[m.Pod.Name]; m.State == gangcache.Pending && node != "" {
			taking = append(taking, Taking{Pod: m.Pod, Node: node})
		}
	}
	return chosen, taking
}

// fits reports whether a planner without caches would place an entity now, in a turn before another.
func (h *history) fits(e entity, nodes []fwk.NodeInfo, than gangcache.Turn) bool {
	snapshot, ok := h.planner.config.Gangs.WaitingInput(e.turn.Key.Gang)
	if !ok {
		return false
	}
	for _, of := range append([]gangcache.Snapshot{snapshot}, snapshot.Else...) {
		if of.Turn.Compare(than) > 0 {
			continue
		}
		_, refusal, err := h.planner.Answer(h.t.Context(), nodes, of)
		if err != nil {
			h.t.Fatal(err)
		}
		if refusal == nil {
			return true
		}
	}
	return false
}

// last returns the turn of the youngest pod that a plan places: surplus has no turn before its own.
func last(of gangcache.Snapshot, taking []Taking) gangcache.Turn {
	t := of.Turn
	_, surplus, _ := of.Needed()
	for _, pod := range taking {
		made := pod.Pod.CreationTimestamp.Time
		if slices.Contains(surplus, pod.Pod) && (t.Key.Degraded || made.After(t.Key.Since)) {
			t.Key.Since, t.Key.Degraded = made, false
		}
	}
	return t
}

// try does what a scheduling cycle does for an entity, and checks that no entity ahead of it could use the room.
func (h *history) try(e entity) (placed bool) {
	of, taking := h.plan(e)
	if len(taking) == 0 {
		return false
	}
	h.planner.order.vain = vainMost
	turn := e.turn
	if e.gang {
		if snapshot, ok := h.planner.config.Gangs.WaitingInput(e.turn.Key.Gang); !ok || snapshot.Turn != e.turn {
			h.t.Fatalf("seed %d: the turn of %s is %+v, want %+v", h.seed, e.turn.Key.Gang, snapshot.Turn, e.turn)
		}
		turn = of.Turn
	}
	var before []entity
	youngest := turn
	if e.gang {
		youngest = last(of, taking)
	}
	for _, other := range h.entities() {
		if other.gang && other.turn.Key.Gang != turn.Key.Gang && h.fits(other, h.Nodes(), youngest) {
			before = append(before, other)
		}
	}
	ahead, err := h.planner.GiveWay(h.t.Context(), h.Nodes(), turn, taking, func() {})
	if err != nil {
		h.t.Fatal(err)
	}
	if ahead != nil {
		h.gaveWay++
		if len(before) == 0 {
			h.t.Errorf("seed %d: %s gave way to %s, which does not fit", h.seed, e.turn.Key.Gang, ahead.Key.Gang)
		}
		return false
	}
	if e.gang {
		h.planner.Decided(of, nil, 0)
	}
	for _, t := range taking {
		bound := t.Pod.DeepCopy()
		bound.Spec.NodeName = t.Node
		h.pods[bound.UID] = bound
		if e.gang {
			h.planner.config.Gangs.Observe(e.turn.Key.Gang, bound)
		}
		h.Add(bound)
	}
	for _, other := range before {
		if !h.fits(other, h.Nodes(), youngest) {
			h.t.Errorf("seed %d: %+v took room that %+v could have used", h.seed, e.turn, other.turn)
		}
	}
	return true
}

// No gang or single pod gets room that a gang ahead of it in the documented order could use, whichever is tried first, wherever the gang
// ahead is held, and however the room became free. If entities are tried in order, all that fit are placed, so giving way ends.
func TestNobodyIsPassed(t *testing.T) {
	gaveWay, s := 0, newStage(t)
	clock := time.Unix(1<<20, 0)
	s.planner.now = func() time.Time { clock = clock.Add(time.Microsecond); return clock } // a search takes next to no time: none is cut short
	for seed := range seeds.All(t, int64(10000)) {
		h := &history{stage: s, rng: rand.New(rand.NewSource(seed)), seed: seed, nodes: map[string]*v1.Node{}, pods: map[types.UID]*v1.Pod{}}
		h.node()
		for range 24 {
			h.step()
		}
		for again := true; again; {
			again = false
			for _, e := range h.entities() {
				if again = h.try(e); again {
					break
				}
			}
		}
		for _, e := range h.entities() {
			if e.gang && h.fits(e, h.Nodes(), gangcache.Turn{Priority: math.MinInt32}) {
				t.Errorf("seed %d: %s fits and waits", seed, e.turn.Key.Gang)
			}
		}
		gaveWay += h.gaveWay
		for _, p := range slices.Collect(maps.Values(h.pods)) {
			h.gone(p)
		}
		for _, n := range h.nodes {
			s.Remove(n)
		}
		if t.Failed() {
			return
		}
	}
	if !seeds.One() && gaveWay < 1000 {
		t.Errorf("%d gave way: the histories are too tame", gaveWay)
	}
}

// Time spent on the check that a gang ahead could not use the room is charged as spent in vain.
func TestAskingWhoCouldUseTheRoomIsCharged(t *testing.T) {
	s := newStage(t, node("a", 2), node("b", 2))
	for _, p := range gangOf("large", 300, 2) {
		s.planner.config.Gangs.Enqueued(key("large"), p, func() bool { return true })
	}
	late := plugintest.Created(pod("late", 0), time.Now().Add(time.Hour))
	ahead, err := s.planner.GiveWay(t.Context(), s.Nodes(), gangcache.TurnOf(late), []Taking{{Pod: late, Node: "a"}}, func() {})
	if ahead != nil || err != nil {
		t.Fatalf("%v, %v", ahead, err)
	}
	if s.planner.order.vain >= vainMost {
		t.Errorf("%v of %v are left", s.planner.order.vain, vainMost)
	}
}
