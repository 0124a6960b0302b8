package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
)

var others = []kinds.Kind{kinds.VolcanoJob{}, kinds.JobSet{}, kinds.PyTorchJob{}}

// newKindsWorld returns a world whose API server serves all kinds, with these objects.
func newKindsWorld(t *testing.T, objs ...client.Object) *world {
	t.Helper()
	w := newWorld(t, objs...)
	w.server = jobstest.New(t, w.client)
	w.restart()
	return w
}

// of returns an admitted object of a kind, with the name of the world's job and four pods.
func of(kind kinds.Kind, uid types.UID, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	return jobstest.Object(kind, key, uid, change...)
}

// memberOf returns a pod of the object.
func memberOf(uid types.UID, role string, slot int, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(slot, node, func(p *corev1.Pod) {
		p.Annotations[v1alpha1.AnnotationGangRole] = role
		p.Spec.Containers[0].Env[0].Value = string(uid)
		p.OwnerReferences[0].UID = uid
		for _, f := range change {
			f(p)
		}
	})
}

// change changes an object of a kind, and waits until the controller's reader has seen the change.
func (w *world) change(kind kinds.Kind, f func(*unstructured.Unstructured)) {
	w.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind.GroupVersionKind())
	if err := w.client.Get(context.Background(), key, u); err != nil {
		w.t.Fatal(err)
	}
	f(u)
	if err := w.client.Update(context.Background(), u); err != nil {
		w.t.Fatal(err)
	}
	w.server.Knows(w.c.Jobs, kind, key)
}

func name(kind kinds.Kind) string {
	return kind.GroupVersionKind().Kind + "." + kind.GroupVersionKind().Group
}

// TestAGangOfEachKind: for each kind one Gang is created. Its owner is the object that the user wrote. That object gets the events, and its
// end is shown on the Gang.
func TestAGangOfEachKind(t *testing.T) {
	for _, kind := range others {
		t.Run(name(kind), func(t *testing.T) {
			w := newKindsWorld(t, of(kind, "uid-1"))
			for slot := range 4 {
				w.add(memberOf("uid-1", "worker", slot, "n"))
			}
			w.reconcile()
			g := w.gang()
			version, kindName := kind.GroupVersionKind().ToAPIVersionAndKind()
			if g.Spec.JobRef != (v1alpha1.JobReference{APIVersion: version, Kind: kindName, Name: "llama", UID: "uid-1"}) || g.Spec.Members != 4 ||
				g.Spec.StateBytes != 1<<30 {
				t.Errorf("spec is %+v", g.Spec)
			}
			if ref := metav1.GetControllerOf(g); ref == nil || ref.APIVersion != version || ref.Kind != kindName || ref.UID != "uid-1" {
				t.Errorf("owner is %v", ref)
			}
			if said := w.reported(); g.Status.Nodes != "4/4" || len(said) != 1 || !strings.HasPrefix(said[0], "Normal Placed") {
				t.Errorf("nodes %s, said %q", g.Status.Nodes, said)
			}
			failed := kind.Fail(of(kind, "uid-1"), kinds.Failure{Reason: "NoProgress", Message: "rank 3 failed first", Now: true})
			w.change(kind, func(u *unstructured.Unstructured) { u.Object["status"] = failed.Patch["status"] })
			w.reconcile()
			c := meta.FindStatusCondition(w.gang().Status.Conditions, v1alpha1.ConditionFailed)
			if c.Status != metav1.ConditionTrue || c.Message != "NoProgress: rank 3 failed first" {
				t.Errorf("failed: %+v", c)
			}
		})
	}
}

