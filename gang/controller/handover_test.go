package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
)

// ofVolcano makes Volcano place a pod, in a group.
func ofVolcano(group string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SchedulerName = handover.Scheduler
		p.Annotations[handover.GroupKey] = group
	}
}

func (w *world) group(name string) *unstructured.Unstructured {
	w.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(handover.Kind)
	switch err := w.client.Get(context.Background(), types.NamespacedName{Namespace: key.Namespace, Name: name}, u); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		w.t.Fatal(err)
	}
	return u
}

// volcanoSays writes a group's status, and lets time pass.
func (w *world) volcanoSays(phase, condition, message string) {
	w.t.Helper()
	u := w.group(key.Name)
	u.Object["status"] = map[string]any{"phase": phase, "conditions": []any{map[string]any{
		"type": condition, "status": "True", "message": message, "lastTransitionTime": w.now.Format(time.RFC3339)}}}
	if err := w.client.Update(context.Background(), u); err != nil {
		w.t.Fatal(err)
	}
	w.now = w.now.Add(groupSoonest)
}

// TestAGangIsHandedToVolcano: one PodGroup is created once the first pod of the gang exists. From then on the Gang shows the status of the
// PodGroup.
func TestAGangIsHandedToVolcano(t *testing.T) {
	w := newWorld(t, job(admitted()))
	w.reconcile()
	if w.group("llama") != nil {
		t.Fatal("a group was made before it was known who places the pods")
	}
	w.add(pod(0, "", ofVolcano("llama")))
	w.reconcile()
	made := w.group("llama")
	if made == nil {
		t.Fatal("no group was made")
	}
	owner := metav1.GetControllerOf(made)
	if owner == nil || owner.Kind != "Job" || owner.UID != "job-1" || made.GetLabels()[v1alpha1.LabelGang] != "llama" {
		t.Errorf("made is %v", made.Object)
	}
	if got := w.condition("Placed"); got != "False WaitingForMembers" {
		t.Error(got)
	}
	w.add(pod(1, "", ofVolcano("llama")))
	w.volcanoSays("Pending", "Unschedulable", "2/2 tasks in gang unschedulable")
	w.add(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: key.Namespace, Name: "e"},
		InvolvedObject: corev1.ObjectReference{UID: made.GetUID()},
		Reason:         "Unschedulable", Type: corev1.EventTypeNormal, Message: "queue resource quota insufficient: insufficient cpu",
		LastTimestamp: metav1.NewTime(w.now),
	})
	w.now = w.now.Add(groupAgain)
	if again := w.reconcile().RequeueAfter; again != groupAgain {
		t.Errorf("again after %v", again)
	}
	if got := w.condition("Placed"); got != "False VolcanoQueued" || !strings.HasSuffix(w.placedMessage(), "queue default: queue resource quota insufficient: insufficient cpu") {
		t.Errorf("%s: %s", got, w.placedMessage())
	}
	w.volcanoSays("Inqueue", "Unschedulable", "no room")
	w.reconcile()
	if got := w.condition("Placed") + ", " + w.condition("Running"); got != "False VolcanoUnschedulable, False VolcanoUnschedulable" {
		t.Error(got)
	}
	if events := w.reported(); len(events) != 2 || !strings.HasPrefix(events[1], "Warning VolcanoUnschedulable Volcano does not place PodGroup llama of queue default: no room") {
		t.Errorf("%q", events)
	}
	w.onNode("llama-0", "llama-1")
	w.volcanoSays("Running", "Scheduled", "")
	if w.reconcile(); w.condition("Placed") != "True Placed" {
		t.Error(w.condition("Placed"))
	}
	w.others("holdfast-coordinator", map[string]any{"run": map[string]any{"state": "Running", "generation": int64(1)}})
	w.replace("llama-1")
	w.volcanoSays("Unknown", "Unschedulable", "1/3 tasks in gang unschedulable")
	w.reconcile()
	if got := w.condition("Placed"); got != "False VolcanoBelowMinimum" || !strings.HasPrefix(w.placedMessage(), "1 of 2 pods are on nodes; Volcano holds no room") {
		t.Errorf("%s: %s", got, w.placedMessage())
	}
	if uid := w.group("llama").GetUID(); uid != made.GetUID() {
		t.Error("there is another group")
	}
}

