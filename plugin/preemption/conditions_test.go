package preemption

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/plugin/plugintest"
)

const zone = "zone"

// labelled gives pods a label.
func labelled(name, value string, pods []*v1.Pod) []*v1.Pod {
	for _, p := range pods {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[name] = value
	}
	return pods
}

// away gives pods required anti-affinity to pods with a label.
func away(name, value, topology string, pods []*v1.Pod) []*v1.Pod {
	for _, p := range pods {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey:   topology,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{name: value}},
		}}}}
	}
	return pods
}

// spread makes pods spread evenly over zones, counting all pods with a label.
func spread(name, value string, pods []*v1.Pod) []*v1.Pod {
	for _, p := range labelled(name, value, pods) {
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew:           1,
			TopologyKey:       zone,
			WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{name: value}},
		}}
	}
	return pods
}

func port(n int32, pods []*v1.Pod) []*v1.Pod {
	for _, p := range pods {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: n, HostPort: n, Protocol: v1.ProtocolTCP}}
	}
	return pods
}

func mounting(claim string, pods []*v1.Pod) []*v1.Pod {
	for _, p := range pods {
		source := &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: source}}}
	}
	return pods
}

func put(t *testing.T, informer cache.SharedIndexInformer, object any) {
	t.Helper()
	if err := informer.GetIndexer().Add(object); err != nil {
		t.Fatal(err)
	}
}

// claim creates a bound claim that one pod at a time can use.
func (s *stage) claim(name string) {
	s.t.Helper()
	t, ok := s.t.(*testing.T)
	if !ok {
		s.t.Fatal("not a test")
	}
	core := s.SharedInformerFactory().Core().V1()
	put(t, core.PersistentVolumeClaims().Informer(), &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	})
	put(t, core.PersistentVolumes().Informer(), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{Namespace: "ns", Name: name}},
		Status:     v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	})
}

// seek makes a gang search for room once, as after a refusal whose cause are filters.
func (s *stage) seek(name, cause string) {
	s.t.Helper()
	of, missing := s.gangs.PlanInput(key(name))
	if missing != nil {
		s.t.Fatal(missing.Message)
	}
	nodes := s.Nodes()
	placement, refusal, err := s.p.config.Planner.Answer(s.t.Context(), nodes, of)
	if err != nil || refusal == nil || refusal.Reason != gang.InsufficientNodes {
		s.t.Fatalf("the gang is not kept away: %v, %v, %v", placement, refusal, err)
	}
	if !strings.Contains(refusal.Message, cause) {
		s.t.Fatalf("it is kept away by %s, not %s", refusal.Message, cause)
	}
	s.p.Block(key(name), of, nodes, *refusal)
	s.p.MakeRoom(s.t.Context(), key(name))
}

// zoned returns a node in a zone of its own.
func zoned(name string, gpus int64) *v1.Node {
	return plugintest.Labelled(node(name, gpus), zone, name)
}

// kindsOfConditions are conditions that exclude a gang although there is room. Two pods of gang "low" are on nodes a and b, beside a pod
// that excludes no gang. Gang "high" is to be placed.
var kindsOfConditions = map[string]struct {
	cause     string
	low, high func([]*v1.Pod) []*v1.Pod
}{
	"the victim's anti-affinity": {"InterPodAffinity",
		func(low []*v1.Pod) []*v1.Pod { return away("class", "high", v1.LabelHostname, low) },
		func(high []*v1.Pod) []*v1.Pod { return labelled("class", "high", high) }},
	"the gang's own anti-affinity": {"InterPodAffinity",
		func(low []*v1.Pod) []*v1.Pod { return labelled("class", "low", low) },
		func(high []*v1.Pod) []*v1.Pod { return away("class", "low", v1.LabelHostname, high) }},
	"anti-affinity over zones": {"InterPodAffinity",
		func(low []*v1.Pod) []*v1.Pod { return away("class", "high", zone, low) },
		func(high []*v1.Pod) []*v1.Pod { return labelled("class", "high", high) }},
	"a host port": {"NodePorts",
		func(low []*v1.Pod) []*v1.Pod { return port(9999, low) },
		func(high []*v1.Pod) []*v1.Pod { return port(9999, high) }},
}