// TestTwoJobsOfOneName: the Gang belongs to the job that it names, also if the other job is older. The other job gets an event, once. It
// gets the Gang after the first job is gone.
func TestTwoJobsOfOneName(t *testing.T) {
	young := job(admitted())
	young.CreationTimestamp = metav1.Unix(2000, 0)
	w := newKindsWorld(t, young, of(kinds.JobSet{}, "set"))
	for range 3 {
		w.reconcile()
	}
	const taken = "has no Gang, and its ranks do not start: jobsets.jobset.x-k8s.io team/llama has the Gang of this name; create it again under another name"
	if said := w.events[onJob]; len(said) != 1 || said[0] != "Warning GangNameTaken this Job "+taken || w.gang().Spec.JobRef.Kind != "JobSet" {
		t.Errorf("%s has the Gang, said %q", w.gang().Spec.JobRef.Kind, said)
	}
	clear(w.events)
	w.add(of(kinds.PyTorchJob{}, "older", func(u *unstructured.Unstructured) { u.SetCreationTimestamp(metav1.Unix(1, 0)) }))
	w.server.Knows(w.c.Jobs, kinds.PyTorchJob{}, key)
	w.reconcile()
	if said := w.events[onJob]; len(said) != 1 || said[0] != "Warning GangNameTaken this PyTorchJob "+taken || w.gang().Spec.JobRef.Kind != "JobSet" {
		t.Errorf("%s has the Gang, said %q", w.gang().Spec.JobRef.Kind, said)
	}
	for _, o := range []client.Object{of(kinds.JobSet{}, "set"), w.gang()} {
		if err := w.client.Delete(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.server.Knows(w.c.Jobs, kinds.JobSet{}, key)
	w.reconcile()
	if ref := w.gang().Spec.JobRef; ref.Kind != "PyTorchJob" {
		t.Errorf("%s has the Gang", ref.Kind)
	}
}

// TestAGangWhoseKindIsNotServed: while the kind of a job is not served, it is unknown whether the job exists. Its Gang stays unchanged.
func TestAGangWhoseKindIsNotServed(t *testing.T) {
	kind := kinds.JobSet{}
	w := newKindsWorld(t, of(kind, "set"))
	w.reconcile()
	g := w.gang()
	g.OwnerReferences = nil // a Gang without owner is deleted once its job is gone
	if err := w.client.Update(context.Background(), g); err != nil {
		t.Fatal(err)
	}
	w.server.Serve(kind, false)
	w.restart()
	if err := w.c.Jobs.Unread(context.Background(), g.Spec.JobRef); err == nil {
		t.Fatal("the kind is served")
	}
	w.add(job(admitted())) // of the same name
	if r := w.reconcile(); r.RequeueAfter != refreshEvery || w.gang().Spec.JobRef.Kind != "JobSet" || len(w.events[onJob]) != 0 {
		t.Errorf("again after %s, the Gang is of a %s, said %q", r.RequeueAfter, w.gang().Spec.JobRef.Kind, w.events[onJob])
	}
	w.server.Serve(kind, true)
	if err := w.client.Delete(context.Background(), of(kind, "set")); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.reconcile()
	if w.reconcile(); w.gang().Spec.JobRef.Kind != "Job" {
		t.Errorf("the Gang is of a %s", w.gang().Spec.JobRef.Kind)
	}
}

// TestAGangWhoseKindIsUndefined: once the definition of its kind was removed, a Gang is deleted, although it has an owner. Kubernetes'
// garbage collector deletes no object whose owner is of a kind that it cannot resolve. Until the definition is gone, the Gang stays and is
// reconciled at intervals.
func TestAGangWhoseKindIsUndefined(t *testing.T) {
	for _, kind := range others {
		for name, restarted := range map[string]bool{"the controller ran": false, "the controller started later": true} {
			w := newKindsWorld(t, of(kind, "uid-1"))
			w.reconcile()
			if err := w.client.Delete(context.Background(), of(kind, "uid-1")); err != nil {
				t.Fatal(err)
			}
			w.server.Knows(w.c.Jobs, kind, key)
			if r := w.reconcile(); r.RequeueAfter != refreshEvery || w.gang().Name != key.Name {
				t.Errorf("%s, %s: again after %s", kind.Resource(), name, r.RequeueAfter)
			}
			w.server.Undefine(kind)
			if restarted {
				w.restart()
			} else {
				w.server.Look()
				eventually.Holds(t, "the kind is not read any more", func() (bool, any) {
					gone, err := w.c.Jobs.Undefined(context.Background(), w.gang().Spec.JobRef)
					return gone, err
				})
			}
			w.reconcile()
			if err := w.client.Get(context.Background(), key, &v1alpha1.Gang{}); !apierrors.IsNotFound(err) {
				t.Errorf("%s, %s: the Gang stays: %v", kind.Resource(), name, err)
			}
			if r := w.reconcile(); r.RequeueAfter != 0 {
				t.Errorf("%s, %s: again after %s", kind.Resource(), name, r.RequeueAfter)
			}
		}
	}
}

// TestWhyAPodOfEachKindIsMissing: the controller that creates the pods records an event on the object for which it creates them. The Gang
// shows its text.
func TestWhyAPodOfEachKindIsMissing(t *testing.T) {
	const quota = `exceeded quota: team, requested: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=3`
	plain := `Error creating: pods "llama-x" is forbidden: ` + quota
	printed := `Error creating pods: [failed to create pod llama-worker-3, err: &errors.StatusError{ErrStatus:v1.Status{TypeMeta:v1.TypeMeta{Kind:"", APIVersion:""}, Status:"Failure", ` +
		`Message:"pods \"llama-worker-3\" is forbidden: ` + quota + `", Reason:"Forbidden", Code:403}}]`
	on := func(version, kind, name string, uid types.UID, reason, text string, second int64) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: key.Namespace, Name: fmt.Sprint("e", second)},
			InvolvedObject: corev1.ObjectReference{APIVersion: version, Kind: kind, Name: name, UID: uid},
			Reason:         reason,
			Message:        text,
			LastTimestamp:  metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC).Add(time.Duration(second) * time.Millisecond)),
		}
	}
	child := func(name, text string, second int64) *corev1.Event {
		return on("batch/v1", "Job", name, "child", "FailedCreate", text, second)
	}
	for what, c := range map[string]struct {
		kind   kinds.Kind
		events []*corev1.Event
		want   string
	}{
		"Volcano Job": {kinds.VolcanoJob{}, []*corev1.Event{on("batch.volcano.sh/v1alpha1", "Job", "llama", "uid-1", "FailedCreate", printed, 1)},
			"Volcano's Job controller cannot create a pod: " + quota},
		"PyTorchJob": {kinds.PyTorchJob{}, []*corev1.Event{on("kubeflow.org/v1", "PyTorchJob", "llama", "uid-1", "FailedCreatePod", plain, 1)},
			"the training operator cannot create a pod: " + quota},
		"JobSet, a Job of it": {kinds.JobSet{}, []*corev1.Event{
			child("llama-worker-1", plain, 1),
			child("llama-worker-long-1", "of another set", 2),
			child("llama-data-0", "of a role that is no member", 3),
			child("llama-worker-01", "of no set", 4),
		}, "the Job controller cannot create a pod: " + quota},
		"JobSet, itself": {kinds.JobSet{}, []*corev1.Event{
			child("llama-worker-1", plain, 1),
			on("jobset.x-k8s.io/v1alpha2", "JobSet", "llama", "uid-1", "JobCreationFailed", "no more Jobs", 2000),
		}, "the JobSet controller cannot create a pod: no more Jobs"},
		"JobSet, nothing": {kinds.JobSet{}, []*corev1.Event{child("other-worker-1", plain, 1)}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			w := newKindsWorld(t, of(c.kind, "uid-1"), memberOf("uid-1", "worker", 0, "n"))
			for _, e := range c.events {
				w.add(e)
			}
			w.reconcile()
			if got := w.placedMessage(); !strings.HasSuffix(got, c.want) || c.want == "" && strings.Contains(got, "cannot create") {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// requests makes a pod request this many CPUs.
func requests(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

// task makes a pod belong to a task of a Volcano Job.
func task(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations["volcano.sh/task-spec"] = name }
}

// TestTheGroupOfSeveralRoles: the PodGroup is created once a pod of each role exists. It has the number of pods of each role.
func TestTheGroupOfSeveralRoles(t *testing.T) {
	kind := kinds.PyTorchJob{}
	w := newKindsWorld(t, of(kind, "uid-1"))
	if w.reconcile(); w.group("llama") != nil || w.condition("Placed") != "False WaitingForMembers" {
		t.Fatalf("before there is a pod: %v, %s", w.group("llama"), w.condition("Placed"))
	}
	w.add(memberOf("uid-1", "master", 0, "", ofVolcano("llama"), task("master"), requests("1")))
	w.now = w.now.Add(groupSoonest)
	if w.reconcile(); w.group("llama") != nil {
		t.Fatal("a group was made before a pod of each role exists")
	}
	for slot := 1; slot < 4; slot++ {
		w.add(memberOf("uid-1", "worker", slot, "", ofVolcano("llama"), task("worker"), requests("2")))
	}
	w.now = w.now.Add(groupSoonest)
	w.reconcile()
	made := w.group("llama")
	if made == nil {
		t.Fatal(w.placedMessage())
	}
	owner := metav1.GetControllerOf(made)
	if owner == nil || owner.Kind != "PyTorchJob" || owner.UID != "uid-1" || ptr.Deref(owner.BlockOwnerDeletion, false) {
		t.Errorf("the owner is %+v", owner)
	}
	want := map[string]any{
		"minMember":     int64(4),
		"minTaskMember": map[string]any{"master": int64(1), "worker": int64(3)},
		"minResources":  map[string]any{"cpu": "7"},
	}
	if got := made.Object["spec"]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the group is %v, want %v", got, want)
	}
}

// TestTheGroupOfAJobSet: the PodGroup counts the pods of all Jobs of a role, and no pod of a role that ends before training starts.
func TestTheGroupOfAJobSet(t *testing.T) {
	w := newKindsWorld(t, of(kinds.JobSet{}, "uid-1"), memberOf("uid-1", "worker", 2, "", ofVolcano("llama"), task("worker")))
	w.reconcile()
	u := w.group("llama")
	if u == nil {
		t.Fatal(w.placedMessage())
	}
	if least, _, _ := unstructured.NestedInt64(u.Object, "spec", "minTaskMember", "worker"); least != 4 {
		t.Errorf("the group is %v", u.Object)
	}
}

// theirs returns a PodGroup that another controller created.
func theirs(name string, least int64, phase string, owner *metav1.OwnerReference) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"minMember": least, "queue": "q"}, "status": map[string]any{"phase": phase}}}
	u.SetGroupVersionKind(handover.Kind)
	u.SetNamespace(key.Namespace)
	u.SetName(name)
	if owner != nil {
		owner.Controller = ptr.To(true)
		u.SetOwnerReferences([]metav1.OwnerReference{*owner})
	}
	return u
}

