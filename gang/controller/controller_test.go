package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientfake "k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/internal/slim/slimtest"
)

// world is an API server with one controller.
type world struct {
	t      *testing.T
	client client.WithWatch
	c      *Controller
	events notified
	now    time.Time
	mu     sync.Mutex
	// writes counts the writes of a status; write is called with each.
	writes int
	write  func()
	// lists are the options of all lists.
	lists []client.ListOptions
	// server serves kinds of job other than batch Job; nil: only batch Jobs are read.
	server *jobstest.Server
}

const podsByGang = "by gang"

var key = types.NamespacedName{Namespace: "team", Name: "llama"}

func newWorld(t *testing.T, objs ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, events: notified{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	byGang := func(o client.Object) []string { return []string{o.GetLabels()[v1alpha1.LabelGang]} }
	w.client = fake.NewClientBuilder().
		WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.Gang{}).
		WithObjects(objs...).
		WithIndex(&corev1.Pod{}, podsByGang, byGang).
		WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).
		WithIndex(&corev1.Event{}, "involvedObject.kind", func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Kind} }).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).
		WithInterceptorFuncs(interceptor.Funcs{SubResourceApply: func(
			ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
		) error {
			w.mu.Lock()
			w.writes++
			w.mu.Unlock()
			if w.write != nil {
				w.write()
			}
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		}, List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(opts)
			w.mu.Lock()
			w.lists = append(w.lists, o)
			w.mu.Unlock()
			return c.List(ctx, list, opts...)
		}}).Build()
	w.restart()
	return w
}

// jobs returns a reader of jobs, of other kinds only if the world has a server of them.
func (w *world) jobs() *jobs.Reader {
	cached := slimtest.Client(w.t, w.client)
	if w.server != nil {
		return w.server.Reader(cached)
	}
	return jobs.New(jobs.Options{Client: cached, Live: w.client, Kinds: kinds.Served(), Log: logr.Discard()})
}