// onNode binds pods.
func (w *world) onNode(names ...string) {
	w.t.Helper()
	for _, name := range names {
		p := &corev1.Pod{}
		if err := w.client.Get(context.Background(), types.NamespacedName{Namespace: key.Namespace, Name: name}, p); err != nil {
			w.t.Fatal(err)
		}
		p.Spec.NodeName = "node-of-" + name
		if err := w.client.Update(context.Background(), p); err != nil {
			w.t.Fatal(err)
		}
	}
}

// replace replaces a pod by a new one without a node.
func (w *world) replace(name string) {
	w.t.Helper()
	p := &corev1.Pod{}
	if err := w.client.Get(context.Background(), types.NamespacedName{Namespace: key.Namespace, Name: name}, p); err != nil {
		w.t.Fatal(err)
	}
	heir := p.DeepCopy()
	p.Labels[v1alpha1.LabelReplaced] = "true"
	if err := w.client.Update(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
	heir.ObjectMeta.Name, heir.ResourceVersion, heir.UID, heir.Spec.NodeName = name+"-new", "", "new", ""
	w.add(heir)
}

// TestGroupsThatAreNotMade: a PodGroup that a user created stays, and the Gang says if it is missing. If another scheduler places the pods,
// no PodGroup is created.
func TestGroupsThatAreNotMade(t *testing.T) {
	theirs := func(name string, least int64, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"minMember": least, "queue": "q"}, "status": map[string]any{"phase": "Inqueue"}}}
		u.SetGroupVersionKind(handover.Kind)
		u.SetNamespace(key.Namespace)
		u.SetName(name)
		for _, f := range change {
			f(u)
		}
		return u
	}
	ofAnEarlierJob := func(u *unstructured.Unstructured) {
		u.SetLabels(map[string]string{v1alpha1.LabelGang: "llama"})
		u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "llama", UID: "job-0", Controller: ptr.To(true)}})
	}
	const few = "PodGroup %s has minMember 1, and the gang has 2 pods: Volcano may place some of them and leave the others waiting; set its spec.minMember to 2"
	for name, c := range map[string]struct {
		group          string
		exists         *unstructured.Unstructured
		reason, within string
		note           string
	}{
		"theirs":                         {"theirs", theirs("theirs", 2), "VolcanoUnschedulable", "PodGroup theirs of queue q", ""},
		"theirs, too small":              {"theirs", theirs("theirs", 1), "VolcanoUnschedulable", "", fmt.Sprintf(few, "theirs")},
		"theirs, missing":                {"theirs", nil, "VolcanoNoGroup", "PodGroup theirs: it does not exist", ""},
		"theirs, of the Job's name":      {"llama", theirs("llama", 1), "VolcanoUnschedulable", "", fmt.Sprintf(few, "llama")},
		"of an earlier Job of this name": {"llama", theirs("llama", 2, ofAnEarlierJob), "VolcanoNoGroup", "belongs to an earlier job", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, job(admitted()), pod(0, "", ofVolcano(c.group)), pod(1, "", ofVolcano(c.group)))
			if c.exists != nil {
				w.add(c.exists)
			}
			before := fmt.Sprint(w.group("llama"), w.group("theirs"))
			w.reconcile()
			if got := w.condition("Placed"); got != "False "+c.reason || !strings.Contains(w.placedMessage(), c.within) {
				t.Errorf("%s: %s", got, w.placedMessage())
			}
			if notes := strings.Join(w.gang().Status.Notes, "; "); strings.Contains(notes, "minMember") != (c.note != "") || !strings.Contains(notes, c.note) {
				t.Errorf("notes: %s", notes)
			}
			if after := fmt.Sprint(w.group("llama"), w.group("theirs")); after != before {
				t.Errorf("groups are %s, were %s", after, before)
			}
		})
	}
	w := newWorld(t, job(admitted()), pod(0, ""), pod(1, "", func(p *corev1.Pod) { p.Spec.SchedulerName = "other" }))
	if w.reconcile(); w.group("llama") != nil || w.condition("Placed") != "False WaitingForMembers" {
		t.Errorf("under other schedulers: %v, %s", w.group("llama"), w.condition("Placed"))
	}
}

