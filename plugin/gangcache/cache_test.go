package gangcache

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/plugin/plugintest"
)

var (
	memberPod = plugintest.Member
	on        = plugintest.On
	asking    = plugintest.Asking
	created   = plugintest.Created
	key       = plugintest.Key
	at        = plugintest.At
)

// newCache returns a Cache of gangs whose terms come only from their pods.
func newCache() *Cache {
	return New(Config{
		Terms:        func(_ types.NamespacedName, pod *v1.Pod) (Terms, error) { return OwnTerms(pod) },
		Role:         func(pod *v1.Pod) string { return pod.Namespace },
		AwaitsClaims: func(*v1.Pod) bool { return false },
	})
}

// enter passes a pod to the scheduling queue.
func enter(l *Cache, p *v1.Pod) Change {
	return l.Enqueued(key("g"), p, func() bool { return true })
}

// After any history: the counts match the members, the leader is the pending member of the lowest slot, and a member has a node exactly if
// its state requires one.
func TestCacheUnderRandomHistories(t *testing.T) {
	for seed := range seeds.All(t, int64(300)) {
		rng := rand.New(rand.NewSource(seed))
		l, k := newCache(), key("g")
		least := 0
		if seed%2 == 1 { // a gang whose minimum is below its number of pods
			least = 1 + rng.Intn(4)
			first := least // how many must exist before any is placed
			if seed%4 == 1 {
				first = 4
			}
			l.config.Terms = func(types.NamespacedName, *v1.Pod) (Terms, error) {
				return Terms{Size: first, Min: least}, nil
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
				if g := l.groups[k]; (g == nil || !g.phase.open()) && rng.Intn(8) == 0 {
					p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "other"}}
				}
				pods[p.UID] = p
				if l.Observe(k, p); rng.Intn(4) > 0 {
					enter(l, p)
				}
			case 3:
				p := pick()
				delete(pods, p.UID)
				gone := l.Forget
				if rng.Intn(2) == 0 {
					gone = func(k types.NamespacedName, _ types.UID) bool { return l.NoteTerminating(k, p) }
				}
				if gone(k, p.UID) {
					l.GiveUp(k)
				}
			case 4:
				if r, missing := l.PlanInput(k); missing == nil {
					plan := map[types.UID]string{}
					for _, m := range r.Members {
						if m.State == Pending && (least == 0 || r.OnNodes()+len(plan) < least || rng.Intn(2) == 0) {
							plan[m.Pod.UID] = "n"
						}
					}
					l.Open(k, plan, at(int64(step)))
				}
			case 5:
				l.Reserve(k, pick(), "n")
			case 6:
				l.Unreserve(k, pick().UID)
			case 7:
				p := pick().DeepCopy()
				if _, ok := pods[p.UID]; ok {
					p.Spec.NodeName = "n"
					pods[p.UID] = p
					l.Observe(k, p)
				}
			case 9:
				enter(l, pick())
			case 10:
				if rng.Intn(8) == 0 {
					l.Explain(Question{Key: k}, []*v1.Pod{memberPod("g", rng.Intn(4), 4, 1)})
				}
			case 11:
				l.SweepLapsed(at(int64(step)), 20*time.Second)
			case 8:
				if rng.Intn(2) == 0 {
					l.GiveUp(k)
				} else if g := l.groups[k]; g != nil && !g.phase.open() {
					manned := g.minimumPlaced()
					if undo := l.Refuse(k, &gang.Refusal{}); manned && len(undo) > 0 {
						t.Fatalf("seed %d step %d: a gang that has what it needs is taken back: %d pods", seed, step, len(undo))
					}
				}
			}
			l.Expected()
			checkCounts(t, fmt.Sprintf("seed %d step %d", seed, step), l.groups[k])
			checkExclusive(t, fmt.Sprintf("seed %d step %d", seed, step), l)
		}
	}
}

// checkExclusive checks that exactly those nodes are exclusive whose members use them exclusively.
func checkExclusive(t *testing.T, when string, l *Cache) {
	t.Helper()
	want := map[string]exclusion{}
	for k, g := range l.groups {
		for uid, m := range g.members {
			if c := want[m.Node]; m.exclusive && m.Node != "" {
				c.gang, c.members = k, c.members+1
				if m.State == Planned {
					c.planned++
				}
				want[m.Node] = c
			}
			if s, has := l.exclusive.uses[uid]; has && s.node == "" {
				t.Fatalf("%s: member %s is a stray", when, m.Pod.Name)
			}
		}
	}
	if !maps.Equal(want, l.exclusive.nodes) {
		t.Fatalf("%s: closed are %v, want %v", when, l.exclusive.nodes, want)
	}
}