func TestConditionsHaveVictims(t *testing.T) {
	for name, c := range kindsOfConditions {
		t.Run(name, func(t *testing.T) {
			low := c.low(prior(0, gangOf("low", 2, 1)))
			bystander := prior(0, []*v1.Pod{pod("bystander", 1)})[0]
			s := newStage(t, zoned("a", 4), zoned("b", 4), on(low[0], "a"), on(low[1], "b"), on(bystander, "a"))
			s.waits(c.high(prior(5, gangOf("high", 2, 1))))
			s.seek("high", c.cause)
			s.leaves("high", "gang ns/low")
		})
	}
}

// leaves checks that room is held for a gang and that exactly these units are preempted for it.
func (s *stage) leaves(name string, units ...string) {
	s.t.Helper()
	h, held := s.p.rooms.Get(key(name))
	if !held || h.Reserved || !slices.Equal(h.victims, units) || !h.conditions {
		s.t.Errorf("held: %v %+v (%s), want %v to leave", held, h, s.p.Why(key(name)), units)
	}
}

// A spread constraint fails because of pods of lower priority: these are preempted.
func TestSpreadHasVictims(t *testing.T) {
	low := spread("app", "x", prior(0, gangOf("low", 2, 1)))
	full := prior(9, []*v1.Pod{pod("full", 4)})[0]
	s := newStage(t, zoned("a", 4), zoned("b", 4), on(low[0], "a"), on(low[1], "a"), on(full, "b"))
	s.waits(spread("app", "x", prior(5, gangOf("high", 1, 1))))
	s.seek("high", "PodTopologySpread")
	s.leaves("high", "gang ns/low")
}

// A volume that one pod at a time can use: the pod that uses it is preempted, on whichever node it is.
func TestVolumesHaveVictims(t *testing.T) {
	low := mounting("data", prior(0, []*v1.Pod{pod("low", 1)}))
	s := newStage(t, node("a", 4), node("b", 4), on(low[0], "a"))
	s.claim("data")
	s.waits(mounting("data", prior(5, gangOf("high", 1, 1))))
	s.seek("high", "VolumeRestrictions")
	s.leaves("high", "pod ns/low")
}

// One node is full, and on the other node the port is in use: units on both are preempted.
func TestRoomAndConditionsLackBoth(t *testing.T) {
	full, low := prior(0, gangOf("full", 1, 4)), port(9999, prior(0, gangOf("low", 1, 1)))
	s := newStage(t, node("a", 4), node("b", 4), on(full[0], "a"), on(low[0], "b"))
	s.waits(port(9999, prior(5, gangOf("high", 2, 3))))
	s.seek("high", "NodePorts")
	s.leaves("high", "gang ns/full", "gang ns/low")
}

// Rules OnlyLower, BudgetsKept and NobodyForNothing of docs/designs/priority.md: no unit is preempted if the units that exclude the gang
// must not be preempted, or if the gang would still not fit. The message has the reason.
func TestWhyNobodyLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		low  int32
		size int
		pdb  bool
		want string
	}{
		"of the same priority":    {low: 5, size: 2, want: "gang ns/low would have to be preempted, but its priority is not lower"},
		"under a budget":          {low: 0, size: 2, pdb: true, want: "gang ns/low would have to be preempted, which a disruption budget does not"},
		"too many want that port": {low: 0, size: 3, want: "preempting pods of lower priority would not help: without them, 3 pods wanted"},
	} {
		t.Run(name, func(t *testing.T) {
			low := port(9999, prior(c.low, gangOf("low", 2, 1)))
			s := newStage(t, node("a", 4), node("b", 4), on(low[0], "a"), on(low[1], "b"))
			if c.pdb {
				of := &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: "low"}}
				put(t, s.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Informer(), &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keep"},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: of},
				})
			}
			s.waits(port(9999, prior(5, gangOf("high", c.size, 1))))
			s.seek("high", "NodePorts")
			_, held := s.p.rooms.Get(key("high"))
			_, why, _ := s.gangs.Waiting(key("high"))
			if held || !strings.Contains(s.p.Why(key("high")), c.want) || !strings.Contains(why.Message, c.want) {
				t.Errorf("held %v, why %q, refused with %q", held, s.p.Why(key("high")), why.Message)
			}
		})
	}
}

