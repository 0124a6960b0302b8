package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/slim/slimtest"
)

func node(name string, o *v1alpha1.NodeOutage) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if o != nil {
		text, err := json.Marshal(o)
		if err != nil {
			panic(err)
		}
		n.Annotations = map[string]string{v1alpha1.AnnotationOutage: string(text)}
	}
	return n
}

// on returns the pod as an object.
func on(p corev1.Pod) *corev1.Pod { return &p }

func (b *bench) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	err := b.Client.Get(t.Context(), types.NamespacedName{Namespace: "team-a", Name: name}, p)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// injected writes the UID of the pod's Job into the pod, as the webhook does.
func injected(p *corev1.Pod) {
	p.Spec.Containers = madeFor(key.Job)
}

func terminationOf(p *corev1.Pod) elastic.Termination {
	return elastic.Termination{Slot: 1, Pod: string(p.UID), Name: p.Name, Node: p.Spec.NodeName, Cause: "XidFatal"}
}

func TestReplaceTakesAPodOutOfItsJob(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "llama"}} // made by hand
	p := on(member("b", 1, "n2"))
	b := newBench(t, g, job, p)
	for range 2 { // twice is once
		if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
			t.Fatal(err)
		}
	}
	after := b.pod(t, "b")
	for _, gone := range []string{"controller-uid", batchv1.ControllerUidLabel, "app"} {
		if v, ok := after.Labels[gone]; ok {
			t.Errorf("label %s=%s is left: the Job does not let go of the pod", gone, v)
		}
	}
	if after.Labels[v1alpha1.LabelReplaced] != "true" || after.Labels[v1alpha1.LabelGang] != "train" {
		t.Errorf("labels %v", after.Labels)
	}
}

// TestASuspectedNodeIsExcludedFirst: a pod is released only once its node is excluded, or that has failed for excludeFor. Other causes
// exclude no node.
func TestASuspectedNodeIsExcludedFirst(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	p, other := on(member("b", 1, "n2")), on(member("c", 2, "n3"))
	b := newBench(t, g, job, p, other)
	fails, excluded := errors.New("the API server is busy"), []string{}
	b.Suspect = func(_ context.Context, node string, s v1alpha1.NodeSuspicion) error {
		if b.pod(t, "b").Labels[v1alpha1.LabelReplaced] != "" {
			t.Error("the pod was released before")
		}
		excluded = append(excluded, fmt.Sprint(s.Namespace, "/", s.Gang, " ", node, " ", s.Cause))
		return fails
	}
	d := terminationOf(p)
	d.Cause, d.Node, d.At = v1alpha1.CauseHardwareSuspected, "n2", time.Now()
	if err := b.Replace(t.Context(), key, d); !errors.Is(err, fails) || b.pod(t, "b").Labels[v1alpha1.LabelReplaced] != "" {
		t.Errorf("released without the exclusion: %v", err)
	}
	d.At = time.Now().Add(-excludeFor) // the Node cannot be written, and the gang must not wait for ever
	for _, d := range []elastic.Termination{d, terminationOf(other)} {
		if err := b.Replace(t.Context(), key, d); err != nil || b.pod(t, d.Name).Labels[v1alpha1.LabelReplaced] == "" {
			t.Errorf("pod %s: %v", d.Name, err)
		}
	}
	want := key.Namespace + "/" + key.Name + " n2 HardwareSuspected"
	if !slices.Equal(excluded, []string{want, want}) {
		t.Errorf("excluded %q, want %q twice", excluded, want)
	}
}

func TestReplaceLeavesOthersAlone(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	successor, adopted := on(member("b", 1, "n2")), on(member("c", 1, "n2"))
	adopted.Spec.Containers = madeFor("another job")
	b := newBench(t, g, job, successor, adopted)
	former := terminationOf(successor)
	former.Pod = "the uid of a pod that had this name before"
	gone := terminationOf(successor)
	gone.Name = "no-such-pod"
	for name, d := range map[string]elastic.Termination{"a pod of the same name": former, "a pod that is gone": gone, "another Job's pod": terminationOf(adopted)} {
		if err := b.Replace(t.Context(), key, d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"b", "c"} {
		if p := b.pod(t, name); p.Labels[v1alpha1.LabelReplaced] != "" || p.Labels["controller-uid"] == "" {
			t.Errorf("pod %s was touched: %v", name, p.Labels)
		}
	}
}

// reads counts the reads of pods that bypass the cache.
type reads struct {
	client.Reader
	pods int
}

func (r *reads) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Pod); ok {
		r.pods++
	}
	return r.Reader.Get(ctx, key, o, opts...)
}

