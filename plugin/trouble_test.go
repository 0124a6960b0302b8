package plugin

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/plugin/planner"
)

// saboteur is a plugin that makes nodes unusable during a plan.
type saboteur struct {
	mu sync.Mutex
	// spoils maps pods to nodes: Reserve of the pod on that node fails, and from then on Filter rejects every pod there.
	spoils map[string]string
	spoilt map[string]bool
	// onReserve is called in the scheduling cycle of each pod.
	onReserve func(pod *v1.Pod)
}

func (s *saboteur) extras() extras {
	s.spoilt = map[string]bool{}
	return extras{
		plugins: map[string]frameworkruntime.PluginFactory{
			"Saboteur": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return s, nil },
		},
	}
}

func (s *saboteur) Name() string { return "Saboteur" }

func (s *saboteur) Filter(_ context.Context, _ fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spoilt[n.Node().Name] {
		return fwk.NewStatus(fwk.Unschedulable, "spoilt")
	}
	return nil
}

func (s *saboteur) Reserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if s.onReserve != nil {
		s.onReserve(pod)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spoils[pod.Name] == node {
		s.spoilt[node] = true
		return fwk.NewStatus(fwk.Unschedulable, "spoilt")
	}
	return nil
}

func (s *saboteur) Unreserve(context.Context, fwk.CycleState, *v1.Pod, string) {}

// deleted lists the pods that were deleted through the API, in order, except the probes of attempted.
func (w *world) deleted() []string {
	var names []string
	for _, a := range w.client.Actions() {
		if d, ok := a.(clienttesting.DeleteAction); ok && a.GetResource().Resource == "pods" && !strings.HasPrefix(d.GetName(), "probe") {
			names = append(names, d.GetName())
		}
	}
	return names
}

// TestAReplacedMemberIsNoneAnyMore: a running pod that gets the label for replaced pods gives its slot to a new pod. The new pod is placed
// alone, and the other members stay.
func TestAReplacedMemberIsNoneAnyMore(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2))
	w.create(on(memberPod("g", 0, 2, 2), "a"), on(memberPod("g", 1, 2, 2), "b"))
	old, err := w.client.CoreV1().Pods("ns").Get(w.ctx, "g-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old = old.DeepCopy()
	old.Labels[v1alpha1.LabelReplaced], old.ResourceVersion = "true", "2"
	if _, err := w.client.CoreV1().Pods("ns").Update(w.ctx, old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	fresh := memberPod("g", 1, 2, 2)
	fresh.Name = "g-1b"
	w.create(fresh)
	w.until("the new one to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-1b": "c"}))
	if gone := w.deleted(); len(gone) > 0 {
		t.Errorf("deleted %v", gone)
	}
}

func TestAMemberThatFailsAtReserveIsPlannedAnew(t *testing.T) {
	s := &saboteur{spoils: map[string]string{"g-1": "b"}}
	w := newWorld(t, s.extras(), node("a", 2), node("b", 2), node("c", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "c"}))
	if d := w.deleted(); len(d) != 0 {
		t.Errorf("pods were deleted: %v", d)
	}
}

func TestAPlanThatCannotBeRepairedIsUndoneNewestFirst(t *testing.T) {
	s := &saboteur{spoils: map[string]string{"g-2": "c"}}
	// The other members are scheduled in any order, so g-1 may or may not have its node when g-2 finds none.
	var placed []string
	s.onReserve = func(p *v1.Pod) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.Name != "g-2" {
			placed = append(placed, p.Name)
		}
	}
	w := newWorld(t, s.extras(), node("a", 2), node("b", 2), node("c", 2))
	for slot := range 3 {
		w.create(memberPod("g", slot, 3, 2))
	}
	w.until("what was placed to be taken back", func() bool { return w.where("g-0") == "gone" })
	s.mu.Lock()
	undone := slices.Clone(placed)
	slices.Reverse(undone)
	s.mu.Unlock()
	if d := w.deleted(); !slices.Equal(d, undone) {
		t.Errorf("deleted %v, want %v", d, undone)
	}
	if at := w.where("g-2"); at != "" {
		t.Errorf("the member that was refused is on %q", at)
	}
	w.until("the reason", w.says("g", "1 refused by Saboteur"))
	w.until("the event", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.events["g-0"], func(e string) bool { return strings.HasPrefix(e, "RolledBack: ") })
	})

	// The pods' controller creates new pods. They wait until all exist, and get their nodes together.
	for _, name := range undone {
		w.create(memberPod("g", int(name[len(name)-1]-'0'), 3, 2))
	}
	w.until("the refusal", w.says("g", "3 pods wanted, 2 fit: 3 nodes, 1 refused by Saboteur"))
	w.attempted()
	for slot := range 3 {
		if at := w.where(fmt.Sprint("g-", slot)); at != "" {
			t.Errorf("g-%d is on %q", slot, at)
		}
	}
	w.create(node("d", 2))
	w.until("all to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "d"}))
}

