package plugin

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/plugintest"
)

// marked reports whether a pod has a condition with this reason and message.
func (w *world) marked(name, reason, message string) func() bool {
	return func() bool {
		p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		_, c := podutil.GetPodCondition(&p.Status, v1.PodScheduled)
		return c != nil && c.Status == v1.ConditionFalse && c.Reason == reason && (message == "" || c.Message == message)
	}
}

func (w *world) allMarked(pods []*v1.Pod, reason string) func() bool {
	return func() bool {
		for _, p := range pods {
			if !w.marked(p.Name, reason, "")() {
				return false
			}
		}
		return true
	}
}

func (w *world) createAll(pods []*v1.Pod) {
	for _, p := range pods {
		w.create(p)
	}
}

// writes returns how often the status of these pods was written so far, and the most writes of one pod.
func (w *world) writes(pods []*v1.Pod) (all, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range pods {
		all, most = all+w.conditions[p.Name], max(most, w.conditions[p.Name])
	}
	return all, most
}

// If there is no node, the pods of a complete gang have the condition that an autoscaler reads. The gang is placed when nodes are added.
func TestAGangWithoutAnyNodeIsMarkedWhole(t *testing.T) {
	w := newWorld(t, extras{})
	gang := gangOf("g", 4, 2)
	w.createAll(gang)
	w.until("all to be marked", w.allMarked(gang, v1.PodReasonUnschedulable))
	w.until("the reason on the Gang", w.says("g", "4 pods wanted, 0 fit: the cluster has no nodes"))
	for _, name := range []string{"a", "b", "c", "d"} {
		w.create(node(name, 2))
	}
	w.until("all to be bound", w.boundTo(map[string]string{"g-0": "*", "g-1": "*", "g-2": "*", "g-3": "*"}))
}

// For a large gang the condition is written once per member, however often the message of the answer changes.
func TestMarksOfALargeGangAreCounted(t *testing.T) {
	const size = 500
	began := time.Now()
	w := newWorld(t, extras{}, node("a", 2))
	gang := gangOf("g", size, 2)
	w.createAll(gang)
	w.until("all to be marked", w.allMarked(gang, v1.PodReasonUnschedulable))
	for i := range 5 {
		w.create(node(fmt.Sprint("n", i), 2))
		w.until("the answer to change", w.says("g", fmt.Sprintf("%d pods wanted, %d fit", size, i+2)))
	}
	w.attempted()
	// kube-scheduler itself writes the condition of the pod that it tries, each time. Each is reworded once a minute.
	most := (size - 1) * (1 + int(time.Since(began)/rewordEvery))
	if all, _ := w.writes(gang[1:]); all > most {
		t.Errorf("%d writes for %d members that are not tried, at most %d", all, size-1, most)
	}
}

// Pods of a group are not marked as waiting for others while these are being created. A mark that requests nodes is withdrawn at once.
func TestArrivingPodsAreNotMarked(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		newest time.Duration
		mark   string
		writes int
		again  time.Duration
	}{
		"being created":         {newest: time.Second, again: arriving - time.Second},
		"created long ago":      {newest: arriving, writes: 2, again: 0},
		"one of them is marked": {newest: time.Second, mark: v1.PodReasonUnschedulable, writes: 1, again: arriving - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			pods := []*v1.Pod{plugintest.Pod("a", 1), plugintest.Pod("b", 1)}
			for i, pod := range pods {
				pod.UID = types.UID(pod.Name)
				pod.CreationTimestamp = metav1.NewTime(now.Add(-c.newest * time.Duration(len(pods)-i)))
			}
			if c.mark != "" {
				pods[0].Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: c.mark}}
			}
			client := fake.NewClientset(pods[0], pods[1])
			marks := newMemberConditions(client, func(types.NamespacedName) (waiting, bool) {
				return waiting{pods: pods, reason: v1alpha1.ReasonWaitingForMembers, message: "2 of 3 pods exist"}, true
			})
			again, err := marks.write(t.Context(), types.NamespacedName{Namespace: "ns", Name: membership.Coscheduling + "/g"}, now)
			writes := 0
			for _, a := range client.Actions() {
				if a.GetVerb() == "patch" {
					writes++
				}
			}
			if err != nil || again != c.again || writes != c.writes {
				t.Errorf("%d writes, again after %s, want %d and %s, %v", writes, again, c.writes, c.again, err)
			}
		})
	}
}

// When a member is missing, no node would help: the condition is withdrawn.
func TestAMarkGoesWhereNoNodeWouldHelp(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	gang := gangOf("g", 3, 2)
	w.createAll(gang)
	w.until("all to be marked", w.allMarked(gang, v1.PodReasonUnschedulable))
	w.remove("g-1")
	left := []*v1.Pod{gang[0], gang[2]}
	w.until("the marks to go", w.allMarked(left, v1alpha1.ReasonWaitingForMembers))
	w.create(again("g", 1, 3, 2))
	w.until("the marks to be back", w.allMarked(append(left, again("g", 1, 3, 2)), v1.PodReasonUnschedulable))
}

// If no node would help a gang, no member gets the condition with which it requests a node.
func TestAGangThatNoNodeHelpsIsNotMarked(t *testing.T) {
	rack := func(name string) runtime.Object { return labelled(node(name, 2), "nvidia.com/gpu.clique", "r") }
	for name, c := range map[string]struct {
		key, value, reason string
	}{
		"larger than any NVLink domain": {v1alpha1.AnnotationTopologyRequired, "nvlink", v1alpha1.ReasonInsufficientNodes},
		"a level that is not there":     {v1alpha1.AnnotationTopologyRequired, "shelf", v1alpha1.ReasonInvalidTopology},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extras{}, rack("a"), rack("b"))
			gang := gangOf("g", 3, 2)
			for _, p := range gang {
				w.create(asking(p, c.key, c.value))
			}
			w.until("the one that is tried to say so", w.marked("g-0", c.reason, ""))
			for range 3 {
				w.attempted()
			}
			for _, p := range gang {
				if w.marked(p.Name, v1.PodReasonUnschedulable, "")() {
					t.Errorf("%s asks for a node", p.Name)
				}
			}
		})
	}
}

// A member that is tried while its gang has no new answer keeps its condition. Otherwise an autoscaler would remove a node and add it
// again.
func TestAMarkStaysWhileTheGangIsUndecided(t *testing.T) {
	w := newWorld(t, extras{follower: true}, node("a", 2)) // it decides nothing
	status := memberStatus{nil, w.plugin}
	said := func(p *v1.Pod) *v1.PodCondition {
		t.Helper()
		w.create(p.DeepCopy())
		tried := []*v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: "tried"}}
		if _, err := status.PatchPodStatus(p, tried, nil); err != nil {
			t.Fatal(err)
		}
		return tried[0]
	}
	first := memberPod("g", 0, 1, 2)
	if c := said(first); c.Reason != reasonUndecided || c.Message != "tried" {
		t.Errorf("at first: %+v", c)
	}
	second := memberPod("h", 0, 1, 2)
	last := v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: "3 pods wanted, 0 fit"}
	second.Status.Conditions = []v1.PodCondition{last}
	if c := said(second); c.Reason != last.Reason || c.Message != last.Message {
		t.Errorf("then: %+v, want %+v", c, last)
	}
}