// TestReplaceFromTheCache: in the usual case a replacement costs one request. If the cache is outdated, the present object decides.
func TestReplaceFromTheCache(t *testing.T) {
	for name, c := range map[string]struct {
		now   func(*corev1.Pod) // changes that the cache does not show yet
		taken bool
		reads int
	}{
		"the cache is right":               {func(*corev1.Pod) {}, true, 0},
		"something else was written":       {func(p *corev1.Pod) { p.Labels["x"] = "y" }, true, 1},
		"somebody else took it out":        {func(p *corev1.Pod) { p.OwnerReferences = nil }, false, 1},
		"an earlier leader took it out":    {func(p *corev1.Pod) { p.Labels[v1alpha1.LabelReplaced] = "true" }, true, 1},
		"its Job was ended and deletes it": {func(p *corev1.Pod) { p.Annotations["deleted"] = "" }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g, job := objects(corev1.RestartPolicyNever, 0)
			p := on(member("b", 1, "n2"))
			p.Finalizers = []string{batchv1.JobTrackingFinalizer}
			b := newBench(t, g, job, p)
			old, newer := b.pod(t, "b"), b.pod(t, "b")
			c.now(newer)
			if _, deleted := newer.Annotations["deleted"]; deleted {
				job := b.readJob(t)
				job.Spec.Suspend = new(bool)
				*job.Spec.Suspend = true
				if err := errors.Join(b.api.Update(t.Context(), job), b.Client.Delete(t.Context(), newer)); err != nil {
					t.Fatal(err)
				}
			} else if !equality.Semantic.DeepEqual(old, newer) {
				if err := b.Client.Update(t.Context(), newer); err != nil {
					t.Fatal(err)
				}
			}
			live := &reads{Reader: b.api}
			stale := interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if pod, ok := o.(*corev1.Pod); ok {
						old.DeepCopyInto(pod)
						return nil
					}
					return cl.Get(ctx, key, o, opts...)
				}})
			api := b.Client
			b.Client, b.Live = stale, live
			if err := b.Replace(t.Context(), key, terminationOf(old)); err != nil {
				t.Fatal(err)
			}
			b.Client = api
			if after := b.pod(t, "b"); (after.Labels[v1alpha1.LabelReplaced] == "true") != c.taken || live.pods != c.reads {
				t.Errorf("labels %v after %d reads, want taken out %v, %d reads", after.Labels, live.pods, c.taken, c.reads)
			}
		})
	}
}

// A pod that is deleted because its Job is suspended or has ended stays in the Job: no other pod must be created for it.
func TestReplaceLeavesPodsOfASuspendedJob(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	yes, now := true, metav1.Now()
	job.Spec.Suspend = &yes
	p := on(member("b", 1, "n2"))
	p.DeletionTimestamp, p.Finalizers = &now, []string{batchv1.JobTrackingFinalizer}
	b := newBench(t, g, job, p)
	if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
		t.Fatal(err)
	}
	if after := b.pod(t, "b"); after.Labels[v1alpha1.LabelReplaced] != "" || after.Labels["controller-uid"] == "" {
		t.Errorf("the pod was taken out of a suspended Job: %v", after.Labels)
	}
}

// budgetSays returns the API server's answer to an eviction that a disruption budget does not allow.
func budgetSays(text string) error {
	return &apierrors.StatusError{
		ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
			Message: "Cannot evict pod as it would violate the pod's disruption budget.",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: text}}}},
	}
}

