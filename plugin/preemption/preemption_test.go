package preemption

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/plugin/frameworktest"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/plugin/plugintest"
	"holdfast.dev/holdfast/topology"
)

const gpu = plugintest.GPU

var (
	node   = plugintest.Node
	pod    = plugintest.Pod
	gangOf = plugintest.Gang
	on     = plugintest.On
	key    = plugintest.Key
)

// stage is a Preemptor over a framework, without a scheduler.
type stage struct {
	*frameworktest.Framework
	t     testing.TB
	p     *Preemptor
	gangs *gangcache.Cache
	// woken receives gangs that are to be planned, tried receives pods that are to be tried again.
	woken chan types.NamespacedName
	tried chan string
}

func newStage(t testing.TB, objects ...runtime.Object) *stage {
	t.Helper()
	s := &stage{
		Framework: frameworktest.New(t, objects...),
		t:         t,
		gangs:     frameworktest.Cache(),
		woken:     make(chan types.NamespacedName, 100),
		tried:     make(chan string, 100),
	}
	var args schedulingv1alpha1.HoldfastArgs
	args.Default()
	r, wake := NewHeldRooms(), func(_ klog.Logger, key types.NamespacedName) { s.woken <- key }
	plans := planner.New(
		planner.Config{
			Framework: s.Framework,
			Args:      args,
			Health:    frameworktest.Well{},
			Metrics:   planner.NewMetrics(),
			Gangs:     s.gangs,
			Reserved:  r.HeldAgainst,
			Wake:      wake,
		},
	)
	gangs := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(
		runtime.NewScheme(),
		map[schema.GroupVersionResource]string{v1alpha1.GroupVersion.WithResource("gangs"): "GangList"},
	)
	informers := s.SharedInformerFactory()
	s.p = New(
		Config{
			Framework: s.Framework,
			Args:      &args,
			Planner:   plans,
			Gangs:     s.gangs,
			Health:    frameworktest.Well{},
			Pods:      informers.Core().V1().Pods().Lister(),
			Budgets: informers.Policy().
				V1().
				PodDisruptionBudgets().
				Lister(),
			Stored:  gangs.Resource(v1alpha1.GroupVersion.WithResource("gangs")),
			Metrics: NewMetrics(nil),
			Wake:    wake,
			Publish: func(types.NamespacedName) {},
			Activate: func(_ klog.Logger, pods []*v1.Pod) {
				for _, p := range pods {
					s.tried <- p.Name
				}
			},
		},
		r,
	)
	return s
}

// waits makes the pods of a gang known, as pods that the scheduling queue holds.
func (s *stage) waits(pods []*v1.Pod) {
	for _, p := range pods {
		s.gangs.Enqueued(key(p.Labels[v1alpha1.LabelGang]), p, func() bool { return true })
	}
}

// on returns a node of the snapshot.
func (s *stage) on(name string) fwk.NodeInfo {
	s.t.Helper()
	for _, n := range s.Nodes() {
		if n.Node().Name == name {
			return n
		}
	}
	s.t.Fatalf("there is no node %s", name)
	return nil
}

// prior gives pods a priority.
func prior(priority int32, pods []*v1.Pod) []*v1.Pod {
	for _, p := range pods {
		p.Spec.Priority = &priority
	}
	return pods
}

func assumed(node string, gpus int64) topology.Assumed {
	return topology.Assumed{Node: node, Usage: topology.Usage{Resources: topology.Resources{gpu: gpus}, Tenant: true}}
}

// An eviction that is refused is tried again while the gang still has the held room, and not after the gang was placed.
func TestARefusedEvictionIsNotTriedForNothing(t *testing.T) {
	var tries atomic.Int32
	s := newStage(t, node("a", 2))
	s.Client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		tries.Add(1)
		return true, nil, apierrors.NewTooManyRequests("a disruption budget says no", 1)
	})
	nomination := HeldRoom{since: time.Now(), until: time.Now().Add(time.Hour)}
	nomination.assignments = append(nomination.assignments, assumed("a", 2))
	s.p.rooms.keep(key("g"), nomination)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.p.evict(
			t.Context(),
			eviction{
				beneficiary: "gang ns/g",
				pods:        []*v1.Pod{on(pod("low", 2), "a")},
				until:       nomination.until,
				stands:      func() bool { return s.p.rooms.stands(key("g"), nomination) },
			},
		)
	}()
	eventually.Holds(t, "the eviction to be tried again", func() (bool, any) { n := tries.Load(); return n >= 2, n })
	newer := nomination
	newer.since = nomination.since.Add(time.Second)
	s.p.rooms.keep(key("g"), newer) // the held room now has other victims
	select {
	case <-ended:
	case <-time.After(eventually.Timeout):
		t.Fatal("the eviction is tried on and on")
	}
}