// TestTheGroupOfAKindsOwnController: a PodGroup that the kind's own controller creates is not written. It is read before the first pod
// exists, because pods are created only after Volcano has admitted the group.
func TestTheGroupOfAKindsOwnController(t *testing.T) {
	for what, c := range map[string]struct {
		kind  kinds.Kind
		group string
		owner metav1.OwnerReference
		least int64
		note  string
	}{
		"Volcano Job": {
			kind:  kinds.VolcanoJob{},
			group: "llama-uid-1",
			owner: metav1.OwnerReference{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Name: "llama", UID: "uid-1"},
			least: 3,
			note:  "set spec.minAvailable of the Volcano Job to 4",
		},
		"PyTorchJob": {
			kind:  kinds.PyTorchJob{},
			group: "llama",
			owner: metav1.OwnerReference{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Name: "llama", UID: "uid-1"},
			least: 4,
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newKindsWorld(t, of(c.kind, "uid-1"), theirs(c.group, c.least, "Pending", &c.owner))
			before := w.group(c.group)
			w.reconcile()
			if got := w.condition("Placed"); got != "False VolcanoQueued" || !strings.Contains(w.placedMessage(), "PodGroup "+c.group+" waits for Volcano to let it into queue q") {
				t.Errorf("%s: %s", got, w.placedMessage())
			}
			if notes := strings.Join(w.gang().Status.Notes, "; "); !strings.HasSuffix(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("notes: %s", notes)
			}
			for slot := range 4 {
				w.add(memberOf("uid-1", "worker", slot, "", ofVolcano(c.group)))
			}
			w.now = w.now.Add(groupAgain)
			w.reconcile()
			if got := w.condition("Placed"); got != "False VolcanoQueued" {
				t.Errorf("%s: %s", got, w.placedMessage())
			}
			if after := w.group(c.group); fmt.Sprint(after) != fmt.Sprint(before) || c.group != "llama" && w.group("llama") != nil {
				t.Errorf("the groups are %v and %v", after, w.group("llama"))
			}
		})
	}
}