func TestAReplacedPodGoes(t *testing.T) {
	dead := &v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: v1alpha1.CauseNodeUnreachable, Dead: true}
	sick := &v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "XidFatal"}
	const budget = "The disruption budget keep needs 2 healthy pods and has 2 currently"
	for name, c := range map[string]struct {
		pod     corev1.Pod
		node    *corev1.Node
		answer  error
		evicted int
		grace   []int64 // of each delete
		again   bool
		wantErr bool
		event   string
		spoil   func(*v1alpha1.Gang, *batchv1.Job)
	}{
		"a budget refuses, the Job is over": {pod: member("b", 1, "n2", replaced), node: node("n2", sick), answer: budgetSays(budget), evicted: 1, grace: []int64{-1}, spoil: func(_ *v1alpha1.Gang, j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		}},
		"a budget refuses, the Job is gone":  {pod: member("b", 1, "n2", replaced), node: node("n2", sick), answer: budgetSays(budget), evicted: 1, grace: []int64{-1}, spoil: func(_ *v1alpha1.Gang, j *batchv1.Job) { j.UID = "a newer job" }},
		"a budget refuses, the Gang is gone": {pod: member("b", 1, "n2", replaced), node: node("n2", sick), answer: budgetSays(budget), evicted: 1, grace: []int64{-1}, spoil: func(g *v1alpha1.Gang, _ *batchv1.Job) { g.Name = "other" }},
		"a budget refuses, the Gang is a newer Job's": {pod: member("b", 1, "n2", replaced, injected), node: node("n2", sick), answer: budgetSays(budget), evicted: 1, grace: []int64{-1}, spoil: func(g *v1alpha1.Gang, j *batchv1.Job) {
			g.Spec.JobRef.UID, j.UID = "newer", "newer"
		}},
		"evicted":                         {pod: member("b", 1, "n2", replaced), node: node("n2", sick), evicted: 1, again: true},
		"evicted where all is well":       {pod: member("b", 1, "n2", replaced), node: node("n2", nil), evicted: 1, again: true},
		"a member is left alone":          {pod: member("b", 1, "n2"), node: node("n2", dead)},
		"a stranger is left alone":        {pod: member("b", 1, "n2", replaced, func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelGang) }), node: node("n2", dead)},
		"deleted on a dead node":          {pod: member("b", 1, "n2", replaced), node: node("n2", dead), grace: []int64{0}},
		"deleted where the node is gone":  {pod: member("b", 1, "n2", replaced), node: node("n1", nil), grace: []int64{0}},
		"ending, and the node dies":       {pod: member("b", 1, "n2", replaced, deleted), node: node("n2", dead), grace: []int64{0}},
		"ending by itself":                {pod: member("b", 1, "n2", replaced, deleted), node: node("n2", sick), again: true},
		"a budget refuses":                {pod: member("b", 1, "n2", replaced, injected), node: node("n2", sick), answer: budgetSays(budget), evicted: 1, again: true, event: budget},
		"the API server has much to do":   {pod: member("b", 1, "n2", replaced), node: node("n2", sick), answer: apierrors.NewTooManyRequests("later", 1), evicted: 1, wantErr: true},
		"gone before it could be evicted": {pod: member("b", 1, "n2", replaced), node: node("n2", sick), answer: apierrors.NewNotFound(corev1.Resource("pods"), "b"), evicted: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g, job := objects(corev1.RestartPolicyNever, 0)
			if c.spoil != nil {
				c.spoil(g, job)
			}
			b := newBench(t, g, job, &c.pod, c.node)
			evicted, grace := 0, []int64(nil)
			b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
				SubResourceCreate: func(
					_ context.Context, _ client.Client, sub string, o, e client.Object, _ ...client.SubResourceCreateOption,
				) error {
					if opts := e.(*policyv1.Eviction).DeleteOptions; sub != "eviction" || opts.Preconditions == nil || *opts.Preconditions.UID != o.GetUID() {
						t.Errorf("%s of %s with %+v", sub, o.GetName(), opts)
					}
					evicted++
					return c.answer
				},
				Delete: func(_ context.Context, _ client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					d := client.DeleteOptions{}
					d.ApplyOptions(opts)
					if d.Preconditions == nil || *d.Preconditions.UID != o.GetUID() {
						t.Errorf("%s is deleted whatever its uid", o.GetName())
					}
					if d.GracePeriodSeconds == nil { // the pod's own
						d.GracePeriodSeconds = new(int64(-1))
					}
					grace = append(grace, *d.GracePeriodSeconds)
					return nil
				},
			})
			res, err := b.reconcileReplaced(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&c.pod)})
			if (err != nil) != c.wantErr || (res.RequeueAfter > 0) != c.again || evicted != c.evicted || !slices.Equal(grace, c.grace) {
				t.Errorf("%+v, %v; %d evictions, deletes with grace %v", res, err, evicted, grace)
			}
			if p := b.pod(t, "b"); p.Annotations[v1alpha1.AnnotationEvictionRefused] != c.event {
				t.Errorf("the pod says %q, want %q", p.Annotations[v1alpha1.AnnotationEvictionRefused], c.event)
			}
			if e := b.event(t); (e != "") != (c.event != "") || !strings.Contains(e, c.event) {
				t.Errorf("event %q, want %q", e, c.event)
			}
		})
	}
}

