package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
)

// others are the kinds of other projects.
var others = []kinds.Kind{kinds.VolcanoJob{}, kinds.JobSet{}, kinds.PyTorchJob{}}

// foreign returns an empty object of each of these kinds.
func foreign() (all []client.Object) {
	for _, kind := range others {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind.GroupVersionKind())
		all = append(all, u)
	}
	return all
}

// ofKind returns the Gang and the object of a job of another kind, with four pods.
func ofKind(kind kinds.Kind, change ...func(*unstructured.Unstructured)) (*v1alpha1.Gang, *unstructured.Unstructured) {
	version, name := kind.GroupVersionKind().ToAPIVersionAndKind()
	g := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train"}}
	g.Spec.Members = 4
	g.Spec.JobRef = v1alpha1.JobReference{APIVersion: version, Kind: name, Name: "train", UID: "job-uid"}
	return g, jobstest.Object(kind, jobName(key), "job-uid", change...)
}

// podOf returns the member of a slot as the controller of its kind creates it. uid distinguishes pods with one name.
func podOf(kind kinds.Kind, slot int, uid string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := member(fmt.Sprintf("train-worker-%d", slot), slot, "n1", func(p *corev1.Pod) {
		version, name := kind.GroupVersionKind().ToAPIVersionAndKind()
		p.UID, p.Finalizers = types.UID(uid), nil
		owner := metav1.OwnerReference{APIVersion: version, Kind: name, Name: "train", UID: "job-uid", Controller: ptr.To(true)}
		p.Labels = map[string]string{v1alpha1.LabelGang: "train", "app": "llama"}
		switch kind.(type) {
		case kinds.VolcanoJob:
			p.Labels["volcano.sh/job-name"] = "train"
			p.Annotations["volcano.sh/job-version"], p.Annotations["volcano.sh/task-index"] = "0", fmt.Sprint(slot)
		case kinds.JobSet:
			owner = metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "train-worker-0", UID: "child-uid", Controller: ptr.To(true)}
			p.Labels["jobset.sigs.k8s.io/jobset-uid"], p.Labels[batchv1.ControllerUidLabel] = "job-uid", "child-uid"
		case kinds.PyTorchJob:
			p.Labels["training.kubeflow.org/job-name"], p.Labels["training.kubeflow.org/replica-type"] = "train", "worker"
		}
		p.OwnerReferences = []metav1.OwnerReference{owner}
	})
	for _, f := range change {
		f(&p)
	}
	return &p
}

// child returns the Job of a JobSet, which selects its pods by a label that its user set.
func child() *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train-worker-0", UID: "child-uid"}}
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "llama", batchv1.ControllerUidLabel: "child-uid"}}
	return job
}

// newKindBench returns a bench with a reader of jobs that watches all kinds.
func newKindBench(t *testing.T, all ...client.Object) (*bench, *jobstest.Server) {
	b := newBench(t, all...)
	server := jobstest.New(t, b.api)
	b.Jobs = server.Reader(b.Client)
	return b, server
}

// object reads the present object of the job.
func (b *bench) object(t *testing.T, kind kinds.Kind) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind.GroupVersionKind())
	if err := b.api.Get(t.Context(), jobName(key), u); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestReleaseOfEachKind prints the patch with which one pod is released from its job, as the API server receives it, and the pod after it.
// A second call changes nothing.
func TestReleaseOfEachKind(t *testing.T) {
	out := &strings.Builder{}
	for _, kind := range others {
		g, obj := ofKind(kind)
		p := podOf(kind, 1, "uid-old")
		b := newBench(t, g, obj, p, child())
		for range 2 {
			if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
				t.Fatal(err)
			}
		}
		after := b.pod(t, p.Name)
		for _, v := range []any{after.Labels, after.Annotations} {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			b.patches = append(b.patches, string(text))
		}
		fmt.Fprintf(out, "%s\n  %s\n", jobs.Text(kind, jobName(key)), strings.Join(b.patches, "\n  "))
	}
	golden.File(t, "testdata/releases.txt", out.String())
}

