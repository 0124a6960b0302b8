package planner

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// If a refusal does not change, planning again runs filters only on nodes that changed, as long as their results depend on nothing else.
func TestFiltersAreAskedAboutWhatChanged(t *testing.T) {
	var objects []runtime.Object
	for i := range 12 {
		objects = append(objects, node(fmt.Sprintf("n%02d", i), 2))
	}
	s := newStage(t, objects...)
	asked := func(what string, pods []*v1.Pod, want int64) {
		t.Helper()
		before := s.Filtered.Load()
		if placement, refusal := s.answer(pods); refusal == nil {
			t.Errorf("%s: %+v", what, placement)
		}
		if got := s.Filtered.Load() - before; got != want {
			t.Errorf("%s: filters were asked about %d nodes, want %d", what, got, want)
		}
	}
	asked("the first time", gangOf("g", 13, 2), 12)
	asked("again", gangOf("g", 13, 2), 0)
	s.Add(on(pod("other", 0), "n03"))
	asked("after a pod came", gangOf("g", 13, 2), 1)
	apart := apartFrom(gangOf("apart", 13, 2), "apart")
	asked("with a rule about other pods", apart, 12)
	asked("with a rule about other pods, again", apart, 12)
}

// apartFrom gives pods anti-affinity to the pods of a gang.
func apartFrom(pods []*v1.Pod, name string) []*v1.Pod {
	for _, p := range pods {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: name}}}}}}
	}
	return pods
}

// inTurn alternates pods of two kinds, so that each pod is checked after a pod of the other kind.
func inTurn(pods []*v1.Pod) []*v1.Pod {
	for i, p := range pods {
		p.Labels["odd"] = fmt.Sprint(i % 2)
	}
	return pods
}

// The filter state of a pod is reused for the next pod of its kind. So the cost of a gang of one kind is linear in its size, and rules
// among pods hold as if each pod had a state of its own.
func TestPodsOfOneKindAreSupposedOnce(t *testing.T) {
	const nodes = 40
	for name, c := range map[string]struct {
		pods, free int
		twos       bool
		most       int
	}{
		"one kind":           {pods: nodes, free: 4, most: 6 * nodes},
		"one kind, too many": {pods: nodes + 1, free: 2, most: 2 * nodes},
		"two kinds in turn":  {pods: nodes, free: 4, twos: true, most: 2 * nodes * nodes},
	} {
		var objects []runtime.Object
		for i := range nodes {
			objects = append(objects, labelled(node(fmt.Sprintf("n%02d", i), int64(c.free)), v1.LabelHostname, fmt.Sprintf("n%02d", i)))
		}
		s := newStage(t, objects...)
		pods := apartFrom(gangOf("g", c.pods, 2), "g")
		if c.twos {
			inTurn(pods)
		}
		s.planner.Follow(s.Nodes())
		cycle := newPlanCycle(t.Context(), s.planner, s.Nodes(), asked(pods))
		placement, refusal, err := cycle.place()
		if err != nil || (refusal == nil) != (c.pods <= nodes) || cycle.questions > c.most {
			t.Errorf("%s: %+v, %v; %d questions", name, refusal, err, cycle.questions)
		}
		seen := map[string]bool{}
		for _, node := range placement.At() {
			if seen[node] {
				t.Errorf("%s: two pods that keep apart are on %s", name, node)
			}
			seen[node] = true
		}
	}
}