// restart replaces the controller by one with empty memory.
func (w *world) restart() {
	w.c = New(
		Options{
			Client:   slimtest.Client(w.t, w.client),
			Live:     w.client,
			Jobs:     w.jobs(),
			ByGang:   podsByGang,
			Recorder: w.events,
			Now:      func() time.Time { return w.now },
		},
	)
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

// others writes, as another field manager, a part of the status that this controller does not own.
func (w *world) others(manager string, status map[string]any) {
	w.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Gang"))
	u.SetNamespace(key.Namespace)
	u.SetName(key.Name)
	if err := w.client.Status().Apply(
		context.Background(),
		client.ApplyConfigurationFromUnstructured(u),
		client.FieldOwner(manager),
		client.ForceOwnership,
	); err != nil {
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

// notified has the events on objects, by type of the object.
type notified map[string][]string

func (e notified) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	on := fmt.Sprintf("%T", regarding)
	e[on] = append(e[on], kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

// onJob is the type of a job's object in events.
const onJob = "*v1.PartialObjectMetadata"

// reported returns and removes the events on the job. The Gang must have the same events.
func (w *world) reported() []string {
	w.t.Helper()
	all := w.events[onJob]
	if onGang := w.events["*v1alpha1.Gang"]; !slices.Equal(all, onGang) {
		w.t.Errorf("on the job stands %q, on the Gang %q", all, onGang)
	}
	clear(w.events)
	return all
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
				v1alpha1.AnnotationGangSlot:          fmt.Sprint(slot),
				v1alpha1.AnnotationInjection:         `{"ranks":4,"notes":["no memory set"]}`},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: key.Name, UID: "job-1", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "train", Env: []corev1.EnvVar{{Name: membership.JobVariable, Value: "job-1"}}}}},
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

// TestPinsFollowTheJob: the pins that a user sets on a running Job are written into its Gang, where the coordinator reads them.
func TestPinsFollowTheJob(t *testing.T) {
	annotations := admitted()
	annotations[v1alpha1.AnnotationStateSize], annotations[v1alpha1.AnnotationStorageClaim] = "1Gi", "ckpt"
	annotations[v1alpha1.AnnotationKeepCheckpoints], annotations[v1alpha1.AnnotationKeepCheckpointEvery] = "5", "1h"
	w := newWorld(t, job(annotations))
	w.reconcile()
	if got := w.gang().Spec.Storage; got == nil || got.Keep != 5 || got.KeepEverySeconds != 3600 {
		t.Errorf("the Gang's storage is %+v", got)
	}
	for _, c := range []struct {
		pins, wish string
		want       []v1alpha1.Checkpoint
		number     int64
	}{
		{"120@3,180@4", "", []v1alpha1.Checkpoint{{Step: 120, Generation: 3}, {Step: 180, Generation: 4}}, 0},
		{"180@4", "2", []v1alpha1.Checkpoint{{Step: 180, Generation: 4}}, 2},
		{"", "3", nil, 3},
		{"", "many", nil, 0},
	} {
		j := job(annotations)
		if err := w.client.Get(context.Background(), key, j); err != nil {
			t.Fatal(err)
		}
		j.Annotations = map[string]string{v1alpha1.AnnotationPinnedCheckpoints: c.pins, v1alpha1.AnnotationPinWish: c.wish}
		if err := w.client.Update(context.Background(), j); err != nil {
			t.Fatal(err)
		}
		w.reconcile()
		if got := w.gang().Spec.Storage; got == nil || !slices.Equal(got.Pins, c.want) || got.PinWish != c.number {
			t.Errorf("pinned are %q by wish %q, the Gang's storage is %+v", c.pins, c.wish, got)
		}
	}
}

func TestGangOfAJob(t *testing.T) {
	w := newWorld(t, job(admitted()))
	w.reconcile()
	g := w.gang()
	ref := v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: "llama", UID: "job-1"}
	if want := (v1alpha1.GangSpec{JobRef: ref, Members: 2, Hang: v1alpha1.HangAct, NodeCheck: v1alpha1.NodeCheckOff}); g.Spec != want {
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
	if reported := w.reported(); len(reported) != 1 || !strings.Contains(reported[0], "Warning InsufficientNodes 1 of 2 pods fit") {
		t.Errorf("reported %q", reported)
	}
	w.restart()
	w.reconcile()
	if reported := w.reported(); len(reported) != 0 || w.writes != 1 {
		t.Errorf("after a restart with nothing new: events %q, %d writes", reported, w.writes)
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
	if reported := w.reported(); len(reported) != 1 || !strings.HasPrefix(reported[0], "Normal Placed") {
		t.Errorf("reported %q", reported)
	}
	if g := w.gang(); g.Status.Phase != v1alpha1.PhaseStarting || g.Status.Nodes != "2/2" || g.Status.Placement == nil ||
		g.Status.Placement.Reason != "InsufficientNodes" {
		t.Errorf("phase %s, nodes %s, placement %+v", g.Status.Phase, g.Status.Nodes, g.Status.Placement)
	}
	w.runs(t)
	w.ends(t)
}

// runs writes, as the coordinator does, that the gang runs.
func (w *world) runs(t *testing.T) {
	w.others("holdfast-elastic", map[string]any{"run": map[string]any{"generation": int64(3), "restarts": int64(2), "state": "Running", "startedAt": "2026-01-02T02:04:05.000000Z",
		"progress": map[string]any{"ranks": int64(8), "standbysReady": int64(8), "step": int64(120), "savedStep": int64(119), "savedAt": "2026-01-02T03:03:56.700000Z", "lostMs": int64(36000),
			"attached": []any{int64(0)}, "notes": []any{"b", "a"}}}})
	w.now = w.now.Add(figuresEvery)
	w.reconcile()
	s := w.gang().Status
	if s.Phase != v1alpha1.PhaseRunning || s.Step != 120 || s.SavedStep != 119 || s.SavedAt == nil ||
		s.SavedAt.UTC() != time.Date(2026, 1, 2, 3, 3, 56, 0, time.UTC) ||
		ptr.Deref(s.GoodputPercent, 0) != 99 {
		t.Errorf("phase %s, step %d, saved step %d, saved %v, goodput %v", s.Phase, s.Step, s.SavedStep, s.SavedAt, s.GoodputPercent)
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

// ends writes, as the coordinator does, that the gang is given up.
func (w *world) ends(t *testing.T) {
	w.others("holdfast-elastic", map[string]any{"run": map[string]any{"generation": int64(4), "restarts": int64(3), "state": "GivenUp",
		"verdict": map[string]any{"reason": "SameFailureTwice", "exitCode": int64(3), "at": "2026-01-02T03:05:00.000000Z",
			"cause": map[string]any{"code": "RankFailed", "rank": int64(5), "slot": int64(1), "cascade": int64(7)}}}})
	w.reconcile()
	s := w.gang().Status
	if s.Phase != v1alpha1.PhaseFailed {
		t.Errorf("phase %s", s.Phase)
	}
	if meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionComplete) {
		t.Error("a job that was given up is Complete")
	}
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionFailed)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != "SameFailureTwice" || !strings.Contains(c.Message, "exit code 3") || !strings.Contains(c.Message, "rank 5") {
		t.Errorf("failed: %+v", c)
	}
}

func TestFiguresAloneAreWrittenNowAndThen(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "n0"), pod(1, "n1"))
	w.reconcile()
	progress := func(step int64) {
		w.others("holdfast-elastic", map[string]any{"run": map[string]any{"generation": int64(1), "restarts": int64(0), "state": "Running",
			"progress": map[string]any{"ranks": int64(8), "step": step, "savedStep": step, "savedAt": "2026-01-02T03:03:56.700000Z"}}})
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
	w.now = w.now.Add(figuresEvery)
	if w.reconcile(); w.writes != 1 {
		t.Errorf("%d writes with nothing new", w.writes)
	}
}

// A pod that gets its node changes only counts, which are written at intervals that grow with the gang; its last pod changes the phase.
func TestCountsOfALargeGangAreWrittenNowAndThen(t *testing.T) {
	const size, interval = 300, 300 * time.Millisecond
	w := newWorld(t, job(map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: fmt.Sprint(size)}))
	for slot := range size {
		w.add(pod(slot, ""))
	}
	bound := 0
	bind := func(n int) reconcile.Result {
		t.Helper()
		for ; n > 0; n-- {
			p := pod(bound, "n")
			if err := w.client.Update(context.Background(), p); err != nil {
				t.Fatal(err)
			}
			bound++
		}
		return w.reconcile()
	}
	bind(1)
	w.writes = 0
	if result := bind(1); w.writes != 0 || result.RequeueAfter != interval {
		t.Errorf("%d writes at once, again after %s, want %s", w.writes, result.RequeueAfter, interval)
	}
	w.now = w.now.Add(interval)
	if bind(1); w.writes != 1 || w.gang().Status.Nodes != "3/300" {
		t.Errorf("%d writes later, nodes %s", w.writes, w.gang().Status.Nodes)
	}
	w.others("holdfast-scheduler", map[string]any{"placement": map[string]any{"placed": false, "reason": v1alpha1.ReasonInsufficientNodes,
		"message": "no room", "fits": int64(0), "wanted": int64(size), "observedAt": "2026-01-02T03:04:05.000000Z"}})
	if bind(0); w.writes != 1 {
		t.Errorf("%d writes when the scheduler had refused the gang", w.writes)
	}
	w.others("holdfast-scheduler", map[string]any{})
	w.reconcile()
	if bind(size - bound); w.writes != 2 || w.gang().Status.Phase != v1alpha1.PhaseStarting {
		t.Errorf("%d writes when all were bound, phase %s", w.writes, w.gang().Status.Phase)
	}
	w.others("holdfast-elastic", map[string]any{"run": map[string]any{"generation": int64(1), "restarts": int64(0), "state": "Halting"}})
	w.reconcile()
	for slot := range 2 { // a recovery is shown at once
		if err := w.client.Delete(context.Background(), pod(slot, "")); err != nil {
			t.Fatal(err)
		}
		w.writes = 0
		if w.reconcile(); w.writes != 1 || w.gang().Status.Phase != v1alpha1.PhaseRecovering {
			t.Errorf("%d writes when %d pods were lost, phase %s", w.writes, slot+1, w.gang().Status.Phase)
		}
	}
}