// TestReleaseOfAPodThatIsBeingDeleted: a pod that is being deleted is marked like any other pod, as long as its job runs.
func TestReleaseOfAPodThatIsBeingDeleted(t *testing.T) {
	for _, kind := range others {
		for _, rests := range []bool{false, true} {
			g, obj := ofKind(kind, func(u *unstructured.Unstructured) {
				if rests {
					suspend(kind, u)
				}
			})
			p := podOf(kind, 1, "uid-old", deleted, func(p *corev1.Pod) { p.Finalizers = []string{"test/stays"} })
			b := newBench(t, g, obj, p, child())
			if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
				t.Fatal(err)
			}
			if got := b.pod(t, p.Name).Labels[v1alpha1.LabelReplaced] == "true"; got == rests {
				t.Errorf("%s, suspended %v: released %v", kind.GroupVersionKind(), rests, got)
			}
		}
	}
}

// suspend makes the object suspended, as its user would.
func suspend(kind kinds.Kind, u *unstructured.Unstructured) {
	switch kind.(type) {
	case kinds.VolcanoJob:
		u.Object["status"] = map[string]any{"state": map[string]any{"phase": "Aborting"}}
	case kinds.JobSet:
		u.Object["spec"].(map[string]any)["suspend"] = true
	case kinds.PyTorchJob:
		u.Object["spec"].(map[string]any)["runPolicy"] = map[string]any{"suspend": true}
	}
}

// TestReleaseDoesNotTrustOwners: a user who may patch a pod may name any owner in it. The controller reads the job's kind from the Gang.
// Labels of a Job stay if the UID does not prove that the Job is the pod's.
func TestReleaseDoesNotTrustOwners(t *testing.T) {
	asJob := func(uid types.UID) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train-worker-0", UID: uid, Controller: ptr.To(true)}}
		}
	}
	for name, c := range map[string]struct {
		kind  kinds.Kind
		owner types.UID
		gone  []string
		kept  []string
	}{
		"a PyTorchJob's pod that names a Job": {kinds.PyTorchJob{}, "child-uid", []string{"training.kubeflow.org/job-name"}, []string{"app"}},
		"a JobSet's pod that names its Job":   {kinds.JobSet{}, "child-uid", []string{"app", batchv1.ControllerUidLabel}, nil},
		"a JobSet's pod with another UID":     {kinds.JobSet{}, "forged", []string{batchv1.ControllerUidLabel}, []string{"app"}},
	} {
		g, obj := ofKind(c.kind)
		p := podOf(c.kind, 1, "uid-old", asJob(c.owner))
		b := newBench(t, g, obj, p, child())
		if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
			t.Fatal(err)
		}
		labels := b.pod(t, p.Name).Labels
		for _, k := range c.gone {
			if _, is := labels[k]; is {
				t.Errorf("%s: label %s is left", name, k)
			}
		}
		for _, k := range c.kept {
			if _, is := labels[k]; !is {
				t.Errorf("%s: label %s is gone", name, k)
			}
		}
	}
}

// TestReplaceOfAJobThatIsNotThere: if the job is gone, no pod is replaced. If its kind is not served at the moment, it is unknown whether
// the job exists, and the call returns an error so that it is repeated.
func TestReplaceOfAJobThatIsNotThere(t *testing.T) {
	for _, kind := range others {
		_, obj := ofKind(kind)
		newer := obj.DeepCopy()
		newer.SetUID("newer")
		for name, c := range map[string]struct {
			there []client.Object
			err   bool
		}{
			"gone":                    {nil, false},
			"replaced under its name": {[]client.Object{newer}, false},
			"not served":              {[]client.Object{obj}, true},
		} {
			p := podOf(kind, 1, "uid-old")
			b, server := newKindBench(t, append(c.there, p, child())...)
			server.Serve(kind, !c.err)
			if err := b.Replace(t.Context(), key, terminationOf(p)); (err != nil) != c.err {
				t.Errorf("%s, %s: %v", kind.GroupVersionKind(), name, err)
			}
			if b.pod(t, p.Name).Labels[v1alpha1.LabelReplaced] != "" {
				t.Errorf("%s, %s: the pod was released", kind.GroupVersionKind(), name)
			}
		}
	}
}

