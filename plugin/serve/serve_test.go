package serve

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/frameworktest"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/plugin/plugintest"
	"holdfast.dev/holdfast/plugin/preemption"
	"holdfast.dev/holdfast/topology"
)

const gpu = plugintest.GPU

var (
	node      = plugintest.Node
	pod       = plugintest.Pod
	memberPod = plugintest.Member
	gangOf    = plugintest.Gang
	on        = plugintest.On
)

// world is a Server with its gangs.
type world struct {
	*Server
	gangs *gangcache.Cache
}

// nothing is held.
var nothing []topology.Assumed

// newWorld returns a Server over a framework. Its queries are answered at once, because no scheduler runs. held is the room held on nodes.
func newWorld(t testing.TB, held []topology.Assumed, objects ...runtime.Object) *world {
	t.Helper()
	f, gangs := frameworktest.New(t, objects...), frameworktest.Cache()
	var args schedulingv1alpha1.HoldfastArgs
	args.Default()
	plans := planner.New(planner.Config{
		Framework: f,
		Args:      args,
		Gangs:     gangs,
		Health:    frameworktest.Well{},
		Metrics:   planner.NewMetrics(),
		Reserved:  func(types.NamespacedName, int32, bool, time.Time) []topology.Assumed { return held },
		Wake:      func(klog.Logger, types.NamespacedName) {},
	})
	room := preemption.New(preemption.Config{Framework: f, Args: &args, Planner: plans, Gangs: gangs, Health: frameworktest.Well{},
		Budgets: f.SharedInformerFactory().
			Policy().
			V1().
			PodDisruptionBudgets().
			Lister(),
		Metrics: preemption.NewMetrics(nil)}, preemption.NewHeldRooms())
	leading := make(chan struct{})
	s := NewServer(leading)
	s.Add(&Instance{Framework: f, Gangs: gangs, Planner: plans, Preemption: room, Terms: frameworktest.Terms})
	if _, err := s.Fabric(t.Context(), "", 0); !errors.Is(err, ErrNotLeading) {
		t.Errorf("a replica that does not lead says %v", err)
	}
	close(leading)
	go func() {
		for {
			select {
			case q := <-s.Questions():
				q.Answer(f.Cache())
			case <-t.Context().Done():
				return
			}
		}
	}()
	return &world{Server: s, gangs: gangs}
}

// The response shows the present fabric, with held room, and the moves that would free domains. A query for an unknown level is refused.
func TestFabricIsTold(t *testing.T) {
	inRack := func(name, rack string) *v1.Node {
		n := node(name, 2)
		n.Labels["topology.kubernetes.io/rack"] = rack
		return n
	}
	w := newWorld(t, []topology.Assumed{{Node: "c", Usage: topology.Usage{Resources: topology.Resources{gpu: 1}, Tenant: true}}},
		inRack("a", "r0"), inRack("b", "r0"), inRack("c", "r1"), inRack("d", "r1"), inRack("e", "r2"), inRack("f", "r2"),
		on(pod("web", 1), "a"), on(pod("x", 1), "c"), on(pod("y", 1), "d"))
	got, err := w.Fabric(t.Context(), "rack", 3)
	if err != nil || len(got.Levels) != 1 || got.Levels[0].Free != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	// Room on c is held, so no pod moves there. No pod moves to e or f, which are in a whole rack. Of x and y only one has a place.
	want := "[{rack 3 1 3 1 2 [{r0 2 1 1 [{pod ns/web [{a d}]}]}]}]"
	if text := fmt.Sprint(got.Levels); text != want {
		t.Errorf("%s, want %s", text, want)
	}
	var bad *InvalidError
	if _, err := w.Fabric(t.Context(), "row", 3); !errors.As(err, &bad) || err.Error() != `level: the fabric has no level "row", use one of: rack` {
		t.Errorf("%v", err)
	}
}

// Pods that the API server has not seen yet request what their limits say.
func TestAPreviewCountsLimits(t *testing.T) {
	w := newWorld(t, nothing, node("a", 2), node("b", 2))
	pods := gangOf("g", 3, 2)
	for _, p := range pods {
		p.Spec.Containers[0].Resources.Requests = nil
	}
	got, err := w.Preview(t.Context(), pods)
	if err != nil || got.Placement.Message != "3 pods wanted, 2 fit: 2 nodes" {
		t.Errorf("answer %+v, %v", got, err)
	}
}