// listener is a coordinator that stores what it received last.
type listener struct {
	placed    []elastic.Placement
	suspended bool
	calls     int
	key       coordinator.Key
	last      []elastic.Termination
	over      []string // UIDs of Jobs
	settings  elastic.Settings
	err       error
}

func (l *listener) SetSettings(_ context.Context, key coordinator.Key, s elastic.Settings) error {
	l.calls++
	l.key, l.settings = key, s
	return l.err
}

func (l *listener) Over(key coordinator.Key) { l.over = append(l.over, key.Job) }

func (l *listener) SetPlaced(_ context.Context, _ coordinator.Key, pods []elastic.Placement) error {
	l.placed = pods
	return nil
}

func (l *listener) Suspended(ctx context.Context, key coordinator.Key, pods []elastic.Termination) error {
	l.suspended = true
	return l.SetPendingReplacements(ctx, key, pods)
}

func (l *listener) SetPendingReplacements(_ context.Context, key coordinator.Key, pods []elastic.Termination) error {
	l.calls++
	l.key, l.last = key, pods
	return l.err
}

func TestPendingReplacementsAreSent(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	a, p := on(member("a", 0, "n1")), on(member("b", 1, "n2"))
	n1, n2 := node("n1", nil), node("n2", nil)
	b := newBench(t, g, job, a, p, n1, n2)
	l := &listener{}
	b.Coordinator = l
	look := func() ctrl.Result {
		t.Helper()
		res, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "train"}})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if look(); l.calls != 0 {
		t.Error("the coordinator hears of a gang that is well")
	}
	sick := node("n2", &v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "XidFatal", Since: metav1.NowMicro()})
	n2.Annotations = sick.Annotations
	if err := b.Client.Update(t.Context(), n2); err != nil {
		t.Fatal(err)
	}
	if res := look(); l.calls != 1 || l.key != key || len(l.last) != 1 || l.last[0].Pod != "uid-b" || res.RequeueAfter == 0 {
		t.Errorf("%d calls, %+v, again after %s", l.calls, l.last, res.RequeueAfter)
	}
	// The node is well again: the coordinator receives the shorter list, once.
	n2.Annotations = nil
	if err := b.Client.Update(t.Context(), n2); err != nil {
		t.Fatal(err)
	}
	if look(); l.calls != 2 || len(l.last) != 0 {
		t.Errorf("%d calls, %+v", l.calls, l.last)
	}
	if look(); l.calls != 2 {
		t.Error("nothing is told again")
	}
	// A new leader finds a termination in the Gang that no longer holds.
	with := b.gang(t)
	with.Status.Run = &v1alpha1.RunStatus{Generation: 1, PendingReplacements: []v1alpha1.Termination{{Pod: "b", PodUID: "uid-b"}}}
	if err := b.Client.Status().Update(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	if look(); l.calls != 3 || len(l.last) != 0 {
		t.Errorf("%d calls, %+v", l.calls, l.last)
	}
	// The Gang is created again for another Job. What the coordinator received about the old Gang is dropped.
	with = b.gang(t)
	with.Status.Run, b.notified[key] = nil, true
	b.writer.read[key] = "somebody/1"
	if err := b.Client.Status().Update(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	with.Spec.JobRef.UID = "another job"
	if err := b.Client.Update(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	if look(); len(b.notified) != 0 || len(b.writer.read) != 0 {
		t.Errorf("kept are %v and %v", b.notified, b.writer.read)
	}
	with.Spec.JobRef.UID = key.Job
	if err := b.Client.Update(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	with.Status.Run = &v1alpha1.RunStatus{Generation: 1, PendingReplacements: []v1alpha1.Termination{{Pod: "b", PodUID: "uid-b"}}}
	if err := b.Client.Status().Update(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	l.err = errors.New("does not lead")
	if _, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(g)}); err == nil {
		t.Error("a level that nobody heard is not told again")
	}
}

// TestNothingIsReplacedWhereTheJobEnds: a Job that ends has its pods deleted; these are not replaced.
func TestNothingIsReplacedWhereTheJobEnds(t *testing.T) {
	for name, spoil := range map[string]func(*v1alpha1.Gang, *batchv1.Job){
		"failed": func(_ *v1alpha1.Gang, j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue}}
		},
		"made anew": func(_ *v1alpha1.Gang, j *batchv1.Job) { j.UID = "a newer job" },
		"being taken": func(_ *v1alpha1.Gang, j *batchv1.Job) {
			j.DeletionTimestamp, j.Finalizers = &metav1.Time{Time: time.Now()}, []string{"foregroundDeletion"}
		},
		"given up": func(g *v1alpha1.Gang, _ *batchv1.Job) {
			g.Status.Run = &v1alpha1.RunStatus{Verdict: &v1alpha1.Verdict{Reason: "NoProgress"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, job := objects(corev1.RestartPolicyNever, 0)
			spoil(g, job)
			b := newBench(t, g, job, on(member("b", 1, "n2", deleted)), node("n2", nil))
			l := &listener{}
			b.Coordinator = l
			if _, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(g)}); err != nil {
				t.Fatal(err)
			}
			if l.calls != 0 {
				t.Errorf("told %+v", l.last)
			}
			if over := len(l.over) > 0; over != (name != "given up") {
				t.Errorf("told that the Job is over: %v", over)
			}
		})
	}
}