func checkCounts(t *testing.T, when string, g *group) {
	t.Helper()
	if g == nil {
		return
	}
	var counts [Bound + 1]int
	var lowest *Member
	gated, outside, slots := 0, 0, map[int]int{}
	for _, m := range g.members {
		counts[m.State]++
		if m.gated {
			gated++
		}
		if !m.queued {
			outside++
		}
		slots[m.Slot.N]++
		if m.State == Pending && !m.gated && (lowest == nil || BySlot(*m, *lowest) < 0) {
			lowest = m
		}
		if (m.Node == "") != (m.State == Pending) {
			t.Fatalf("%s: a member in state %d has node %q", when, m.State, m.Node)
		}
	}
	if outside != g.outside || !maps.Equal(slots, g.slots) || g.unslotted != 0 {
		t.Fatalf("%s: %d are outside the queue and slots are %v, want %d %v", when, g.outside, g.slots, outside, slots)
	}
	if counts != g.counts || gated != g.gated {
		t.Fatalf("%s: counts %v gated %d, want %v %d", when, g.counts, g.gated, counts, gated)
	}
	if first := g.first(); (first == nil) != (lowest == nil) || (first != nil && BySlot(*first, *lowest) != 0) {
		t.Fatalf("%s: the leader is %v, want %v", when, first, lowest)
	}
	for _, p := range g.initialPlacement {
		if m := g.members[p.UID]; m == nil || m.State < Reserved {
			t.Fatalf("%s: %s is to be taken back though it holds nothing", when, p.Name)
		}
	}
	if g.phase.open() && counts[Planned] == 0 {
		t.Fatalf("%s: a plan stands that nobody is to follow", when)
	}
	must := g.size
	if g.terms.Min > 0 {
		must = g.terms.Min
	}
	if counts[Planned] > 0 && (!g.phase.open() || g.present()+g.over() < must) {
		t.Fatalf("%s: members are planned without a plan, or for a gang that is not complete", when)
	}
}

// A plan is not opened if the members have changed since it was computed. It would stay open for ever.
func TestAPlanForAChangedGangIsNotOpened(t *testing.T) {
	l, k := newCache(), key("g")
	a, old, anew := memberPod("g", 0, 2, 1), memberPod("g", 1, 2, 1), memberPod("g", 1, 2, 1)
	enter(l, a)
	enter(l, old)
	plan := map[types.UID]string{a.UID: "n", old.UID: "n"}
	l.Forget(k, old.UID)
	if l.Open(k, plan, at(0)) {
		t.Error("opened for a gang that lacks a member")
	}
	enter(l, anew)
	if l.Open(k, plan, at(0)) {
		t.Error("opened for a member that is gone")
	}
	if leader := l.Leader(k); leader == nil || leader.UID != a.UID {
		t.Errorf("the leader is %v", leader)
	}
	if !l.Open(k, map[types.UID]string{a.UID: "n", anew.UID: "n"}, at(0)) {
		t.Error("not opened for the members that there are")
	}
}

func TestWhatAFreshGangHoldsIsGivenBackNewestFirst(t *testing.T) {
	l, k := newCache(), key("g")
	pods := []*v1.Pod{memberPod("g", 0, 3, 1), memberPod("g", 1, 3, 1), memberPod("g", 2, 3, 1)}
	plan := map[types.UID]string{}
	for _, p := range pods {
		enter(l, p)
		plan[p.UID] = "n"
	}
	l.Open(k, plan, at(0))
	l.Reserve(k, pods[2], "n")
	l.Reserve(k, pods[0], "n")
	l.GiveUp(k)
	if undo := l.Refuse(k, &gang.Refusal{Undecided: true, Message: "waits"}); len(undo) != 0 {
		t.Errorf("nothing is decided yet, and given back are %v", undo)
	}
	if s, _, _ := l.Status(k); s.Message != "waits" {
		t.Errorf("people are told %q", s.Message)
	}
	undo := l.Refuse(k, &gang.Refusal{Message: "too few"})
	l.Refuse(k, &gang.Refusal{Undecided: true, Message: "waits"})
	if s, _, _ := l.Status(k); s.Message != "too few" {
		t.Errorf("people are told %q", s.Message)
	}
	if len(undo) != 2 || undo[0] != pods[0] || undo[1] != pods[2] {
		t.Errorf("given back: %v", undo)
	}
	if l.Observe(k, pods[0]); l.Leader(k) != nil {
		t.Error("a pod that is being taken back counts as a member")
	}
	if again := l.Refuse(k, &gang.Refusal{}); len(again) != 0 {
		t.Errorf("given back twice: %v", again)
	}
}