// Pods of one template are of one kind whatever volumes of their own they get, until these volumes are bound to different places.
func TestEphemeralVolumesMakeNoKinds(t *testing.T) {
	pods := gangOf("g", 13, 2)
	for _, p := range pods {
		p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
	}
	s := newStage(t, node("a", 16))
	kinds := func() int {
		of, all := newPlanCycle(t.Context(), s.planner, s.Nodes(), asked(pods)), map[string]bool{}
		if refusal := of.sort(); refusal != nil || of.coarse {
			t.Fatalf("%+v", refusal)
		}
		for _, k := range of.like {
			all[k] = true
		}
		return len(all)
	}
	if got := kinds(); got != 1 {
		t.Errorf("%d kinds of pods of one template", got)
	}
	claims, volumes := cache.NewIndexer(
		cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
	), cache.NewIndexer(
		cache.MetaNamespaceKeyFunc,
		nil,
	)
	s.planner.config.BoundVolumes = BoundVolumes(
		corelisters.NewPersistentVolumeClaimLister(claims),
		corelisters.NewPersistentVolumeLister(volumes),
	)
	add := func(to cache.Indexer, obj any) {
		if err := to.Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range pods[:4] {
		name := fmt.Sprint("pv", i)
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name + "-scratch"}}
		if i < 3 {
			claim.Spec.VolumeName = name
			add(
				volumes,
				&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: fmt.Sprint(i % 2)}}},
			)
		}
		add(claims, claim)
	}
	if got := kinds(); got != 3 {
		t.Errorf("%d kinds where volumes are in two zones or not there yet, want 3", got)
	}
	for i, p := range pods[4:8] { // of two claims on each of two nodes the volumes are being created
		add(claims, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name + "-scratch",
			Annotations: map[string]string{volume.AnnSelectedNode: fmt.Sprint("n", i%2)}}})
	}
	if got := kinds(); got != 5 {
		t.Errorf("%d kinds where volumes are also being made on two nodes, want 5", got)
	}
}

// A gang with too many kinds of pods is refused before any filter runs. A gang whose pods differ only in labels is placed.
func TestKindsOfPodsAreBounded(t *testing.T) {
	var objects []runtime.Object
	for i := range 12 {
		objects = append(objects, node(fmt.Sprintf("n%02d", i), 100))
	}
	s := newStage(t, objects...)
	many := gangOf("g", MaxKinds+1, 1)
	for i, p := range many {
		p.Spec.NodeSelector = map[string]string{"x": fmt.Sprint(i)}
	}
	before := s.Filtered.Load()
	if _, refusal := s.answer(many); refusal == nil || refusal.Reason != gang.Unsupported || !strings.Contains(refusal.Message, "its pods have 1025 different shapes, and at most 1024 are possible") {
		t.Errorf("%+v", refusal)
	}
	if got := s.Filtered.Load() - before; got != 0 {
		t.Errorf("filters were asked about %d nodes", got)
	}
	named := gangOf("h", MaxKinds+1, 1)
	for i, p := range named {
		p.Labels["example.com/index"] = fmt.Sprint(i)
	}
	if placement, refusal := s.answer(named); refusal != nil || placement.Placed != len(named) {
		t.Errorf("pods with labels of their own: %+v %+v", placement, refusal)
	}
	if got := s.Filtered.Load() - before; got > int64(12+len(named)) {
		t.Errorf("filters were asked about %d nodes", got)
	}
	for nodes, want := range map[int]int{0: MaxKinds, 900: MaxKinds, 5000: 200, 100_000: 10, 1_000_000: keptRoles} {
		if got := mostKinds(nodes); got != want {
			t.Errorf("%d kinds among %d nodes, want %d", got, nodes, want)
		}
	}
}

// Each pod of a gang may have a selector of its own.
func TestPodsOfTheirOwnKind(t *testing.T) {
	var objects []runtime.Object
	pods := gangOf("g", 100, 1)
	for i, p := range pods {
		objects = append(objects, labelled(node(fmt.Sprintf("n%03d", i), 1), "x", fmt.Sprint(i)))
		p.Spec.NodeSelector = map[string]string{"x": fmt.Sprint(i)}
	}
	s := newStage(t, objects...)
	if placement, refusal := s.answer(pods); refusal != nil || placement.Placed != len(pods) {
		t.Errorf("%d placed, %+v", placement.Placed, refusal)
	}
}