// Rule HeldIsHeld of docs/designs/priority.md: while the victims terminate, their replacements are not placed beside the gang, though there
// is room.
func TestConditionsAreHeldAsRoomIs(t *testing.T) {
	for name, c := range kindsOfConditions {
		t.Run(name, func(t *testing.T) {
			low := c.low(prior(0, gangOf("low", 2, 1)))
			s := newStage(t, zoned("a", 4), zoned("b", 4), on(low[0], "a"), on(low[1], "b"))
			s.waits(c.high(prior(5, gangOf("high", 2, 1))))
			s.seek("high", c.cause)
			s.leaves("high", "gang ns/low")
			for who, want := range map[string]bool{"low": true, "other": false, "higher": false} {
				pods := map[string][]*v1.Pod{
					"low":    c.low(prior(0, gangOf("low", 2, 1))),
					"other":  prior(0, gangOf("other", 2, 1)),
					"higher": c.low(prior(7, gangOf("higher", 2, 1))),
				}[who]
				taking := []planner.Taking{{Pod: pods[0], Node: "a"}, {Pod: pods[1], Node: "b"}}
				of, disturbed, err := s.p.Disturbed(t.Context(), s.Nodes(), key(who), pods[0], *pods[0].Spec.Priority, taking)
				if disturbed != want || err != nil || want && of != key("high") {
					t.Errorf("%s: %v %v %v, want %v", who, of, disturbed, err, want)
				}
			}
		})
	}
}

// Rule NobodyForNothing of docs/designs/priority.md: if there are too many candidates for the filters to check each, none is preempted.
func TestASearchByFiltersHasAnEnd(t *testing.T) {
	const many = checksAtMost
	var objects []runtime.Object
	for i := range many {
		name := fmt.Sprintf("n%03d", i)
		objects = append(objects, node(name, 4), on(port(9999, prior(0, []*v1.Pod{pod("on-"+name, 1)}))[0], name))
	}
	s := newStage(t, objects...)
	s.waits(port(9999, prior(5, gangOf("high", many, 1))))
	s.seek("high", "NodePorts")
	_, held := s.p.rooms.Get(key("high"))
	if why := s.p.Why(key("high")); held || !strings.Contains(why, "reached its limit of 128 checks") {
		t.Errorf("held %v, why %q", held, why)
	}
}

// Rule NobodyForNothing of docs/designs/priority.md: while units are preempted for a gang because of conditions, no unit is preempted for
// another gang that the filters would not admit beside it.
func TestNobodyLeavesForWhoWouldNotBeLetIn(t *testing.T) {
	low, cheapest := away("class", "high", v1.LabelHostname, prior(1, gangOf("low", 2, 0))), prior(0, gangOf("cheapest", 2, 1))
	s := newStage(t, zoned("a", 2), zoned("b", 2), on(low[0], "a"), on(low[1], "b"), on(cheapest[0], "a"), on(cheapest[1], "b"))
	s.waits(away("class", "middle", v1.LabelHostname, labelled("class", "high", prior(5, gangOf("high", 2, 1)))))
	s.seek("high", "InterPodAffinity")
	s.leaves("high", "gang ns/low")
	s.waits(labelled("class", "middle", prior(3, gangOf("middle", 2, 1))))
	s.p.nextSearch = time.Time{}
	s.seek("middle", "without free")
	if h, held := s.p.rooms.Get(key("middle")); held {
		t.Errorf("%v leave", h.victims)
	}
}

// A pod of no gang preempts pods that exclude it, or gets a message that names them.
func TestConditionsOfSinglePods(t *testing.T) {
	low := port(9999, prior(0, gangOf("low", 1, 1)))
	s := newStage(t, node("a", 4), on(low[0], "a"))
	s.Nodes()
	lone := port(9999, prior(5, []*v1.Pod{pod("lone", 1)}))[0]
	result, status := s.p.MakeRoomForOne(t.Context(), lone, fwk.NewStatus(fwk.Unschedulable))
	if !status.IsSuccess() || result == nil || result.NominatedNodeName != "a" {
		t.Errorf("%+v, %v", result, status)
	}
}