// TestAGroupThatCannotBeMade: if a PodGroup cannot be created, the Gang has the reason for as long as it holds.
func TestAGroupThatCannotBeMade(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "", ofVolcano("llama")), pod(1, "", ofVolcano("llama")))
	served, refusal := false, errors.New(`admission webhook "validatepodgroup.volcano.sh" denied the request: unable to find queue`)
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind() == handover.Kind && !served {
				return &meta.NoKindMatchError{GroupKind: handover.Kind.GroupKind()}
			}
			return c.Get(ctx, name, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if o.GetObjectKind().GroupVersionKind() == handover.Kind && refusal != nil {
				return refusal
			}
			return c.Create(ctx, o, opts...)
		},
	})
	w.restart()
	for _, step := range []struct {
		change         func()
		reason, within string
	}{
		{func() {}, "VolcanoNoGroup", "serves no scheduling.volcano.sh/v1beta1: install Volcano"},
		{func() { served = true }, "VolcanoNoGroup", "unable to find queue"},
		{func() { refusal = nil }, "VolcanoQueued", "no reason yet"},
	} {
		step.change()
		w.now = w.now.Add(groupSoonest)
		w.reconcile()
		if got := w.condition("Placed"); got != "False "+step.reason || !strings.Contains(w.placedMessage(), step.within) {
			t.Errorf("%s: %s, want %s", got, w.placedMessage(), step.within)
		}
	}
}

// TestGroupsAreLookedAtNowAndThen: PodGroups are read at intervals: not at each change of a pod, and not while all pods are on nodes.
func TestGroupsAreLookedAtNowAndThen(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "", ofVolcano("llama")), pod(1, "", ofVolcano("llama")))
	looks := 0
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind() == handover.Kind {
				looks++
			}
			return c.Get(ctx, name, o, opts...)
		},
	})
	w.restart()
	for range 5 {
		w.reconcile()
		w.now = w.now.Add(groupSoonest / 4)
	}
	if looks != 2 {
		t.Errorf("looked %d times in %v", looks, groupSoonest)
	}
	w.onNode("llama-0", "llama-1")
	looks = 0
	for range 3 {
		w.now = w.now.Add(time.Minute)
		w.reconcile()
	}
	if looks != 0 {
		t.Errorf("looked %d times at the group of a gang that is placed", looks)
	}
}

// TestAGroupThatCannotBeReadStaysKnown: if the API server does not answer, the PodGroup does not count as missing.
func TestAGroupThatCannotBeReadStaysKnown(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "", ofVolcano("llama")), pod(1, "", ofVolcano("llama")))
	var failure error
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind() == handover.Kind && failure != nil {
				return failure
			}
			return c.Get(ctx, name, o, opts...)
		},
	})
	failure = apierrors.NewTimeoutError("the server is busy", 1)
	w.restart()
	w.reconcile()
	if got := w.condition("Placed"); got != "False VolcanoNoGroup" || !strings.Contains(w.placedMessage(), "reading it: ") {
		t.Errorf("never read: %s: %s", got, w.placedMessage())
	}
	failure = nil
	w.now = w.now.Add(groupSoonest)
	w.reconcile()
	w.volcanoSays("Inqueue", "Unschedulable", "no room")
	w.reconcile()
	failure = apierrors.NewTimeoutError("the server is busy", 1)
	w.now = w.now.Add(groupAgain)
	w.reconcile()
	if got := w.condition("Placed"); got != "False VolcanoUnschedulable" || !strings.HasSuffix(w.placedMessage(), "no room") {
		t.Errorf("read before: %s: %s", got, w.placedMessage())
	}
}

// TestEventsOfGroupsAreListedNowAndThen: events are listed at intervals, because each list reads all events of the namespace from etcd.
func TestEventsOfGroupsAreListedNowAndThen(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "", ofVolcano("llama")), pod(1, "", ofVolcano("llama")))
	lists := 0
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(*corev1.EventList); is {
				lists++
			}
			return c.List(ctx, list, opts...)
		},
	})
	w.restart()
	for range groupAgain / groupSoonest {
		w.reconcile()
		w.now = w.now.Add(groupSoonest)
	}
	if lists != 1 {
		t.Errorf("listed %d times in %v", lists, groupAgain)
	}
	if w.reconcile(); lists != 2 {
		t.Errorf("listed %d times after %v", lists, groupAgain)
	}
}