// TestAJobThatIsOver: the coordinator receives at once that a Job is over, as long as the Job has pods, whatever else of it still exists.
// It receives that about no other Job.
func TestAJobThatIsOver(t *testing.T) {
	complete := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	}
	for name, c := range map[string]struct {
		pods []client.Object
		job  func(*batchv1.Job) // nil: there is none
		gang bool
		want bool
		live int // reads of Jobs that bypass the cache
	}{
		"it trains":                             {pods: []client.Object{on(member("b", 1, "n2"))}, job: func(*batchv1.Job) {}, gang: true},
		"one pod is deleted":                    {pods: []client.Object{on(member("a", 0, "n2")), on(member("b", 1, "n2", deleted))}, job: func(*batchv1.Job) {}, gang: true, live: 2},
		"the Job is gone":                       {pods: []client.Object{on(member("b", 1, "n2", deleted))}, gang: true, want: true, live: 1},
		"the Job and its Gang are gone":         {pods: []client.Object{on(member("b", 1, "n2", deleted))}, want: true, live: 1},
		"the Job is gone, its pods are not yet": {pods: []client.Object{on(member("b", 1, "n2"))}, gang: true, want: true, live: 1},
		"it is complete":                        {pods: []client.Object{on(member("b", 1, "n2"))}, job: complete, gang: true, want: true, live: 1},
		"its pods have ended":                   {pods: []client.Object{on(member("b", 1, "n2", inPhase(corev1.PodSucceeded)))}, job: complete, gang: true},
		"another Job has its name":              {pods: []client.Object{on(member("b", 1, "n2", deleted))}, job: func(j *batchv1.Job) { j.UID = "newer" }, want: true, live: 1},
		"its pod was taken out":                 {pods: []client.Object{on(member("b", 1, "n2", replaced))}, gang: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, job := objects(corev1.RestartPolicyNever, 0)
			all := append(c.pods, node("n2", nil))
			if c.gang {
				all = append(all, g)
			}
			if c.job != nil {
				c.job(job)
				all = append(all, job)
			}
			b := newBench(t, all...)
			l, live := &listener{}, 0
			b.Coordinator = l
			b.Jobs = jobs.New(jobs.Options{
				Client: b.Client,
				Kinds:  kinds.Served(),
				Log:    logr.Discard(),
				Live: interceptor.NewClient(b.api, interceptor.Funcs{
					Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
						if isJob(o) {
							live++
						}
						return cl.Get(ctx, key, o, opts...)
					},
				}),
			})
			req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: key.Name}}
			res, err := b.reconcilePending(t.Context(), req)
			if err != nil || slices.Equal(l.over, []string{key.Job}) != c.want || len(l.over) > 1 || live != c.live {
				t.Errorf("told %v, %v; %d Jobs were read", l.over, err, live)
			}
			if !c.want {
				return
			}
			if res.RequeueAfter != overAgain || len(l.last) != 0 {
				t.Errorf("looked at again after %s, pending replacements %v", res.RequeueAfter, l.last)
			}
			// A coordinator that has restarted receives it again, without a further read.
			if _, err := b.reconcilePending(t.Context(), req); err != nil || len(l.over) != 2 || live != c.live {
				t.Errorf("told %v, %v; %d Jobs were read", l.over, err, live)
			}
			for _, p := range c.pods {
				p.SetFinalizers(nil)
				if err := client.IgnoreNotFound(errors.Join(
					b.Client.Update(t.Context(), p),
					client.IgnoreNotFound(b.Client.Delete(t.Context(), p)),
				)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := b.reconcilePending(t.Context(), req); err != nil || len(l.over) != 2 || len(b.over) != 0 {
				t.Errorf("without pods: told %v, %v; kept %v", l.over, err, b.over)
			}
		})
	}
}