// TestEndOfEachKind: the object gets, once, the status that it failed and the reason. Another object of the same name, and an object that
// has ended, are not changed.
func TestEndOfEachKind(t *testing.T) {
	for _, kind := range others {
		g, obj := ofKind(kind)
		b := newBench(t, g, obj)
		for range 2 {
			if err := b.End(t.Context(), key, verdict(time.Now())); err != nil {
				t.Fatal(err)
			}
		}
		after := b.object(t, kind)
		if s := kind.State(after); !s.Failed || !s.Ended || !strings.Contains(fmt.Sprint(after.Object["status"]), "rank 3 in slot 1 failed first") ||
			!strings.Contains(fmt.Sprint(after.Object["status"]), "SameFailureTwice") {
			t.Errorf("%s: %+v, status %v", kind.GroupVersionKind(), s, after.Object["status"])
		}
		if e := b.event(t); !strings.Contains(e, "SameFailureTwice") {
			t.Errorf("%s: event %q", kind.GroupVersionKind(), e)
		}
		_, newer := ofKind(kind)
		newer.SetUID("newer")
		b = newBench(t, g, newer)
		if err := b.End(t.Context(), key, verdict(time.Now())); err != nil || kind.State(b.object(t, kind)).Ended {
			t.Errorf("%s: another object of the same name was made to fail, %v", kind.GroupVersionKind(), err)
		}
	}
}

// TestEndOfAnObjectThatChanges: the write keeps what the kind's controller wrote after the object was read.
func TestEndOfAnObjectThatChanges(t *testing.T) {
	for _, kind := range others {
		g, obj := ofKind(kind)
		b := newBench(t, g, obj)
		stale := b.object(t, kind)
		now := b.object(t, kind)
		now.SetLabels(map[string]string{"written": "since"})
		if err := b.api.Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		v := verdict(time.Now())
		if err := b.stop(t.Context(), &job{kind: kind, obj: stale}, v); err == nil {
			t.Errorf("%s: the write was made on another version than the one that was read", kind.GroupVersionKind())
		}
		if err := b.End(t.Context(), key, v); err != nil || !kind.State(b.object(t, kind)).Failed {
			t.Errorf("%s: once more: %v", kind.GroupVersionKind(), err)
		}
	}
}