func TestOnlyPodsOfThisJobCount(t *testing.T) {
	former := func(p *corev1.Pod) { p.Spec.Containers[0].Env[0].Value = "job-0" }
	released := func(p *corev1.Pod) { p.OwnerReferences = nil }
	beyond := func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangSlot] = "2" }
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

// TestEventsWithAnotherCountAreApart: the real event recorder must not merge events whose counts differ.
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
	eventually.Holds(t, "two answers become two events on the Job and two on the Gang", func() (bool, any) {
		list, err := clientset.EventsV1().Events(key.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return len(list.Items) == 4, len(list.Items)
	})
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

// TestGangThatItsJobLeftBehind: after a Job was deleted with --cascade=orphan its Gang is deleted, whether or not another Job of that name
// exists.
func TestGangThatItsJobLeftBehind(t *testing.T) {
	for name, again := range map[string]bool{"another Job": true, "no Job": false} {
		w := newWorld(t, job(admitted()), pod(0, "n0"))
		w.reconcile()
		former := job(admitted())
		if err := w.client.Delete(context.Background(), former); err != nil {
			t.Fatal(err)
		}
		w.reconcile()
		left := w.gang() // the API server deletes what the end of its owner leaves
		left.OwnerReferences = nil
		if err := w.client.Update(context.Background(), left); err != nil {
			t.Fatal(err)
		}
		if again {
			former.UID, former.ResourceVersion = "job-2", ""
			w.add(former)
		}
		w.reconcile()
		if err := w.client.Get(context.Background(), key, left); !apierrors.IsNotFound(err) {
			t.Fatalf("%s: the Gang of the former Job stays: %v", name, err)
		}
		if w.reconcile(); again && w.gang().Spec.JobRef.UID != "job-2" {
			t.Errorf("the new Gang is of Job %s", w.gang().Spec.JobRef.UID)
		}
	}
}

// TestListsAreIndexedAndNotCopied: a gang has thousands of pods, and each change of one pod makes the controller list all of them. So lists
// use the index, and do not copy the pods.
func TestListsAreIndexedAndNotCopied(t *testing.T) {
	w := newWorld(t, job(admitted()), pod(0, "n0"), pod(1, "n1"))
	w.reconcile()
	if len(w.lists) != 1 || w.lists[0].FieldSelector == nil || w.lists[0].LabelSelector != nil ||
		!ptr.Deref(w.lists[0].UnsafeDisableDeepCopy, false) {
		t.Errorf("listed were %+v", w.lists)
	}
}

// TestGangsAreLookedAtSideBySide: the registered controller handles several gangs at once, so that no gang waits for the write of another.
func TestGangsAreLookedAtSideBySide(t *testing.T) {
	var all []client.Object
	changes := make(chan event.GenericEvent, workers)
	for i := range workers {
		j := job(admitted())
		j.Namespace = fmt.Sprint("team-", i)
		all = append(all, j)
		changes <- event.GenericEvent{Object: j}
	}
	w := newWorld(t, all...)
	ctx, cancel := context.WithCancel(t.Context())
	met, left := make(chan struct{}), workers
	w.write = func() {
		w.mu.Lock()
		if left--; left == 0 {
			close(met)
		}
		w.mu.Unlock()
		select {
		case <-met:
		case <-ctx.Done():
		}
	}
	options := sideBySide
	options.Reconciler, options.Logger, options.SkipNameValidation = w.c, logr.Discard(), ptr.To(true)
	c, err := controller.NewUnmanaged("gang", options)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Watch(source.Channel(changes, &handler.EnqueueRequestForObject{})); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	select {
	case <-met:
	case <-time.After(time.Minute):
		t.Errorf("%d of %d gangs wait for the others", left, workers)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A condition that Assess no longer sets, such as one of an older version, is removed.
func TestStatusDropsConditionsOfOld(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	had := metav1.NewTime(now.Add(-time.Hour))
	g := &v1alpha1.Gang{Status: v1alpha1.GangStatus{Conditions: []metav1.Condition{
		{Type: "Finished", Status: metav1.ConditionFalse, Reason: "Running"},
		{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionFalse, Reason: "Running", LastTransitionTime: had},
	}}}
	s := statusOf(g, status.JobGang{}, status.Assess(status.View{Size: 1}), now)
	if c := meta.FindStatusCondition(s.Conditions, "Finished"); c != nil {
		t.Errorf("%+v is still there", c)
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionComplete); c == nil || !c.LastTransitionTime.Equal(&had) {
		t.Errorf("Complete is %+v, want it unchanged since %v", c, had)
	}
}

// TestAFullNamespaceGetsNoGang: admission may accept several Jobs at the same time. Those beyond the namespace's limit wait until there is
// room, and each gets one event.
func TestAFullNamespaceGetsNoGang(t *testing.T) {
	other := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "other"}}
	w := newWorld(t, job(admitted()), other, &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "other"}})
	w.c.MaxGangs = 1
	for range 2 {
		if result := w.reconcile(); result.RequeueAfter != refreshEvery {
			t.Errorf("again after %s", result.RequeueAfter)
		}
	}
	if err := w.client.Get(t.Context(), key, &v1alpha1.Gang{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Gang was made: %v", err)
	}
	if all := w.events[onJob]; len(all) != 1 || !strings.Contains(all[0], "Warning TooManyGangs") || !strings.Contains(all[0], "has 1 Gangs, the limit is 1") {
		t.Errorf("reported %q", all)
	}
	if err := w.client.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if w.reconcile(); w.gang().Name != key.Name {
		t.Error("there is room, and no Gang")
	}
}