// A nomination that is not used in time ends.
func TestANominationEnds(t *testing.T) {
	s := newStage(t, node("a", 2))
	s.waits(prior(5, gangOf("g", 2, 2)))
	h := HeldRoom{until: time.Now().Add(time.Hour)}
	h.Priority = 5
	h.assignments = append(h.assignments, assumed("a", 2), assumed("b", 2))
	s.p.rooms.keep(key("g"), h)
	late := prior(0, []*v1.Pod{pod("late", 2)})[0]
	if status := s.p.FilterHeld(late, s.on("a")); !status.IsRejected() {
		t.Fatalf("held room is not kept from a pod: %v", status)
	}
	s.p.Lapse(klog.Background(), h.until.Add(-time.Second))
	if status := s.p.FilterHeld(late, s.on("a")); !status.IsRejected() {
		t.Fatalf("the claim ended too early: %v", status)
	}
	s.p.Lapse(klog.Background(), h.until.Add(time.Second))
	if status := s.p.FilterHeld(late, s.on("a")); status.IsRejected() {
		t.Errorf("the pod is kept off still: %v", status)
	}
	if name := <-s.tried; name != "late" {
		t.Errorf("%s is tried again", name)
	}
}

// A pod of no gang that has a resource claim can use a node on which held room leaves room for it.
func TestNominationsOfSinglePodsTakeNoSlot(t *testing.T) {
	s := newStage(t, node("a", 2))
	s.p.rooms.keep(key("other"), HeldRoom{assignments: []topology.Assumed{assumed("a", 2)}, until: time.Now().Add(time.Hour)})
	lone := pod("lone", 0)
	lone.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To("lone-claim")}}
	if status := s.p.FilterHeld(lone, s.on("a")); status.IsRejected() {
		t.Error(status)
	}
	if status := s.p.FilterHeld(pod("greedy", 1), s.on("a")); !status.IsRejected() {
		t.Error("a pod is let into held room")
	}
}

// Rule NobodyStarves: a gang's search finds that checkpoints must be read first, and the gang gets its next turn only after many searches
// of other gangs. It then uses the checkpoints that were read for it.
func TestWhoSearchesSeldomGoesByWhatWasReadForIt(t *testing.T) {
	low, high := prior(0, gangOf("low", 2, 2)), prior(5, gangOf("high", 2, 2))
	s := newStage(t, node("a", 2), node("b", 2), on(low[0], "a"), on(low[1], "b"))
	s.waits(high)
	s.p.tried[key("high")] = attempt{delays: wait.Backoff{Duration: searchRetryMax}}
	s.p.lastCheckpoints.at = time.Now().Add(-time.Hour)
	of, missing := s.gangs.PlanInput(key("high"))
	if missing != nil {
		t.Fatal(missing.Message)
	}
	for began := time.Now(); ; {
		s.p.Block(key("high"), of, s.Nodes(), gang.Refusal{Reason: gang.InsufficientNodes, Message: "2 pods wanted"})
		s.p.MakeRoom(t.Context(), key("high"))
		if h, held := s.p.rooms.Get(key("high")); held {
			if h.Reserved || h.Text() == "" || len(h.Status().Victims) != 1 || h.Status().VictimPods != 2 {
				t.Errorf("held: %+v", h.Status())
			}
			return
		}
		select {
		case <-s.woken:
		case <-time.After(searchRetryMax / 2):
			t.Fatalf("it is not its turn %v after it was first", time.Since(began))
		}
	}
}

