package plugin

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/groups"
)

// enter has the scheduling queue take a pod in.
func enter(l *ledger, p *v1.Pod) change {
	return l.enqueued(key("g"), p, func() bool { return true })
}

// Whatever happens in whatever order: the counts follow from the members, the leader is the pending member of
// the lowest slot, a node stands exactly where the state says so, and forming lists members with a node.
func TestLedgerUnderRandomHistories(t *testing.T) {
	for seed := range int64(300) {
		rng := rand.New(rand.NewSource(seed))
		l, k := newLedger(), key("g")
		least := 0
		if seed%2 == 1 { // one that can do with fewer than there are
			least = 1 + rng.Intn(4)
			l.terms = func(types.NamespacedName, *v1.Pod) (groups.Terms, error) {
				return groups.Terms{Size: least, Min: least}, nil
			}
		}
		pods := map[types.UID]*v1.Pod{}
		pick := func() *v1.Pod {
			if len(pods) == 0 {
				return memberPod("g", 9, 4, 1)
			}
			uids := slices.SortedFunc(maps.Keys(pods), func(a, b types.UID) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
			return pods[uids[rng.Intn(len(uids))]]
		}
		for step := range 80 {
			switch rng.Intn(12) {
			case 0, 1, 2:
				p := memberPod("g", rng.Intn(4), 4, 1)
				if seed%2 == 0 {
					p.Annotations[v1alpha1.AnnotationWholeNodes] = "true"
				}
				if g := l.groups[k]; (g == nil || !g.open) && rng.Intn(8) == 0 {
					p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "other"}}
				}
				pods[p.UID] = p
				if l.observe(k, p); rng.Intn(4) > 0 {
					enter(l, p)
				}
			case 3:
				p := pick()
				delete(pods, p.UID)
				gone := l.forget
				if rng.Intn(2) == 0 {
					gone = func(k types.NamespacedName, _ types.UID) bool { return l.leave(k, p) }
				}
				if gone(k, p.UID) {
					l.giveUp(k)
				}
			case 4:
				if r, missing := l.brief(k); missing == nil {
					plan := map[types.UID]string{}
					for _, m := range r.members {
						if m.state == pending && (least == 0 || r.onNodes()+len(plan) < least || rng.Intn(2) == 0) {
							plan[m.pod.UID] = "n"
						}
					}
					l.open(k, plan, at(int64(step)))
				}
			case 5:
				l.reserve(k, pick(), "n")
			case 6:
				l.unreserve(k, pick().UID)
			case 7:
				p := pick().DeepCopy()
				if _, ok := pods[p.UID]; ok {
					p.Spec.NodeName = "n"
					pods[p.UID] = p
					l.observe(k, p)
				}
			case 9:
				enter(l, pick())
			case 10:
				if rng.Intn(8) == 0 {
					l.explain(question{key: k}, []*v1.Pod{memberPod("g", rng.Intn(4), 4, 1)})
				}
			case 11:
				l.lapsed(at(int64(step)), 20*time.Second)
			case 8:
				if rng.Intn(2) == 0 {
					l.giveUp(k)
				} else if g := l.groups[k]; g != nil && !g.open {
					manned := g.manned()
					if undo := l.refuse(k, &gang.Refusal{}); manned && len(undo) > 0 {
						t.Fatalf("seed %d step %d: a gang that has what it needs is taken back: %d pods", seed, step, len(undo))
					}
				}
			}
			l.expected()
			checkLedger(t, fmt.Sprintf("seed %d step %d", seed, step), l.groups[k])
			checkClosings(t, fmt.Sprintf("seed %d step %d", seed, step), l)
		}
	}
}

// checkClosings: nodes are closed by members that want them whole, and no others.
func checkClosings(t *testing.T, when string, l *ledger) {
	t.Helper()
	want := map[string]closing{}
	for k, g := range l.groups {
		for uid, m := range g.members {
			if c := want[m.node]; m.whole && m.node != "" {
				c.gang, c.members = k, c.members+1
				if m.state == planned {
					c.planned++
				}
				want[m.node] = c
			}
			if s, has := l.closed.seats[uid]; has && s.node == "" {
				t.Fatalf("%s: member %s is a stray", when, m.pod.Name)
			}
		}
	}
	if !maps.Equal(want, l.closed.nodes) {
		t.Fatalf("%s: closed are %v, want %v", when, l.closed.nodes, want)
	}
}