// TestWhatTurnsAJob: an event of a Job counts if its end or its suspension changed, and only for Jobs that were opted in.
func TestWhatTurnsAJob(t *testing.T) {
	yes := true
	_, was := objects(corev1.RestartPolicyNever, 0)
	for name, c := range map[string]struct {
		change func(*batchv1.Job)
		want   bool
	}{
		"counted":   {func(j *batchv1.Job) { j.Status.Active = 2 }, false},
		"suspended": {func(j *batchv1.Job) { j.Spec.Suspend = &yes }, true},
		"failing": {func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue}}
		}, true},
		"deleted": {func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: noon} }, true},
	} {
		is := was.DeepCopy()
		c.change(is)
		if jobTurned.Update(event.UpdateEvent{ObjectOld: slimtest.Job(t, was), ObjectNew: slimtest.Job(t, is)}) != c.want {
			t.Errorf("%s: want %v", name, c.want)
		}
	}
	if got := gangOfJob(t.Context(), slimtest.Job(t, was)); len(got) != 1 || got[0].Name != "train" {
		t.Errorf("a Job that was opted in brings %v", got)
	}
	was.Spec.Template.Annotations = nil
	if got := gangOfJob(t.Context(), slimtest.Job(t, was)); got != nil {
		t.Errorf("a Job that was not opted in brings %v", got)
	}
}

func TestANewPodEndsASlotGap(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	p := on(member("b", 1, "n2"))
	b := newBench(t, g, job, p)
	if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
		t.Fatal(err)
	}
	old := *b.pod(t, "b")
	if b.noteFilled(key, []corev1.Pod{old}); len(b.slotGaps) != 1 {
		t.Errorf("the old pod took its own place: %v", b.slotGaps)
	}
	if b.noteFilled(key, []corev1.Pod{old, member("b2", 1, "")}); len(b.slotGaps) != 0 {
		t.Errorf("the place is still free: %v", b.slotGaps)
	}
}