// TestNoPodOfAFailedPyTorchJobRuns: pods of a failed job have some seconds to end by themselves. Those that the operator leaves are evicted
// until none is left, also by a process that starts later. Pods of other jobs are not evicted.
func TestNoPodOfAFailedPyTorchJobRuns(t *testing.T) {
	kind := kinds.PyTorchJob{}
	g, obj := ofKind(kind)
	strange := podOf(kind, 3, "uid-3", func(p *corev1.Pod) { p.Spec.Containers = madeFor("another job") })
	b := newBench(t, g, obj, podOf(kind, 0, "uid-0"), podOf(kind, 1, "uid-1", inPhase(corev1.PodFailed)), strange, node("n1", nil))
	v := verdict(time.Now())
	if err := b.Persist(t.Context(), key, elastic.Record{Generation: 2, Phase: elastic.GivenUp, Verdict: &v}); err != nil {
		t.Fatal(err)
	}
	req := ctrl.Request{NamespacedName: jobName(key)}
	for range 2 {
		res, err := b.Reconcile(t.Context(), req)
		if err != nil || res.RequeueAfter <= 0 || res.RequeueAfter > grace || !kind.State(b.object(t, kind)).Failed || len(b.patches) != 0 {
			t.Fatalf("at once: %+v, %v; %v", res, err, b.patches)
		}
	}
	v.At = v.At.Add(-grace)
	if err := b.Persist(t.Context(), key, elastic.Record{Generation: 2, Phase: elastic.GivenUp, Verdict: &v}); err != nil {
		t.Fatal(err)
	}
	b.Controller = New(b.Options) // the previous process was killed here
	if res, err := b.Reconcile(t.Context(), req); err != nil || res.RequeueAfter <= 0 {
		t.Fatalf("later: %+v, %v", res, err)
	}
	for slot, want := range []string{"true", "", "", ""} {
		if p := b.pod(t, fmt.Sprintf("train-worker-%d", slot)); p != nil && p.Labels[v1alpha1.LabelReplaced] != want {
			t.Errorf("slot %d: labels %v", slot, p.Labels)
		}
	}
	if p := b.pod(t, "train-worker-0"); p.Labels["training.kubeflow.org/job-name"] != "train" {
		t.Errorf("it is hidden from its operator: %v", p.Labels)
	}
	evicted := b.evictions(t)
	b.Controller = New(b.Options)
	if _, err := b.reconcileReplaced(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "train-worker-0"}}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(*evicted, []string{"train-worker-0 uid-0"}) {
		t.Errorf("evicted are %v", *evicted)
	}
	if err := b.api.Delete(t.Context(), b.pod(t, "train-worker-0")); err != nil {
		t.Fatal(err)
	}
	if res, err := b.Reconcile(t.Context(), req); err != nil || res.RequeueAfter != 0 {
		t.Errorf("once none is left: %+v, %v", res, err)
	}
}

// evictions makes evictions succeed, and records each pod with the UID in the request.
func (b *bench) evictions(t *testing.T) *[]string {
	t.Helper()
	told := &[]string{}
	b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, o, e client.Object, _ ...client.SubResourceCreateOption) error {
			*told = append(*told, o.GetName()+" "+string(*e.(*policyv1.Eviction).DeleteOptions.Preconditions.UID))
			return nil
		},
	})
	return told
}

// TestAPodOfTheSameName: the replacement pod of a Volcano Job or a PyTorchJob has the name of the earlier pod. A process that was then
// killed had marked the earlier pod. The marked pod is deleted; the replacement pod gets its slot and stays.
func TestAPodOfTheSameName(t *testing.T) {
	for _, kind := range []kinds.Kind{kinds.VolcanoJob{}, kinds.PyTorchJob{}} {
		g, obj := ofKind(kind)
		old := podOf(kind, 1, "uid-old")
		b := newBench(t, g, obj, old, node("n1", nil))
		if err := b.Replace(t.Context(), key, terminationOf(old)); err != nil {
			t.Fatal(err)
		}
		gaps := b.slotGaps
		heir := New(b.Options)
		b.Controller, heir.slotGaps = heir, gaps
		evicted := b.evictions(t)
		req := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(old)}
		if _, err := b.reconcileReplaced(t.Context(), req); err != nil || !slices.Equal(*evicted, []string{"train-worker-1 uid-old"}) {
			t.Errorf("evicted are %v, %v", *evicted, err)
		}
		if b.noteFilled(key, []corev1.Pod{*b.pod(t, old.Name)}); len(b.slotGaps) != 1 {
			t.Errorf("the marked pod fills its own slot")
		}
		if due, again := b.refillsDue(key, nil, time.Now().Add(time.Hour)); len(due) != 0 || again != 0 {
			t.Errorf("a Job is to be asked for the next pod: %v", due)
		}
		if err := b.api.Delete(t.Context(), b.pod(t, old.Name)); err != nil {
			t.Fatal(err)
		}
		next := podOf(kind, 1, "uid-next", later(1))
		if err := b.api.Create(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if b.noteFilled(key, []corev1.Pod{*next}); len(b.slotGaps) != 0 {
			t.Error("the next pod does not fill the slot")
		}
		if res, err := b.reconcileReplaced(t.Context(), req); err != nil || res.RequeueAfter != 0 || len(*evicted) != 1 {
			t.Errorf("the next pod: %+v, %v; evicted are %v", res, err, *evicted)
		}
		b.patches = nil
		if err := b.Replace(t.Context(), key, terminationOf(old)); err != nil || len(b.patches) != 0 { // told twice
			t.Errorf("the replacement of the old pod touches the next one: %v, %v", b.patches, err)
		}
		holders, err := b.Holders(t.Context(), key, []elastic.Slot{1})
		if err != nil || holders[0].Pod.UID != "uid-next" {
			t.Errorf("slot 1 is held by %+v, %v", holders[0], err)
		}
	}
}