func TestABindingThatFailsIsRepaired(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.mu.Lock()
	w.refuseBind["g-1"], w.refuseBind["g-0"] = 1, 1
	w.mu.Unlock()
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be bound", w.boundTo(map[string]string{"g-0": "*", "g-1": "*"}))
	if d := w.deleted(); len(d) != 0 {
		t.Errorf("pods were deleted: %v", d)
	}
}

func TestAMemberDeletedInTheMiddleOfAPlan(t *testing.T) {
	s := &saboteur{}
	var w *world
	var once sync.Once
	s.onReserve = func(p *v1.Pod) {
		if p.Name == "g-0" {
			once.Do(func() {
				w.remove("g-2")
				w.until("the plugin to see it", func() bool { return w.plugin.gangs.Leader(key("g")) == nil })
			})
		}
	}
	w = newWorld(t, s.extras(), node("a", 2), node("b", 2), node("c", 2), node("d", 2))
	for slot := range 3 {
		w.create(memberPod("g", slot, 3, 2))
	}
	w.until("g-2 to be gone", func() bool { return w.where("g-2") == "gone" })
	w.create(memberPod("g", 2, 3, 2))
	w.until("all to be bound", w.boundTo(map[string]string{"g-0": "*", "g-1": "*", "g-2": "*"}))
}

// A gang of higher priority enters the queue between the leader of another gang and its other members. The open plan is still followed.
func TestAStandingPlanHoldsAgainstAHigherPriority(t *testing.T) {
	s := &saboteur{}
	var w *world
	var once sync.Once
	high := func(slot int) *v1.Pod {
		p := memberPod("high", slot, 2, 2)
		p.Spec.Priority = ptr.To[int32](1000)
		return p
	}
	s.onReserve = func(p *v1.Pod) {
		if p.Name == "g-0" {
			once.Do(func() {
				w.create(high(0), high(1))
				w.until("the plugin to see them", func() bool { return w.plugin.gangs.Leader(key("high")) != nil })
			})
		}
	}
	w = newWorld(t, s.extras(), node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("the first gang to be bound", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
	w.until("the other to be refused", w.says("high", "2 pods wanted, 0 fit"))
	w.attempted()
	if w.where("high-0") != "" || w.where("high-1") != "" {
		t.Error("the other gang was placed on nodes that are taken")
	}
	if d := w.deleted(); len(d) != 0 {
		t.Errorf("pods were deleted: %v", d)
	}
}

// Gangs and single pods compete for nodes. Whichever gets them, no gang is left placed in part.
func TestRacesLeaveNoGangHalfPlaced(t *testing.T) {
	for seed := range seeds.All(t, int64(6)) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			rng := rand.New(rand.NewSource(seed))
			var nodes []runtime.Object
			for i := range 7 {
				nodes = append(nodes, node(fmt.Sprint("n", i), 2))
			}
			w := newWorld(t, extras{}, nodes...)
			var pods []runtime.Object
			for g := range 4 {
				for slot := range 3 {
					p := memberPod(fmt.Sprint("g", g), slot, 3, 2)
					p.Spec.Priority = ptr.To(int32(rng.Intn(2)))
					pods = append(pods, p)
				}
			}
			rng.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			var wg sync.WaitGroup
			for _, p := range pods {
				wg.Go(func() { w.create(p) })
			}
			wg.Wait()
			w.until("two gangs to be placed and two refused", func() bool {
				placed, refused := 0, 0
				for g := range 4 {
					p := w.placement(fmt.Sprint("g", g))
					if p.Placed {
						placed++
					} else if p.Wanted == 3 && strings.Contains(p.Message, "1 fits: 7 nodes, 6 without free") {
						refused++
					}
				}
				return placed == 2 && refused == 2
			})
			w.attempted()
			w.checkWhole(t, 4, 3)
			if d := w.deleted(); len(d) != 0 {
				t.Errorf("a gang was taken back: %v", d)
			}
		})
	}
}