func TestHolders(t *testing.T) {
	running := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
	waiting := func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	succeeded := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	for name, c := range map[string]struct {
		pods []client.Object
		want string
		runs bool
	}{
		"one that runs":         {[]client.Object{on(member("a", 0, "n1", running)), on(member("b", 1, "n2", running))}, "b", true},
		"one that waits":        {[]client.Object{on(member("b", 1, "", waiting))}, "b", false},
		"one that is going":     {[]client.Object{on(member("b", 1, "n2", running, deleted))}, "b", false},
		"one that was replaced": {[]client.Object{on(member("b", 1, "n2", running, replaced))}, "", false},
		"one that has ended":    {[]client.Object{on(member("b", 1, "n2", failed))}, "", false},
		"one that succeeded":    {[]client.Object{on(member("b", 1, "n2", succeeded))}, "", false},
		"one made again since":  {[]client.Object{on(member("b", 1, "n2", succeeded)), on(member("c", 1, "n2", running))}, "c", true},
		"none":                  {nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.pods...)
			got, err := b.Holders(t.Context(), key, []elastic.Slot{0, 1})
			if err != nil || len(got) != 2 || got[1].Pod.Name != c.want || got[1].Runs != c.runs || (got[1].Pod.UID == "") != (c.want == "") {
				t.Errorf("%+v, %v; want %q, %v", got, err, c.want, c.runs)
			} else if got[1].Succeeded != (name == "one that succeeded") {
				t.Errorf("succeeded: %v", got[1].Succeeded)
			}
		})
	}
}

// slow is a coordinator whose read of records waits until it was called for as many gangs as a rack may have.
type slow struct {
	want int
	once sync.Once
	mu   sync.Mutex
	all  chan struct{}
	end  <-chan struct{}
}

func (s *slow) SetSettings(context.Context, coordinator.Key, elastic.Settings) error { return nil }

func (s *slow) SetPlaced(context.Context, coordinator.Key, []elastic.Placement) error   { return nil }
func (s *slow) Suspended(context.Context, coordinator.Key, []elastic.Termination) error { return nil }

func (s *slow) SetPendingReplacements(context.Context, coordinator.Key, []elastic.Termination) error {
	s.mu.Lock()
	if s.want--; s.want == 0 {
		s.once.Do(func() { close(s.all) })
	}
	s.mu.Unlock()
	select {
	case <-s.all:
	case <-s.end:
	}
	return nil
}

func (s *slow) Over(coordinator.Key) {}