// A refused gang with many kinds of pods is not planned again at once, and delays no query.
func TestPlansOfManyKindsArePaced(t *testing.T) {
	var objects []runtime.Object
	for i := range pacedQuestions/MaxKinds + 1 {
		objects = append(objects, node(fmt.Sprintf("n%03d", i), 1))
	}
	s := newStage(t, objects...)
	of := asked(gangOf("g", MaxKinds, 1))
	for i, m := range of.Members {
		m.Pod.Spec.NodeSelector = map[string]string{"x": fmt.Sprint(i)}
		of.Members[i].Role = RoleOf(m.Pod)
	}
	questions := func(what string, of gangcache.Snapshot, anew bool, reason string) {
		t.Helper()
		before := s.Filtered.Load()
		_, refusal, err := s.planner.Answer(t.Context(), s.Nodes(), of)
		if err != nil || refusal == nil || refusal.Reason != reason || refusal.Undecided != (reason == gang.WaitingForMembers) {
			t.Fatalf("%s: %+v, %v", what, refusal, err)
		}
		if got := s.Filtered.Load() - before; (got > pacedQuestions/2) != anew || !anew && got != 0 {
			t.Errorf("%s: filters were asked %d questions", what, got)
		}
	}
	led := func(name string, leader types.UID) gangcache.Snapshot {
		other := gangcache.Snapshot{Size: of.Size, Leader: leader}
		for _, m := range of.Members {
			m.Pod = m.Pod.DeepCopy()
			m.Pod.Labels[v1alpha1.LabelGang] = name
			other.Members = append(other.Members, m)
		}
		return other
	}
	questions("at first", led("g", "a"), true, gang.InsufficientNodes)
	questions("again", led("g", "a"), false, gang.InsufficientNodes)
	questions("another pod leads", led("g", "c"), false, gang.InsufficientNodes)
	for i := range 10 {
		questions("another gang", led(fmt.Sprint("fresh", i), "a"), false, gang.WaitingForMembers)
	}
	questions("a preview", led("g", ""), true, gang.InsufficientNodes)
	small := asked(gangOf("small", 1, 1))
	small.Leader = "s"
	if placement, refusal, err := s.planner.Answer(t.Context(), s.Nodes(), small); err != nil || placement.Placed != 1 {
		t.Errorf("a gang that asks little waits: %+v, %v", refusal, err)
	}
}

// Checks of rules among pods count as filter runs too: the first gang that fits is placed at its first try, and the next gang waits.
func TestPlansWithRulesArePaced(t *testing.T) {
	const pods = 450 // pods of two kinds alternate: some 101,000 checks beside other pods
	var objects []runtime.Object
	for i := range pods {
		objects = append(objects, labelled(node(fmt.Sprintf("n%03d", i), 1), v1.LabelHostname, fmt.Sprintf("n%03d", i)))
	}
	s := newStage(t, objects...)
	plan := func(name string) (int64, gang.Placement, *gang.Refusal) {
		of := asked(inTurn(apartFrom(gangOf(name, pods, 1), name)))
		of.Leader = "a"
		before := s.Filtered.Load()
		placement, refusal, err := s.planner.Answer(t.Context(), s.Nodes(), of)
		if err != nil {
			t.Fatal(err)
		}
		return s.Filtered.Load() - before, placement, refusal
	}
	if _, placement, refusal := plan("g"); refusal != nil || placement.Placed != pods {
		t.Fatalf("at first: %+v", refusal)
	}
	if got, _, refusal := plan("h"); refusal == nil || !refusal.Undecided || got > 2*pods {
		t.Errorf("the next one asked %d questions, %+v", got, refusal)
	}
}

// A plan that turns out to need many checks stops if its gang has no turn, and continues if its gang has one.
func TestAPlanStopsWhereItAsksTooMuch(t *testing.T) {
	s := newStage(t, node("a", 1))
	of := asked(gangOf("g", 1, 1))
	of.Leader = "a"
	for name, c := range map[string]struct {
		asked int
		next  time.Time
		want  bool
	}{
		"little":                    {pacedQuestions, time.Now().Add(time.Hour), true},
		"much":                      {pacedQuestions + 1, time.Now().Add(time.Hour), false},
		"much, while nobody has it": {pacedQuestions + 1, time.Now().Add(-time.Hour), true},
	} {
		s.planner.plans = newTurns(func(types.NamespacedName) bool { return true }, time.Now)
		s.planner.plans.next = c.next
		cycle := newPlanCycle(t.Context(), s.planner, s.Nodes(), of)
		if _, _, err := cycle.gang(); err != nil {
			t.Fatal(err)
		}
		cycle.questions = c.asked - 1
		if cause, ok := cycle.agree(0, "a", nil); (ok && cause == gang.Cause{}) != c.want || (cycle.waits == nil) != c.want {
			t.Errorf("%s: %+v %v, waits %+v", name, cause, ok, cycle.waits)
		}
	}
}