// A preview of a gang that lost a member places the missing member beside those that run.
func TestAPreviewOfAGangThatExists(t *testing.T) {
	member := on(memberPod("g", 0, 2, 2), "a")
	w := newWorld(t, nothing, node("a", 2), node("b", 2), member)
	w.gangs.Observe(plugintest.Key("g"), member)
	got, err := w.Preview(t.Context(), gangOf("g", 2, 2))
	if err != nil {
		t.Fatal(err)
	}
	if !got.Placement.Placed || got.Placement.Wanted != 1 || strings.Join(got.Placement.Nodes, " ") != "a b" {
		t.Errorf("answer %+v", got)
	}
	few, err := w.Preview(t.Context(), gangOf("h", 3, 2)[:2])
	if err != nil || few.Placement.Reason != v1alpha1.ReasonWaitingForMembers || few.Placement.Message != "2 of 3 pods exist" {
		t.Errorf("too few pods: %+v, %v", few, err)
	}
}

// A preview of an elastic gang says how it would go on without the nodes that have most of its pods. Pods of a lost node get free nodes.
func TestAPreviewOfLosses(t *testing.T) {
	elastic := func(least, unit string) []*v1.Pod {
		pods := gangOf("g", 4, 2)
		for _, p := range pods {
			p.Annotations[v1alpha1.AnnotationGangMin] = least
			p.Annotations[v1alpha1.AnnotationGangUnit] = unit
		}
		return pods
	}
	for name, c := range map[string]struct {
		objects []runtime.Object
		least   string
		unit    string
		want    string
	}{
		"a node is free for one pod": {[]runtime.Object{node("a", 4), node("b", 2), node("c", 2), node("d", 2)}, "2", "", "[{[a] 2 1 3 2 0} {[a b] 3 1 2 2 0}]"},
		"none is":                    {[]runtime.Object{node("a", 4), node("b", 2), node("c", 2)}, "2", "", "[{[a] 2 0 2 2 0} {[a b] 3 0 1 2 0}]"},
		"fewer are placed":           {[]runtime.Object{node("a", 2), node("b", 2), node("c", 2)}, "3", "", "[{[a] 1 0 2 3 0} {[a b] 2 0 1 3 0}]"},
		"all are on one node":        {[]runtime.Object{node("a", 8), node("b", 4)}, "2", "", "[{[a] 4 2 2 2 0}]"},
		"a node is free, of blocks":  {[]runtime.Object{node("a", 4), node("b", 2), node("c", 2), node("d", 2)}, "2", "2", "[{[a] 2 0 2 2 0} {[a b] 3 1 2 2 0}]"},
		"none is, of blocks":         {[]runtime.Object{node("a", 2), node("b", 2), node("c", 2), node("d", 2)}, "2", "2", "[{[a] 1 0 2 2 1} {[a b] 2 0 2 2 0}]"},
		"all are needed":             {[]runtime.Object{node("a", 8), node("b", 4)}, "4", "", "[]"},
	} {
		w := newWorld(t, nothing, c.objects...)
		got, err := w.Preview(t.Context(), elastic(c.least, c.unit))
		if err != nil || !got.Placement.Placed || fmt.Sprint(got.Losses) != c.want {
			t.Errorf("%s: %v, want %s; %v %+v", name, got.Losses, c.want, err, got.Placement)
		}
	}
}

func TestAPreviewRefusesWhatItCannotAnswer(t *testing.T) {
	w := newWorld(t, nothing, node("a", 2))
	twin := gangOf("g", 2, 1)
	twin[1].Name = twin[0].Name
	unsized := gangOf("g", 1, 1)
	unsized[0].Annotations = nil
	for says, pods := range map[string][]*v1.Pod{
		"has no label holdfast.dev/gang":       {pod("plain", 1)},
		"does not belong to gang g":            {memberPod("g", 0, 2, 1), memberPod("h", 1, 2, 1)},
		"two pods are named g-0":               twin,
		"no annotation holdfast.dev/gang-size": unsized,
		`names scheduler "other"`:              {func() *v1.Pod { p := memberPod("g", 0, 1, 1); p.Spec.SchedulerName = "other"; return p }()},
	} {
		_, err := w.Preview(t.Context(), pods)
		var bad *InvalidError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}