// A gang that was complete before the replica began to schedule has waited since it was complete. Later events count from when the replica
// saw them.
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
		l := newCache()
		for _, p := range c.pods {
			enter(l, p)
			l.Observe(key("g"), p)
		}
		if waited := l.Waited(key("g"), time.Now()); waited < c.want || waited > c.want+10*time.Minute {
			t.Errorf("%s: it has waited for %s, want %s", name, waited, c.want)
		}
	}
}

func TestOverduePlansAreGivenUp(t *testing.T) {
	l := newCache()
	a, b := memberPod("g", 0, 2, 1), memberPod("g", 1, 2, 1)
	enter(l, a)
	enter(l, b)
	l.Open(key("g"), map[types.UID]string{a.UID: "n", b.UID: "n"}, at(10))
	if keys := l.Overdue(at(10)); len(keys) != 0 {
		t.Errorf("a plan is overdue at once: %v", keys)
	}
	if keys := l.Overdue(at(11)); len(keys) != 1 {
		t.Errorf("overdue: %v", keys)
	}
	l.Reserve(key("g"), a, "n")
	l.Reserve(key("g"), b, "n")
	if keys := l.Overdue(at(99)); len(keys) != 0 {
		t.Errorf("a plan that all followed is overdue: %v", keys)
	}
}

// A gang is planned only after the scheduling queue has all members. Before that the queue would drop their nominations.
func TestNothingIsPlannedForMembersThatTheQueueDoesNotKnow(t *testing.T) {
	l := newCache()
	a, b := memberPod("g", 0, 2, 1), memberPod("g", 1, 2, 1)
	enter(l, a)
	if c := l.Observe(key("g"), b); c.Completed || l.Leader(key("g")) != nil {
		t.Error("complete before the queue took a member in")
	}
	if wait := l.Admit(key("g"), a.UID); wait == "" {
		t.Error("the leader was let in before the queue took a member in")
	}
	if c := enter(l, b); !c.Completed || l.Leader(key("g")) == nil {
		t.Error("not complete when the queue knows all")
	}
}

// While members wait on their nodes for a lost member, the leader skips its backoff.
func TestALostMemberIsHurried(t *testing.T) {
	l := newCache()
	a, b := on(memberPod("g", 0, 2, 1), "n"), memberPod("g", 1, 2, 1)
	enter(l, a)
	l.Observe(key("g"), a)
	enter(l, b)
	if _, hurry := l.ClaimLead(key("g"), b.UID, at(10)); hurry {
		t.Error("hurried before there was an answer")
	}
	l.Refuse(key("g"), refusedFor("test"))
	if leads, hurry := l.ClaimLead(key("g"), b.UID, at(11)); !leads || !hurry {
		t.Error("not hurried")
	}
	if leads, hurry := l.ClaimLead(key("g"), b.UID, at(11).Add(nudgeEvery/2)); !leads || hurry {
		t.Error("hurried again at once")
	}
}

