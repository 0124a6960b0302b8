package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientfake "k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// world is an API server with one controller on it.
type world struct {
	t      *testing.T
	client client.Client
	c      *Controller
	events *events.FakeRecorder
	now    time.Time
	// writes counts status writes.
	writes int
}

var key = types.NamespacedName{Namespace: "team", Name: "llama"}

func newWorld(t *testing.T, objs ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, events: events.NewFakeRecorder(100), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.Gang{}).WithObjects(objs...).
		WithInterceptorFuncs(interceptor.Funcs{SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			w.writes++
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		}}).Build()
	w.restart()
	return w
}

// restart puts a controller in place that remembers nothing.
func (w *world) restart() {
	w.c = New(Options{Client: w.client, Live: w.client, Recorder: w.events, Now: func() time.Time { return w.now }})
}

func (w *world) reconcile() reconcile.Result {
	w.t.Helper()
	result, err := w.c.Reconcile(context.Background(), reconcile.Request{NamespacedName: key})
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func (w *world) gang() *v1alpha1.Gang {
	w.t.Helper()
	g := &v1alpha1.Gang{}
	if err := w.client.Get(context.Background(), key, g); err != nil {
		w.t.Fatal(err)
	}
	return g
}

// others applies a part of the status that is not this controller's.
func (w *world) others(manager string, status map[string]any) {
	w.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Gang"))
	u.SetNamespace(key.Namespace)
	u.SetName(key.Name)
	if err := w.client.Status().Apply(context.Background(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		w.t.Fatal(err)
	}
	w.writes = 0
}

func (w *world) add(obj client.Object) {
	w.t.Helper()
	if err := w.client.Create(context.Background(), obj); err != nil {
		w.t.Fatal(err)
	}
}

// told drains the events.
func (w *world) told() []string {
	var all []string
	for {
		select {
		case e := <-w.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func (w *world) condition(kind string) string {
	w.t.Helper()
	c := meta.FindStatusCondition(w.gang().Status.Conditions, kind)
	if c == nil {
		w.t.Fatalf("no condition %s", kind)
	}
	return fmt.Sprintf("%s %s", c.Status, c.Reason)
}

func job(annotations map[string]string) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "job-1"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}},
	}
}

func admitted() map[string]string {
	return map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "2"}
}

func pod(slot int, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: fmt.Sprintf("llama-%d", slot),
			Labels: map[string]string{v1alpha1.LabelGang: key.Name},
			Annotations: map[string]string{
				batchv1.JobCompletionIndexAnnotation: fmt.Sprint(slot),
				v1alpha1.AnnotationInjection:         `{"ranks":4,"notes":["no memory set"]}`},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: key.Name, UID: "job-1", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func TestOnlyAdmittedJobsGetAGang(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"not opted in":                  nil,
		"opted in after it was created": {v1alpha1.AnnotationEnabled: "true"},
		"opted out":                     {v1alpha1.AnnotationEnabled: "false", v1alpha1.AnnotationGangSize: "2"},
	} {
		w := newWorld(t, job(annotations))
		w.reconcile()
		list := &v1alpha1.GangList{}
		if err := w.client.List(context.Background(), list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 0 {
			t.Errorf("%s: a Gang was made", name)
		}
	}
}

func TestGangOfAJob(t *testing.T) {
	w := newWorld(t, job(admitted()))
	w.reconcile()
	g := w.gang()
	want := v1alpha1.GangSpec{JobRef: v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: "llama", UID: "job-1"}, Members: 2}
	if g.Spec != want {
		t.Errorf("spec is %+v", g.Spec)
	}
	if ref := metav1.GetControllerOf(g); ref == nil || ref.UID != "job-1" {
		t.Errorf("owner is %v", ref)
	}
	if g.Status.Phase != v1alpha1.PhaseWaiting || g.Status.Nodes != "0/2" {
		t.Errorf("phase %s, nodes %s", g.Status.Phase, g.Status.Nodes)
	}
	if got := w.condition(v1alpha1.ConditionStateInMemory); got != "False NoStateSize" {
		t.Errorf("state in memory is %s", got)
	}
}