// TestAVolcanoJobWithoutItsGroup: Volcano's controller has some seconds to create the PodGroup. After that the Gang names the controller as
// the cause.
func TestAVolcanoJobWithoutItsGroup(t *testing.T) {
	w := newKindsWorld(t)
	w.add(of(kinds.VolcanoJob{}, "uid-1", func(u *unstructured.Unstructured) { u.SetCreationTimestamp(metav1.NewTime(w.now)) }))
	w.server.Knows(w.c.Jobs, kinds.VolcanoJob{}, key)
	w.reconcile()
	if got := w.condition("Placed"); got != "False WaitingForMembers" {
		t.Errorf("%s: %s", got, w.placedMessage())
	}
	w.now = w.now.Add(groupAgain)
	w.reconcile()
	if got := w.condition("Placed"); got != "False VolcanoNoGroup" || !strings.Contains(w.placedMessage(), "check that volcano-controllers runs") || w.group("llama") != nil {
		t.Errorf("%s: %s", got, w.placedMessage())
	}
	w = newKindsWorld(t, of(kinds.VolcanoJob{}, "uid-1", func(u *unstructured.Unstructured) {
		u.Object["spec"].(map[string]any)["schedulerName"] = v1alpha1.SchedulerName
	}))
	if w.reconcile(); w.condition("Placed") != "False WaitingForMembers" {
		t.Errorf("under Holdfast's scheduler: %s", w.placedMessage())
	}
}