// A Job runs, a user deletes its Gang, and the Gang of another Job takes the last place of the namespace. The running Job gets its Gang
// again, beyond the limit.
func TestADeletedGangIsMadeAnewInAFullNamespace(t *testing.T) {
	w := newWorld(t, job(admitted()))
	w.c.MaxGangs = 1
	w.reconcile()
	if err := w.client.Delete(t.Context(), w.gang()); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Create(t.Context(), &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "other"}}); err != nil {
		t.Fatal(err)
	}
	if w.reconcile(); w.gang().Name != key.Name {
		t.Error("the Gang was not created again")
	}
	other := &jobs.Job{}
	other.Namespace, other.Name, other.UID = key.Namespace, key.Name, "job-2" // a newer Job of the same name had none
	if w.c.hadGang(other) {
		t.Error("another Job of the name is taken for the one that had a Gang")
	}
}

// TestWhichPodsAreChecked: none unless the job asks for it; with auto, where two pods or more request devices.
func TestWhichPodsAreChecked(t *testing.T) {
	for _, c := range []struct {
		set     string
		devices bool
		members int32
		want    string
	}{
		{"", true, 2, v1alpha1.NodeCheckOff},
		{v1alpha1.NodeCheckAuto, true, 2, v1alpha1.NodeCheckAuto},
		{v1alpha1.NodeCheckAuto, true, 1, v1alpha1.NodeCheckSuspects},
		{v1alpha1.NodeCheckAuto, false, 2, v1alpha1.NodeCheckSuspects},
		{v1alpha1.NodeCheckAlways, false, 1, v1alpha1.NodeCheckAlways},
		{v1alpha1.NodeCheckOff, true, 2, v1alpha1.NodeCheckOff},
	} {
		job := &jobs.Job{Devices: c.devices, Admitted: settings.Job{Members: c.members, Settings: settings.Settings{NodeCheck: c.set}}}
		if got := nodeCheck(job); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		job.Annotations = map[string]string{v1alpha1.AnnotationNodeCheck: v1alpha1.NodeCheckOff}
		if got := nodeCheck(job); got != v1alpha1.NodeCheckOff {
			t.Errorf("%+v, and the job wants none now: %q", c, got)
		}
	}
}