// Containers that do not start are held against the node only while most members of the gang run. Otherwise the image or the volume is
// probably at fault.
func TestMembersThatDoNotStart(t *testing.T) {
	l, key := newCache(), key("g")
	long := metav1.NewTime(time.Now().Add(-time.Hour))
	for slot := range 4 {
		p := on(memberPod("g", slot, 4, 2), "n"+string(rune('0'+slot)))
		p.Status.Phase = v1.PodPending
		if slot > 1 {
			p.Status.Phase = v1.PodRunning
		}
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: long}}
		l.Observe(key, p)
	}
	if l.Placed(key, on(memberPod("g", 0, 4, 2), "n0")) {
		t.Error("a pod that named its node itself was placed by this scheduler")
	}
	for _, m := range l.groups[key].members {
		m.ours = m.Slot.N == 0
	}
	if got := l.Stuck(time.Now()); len(got) != 0 {
		t.Errorf("half run, and %d count", len(got))
	}
	p := on(memberPod("g", 1, 4, 2), "n1")
	for uid, m := range l.groups[key].members {
		if m.Slot.N == 1 {
			p.UID = uid
		}
	}
	p.Status.Phase = v1.PodRunning
	l.Observe(key, p)
	if got := l.Stuck(time.Now()); len(got) != 1 || got[0].Pod.Spec.NodeName != "n0" {
		t.Errorf("three of four run, and %d count", len(got))
	}
	if got := l.Stuck(long.Time.Add(-time.Minute)); len(got) != 0 {
		t.Error("one that has its node for a short time counts")
	}
}

// While a member passes from planned to reserved, bound and terminating, its node is exclusive at every moment.
func TestAClosedNodeStaysClosedWhileItsMemberMovesOn(t *testing.T) {
	l, p := newCache(), asking(memberPod("g", 0, 1, 2), v1alpha1.AnnotationWholeNodes, "true")
	l.Observe(key("g"), p)
	g := l.groups[key("g")]
	bind := on(p.DeepCopy(), "n")
	move := func(s State) {
		l.mu.Lock()
		defer l.mu.Unlock()
		g.set(g.members[p.UID], s, "n")
	}
	move(Planned)
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		open := 0
		for {
			select {
			case <-stop:
				done <- open
				return
			default:
				if _, planned, look := l.exclusive.by("n"); !planned && !look {
					open++
				}
			}
		}
	}()
	for range 20_000 {
		move(Reserved)
		l.Observe(key("g"), bind)
		l.NoteTerminating(key("g"), bind)
		l.Observe(key("g"), bind)
		g = l.groups[key("g")]
		move(Planned)
	}
	close(stop)
	if open := <-done; open > 0 {
		t.Errorf("the node was open %d times", open)
	}
}

func refusedFor(why string) *gang.Refusal {
	return &gang.Refusal{Reason: gang.InsufficientNodes, Message: why}
}

// A refusal is recorded as new for another pod, with another text, or after its event has expired.
func TestARefusalIsNewsOnce(t *testing.T) {
	l, now := newCache(), time.Now()
	l.Observe(key("g"), memberPod("g", 0, 2, 1))
	if !l.RecordNotice(key("g"), "another", "no", now) || l.RecordNotice(key("g"), "another", "no", now) || !l.RecordNotice(key("g"), "another", "no", now.Add(noticeFor)) {
		t.Error("what another pod has not heard, or what events forgot, is told; nothing else")
	}
}

// The node of a terminating member stays exclusive until the member is gone.
func TestAMemberThatEndsHoldsItsNodeStill(t *testing.T) {
	l, p := newCache(), on(asking(memberPod("g", 0, 1, 2), v1alpha1.AnnotationWholeNodes, "true"), "n")
	l.Observe(key("g"), p)
	if _, planned, look := l.Exclusive("n"); planned || !look {
		t.Error("nobody looks at the node of a bound member")
	}
	l.NoteTerminating(key("g"), p)
	if _, planned, look := l.Exclusive("n"); planned || !look {
		t.Error("nobody looks at the node of a member that is ending")
	}
	if l.Forget(key("g"), p.UID); l.AnyExclusive() {
		t.Error("a pod that is gone closes a node")
	}
}

// Two pods of one slot that both succeeded count as one member. The gang still lacks another member.
func TestPodsThatEndedInOneSlotAreOnePlace(t *testing.T) {
	l, k := newCache(), key("g")
	for slot := range 2 {
		enter(l, memberPod("g", slot, 4, 1))
	}
	l.Explain(Question{Key: k}, []*v1.Pod{memberPod("g", 3, 4, 1), memberPod("g", 3, 4, 1)})
	if _, missing := l.PlanInput(k); missing == nil {
		t.Error("a gang of 4 is planned without its slot 2")
	}
	l.Explain(Question{Key: k}, []*v1.Pod{memberPod("g", 2, 4, 1)})
	if _, missing := l.PlanInput(k); missing != nil {
		t.Errorf("a gang whose other slots succeeded: %v", missing)
	}
}
