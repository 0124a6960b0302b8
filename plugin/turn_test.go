package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"holdfast.dev/holdfast/plugin/planner"
)

// usher is a plugin that decides where the queue holds pods.
type usher struct {
	mu sync.Mutex
	// gated pods are held at PreEnqueue. fails counts errors with which the next cycles of a pod end; planned: only after the pod was
	// planned.
	gated   map[string]bool
	fails   map[string]int
	planned bool
}

func (u *usher) extras() extras {
	u.gated, u.fails = map[string]bool{}, map[string]int{}
	return extras{
		plugins: map[string]frameworkruntime.PluginFactory{
			"Usher": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return u, nil },
		},
	}
}

func (u *usher) Name() string { return "Usher" }

func (u *usher) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gated[pod.Name] {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "gated")
	}
	return nil
}

func (u *usher) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fails[pod.Name] > 0 && !(u.planned && planner.IsNested(state)) {
		u.fails[pod.Name]--
		return nil, fwk.NewStatus(fwk.Error, "fails")
	}
	return nil, fwk.NewStatus(fwk.Skip)
}

func (u *usher) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (u *usher) failed(pod string) func() bool {
	return func() bool { u.mu.Lock(); defer u.mu.Unlock(); return u.fails[pod] == 0 }
}

// cordoned returns a node that takes no pods.
func cordoned(n *v1.Node) *v1.Node {
	n.Spec.Unschedulable = true
	return n
}

func (w *world) uncordon(name string) {
	w.t.Helper()
	if _, err := w.client.CoreV1().Nodes().Update(w.ctx, node(name, 2), metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// waits reports whether a pod waits for a reason.
func (w *world) waits(pod, why string) func() bool {
	return func() bool {
		p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, pod, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodScheduled && strings.Contains(c.Message, why)
		})
	}
}

// ago returns a moment in the past.
func ago(seconds int) time.Time {
	return time.Now().Truncate(time.Second).Add(-time.Duration(seconds) * time.Second)
}

// A gang that lost a pod gets room that becomes free, however that happens and wherever the queue holds its pod. A newer gang or pod waits.
func TestWhoLostAPodIsNotPassed(t *testing.T) {
	type arrival struct {
		before []runtime.Object
		comes  func(*world)
	}
	for how, room := range map[string]arrival{
		"uncordoned": {[]runtime.Object{cordoned(node("b", 2))}, func(w *world) { w.uncordon("b") }},
		"added":      {nil, func(w *world) { w.create(node("b", 2)) }},
		"freed":      {[]runtime.Object{node("b", 2), on(pod("filler", 2), "b")}, func(w *world) { w.remove("filler") }},
	} {
		for _, place := range []string{"queue", "backoff", "gate"} {
			for who, newer := range map[string]*v1.Pod{"lone": pod("lone", 2), "fresh-0": memberPod("fresh", 0, 1, 2)} {
				t.Run(fmt.Sprintf("%s, from the %s, before %s", how, place, who), func(t *testing.T) {
					u := &usher{}
					w := newWorld(t, u.extras(), append([]runtime.Object{node("a", 2), created(on(memberPod("long", 0, 2, 2), "a"), ago(8))}, room.before...)...)
					w.create(created(newer.DeepCopy(), ago(7)))
					w.until("the newer one to be refused", func() bool { return len(w.failures(who)) > 0 })
					lost := created(memberPod("long", 1, 2, 2), ago(6))
					u.mu.Lock()
					u.gated["long-1"] = place == "gate"
					u.fails["long-1"] = map[string]int{"backoff": 1}[place]
					u.mu.Unlock()
					w.create(lost)
					switch place {
					case "queue":
						w.until("it to be refused", w.says("long", "1 pod wanted (1 of 2 are on nodes), 0 fit"))
					case "backoff":
						w.until("its cycle to fail", u.failed("long-1"))
					case "gate":
						w.until("the plugin to know it", func() bool { return w.plugin.gangs.AnyWaiting() && w.plugin.gangs.Wants(key("long")) })
					}
					room.comes(w)
					if place == "gate" {
						if w.attempted(); who == "lone" { // a gang keeps its last answer
							w.until("the newer one to give way", w.waits(who, "gang ns/long is ahead: it lost a pod and waits for its replacement, and fits now"))
						}
						u.mu.Lock()
						delete(u.gated, "long-1")
						u.mu.Unlock()
						w.plugin.activate(klog.Background(), []*v1.Pod{lost})
					}
					w.until("it to have the room", w.boundTo(map[string]string{"long-1": "b"}))
					w.attempted()
					if at := w.where(who); at != "" {
						t.Errorf("%s is on %s", who, at)
					}
				})
			}
		}
	}
}