// A node that is gone is removed from the tree. No other node is counted again.
func TestANodeThatIsGoneIsTakenOut(t *testing.T) {
	const rack = "topology.kubernetes.io/rack"
	b := labelled(node("b", 2), rack, "r2")
	s := newStage(t, labelled(node("a", 2), rack, "r1"), b)
	if _, refusal := s.answer(gangOf("g", 3, 2)); refusal == nil || !strings.Contains(refusal.Message, "2 nodes") {
		t.Fatalf("%+v", refusal)
	}
	tree := s.planner.tree
	s.Remove(b)
	s.Add(labelled(node("c", 4), rack, "r3"))
	if _, refusal := s.answer(gangOf("g", 4, 2)); refusal == nil || !strings.Contains(refusal.Message, "4 pods wanted, 3 fit: 2 nodes") {
		t.Errorf("%+v", refusal)
	}
	if s.planner.tree != tree || tree.Len() != 2 || len(s.planner.fabric.labels) != 2 {
		t.Errorf("the tree was built anew: %v, or has %d nodes and %d labels", s.planner.tree != tree, tree.Len(), len(s.planner.fabric.labels))
	}
}

// Devices of a pod that belongs to its node, such as a daemon's, do not make the node used.
func TestDevicesOfAttendantsAreNoUse(t *testing.T) {
	daemon := on(pod("daemon", 1), "b")
	daemon.Namespace = "kube-system"
	s := newStage(t, node("a", 2), node("b", 2), on(pod("other", 1), "a"), daemon)
	s.answer(gangOf("g", 1, 1))
	for name, want := range map[string]bool{"a": true, "b": false} {
		i, _ := s.planner.tree.Find(name)
		if s.planner.tree.Used(i) != want || s.planner.tree.Free(i, gpu) != 1 {
			t.Errorf("node %s is used: %v, %d free", name, s.planner.tree.Used(i), s.planner.tree.Free(i, gpu))
		}
	}
}

func TestHowBrokenUpTheFabricIs(t *testing.T) {
	free := func(name, rack string, used bool) topology.Node {
		return topology.Node{Name: name, Domain: []string{rack}, Free: topology.Resources{gpu: 8}, Used: used}
	}
	m, now := NewMetrics(), time.Now()
	tree := topology.New(
		[]topology.Level{{Name: "rack", Key: "r"}},
		free("a", "1", false),
		free("b", "1", true),
		free("c", "1", false),
		free("d", "2", false),
		free("e", "2", false),
		free("f", "2", false),
	)
	m.measure(tree, now)
	if got := testutil.ToFloat64(m.broken.WithLabelValues("rack")); got != 0.4 {
		t.Errorf("%v of the unused nodes are said to be in a broken rack, 2 of 5 are", got)
	}
	if got := testutil.ToFloat64(m.largest.WithLabelValues("rack")); got != 3 {
		t.Errorf("the largest free piece is said to be %v nodes", got)
	}
	tree.Set(free("b", "1", false))
	m.measure(tree, now.Add(measureEvery/2))
	if got := testutil.ToFloat64(m.broken.WithLabelValues("rack")); got != 0.4 {
		t.Errorf("looked at again at once: %v", got)
	}
	m.measure(tree, now.Add(measureEvery))
	if got := testutil.ToFloat64(m.broken.WithLabelValues("rack")); got != 0 {
		t.Errorf("%v of the unused nodes are said to be in a broken rack, none is", got)
	}
}

func TestRolesTellOnlyRelevantDifferencesApart(t *testing.T) {
	base := memberPod("g", 0, 2, 2)
	same := memberPod("g", 1, 2, 2)
	same.Spec.Hostname = "g-1"
	same.Spec.Containers[0].Env = []v1.EnvVar{{Name: "RANK", Value: "1"}}
	same.Spec.Volumes = []v1.Volume{{Name: "kube-api-access-x7z2q", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}}}
	if RoleOf(base) != RoleOf(same) {
		t.Error("pods that differ in index, environment and token volume are planned apart")
	}
	for i, p := range []*v1.Pod{base, same} {
		source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: fmt.Sprint("random-", i), VolumeSource: source})
	}
	if RoleOf(base) != RoleOf(same) {
		t.Error("pods whose volume of one claim has different names are planned apart")
	}
	base = memberPod("g", 0, 2, 2)
	for name, change := range map[string]func(*v1.Pod){
		"request":    func(p *v1.Pod) { *p = *memberPod("g", 1, 2, 1) },
		"selector":   func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} },
		"toleration": func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "a"}} },
		"label":      func(p *v1.Pod) { p.Labels["role"] = "launcher" },
		"claim":      func(p *v1.Pod) { p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c"}} },
		"volume": func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{
				Name:         "v",
				VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}},
			}}
		},
	} {
		other := memberPod("g", 1, 2, 2)
		change(other)
		if RoleOf(base) == RoleOf(other) {
			t.Errorf("%s: pods that filters may judge differently share a role", name)
		}
	}
}