func TestAStoryFromWaitingToTheEnd(t *testing.T) {
	w := newWorld(t, job(admitted()))
	w.reconcile()
	w.add(pod(0, ""))
	w.add(pod(1, ""))
	w.others("holdfast-scheduler", map[string]any{"placement": map[string]any{
		"placed": false, "reason": "InsufficientNodes", "message": "1 of 2 pods fit: 2 nodes lack nvidia.com/gpu", "fits": int64(1), "wanted": int64(2), "observedAt": "2026-01-02T03:04:05.000000Z"}})
	w.reconcile()
	if got := w.condition(v1alpha1.ConditionPlaced); got != "False InsufficientNodes" {
		t.Errorf("placed is %s", got)
	}
	if told := w.told(); len(told) != 1 || !strings.Contains(told[0], "Warning InsufficientNodes 1 of 2 pods fit") {
		t.Errorf("told %q", told)
	}
	w.restart()
	w.reconcile()
	if told := w.told(); len(told) != 0 || w.writes != 1 {
		t.Errorf("after a restart with nothing new: told %q, %d writes", told, w.writes)
	}
	for slot := range 2 {
		p := pod(slot, "")
		if err := w.client.Get(context.Background(), client.ObjectKeyFromObject(p), p); err != nil {
			t.Fatal(err)
		}
		p.Spec.NodeName = fmt.Sprintf("n%d", slot)
		if err := w.client.Update(context.Background(), p); err != nil {
			t.Fatal(err)
		}
	}
	w.reconcile()
	if told := w.told(); len(told) != 1 || !strings.HasPrefix(told[0], "Normal Placed") {
		t.Errorf("told %q", told)
	}
	if g := w.gang(); g.Status.Phase != v1alpha1.PhaseStarting || g.Status.Nodes != "2/2" || g.Status.Placement == nil || g.Status.Placement.Reason != "InsufficientNodes" {
		t.Errorf("phase %s, nodes %s, placement %+v", g.Status.Phase, g.Status.Nodes, g.Status.Placement)
	}
	w.runs(t)
	w.ends(t)
}

// runs has the coordinator write that the gang runs.
func (w *world) runs(t *testing.T) {
	w.others("holdfast-elastic", map[string]any{"run": map[string]any{"generation": int64(3), "restarts": int64(2), "state": "Running", "startedAt": "2026-01-02T02:04:05.000000Z",
		"progress": map[string]any{"ranks": int64(8), "standbysReady": int64(8), "step": int64(120), "savedStep": int64(119), "savedAt": "2026-01-02T03:03:56.000000Z", "lostMs": int64(36000),
			"attached": []any{int64(0)}, "notes": []any{"b", "a"}}}})
	w.now = w.now.Add(figuresEvery)
	w.reconcile()
	s := w.gang().Status
	if s.Phase != v1alpha1.PhaseRunning || s.Step != 120 || s.SavedStep != 119 || s.Saved != "14s" || s.Goodput != "99.0%" {
		t.Errorf("phase %s, step %d, saved step %d, saved %s, goodput %s", s.Phase, s.Step, s.SavedStep, s.Saved, s.Goodput)
	}
	if !slices.Equal(s.Notes, []string{"a", "b", "no memory set"}) {
		t.Errorf("notes %q", s.Notes)
	}
	want := []v1alpha1.MemberStatus{{Slot: 0, Pod: "llama-0", Node: "n0", Ranks: 4, Attached: true}, {Slot: 1, Pod: "llama-1", Node: "n1", Ranks: 4}}
	if !slices.Equal(s.Members, want) {
		t.Errorf("members %+v", s.Members)
	}
	if s.Run == nil || s.Run.Generation != 3 || s.Placement == nil {
		t.Error("the parts of others were not kept")
	}
}

// ends has the coordinator give the gang up.
func (w *world) ends(t *testing.T) {
	w.others("holdfast-elastic", map[string]any{"run": map[string]any{"generation": int64(4), "restarts": int64(3), "state": "GivenUp",
		"verdict": map[string]any{"reason": "SameFailureTwice", "exitCode": int64(3), "at": "2026-01-02T03:05:00.000000Z",
			"cause": map[string]any{"code": "RankFailed", "rank": int64(5), "slot": int64(1), "cascade": int64(7)}}}})
	w.reconcile()
	s := w.gang().Status
	if s.Phase != v1alpha1.PhaseFailed {
		t.Errorf("phase %s", s.Phase)
	}
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionFinished)
	if c == nil || c.Reason != "SameFailureTwice" || !strings.Contains(c.Message, "exit code 3") || !strings.Contains(c.Message, "rank 5") {
		t.Errorf("finished: %+v", c)
	}
}