// Room reserved for a gang that was never complete can be used by a gang that lost a pod.
func TestWhoLostAPodHasReservedRoom(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), created(on(memberPod("long", 0, 2, 2), "a"), ago(8)), node("b", 2), on(pod("filler", 2), "b"))
	w.create(created(memberPod("fresh", 0, 1, 2), at(2)))
	w.until("room to be reserved", w.says("fresh", "is reserved for it"))
	w.create(created(memberPod("long", 1, 2, 2), ago(6)))
	w.until("it to be refused", w.says("long", "1 pod wanted (1 of 2 are on nodes), 0 fit"))
	w.remove("filler")
	w.until("it to have the room", w.boundTo(map[string]string{"long-1": "b"}))
}

// A scheduler that has just started knows the order before it places any pod.
func TestNobodyIsPassedByTheNextScheduler(t *testing.T) {
	for range 10 {
		w := newWorld(t, extras{}, created(pod("lone", 2), ago(7)), created(memberPod("fresh", 0, 1, 2), ago(7)), node("a", 2), node("b", 2),
			created(memberPod("long", 1, 2, 2), ago(6)), created(on(memberPod("long", 0, 2, 2), "a"), ago(8)))
		w.until("it to have the room", w.boundTo(map[string]string{"long-1": "b"}))
		w.attempted()
		if lone, fresh := w.where("lone"), w.where("fresh-0"); lone != "" || fresh != "" {
			t.Errorf("lone is on %q, fresh on %q", lone, fresh)
		}
		w.stop()
	}
}

// A gang that is ahead but is not tried delays others only for a while.
func TestWhoDoesNotComeIsPassed(t *testing.T) {
	u := &usher{}
	w := newWorld(t, u.extras(), node("a", 2), created(on(memberPod("long", 0, 2, 2), "a"), ago(8)))
	u.mu.Lock()
	u.gated["long-1"] = true
	u.mu.Unlock()
	w.create(created(memberPod("long", 1, 2, 2), ago(6)))
	w.until("the plugin to know it", func() bool { return w.plugin.gangs.Wants(key("long")) })
	w.create(created(pod("lone", 2), ago(7)), node("b", 2))
	w.until("the other one to give way", w.waits("lone", "gang ns/long is ahead"))
	w.until("the other one to go on", w.boundTo(map[string]string{"lone": "b"}))
}

// After a plan was made, another plugin returns an error for the leading member. The member waits for its backoff and then follows the
// plan. The plan is not given up before, and not left open until planTimeout.
func TestAPlanOutlivesAnErrorOfAnotherPlugin(t *testing.T) {
	u := &usher{}
	w := newWorld(t, u.extras(), node("a", 2), node("b", 2))
	u.mu.Lock()
	u.fails["g-0"], u.planned = 1, true
	u.mu.Unlock()
	began := time.Now()
	w.createAll(gangOf("g", 2, 2))
	w.until("its cycle to fail", u.failed("g-0"))
	w.until("the gang to be placed", w.boundTo(map[string]string{"g-0": "*", "g-1": "*"}))
	if took := time.Since(began); took >= w.plugin.args.PlanTimeout.Duration {
		t.Errorf("placed after %v", took)
	}
	if n := testutil.ToFloat64(w.plugin.measures.givenUp); n != 0 {
		t.Errorf("%v plans were given up", n)
	}
}