// TestGangsAreToldOfAtOnce: the registered controller handles so many gangs at once that no gang of a rack waits for another one.
func TestGangsAreToldOfAtOnce(t *testing.T) {
	const rack = 16
	sick := node("n2", &v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "XidFatal", Since: metav1.NowMicro()})
	all := []client.Object{sick}
	gangs := make(chan event.GenericEvent, rack)
	for i := range rack {
		g, job := objects(corev1.RestartPolicyNever, 0)
		p := on(member("b", 1, "n2"))
		for _, o := range []client.Object{g, job, p} {
			o.SetNamespace(fmt.Sprintf("team-%d", i))
		}
		all = append(all, g, job, p)
		gangs <- event.GenericEvent{Object: g}
	}
	b := newBench(t, all...)
	ctx, cancel := context.WithCancel(t.Context())
	s := &slow{want: rack, all: make(chan struct{}), end: ctx.Done()}
	b.Coordinator = s
	options := sendsPending
	options.Reconciler, options.Logger, options.SkipNameValidation = reconcile.Func(b.reconcilePending), logr.Discard(), ptr.To(true)
	c, err := controller.NewUnmanaged("pending-replacements", options)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Watch(source.Channel(gangs, &handler.EnqueueRequestForObject{})); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	select {
	case <-s.all:
	case <-time.After(time.Minute):
		t.Errorf("%d of %d gangs wait for the others", s.want, rack)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAPodThatWasTakenOutGoesAtOnce: a released pod is evicted while the cache still shows it in its Job. Other pods are not evicted.
func TestAPodThatWasTakenOutGoesAtOnce(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	p, other := on(member("b", 1, "n2")), on(member("a", 0, "n2"))
	b := newBench(t, g, job, p, other, node("n2", nil))
	behind := map[string]*corev1.Pod{"a": b.pod(t, "a"), "b": b.pod(t, "b")}
	var told []string
	b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if pod, ok := o.(*corev1.Pod); ok {
				behind[key.Name].DeepCopyInto(pod)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
		SubResourceCreate: func(
			_ context.Context, _ client.Client, _ string, pod, _ client.Object, _ ...client.SubResourceCreateOption,
		) error {
			told = append(told, pod.GetName())
			return nil
		},
	})
	if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-b.freed:
		if e.Object.GetName() != "b" {
			t.Errorf("%s was freed", e.Object.GetName())
		}
	default:
		t.Error("nobody is told that the pod was taken out")
	}
	for _, name := range []string{"a", "b"} {
		if _, err := b.reconcileReplaced(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{
			Namespace: p.Namespace,
			Name:      name,
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(told, []string{"b"}) {
		t.Errorf("told to go: %v", told)
	}
}

// TestPodTurned: an event of a pod counts if terminations depend on what changed. What a kubelet reports all the time does not count.
func TestPodTurned(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"readiness":    {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} }, false},
		"phase":        {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		"node":         {func(p *corev1.Pod) { p.Spec.NodeName = "n3" }, true},
		"deletion":     {deleted, true},
		"taken out":    {replaced, true},
		"left behind":  {func(p *corev1.Pod) { p.OwnerReferences = nil }, true},
		"another pod":  {func(p *corev1.Pod) { p.UID = "another" }, true},
		"shorter time": {func(p *corev1.Pod) { deleted(p); p.DeletionTimestamp.Time = p.DeletionTimestamp.Add(-time.Second) }, true},
	} {
		before := member("b", 1, "n2")
		if name == "shorter time" {
			deleted(&before)
		}
		after := *before.DeepCopy()
		if c.change(&after); podTurned.Update(event.UpdateEvent{ObjectOld: &before, ObjectNew: &after}) != c.want {
			t.Errorf("%s: passed is not %v", name, c.want)
		}
	}
}

// TestAReplacedPodIsToldOnce: while the cache is outdated, the changes that a release and an eviction make to a pod do not cause another
// eviction. A pod that was evicted and does not end is evicted again.
func TestAReplacedPodIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, job := objects(corev1.RestartPolicyNever, 0)
		p := on(member("b", 1, "n2", replaced))
		b := newBench(t, g, job, p, node("n2", nil))
		told := 0
		b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
			SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
				told++
				return nil
			},
		})
		for _, want := range []int{1, 1, 1, 2, 2} {
			if want > told && told > 0 {
				time.Sleep(deletionGrace)
			}
			res, err := b.reconcileReplaced(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p)})
			if err != nil || told != want || res.RequeueAfter <= 0 {
				t.Fatalf("told %d times, want %d: %+v, %v", told, want, res, err)
			}
		}
	})
}

// TestRecentEvictionsAreBounded: old evictions are dropped from the list of recent ones.
func TestRecentEvictionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRecentEvictions()
		for i := range 10 * recentEvictionsKept {
			a.note(types.UID(fmt.Sprint(i)), evictAgain)
			time.Sleep(evictAgain / recentEvictionsKept * 2)
		}
		if n := len(a.until); n > recentEvictionsKept {
			t.Errorf("%d are kept", n)
		}
	})
}

// TestASuspendedJob: the coordinator receives all pods of a suspended Job, also those that are not deleted yet, with one deadline.
func TestASuspendedJob(t *testing.T) {
	yes := true
	g, job := objects(corev1.RestartPolicyNever, 0)
	job.Spec.Suspend = &yes
	b := newBench(t, g, job, on(member("a", 0, "n1")), on(member("b", 1, "n2", deleted)), node("n1", nil), node("n2", nil))
	l := &listener{}
	b.Coordinator = l
	if _, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(g)}); err != nil {
		t.Fatal(err)
	}
	if !l.suspended || len(l.last) != 2 || l.last[0].Cause != replacements.JobSuspended || l.last[0].Deadline.IsZero() ||
		!l.last[0].Deadline.Equal(l.last[1].Deadline) ||
		l.last[0].Dead {
		t.Errorf("told %+v", l.last)
	}
}