// checkWhole checks that each gang has all of its members on nodes or none, and that no node has more than one.
func (w *world) checkWhole(t *testing.T, gangs, size int) {
	t.Helper()
	used := map[string]string{}
	for g := range gangs {
		bound := 0
		for slot := range size {
			name := fmt.Sprintf("g%d-%d", g, slot)
			at := w.where(name)
			if at == "" || at == "gone" {
				continue
			}
			bound++
			if other := used[at]; other != "" {
				t.Errorf("%s and %s share node %s", other, name, at)
			}
			used[at] = name
		}
		if bound != 0 && bound != size {
			t.Errorf("gang g%d is half placed: %d of %d", g, bound, size)
		}
	}
}

func TestMembersThatMustKeepApart(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 8), node("b", 8))
	for slot := range 3 {
		m := memberPod("g", slot, 3, 2)
		m.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"holdfast.dev/gang": "g"}}}}}}
		w.create(m)
	}
	w.until("the third to be refused", w.says("g", "3 pods wanted, 2 fit: 2 nodes"))
	w.attempted()
	for slot := range 3 {
		if at := w.where(fmt.Sprint("g-", slot)); at != "" {
			t.Errorf("g-%d is on %q", slot, at)
		}
	}
	w.create(node("c", 8))
	w.until("all to be bound apart", w.boundTo(map[string]string{"g-0": "a", "g-1": "b", "g-2": "c"}))
}

func TestMembersWithOneHostPort(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 8), node("b", 8))
	for slot := range 2 {
		m := memberPod("g", slot, 2, 2)
		m.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
		w.create(m)
	}
	w.until("both to be bound apart", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
}

func TestANominatedNodeDoesNotLeadAMemberAstray(t *testing.T) {
	astray := memberPod("g", 1, 2, 2)
	astray.Status.NominatedNodeName = "c"
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2))
	w.create(astray, memberPod("g", 0, 2, 2))
	w.until("both to be bound as planned", w.boundTo(map[string]string{"g-0": "a", "g-1": "b"}))
}

func TestNothingIsPreemptedForASingleMember(t *testing.T) {
	low := on(pod("low", 2), "a")
	low.Spec.Priority = ptr.To[int32](-1)
	w := newWorld(t, extras{}, node("a", 2), low)
	for slot := range 2 {
		m := memberPod("g", slot, 2, 2)
		m.Spec.Priority = ptr.To[int32](1000)
		w.create(m)
	}
	w.until("the refusal", w.says("g", "2 pods wanted, 0 fit"))
	w.attempted()
	if w.where("low") != "a" {
		t.Error("a pod was preempted though the gang does not fit")
	}
}

// If the planned node of a member was taken, the default plugin must not preempt for that member alone. Nor must it preempt single members
// for a pod of no gang. Other plugins still handle claims that they looked at.
func TestPostFilterEndsTheChain(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	claims := pod("claims", 1)
	claims.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c"}}
	visited := planner.NewNestedState()
	visited.Write(names.DynamicResources, plannedNode(""))
	for _, c := range []struct {
		pod  *v1.Pod
		want fwk.Code
	}{
		{memberPod("g", 0, 1, 1), fwk.UnschedulableAndUnresolvable},
		{pod("plain", 1), fwk.UnschedulableAndUnresolvable},
		{claims, fwk.Unschedulable},
	} {
		if _, status := w.plugin.PostFilter(w.ctx, visited, c.pod, nil); status.Code() != c.want {
			t.Errorf("%s: %v, want %v", c.pod.Name, status.Code(), c.want)
		}
	}
	all := w.plugin.handle.(interface{ ListPlugins() *schedulerapi.Plugins }).ListPlugins().PostFilter.Enabled
	if all[0].Name != Name {
		t.Errorf("%s comes first at PostFilter", all[0].Name)
	}
	for _, p := range all {
		if p.Name == names.DefaultPreemption {
			t.Error("DefaultPreemption takes single members for pods with claims")
		}
	}
}

func TestReplanningSlowsDown(t *testing.T) {
	for inARow, want := range map[int]time.Duration{1: 0, 2: replanAfter, 3: 2 * replanAfter, 50: replanAtMost} {
		if got := replanDelay(inARow); got != want {
			t.Errorf("after %d plans in a row: %v, want %v", inARow, got, want)
		}
	}
}