// BenchmarkEligibility measures the framework's filters for one role on 5,000 nodes: on all nodes, as for the first gang of a shape and
// after a start; on no node, if all results are cached; and on all nodes, if a rule among pods prevents caching.
func BenchmarkEligibility(b *testing.B) {
	const nodes = 5000
	var objects []runtime.Object
	for i := range nodes {
		objects = append(objects, node(fmt.Sprintf("node-%05d", i), 8))
	}
	s := newStage(b, objects...)
	all := s.Nodes()
	s.planner.Follow(all)
	ask := func(b *testing.B, pod *v1.Pod, forget bool) {
		for b.Loop() {
			if forget {
				s.planner.verdicts.roles = nil
			}
			sc := newPlanCycle(b.Context(), s.planner, all, asked([]*v1.Pod{pod}))
			if g, _, err := sc.gang(); err != nil || len(g.Roles[0].Out) != 0 {
				b.Fatalf("%d nodes are ruled out, %v", len(g.Roles[0].Out), err)
			}
		}
	}
	apart := memberPod("apart", 0, 1, 8)
	apart.Spec.Affinity = &v1.Affinity{
		PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
			{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}}}}},
	}
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		forget bool
	}{{"all", memberPod("g", 0, 1, 8), true}, {"remembered", memberPod("g", 0, 1, 8), false}, {"antiaffinity", apart, false}} {
		b.Run(c.name, func(b *testing.B) { ask(b, c.pod, c.forget) })
	}
}

// BenchmarkKinds measures the most filter runs of one plan: all pods are of different kinds, on as many nodes as MaxQuestions allows.
func BenchmarkKinds(b *testing.B) {
	var objects []runtime.Object
	for i := range MaxQuestions / MaxKinds {
		objects = append(objects, node(fmt.Sprintf("node-%05d", i), 8))
	}
	s := newStage(b, objects...)
	for name, change := range map[string]func(*v1.Pod, int){
		"selector": func(p *v1.Pod, i int) { p.Spec.NodeSelector = map[string]string{"x": fmt.Sprint(i)} },
		"request": func(p *v1.Pod, i int) {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(i+1), resource.DecimalSI)
		},
	} {
		pods := gangOf("g", MaxKinds, 1)
		for i, p := range pods {
			change(p, i)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.answer(pods)
			}
		})
	}
}

// BenchmarkRules measures a gang whose pods must be apart: each pod is checked beside all pods placed before it. The filter state is
// computed once if all pods are of one kind, and for each pod if kinds alternate.
func BenchmarkRules(b *testing.B) {
	for name, c := range map[string]struct {
		n   int
		two bool
	}{"one-5000": {5000, false}, "two-450": {450, true}, "two-1400": {1400, true}} {
		var objects []runtime.Object
		for i := range c.n {
			objects = append(objects, labelled(node(fmt.Sprintf("node-%05d", i), 8), v1.LabelHostname, fmt.Sprintf("node-%05d", i)))
		}
		s, pods := newStage(b, objects...), apartFrom(gangOf("g", c.n, 4), "g")
		if c.two {
			inTurn(pods)
		}
		of := asked(pods)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if placement, refusal, err := s.planner.Answer(b.Context(), s.Nodes(), of); err != nil || placement.Placed != c.n {
					b.Fatalf("%+v, %v", refusal, err)
				}
			}
		})
	}
}

func TestShown(t *testing.T) {
	got := shown(topology.Resources{"cpu": 500, "memory": 2 << 30, "nvidia.com/gpu": 8})
	if want := map[string]string{"cpu": "500m", "memory": "2Gi", "nvidia.com/gpu": "8"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