// TestPodsThatComeAfterTheFirstLook: the PodGroup is created as soon as a pod of each role exists. The gang is reconciled again without an
// event of a pod.
func TestPodsThatComeAfterTheFirstLook(t *testing.T) {
	w := newKindsWorld(t, of(kinds.PyTorchJob{}, "uid-1"))
	if r := w.reconcile(); r.RequeueAfter <= 0 || r.RequeueAfter > groupAgain {
		t.Errorf("looked at again after %v", r.RequeueAfter)
	}
	w.add(memberOf("uid-1", "master", 0, "", ofVolcano("llama"), task("master")))
	if r := w.reconcile(); r.RequeueAfter <= 0 || r.RequeueAfter > groupAgain {
		t.Errorf("with one role's pod looked at again after %v", r.RequeueAfter)
	}
	w.add(memberOf("uid-1", "worker", 1, "", ofVolcano("llama"), task("worker")))
	if w.reconcile(); w.group("llama") == nil {
		t.Error(w.placedMessage())
	}
}

// TestGroupsOfOthers: a PodGroup of the gang's name that another object owns does not count as the user's.
func TestGroupsOfOthers(t *testing.T) {
	left := theirs("llama", 2, "Inqueue", nil)
	left.SetLabels(map[string]string{v1alpha1.LabelGang: "llama"})
	operators := &metav1.OwnerReference{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Name: "llama", UID: "other"}
	for what, c := range map[string]struct {
		group *unstructured.Unstructured
		want  string
	}{
		"left by an earlier job": {left, "was made for an earlier job of this name, which was deleted without it: delete it"},
		"of another kind": {theirs("llama", 2, "Inqueue", operators),
			"belongs to PyTorchJob llama of kubeflow.org/v1, whose pods Volcano would count with this job's: create the job under another name"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, job(admitted()), c.group, pod(0, "", ofVolcano("llama")), pod(1, "", ofVolcano("llama")))
			before := fmt.Sprint(w.group("llama"))
			w.reconcile()
			if got := w.condition("Placed"); got != "False VolcanoNoGroup" || !strings.HasSuffix(w.placedMessage(), c.want) {
				t.Errorf("%s: %s", got, w.placedMessage())
			}
			if after := fmt.Sprint(w.group("llama")); after != before {
				t.Errorf("the group is %s, was %s", after, before)
			}
		})
	}
}

// TestAJobOfAJobSetGetsNoGang: the Job of a JobSet has the stamps of the JobSet on its template. It gets no Gang of its own.
func TestAJobOfAJobSetGetsNoGang(t *testing.T) {
	child := job(admitted())
	child.Name = "llama-worker-0"
	child.OwnerReferences = []metav1.OwnerReference{{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "llama", UID: "set", Controller: ptr.To(true)}}
	w := newKindsWorld(t, of(kinds.JobSet{}, "set"), child)
	for _, n := range []types.NamespacedName{key, client.ObjectKeyFromObject(child)} {
		if _, err := w.c.Reconcile(context.Background(), reconcile.Request{NamespacedName: n}); err != nil {
			t.Fatal(err)
		}
	}
	gangs := &v1alpha1.GangList{}
	if err := w.client.List(context.Background(), gangs); err != nil || len(gangs.Items) != 1 {
		t.Errorf("%d Gangs, %v", len(gangs.Items), err)
	}
}