// TestRefillOfAJobSet: if a slot stays empty, the Job of the JobSet is changed so that its controller creates the pod. The JobSet itself is
// not changed.
func TestRefillOfAJobSet(t *testing.T) {
	kind := kinds.JobSet{}
	g, obj := ofKind(kind)
	p := podOf(kind, 1, "uid-old")
	b := newBench(t, g, obj, p, child())
	if err := b.Replace(t.Context(), key, terminationOf(p)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.refill(t.Context(), key, nil, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	asked := &batchv1.Job{}
	if err := b.api.Get(t.Context(), types.NamespacedName{Namespace: "team-a", Name: "train-worker-0"}, asked); err != nil {
		t.Fatal(err)
	}
	if asked.Annotations[v1alpha1.AnnotationMadeRoom] == "" || b.object(t, kind).GetAnnotations()[v1alpha1.AnnotationMadeRoom] != "" {
		t.Errorf("annotations of the Job are %v, of the JobSet %v", asked.Annotations, b.object(t, kind).GetAnnotations())
	}
}

// TestWhatBecomesOfEachKind prints what the coordinator receives about a gang of which one pod is being deleted.
func TestWhatBecomesOfEachKind(t *testing.T) {
	ended := func(kind kinds.Kind) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			u.Object["status"] = kind.Fail(u, kinds.Failure{At: noon, Now: true}).Patch["status"]
		}
	}
	for _, kind := range others {
		for name, c := range map[string]struct {
			change    func(*unstructured.Unstructured) // nil: there is none
			away      bool
			undefined bool
			over      bool
			suspended bool
			told      int
			err       bool
		}{
			"it runs":                 {change: func(*unstructured.Unstructured) {}, told: 1},
			"suspended":               {change: func(u *unstructured.Unstructured) { suspend(kind, u) }, suspended: true, told: 2},
			"failed":                  {change: ended(kind), over: true},
			"gone":                    {over: true},
			"replaced under its name": {change: func(u *unstructured.Unstructured) { u.SetUID("newer") }, over: true},
			"its kind is not served":  {change: func(*unstructured.Unstructured) {}, away: true, err: true},
			"its kind is not defined": {undefined: true, over: true},
		} {
			t.Run(kind.Resource()+"."+kind.GroupVersionKind().Group+"/"+name, func(t *testing.T) {
				g, obj := ofKind(kind)
				going := podOf(kind, 1, "uid-1", deleted, func(p *corev1.Pod) { p.Finalizers = []string{"test/stays"} })
				all := []client.Object{g, podOf(kind, 0, "uid-0"), going, child(), node("n1", nil)}
				if c.change != nil {
					c.change(obj)
					all = append(all, obj)
				}
				b, server := newKindBench(t, all...)
				if server.Serve(kind, !c.away); c.undefined {
					server.Undefine(kind)
				}
				l := &listener{}
				b.Coordinator = l
				_, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: jobName(key)})
				if (err != nil) != c.err || len(l.over) > 0 != c.over || l.suspended != c.suspended || len(l.last) != c.told {
					t.Errorf("%v; told: over %v, suspended %v, %+v", err, l.over, l.suspended, l.last)
				}
			})
		}
	}
}

