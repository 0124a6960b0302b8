package planner

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// A steady answer costs what changed: filters are asked about nodes that did, and only where nothing else has a say.
func TestFiltersAreAskedAboutWhatChanged(t *testing.T) {
	var objects []runtime.Object
	for i := range 12 {
		objects = append(objects, node(fmt.Sprintf("n%02d", i), 2))
	}
	s := newStage(t, objects...)
	asked := func(what string, pods []*v1.Pod, want int64) {
		t.Helper()
		before := s.Filtered.Load()
		if placement, no := s.answer(pods); no == nil {
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
	apart := gangOf("apart", 13, 2)
	for _, p := range apart {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: "apart"}}}}}}
	}
	asked("with a rule about other pods", apart, 12)
	asked("with a rule about other pods, again", apart, 12)
}

// A node that is gone is taken out; nothing else is counted anew for it.
func TestANodeThatIsGoneIsTakenOut(t *testing.T) {
	const rack = "topology.kubernetes.io/rack"
	b := labelled(node("b", 2), rack, "r2")
	s := newStage(t, labelled(node("a", 2), rack, "r1"), b)
	if _, no := s.answer(gangOf("g", 3, 2)); no == nil || !strings.Contains(no.Message, "2 nodes") {
		t.Fatalf("%+v", no)
	}
	tree := s.planner.tree
	s.Remove(b)
	s.Add(labelled(node("c", 4), rack, "r3"))
	if _, no := s.answer(gangOf("g", 4, 2)); no == nil || !strings.Contains(no.Message, "4 pods wanted, 3 fit: 2 nodes") {
		t.Errorf("%+v", no)
	}
	if s.planner.tree != tree || tree.Len() != 2 || len(s.planner.fabric.labels) != 2 {
		t.Errorf("the tree was built anew: %v, or has %d nodes and %d labels", s.planner.tree != tree, tree.Len(), len(s.planner.fabric.labels))
	}
}

// Devices of a pod that belongs to its node do not make the node used.
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

// A trial that found too little is not made again before its rest is over, by which it is asked for once.
func TestTrialsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, woken := trials{}, 0
		wake := func() { woken++ }
		r, no := gangcache.Snapshot{Leader: "a"}, &gang.Refusal{Message: "too few"}
		all.failed(r, no, time.Now().Add(-time.Second), time.Now())
		all.failed(gangcache.Snapshot{Leader: "b"}, no, time.Now().Add(-time.Second), time.Now())
		if got := all.again(r, time.Now(), wake); got == nil || got.Message != "too few" || all.again(r, time.Now(), wake) == nil {
			t.Errorf("at once: %+v", got)
		}
		if all.again(gangcache.Snapshot{}, time.Now(), wake) != nil || all.again(gangcache.Snapshot{Leader: "c"}, time.Now(), wake) != nil {
			t.Error("a question, or another gang, gets an old answer")
		}
		time.Sleep(Rest(time.Second) + time.Millisecond)
		synctest.Wait()
		if woken != 1 || all.again(r, time.Now(), wake) != nil {
			t.Errorf("later: woken %d times", woken)
		}
		if all.again(gangcache.Snapshot{Leader: "b"}, time.Now(), wake) == nil {
			t.Error("two gangs together take twice the time that one may")
		}
	})
}

func TestHowBrokenUpTheFabricIs(t *testing.T) {
	free := func(name, rack string, used bool) topology.Node {
		return topology.Node{Name: name, Domain: []string{rack}, Free: topology.Resources{gpu: 8}, Used: used}
	}
	m, now := NewMetrics(), time.Now()
	tree := topology.New([]topology.Level{{Name: "rack", Key: "r"}}, free("a", "1", false), free("b", "1", true), free("c", "1", false), free("d", "2", false), free("e", "2", false), free("f", "2", false))
	m.look(tree, now)
	if got := testutil.ToFloat64(m.broken.WithLabelValues("rack")); got != 0.4 {
		t.Errorf("%v of the unused nodes are said to be in a broken rack, 2 of 5 are", got)
	}
	if got := testutil.ToFloat64(m.largest.WithLabelValues("rack")); got != 3 {
		t.Errorf("the largest free piece is said to be %v nodes", got)
	}
	tree.Set(free("b", "1", false))
	m.look(tree, now.Add(lookEvery/2))
	if got := testutil.ToFloat64(m.broken.WithLabelValues("rack")); got != 0.4 {
		t.Errorf("looked at again at once: %v", got)
	}
	m.look(tree, now.Add(lookEvery))
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
	for name, change := range map[string]func(*v1.Pod){
		"request":    func(p *v1.Pod) { *p = *memberPod("g", 1, 2, 1) },
		"selector":   func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} },
		"toleration": func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "a"}} },
		"label":      func(p *v1.Pod) { p.Labels["role"] = "launcher" },
		"claim":      func(p *v1.Pod) { p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c"}} },
		"volume": func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}}}}
		},
	} {
		other := memberPod("g", 1, 2, 2)
		change(other)
		if RoleOf(base) == RoleOf(other) {
			t.Errorf("%s: pods that filters may judge differently share a role", name)
		}
	}
}

// BenchmarkEligibility is what it costs to ask the framework's filters about one role on 5,000 nodes: all of them, as with the
// first gang of a shape and after a start; none, as they are remembered; and all of them where a rule among pods keeps that
// from being remembered.
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
			sc := newScout(b.Context(), s.planner, all, asked([]*v1.Pod{pod}))
			if g, _, err := sc.gang(); err != nil || len(g.Roles[0].Out) != 0 {
				b.Fatalf("%d nodes are ruled out, %v", len(g.Roles[0].Out), err)
			}
		}
	}
	apart := memberPod("apart", 0, 1, 8)
	apart.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}}}}}}
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		forget bool
	}{{"all", memberPod("g", 0, 1, 8), true}, {"remembered", memberPod("g", 0, 1, 8), false}, {"antiaffinity", apart, false}} {
		b.Run(c.name, func(b *testing.B) { ask(b, c.pod, c.forget) })
	}
}

func TestShown(t *testing.T) {
	got := shown(topology.Resources{"cpu": 500, "memory": 2 << 30, "nvidia.com/gpu": 8})
	if want := map[string]string{"cpu": "500m", "memory": "2Gi", "nvidia.com/gpu": "8"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