// While room is being freed no other pod is preempted, not even by a replica that has evicted no pod itself.
func TestWhoAwaitsRoom(t *testing.T) {
	now := time.Now()
	on := func(name string, priority int32, leaves bool) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: ptr.To(priority)}}
		if leaves {
			p.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		}
		return p
	}
	told := []types.UID{"told"}
	for name, c := range map[string]struct {
		promise   *nomination
		nominated string
		onA       []*v1.Pod
		want      bool
	}{
		"nothing is known":                      {onA: []*v1.Pod{on("told", 0, true)}},
		"they are being told":                   {promise: &nomination{node: "a", until: now, evicting: true}, want: true},
		"told, not yet leaving":                 {promise: &nomination{node: "a", evicted: told, until: now}, onA: []*v1.Pod{on("told", 0, false)}, want: true},
		"told, gone":                            {promise: &nomination{node: "a", evicted: told, until: now}, onA: []*v1.Pod{on("other", 0, false)}},
		"told, in vain":                         {promise: &nomination{node: "a", evicted: told, until: now.Add(-1)}, onA: []*v1.Pod{on("told", 0, false)}},
		"another replica told":                  {nominated: "a", onA: []*v1.Pod{on("told", 0, true)}, want: true},
		"another replica told, elsewhere":       {nominated: "b", onA: []*v1.Pod{on("told", 0, true)}},
		"another replica told, nobody":          {nominated: "a", onA: []*v1.Pod{on("told", 0, false)}},
		"one that needs no room for it leaves":  {nominated: "a", onA: []*v1.Pod{on("dear", 5, true)}},
		"told, in vain, but somebody leaves":    {promise: &nomination{node: "a", evicted: told, until: now.Add(-1)}, nominated: "a", onA: []*v1.Pod{on("told", 0, true)}, want: true},
		"told, gone; of those left one departs": {promise: &nomination{node: "a", evicted: told, until: now}, nominated: "a", onA: []*v1.Pod{on("other", 0, true)}, want: true},
	} {
		l := &singlePods{of: map[types.UID]*nomination{}}
		if c.promise != nil {
			l.of["lone"] = c.promise
		}
		a, b := framework.NewNodeInfo(c.onA...), framework.NewNodeInfo()
		a.SetNode(node("a", 2))
		b.SetNode(node("b", 2))
		waits := on("lone", 5, false)
		waits.Status.NominatedNodeName = c.nominated
		if got := l.awaits(waits, []fwk.NodeInfo{a, b}, 5, now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// All searches together take only a part of the time, however many gangs wait.
func TestSearchesTakeTurns(t *testing.T) {
	p := New(Config{Gangs: frameworktest.Cache(), Metrics: NewMetrics(nil)}, NewHeldRooms())
	now := time.Now()
	woken := make(chan string, 2)
	if !p.reserveSearch(key("one"), now, nil) {
		t.Fatal("the first is refused its turn")
	}
	p.searched(key("one"), now.Add(-10*time.Second), foundRoom, func() {})
	if p.reserveSearch(key("other"), time.Now(), func() { woken <- "other" }) {
		t.Error("another one searches right after a search of ten seconds")
	}
	if next := p.tried[key("other")].next; next.Before(now.Add(99 * time.Second)) {
		t.Errorf("its turn is %v after", next.Sub(now))
	}
	if !p.reserveSearch(key("other"), now.Add(200*time.Second), nil) {
		t.Error("its turn never comes")
	}
	now = time.Now()
	p.nextSearch = now.Add(time.Millisecond)
	if p.reserveSearch(key("third"), now, func() { woken <- "third" }) {
		t.Error("it does not wait")
	}
	select {
	case <-woken:
	case <-time.After(eventually.Timeout):
		t.Error("it is not called when its turn comes")
	}
}

// Rule NobodyStarves: the first gang ordered as in the queue searches for room again and again. It does not get every turn.
func TestWhoSearchedLetsOthersHaveTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Gangs: frameworktest.Cache(), Metrics: NewMetrics(nil)}, NewHeldRooms())
		had := map[string]int{}
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		woken := map[string]bool{}
		var mu sync.Mutex
		for range 60_000 {
			for _, name := range names { // in the queue's order
				again := func() { mu.Lock(); woken[name] = true; mu.Unlock() }
				if p.reserveSearch(key(name), time.Now(), again) {
					had[name]++
					began := time.Now()
					time.Sleep(500 * time.Millisecond)
					p.searched(key(name), began, foundRoom, again)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		for _, name := range names {
			if 2*had[name] < had["n00"] || had[name] < 3 || !woken[name] {
				t.Errorf("%s had %d turns, the first %d", name, had[name], had["n00"])
			}
		}
	})
}

// Checkpoints that were read after the request are recent enough, however long ago that was.
func TestWhatGangsHaveStoredIsKnown(t *testing.T) {
	at := time.Now()
	w := &lastCheckpoints{at: at, reading: true}
	for name, c := range map[string]struct {
		after time.Duration
		asked time.Time
		want  bool
	}{
		"read just now":     {checkpointsAge - 1, time.Time{}, true},
		"read too long ago": {checkpointsAge, time.Time{}, false},
		"read since asked":  {time.Minute, at.Add(-1), true},
		"read before asked": {time.Minute, at.Add(1), false},
	} {
		if got := w.ensureKnown(t.Context(), at.Add(c.after), c.asked); got != c.want {
			t.Errorf("%s: known is %v", name, got)
		}
	}
}