// TestAJobThatRunsIsNotReadAgain: the stored state of the job shows that it is not over, so its object is not read again.
func TestAJobThatRunsIsNotReadAgain(t *testing.T) {
	for _, kind := range others {
		g, obj := ofKind(kind)
		b, server := newKindBench(t, g, obj, podOf(kind, 0, "uid-0"), node("n1", nil))
		server.Knows(b.Jobs, kind, jobName(key))
		b.Coordinator = &listener{}
		before := server.Reads(kind)
		for range 3 {
			if _, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: jobName(key)}); err != nil {
				t.Fatal(err)
			}
		}
		if n := server.Reads(kind) - before; n != 0 {
			t.Errorf("%s: read %d times", kind.GroupVersionKind(), n)
		}
	}
}

// TestAHiddenPodIsShownAgain: if a pod's deletion was requested and did not begin, the pod belongs to the job again after a while. A pod
// that is being deleted or was released stays hidden.
func TestAHiddenPodIsShownAgain(t *testing.T) {
	hidden := func(p *corev1.Pod) { delete(p.Labels, kinds.FoundBy) }
	stays := func(p *corev1.Pod) { p.Finalizers = []string{"test/stays"} }
	kind := kinds.PyTorchJob{}
	g, obj := ofKind(kind)
	b := newBench(t, g, obj, podOf(kind, 0, "uid-0", hidden), podOf(kind, 1, "uid-1", hidden, deleted, stays), podOf(kind, 2, "uid-2", hidden, replaced))
	look := func(after time.Duration) time.Duration {
		t.Helper()
		var pods []corev1.Pod
		for slot := range 3 {
			pods = append(pods, *b.pod(t, fmt.Sprintf("train-worker-%d", slot)))
		}
		again, err := b.showHidden(t.Context(), key, pods, noon.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	if again := look(0); again != hiddenMost || len(b.patches) != 0 {
		t.Errorf("at first: again after %v, patches %v", again, b.patches)
	}
	if again := look(4 * time.Second); again != hiddenMost-4*time.Second || len(b.patches) != 0 {
		t.Errorf("too soon: again after %v, patches %v", again, b.patches)
	}
	if again := look(hiddenMost); again != 0 || len(b.patches) != 1 || b.pod(t, "train-worker-0").Labels[kinds.FoundBy] != "train" {
		t.Errorf("later: again after %v, patches %v", again, b.patches)
	}
	if again := look(hiddenMost); again != 0 || len(b.patches) != 1 || len(b.hidden) != 0 {
		t.Errorf("then: again after %v, patches %v, kept %v", again, b.patches, b.hidden)
	}
	ended := podOf(kind, 0, "uid-3", hidden)
	ended.Name, ended.Status.Phase = "ended", corev1.PodSucceeded
	if err := b.Client.Create(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	if _, err := b.showHidden(t.Context(), key, []corev1.Pod{*ended}, noon); err != nil || b.pod(t, "ended").Labels[kinds.FoundBy] != "train" {
		t.Errorf("one that ends meanwhile must be counted: %v, %v", err, b.pod(t, "ended").Labels)
	}
}

// TestAHiddenPodOfAJobThatIsOver is shown again as well: its controller deletes the pods that it finds, where cleanPodPolicy says so.
func TestAHiddenPodOfAJobThatIsOver(t *testing.T) {
	kind := kinds.PyTorchJob{}
	g, obj := ofKind(kind)
	obj.Object["status"] = kind.Fail(obj, kinds.Failure{At: noon, Now: true}).Patch["status"]
	b, _ := newKindBench(t, g, obj, podOf(kind, 0, "uid-0", func(p *corev1.Pod) { delete(p.Labels, kinds.FoundBy) }))
	l := &listener{}
	b.Coordinator = l
	b.hidden["uid-0"] = time.Now().Add(-hiddenMost)
	if _, err := b.reconcilePending(t.Context(), ctrl.Request{NamespacedName: jobName(key)}); err != nil || len(l.over) == 0 {
		t.Fatalf("%v, over: %v", err, l.over)
	}
	if p := b.pod(t, "train-worker-0"); p.Labels[kinds.FoundBy] != "train" {
		t.Errorf("labels %v", p.Labels)
	}
}