func checkLedger(t *testing.T, when string, g *group) {
	t.Helper()
	if g == nil {
		return
	}
	var counts [bound + 1]int
	var lowest *member
	gated, outside, slots := 0, 0, map[int]int{}
	for _, m := range g.members {
		counts[m.state]++
		if m.gated {
			gated++
		}
		if !m.queued {
			outside++
		}
		slots[m.slot.n]++
		if m.state == pending && !m.gated && (lowest == nil || bySlot(*m, *lowest) < 0) {
			lowest = m
		}
		if (m.node == "") != (m.state == pending) {
			t.Fatalf("%s: a member in state %d has node %q", when, m.state, m.node)
		}
	}
	if outside != g.outside || !maps.Equal(slots, g.slots) || g.unslotted != 0 {
		t.Fatalf("%s: %d are outside the queue and slots are %v, want %d %v", when, g.outside, g.slots, outside, slots)
	}
	if counts != g.counts || gated != g.gated {
		t.Fatalf("%s: counts %v gated %d, want %v %d", when, g.counts, g.gated, counts, gated)
	}
	if first := g.first(); (first == nil) != (lowest == nil) || (first != nil && bySlot(*first, *lowest) != 0) {
		t.Fatalf("%s: the leader is %v, want %v", when, first, lowest)
	}
	for _, p := range g.forming {
		if m := g.members[p.UID]; m == nil || m.state < reserved {
			t.Fatalf("%s: %s is to be taken back though it holds nothing", when, p.Name)
		}
	}
	if g.open && counts[planned] == 0 {
		t.Fatalf("%s: a plan stands that nobody is to follow", when)
	}
	if counts[planned] > 0 && (!g.open || !g.staffed()) {
		t.Fatalf("%s: members are planned without a plan, or for a gang that is not complete", when)
	}
}

// A plan that was made for members that have changed since is not opened: it would stand for ever.
func TestAPlanForAChangedGangIsNotOpened(t *testing.T) {
	l, k := newLedger(), key("g")
	a, old, anew := memberPod("g", 0, 2, 1), memberPod("g", 1, 2, 1), memberPod("g", 1, 2, 1)
	enter(l, a)
	enter(l, old)
	plan := map[types.UID]string{a.UID: "n", old.UID: "n"}
	l.forget(k, old.UID)
	if l.open(k, plan, at(0)) {
		t.Error("opened for a gang that lacks a member")
	}
	enter(l, anew)
	if l.open(k, plan, at(0)) {
		t.Error("opened for a member that is gone")
	}
	if leader := l.leader(k); leader == nil || leader.UID != a.UID {
		t.Errorf("the leader is %v", leader)
	}
	if !l.open(k, map[types.UID]string{a.UID: "n", anew.UID: "n"}, at(0)) {
		t.Error("not opened for the members that there are")
	}
}

func TestWhatAFreshGangHoldsIsGivenBackNewestFirst(t *testing.T) {
	l, k := newLedger(), key("g")
	pods := []*v1.Pod{memberPod("g", 0, 3, 1), memberPod("g", 1, 3, 1), memberPod("g", 2, 3, 1)}
	plan := map[types.UID]string{}
	for _, p := range pods {
		enter(l, p)
		plan[p.UID] = "n"
	}
	l.open(k, plan, at(0))
	l.reserve(k, pods[2], "n")
	l.reserve(k, pods[0], "n")
	l.giveUp(k)
	undo := l.refuse(k, &gang.Refusal{})
	if len(undo) != 2 || undo[0] != pods[0] || undo[1] != pods[2] {
		t.Errorf("given back: %v", undo)
	}
	if l.observe(k, pods[0]); l.leader(k) != nil {
		t.Error("a pod that is being taken back counts as a member")
	}
	if again := l.refuse(k, &gang.Refusal{}); len(again) != 0 {
		t.Errorf("given back twice: %v", again)
	}
}

// A gang that was complete before the replica began has waited since then; what the replica sees to happen counts from then on.
func TestSinceWhenAGangWaits(t *testing.T) {
	hourAgo := time.Now().Add(-time.Hour)
	gate := func(p *v1.Pod) *v1.Pod {
		p = p.DeepCopy()
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "quota"}}
		return p
	}
	first, second := created(memberPod("g", 0, 2, 1), hourAgo.Add(-time.Hour)), created(memberPod("g", 1, 2, 1), hourAgo)
	late := created(memberPod("g", 1, 2, 1), time.Now())
	for name, c := range map[string]struct {
		pods []*v1.Pod
		want time.Duration
	}{
		"it was complete":        {[]*v1.Pod{first, second}, time.Hour},
		"it becomes so":          {[]*v1.Pod{first, late}, 0},
		"gates are lifted":       {[]*v1.Pod{first, gate(second), second}, 0},
		"gates were lifted":      {[]*v1.Pod{second, first}, time.Hour},
		"it is not complete yet": {[]*v1.Pod{first}, 0},
	} {
		l := newLedger()
		for _, p := range c.pods {
			enter(l, p)
			l.observe(key("g"), p)
		}
		if waited := l.waited(key("g"), time.Now()); waited < c.want || waited > c.want+10*time.Minute {
			t.Errorf("%s: it has waited for %s, want %s", name, waited, c.want)
		}
	}
}