func TestFiguresAloneAreWrittenNowAndThen(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "n0"), pod(1, "n1"))
	w.reconcile()
	progress := func(step int64) {
		w.others("holdfast-elastic", map[string]any{"run": map[string]any{"generation": int64(1), "restarts": int64(0), "state": "Running",
			"progress": map[string]any{"ranks": int64(8), "step": step}}})
	}
	progress(1)
	w.reconcile()
	if w.writes != 1 {
		t.Fatalf("%d writes when the gang began to run", w.writes)
	}
	progress(2)
	if result := w.reconcile(); w.writes != 0 || result.RequeueAfter != figuresEvery {
		t.Errorf("%d writes at once, again after %s", w.writes, result.RequeueAfter)
	}
	w.now = w.now.Add(figuresEvery)
	if w.reconcile(); w.writes != 1 || w.gang().Status.Step != 2 {
		t.Errorf("%d writes later, step %d", w.writes, w.gang().Status.Step)
	}
	if w.reconcile(); w.writes != 1 {
		t.Errorf("%d writes with nothing new", w.writes)
	}
}

func TestOnlyPodsOfThisJobCount(t *testing.T) {
	former := func(p *corev1.Pod) { p.OwnerReferences[0].UID = "job-0" }
	released := func(p *corev1.Pod) { p.OwnerReferences = nil }
	beyond := func(p *corev1.Pod) { p.Annotations[batchv1.JobCompletionIndexAnnotation] = "2" }
	failed := func(p *corev1.Pod) { p.Name += "-old"; p.Status.Phase = corev1.PodFailed }
	replaced := func(p *corev1.Pod) { p.Name += "-old"; p.Labels[v1alpha1.LabelReplaced] = "true" }
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"a former Job's":      {[]*corev1.Pod{pod(0, "n", former), pod(1, "n")}, "1/2"},
		"nobody's":            {[]*corev1.Pod{pod(0, "n", released)}, "0/2"},
		"beyond the size":     {[]*corev1.Pod{pod(0, "n", beyond)}, "0/2"},
		"failed":              {[]*corev1.Pod{pod(0, "n", failed)}, "0/2"},
		"replaced":            {[]*corev1.Pod{pod(0, "n", replaced), pod(1, "n")}, "1/2"},
		"failed and its heir": {[]*corev1.Pod{pod(0, "n", failed), pod(0, "m"), pod(1, "n")}, "2/2"},
	} {
		w := newWorld(t, job(admitted()))
		for _, p := range c.pods {
			w.add(p)
		}
		w.reconcile()
		if got := w.gang().Status.Nodes; got != c.want {
			t.Errorf("%s: nodes %s, want %s", name, got, c.want)
		}
	}
}

func TestPodsOfAJobThatEndedStayInTheCount(t *testing.T) {
	j := job(admitted())
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded"}}
	w := newWorld(t, j, pod(0, "n0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), pod(1, "n1"))
	w.reconcile()
	if s := w.gang().Status; s.Nodes != "2/2" || s.Phase != v1alpha1.PhaseFailed {
		t.Errorf("nodes %s, phase %s", s.Nodes, s.Phase)
	}
}

// TestEventsWithAnotherCountAreApart: the recorder that runs for real must not fold them.
func TestEventsWithAnotherCountAreApart(t *testing.T) {
	clientset := clientfake.NewClientset()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clientset.EventsV1()})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, job(admitted()), pod(0, ""), pod(1, ""))
	w.c.Recorder = broadcaster.NewRecorder(w.client.Scheme(), "holdfast-gang")
	w.reconcile()
	for fits := range int64(2) {
		w.others("holdfast-scheduler", map[string]any{"placement": map[string]any{"placed": false, "reason": "InsufficientNodes",
			"message": fmt.Sprintf("%d of 2 pods fit", fits), "fits": fits, "wanted": int64(2), "observedAt": "2026-01-02T03:04:05.000000Z"}})
		w.reconcile()
	}
	err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := clientset.EventsV1().Events(key.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 2, err
	})
	if err != nil {
		t.Fatalf("two answers did not become two events: %v", err)
	}
}

func TestGangOfAFormerJobIsLeftAlone(t *testing.T) {
	w := newWorld(t, job(admitted()))
	w.reconcile()
	again := job(admitted())
	if err := w.client.Delete(context.Background(), again); err != nil {
		t.Fatal(err)
	}
	again.UID, again.ResourceVersion = "job-2", ""
	w.add(again)
	w.writes = 0
	if result := w.reconcile(); result.RequeueAfter != retakeAfter || w.writes != 0 {
		t.Errorf("again after %s, %d writes", result.RequeueAfter, w.writes)
	}
	if err := w.client.Delete(context.Background(), w.gang()); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if g := w.gang(); g.Spec.JobRef.UID != "job-2" {
		t.Errorf("the new Gang is of Job %s", g.Spec.JobRef.UID)
	}
}
