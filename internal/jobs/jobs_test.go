package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/slim/slimtest"
)

var (
	key = types.NamespacedName{Namespace: "team", Name: "llama"}

	others = []kinds.Kind{kinds.VolcanoJob{}, kinds.JobSet{}, kinds.PyTorchJob{}}
)

// world is an API server with a Reader.
type world struct {
	t      *testing.T
	api    client.WithWatch
	server *jobstest.Server
	reader *jobs.Reader
}

func newWorld(t *testing.T, objs ...client.Object) *world {
	t.Helper()
	w := newServer(t, objs...)
	w.reader = w.server.Reader(slimtest.Client(t, w.api))
	return w
}

// newServer returns a world without a Reader.
func newServer(t *testing.T, objs ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).Build()
	return &world{t: t, api: api, server: jobstest.New(t, api)}
}

// object returns an admitted object of a kind.
func object(kind kinds.Kind, uid types.UID, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	return jobstest.Object(kind, key, uid, change...)
}

func batchJob(uid types.UID, change ...func(*batchv1.Job)) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace:         key.Namespace,
		Name:              key.Name,
		UID:               uid,
		CreationTimestamp: metav1.Unix(1000, 0),
	}}
	job.Spec.Template.Annotations = jobstest.Stamps()
	for _, f := range change {
		f(job)
	}
	return job
}

func (w *world) add(o client.Object) {
	w.t.Helper()
	if err := w.api.Create(context.Background(), o); err != nil {
		w.t.Fatal(err)
	}
}

// remove deletes an object.
func (w *world) remove(o client.Object) {
	w.t.Helper()
	if err := w.api.Delete(context.Background(), o); err != nil {
		w.t.Fatal(err)
	}
}

// change reads an object, changes it and writes it back.
func (w *world) change(kind kinds.Kind, f func(*unstructured.Unstructured)) {
	w.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind.GroupVersionKind())
	if err := w.api.Get(context.Background(), key, u); err != nil {
		w.t.Fatal(err)
	}
	f(u)
	if err := w.api.Update(context.Background(), u); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) named() []*jobs.Job {
	w.t.Helper()
	all, err := w.reader.Named(context.Background(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// uids waits until the jobs of the world's name have these UIDs.
func (w *world) uids(want ...string) {
	w.t.Helper()
	eventually.Holds(w.t, fmt.Sprintf("the jobs are %v", want), func() (bool, any) {
		all, err := w.reader.Named(context.Background(), key)
		var have []string
		for _, j := range all {
			have = append(have, string(j.UID))
		}
		return err == nil && slices.Equal(have, want), []any{have, err}
	})
}

// requests fills a controller's queue. next waits until the queue has a request of the world's name, and removes it.
func (w *world) requests() (next func(why string)) {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w.t.Cleanup(stop)
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	w.t.Cleanup(q.ShutDown)
	if err := w.reader.Source().Start(ctx, q); err != nil {
		w.t.Fatal(err)
	}
	return func(why string) {
		w.t.Helper()
		eventually.Holds(w.t, "a request: "+why, func() (bool, any) { return q.Len() > 0, q.Len() })
		r, _ := q.Get()
		if q.Done(r); r.NamespacedName != key {
			w.t.Errorf("%s: a request for %s", why, r)
		}
	}
}

// TestEachKindIsRead: the Reader returns what a controller must know of a job, from its metadata and its templates. Each version of an
// object costs one request.
func TestEachKindIsRead(t *testing.T) {
	for _, kind := range others {
		t.Run(kind.GroupVersionKind().Kind+"."+kind.GroupVersionKind().Group, func(t *testing.T) {
			w := newWorld(t, object(kind, "uid-1"))
			next := w.requests()
			next("it is there")
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { _, _ = w.reader.Named(context.Background(), key) })
			}
			wg.Wait()
			all := w.named()
			if len(all) != 1 || w.server.Reads(kind) != 1 {
				t.Fatalf("%d jobs, read %d times", len(all), w.server.Reads(kind))
			}
			j := all[0]
			want := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationPinnedCheckpoints: "120@3"}
			version, name := kind.GroupVersionKind().ToAPIVersionAndKind()
			if j.Kind != kind || j.UID != "uid-1" || j.TypeMeta != (metav1.TypeMeta{APIVersion: version, Kind: name}) ||
				!maps.Equal(j.Annotations, want) ||
				j.Admitted.Members != 4 || j.Admitted.Settings.StateBytes != 1<<30 || j.State != (kinds.State{}) ||
				j.Ref() != (v1alpha1.JobReference{APIVersion: version, Kind: name, Name: "llama", UID: "uid-1"}) {
				t.Errorf("read is %+v", j)
			}
			if scheduler := map[kinds.Kind]string{kinds.VolcanoJob{}: "volcano"}[kind]; j.Scheduler != scheduler {
				t.Errorf("the scheduler is %q", j.Scheduler)
			}
			failed := kind.Fail(object(kind, "uid-1"), kinds.Failure{Reason: "R", Message: strings.Repeat("m", 5000), Now: true})
			w.change(kind, func(u *unstructured.Unstructured) { u.Object["status"] = failed.Patch["status"] })
			next("it failed")
			w.server.Knows(w.reader, kind, key)
			j = w.named()[0]
			if said := j.State.Message; !j.State.Final || !j.State.Failed || !strings.HasPrefix(said, "R: mmm") || len(said) > 1100 {
				t.Errorf("state %+v", j.State)
			}
			if n := w.server.Reads(kind); n != 2 {
				t.Errorf("read %d times", n)
			}
		})
	}
}

// TestJobsThatAreNotAdmitted: jobs that were annotated after their creation, and the Jobs of a JobSet, are not returned. Nor is an
// object of another kind that is to be only observed, which only batch Jobs support.
func TestJobsThatAreNotAdmitted(t *testing.T) {
	child := batchJob("child", func(job *batchv1.Job) {
		job.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "llama", UID: "set", Controller: ptr.To(true)},
		}
	})
	observed := object(kinds.VolcanoJob{}, "observed")
	tasks, _, _ := unstructured.NestedSlice(observed.Object, "spec", "tasks")
	if err := unstructured.SetNestedField(tasks[0].(map[string]any), "observe", "template", "metadata", "annotations", v1alpha1.AnnotationMode); err != nil {
		t.Fatal(err)
	}
	observed.Object["spec"].(map[string]any)["tasks"] = tasks
	later := object(kinds.PyTorchJob{}, "later")
	for _, role := range []string{"Master", "Worker"} {
		unstructured.RemoveNestedField(later.Object, "spec", "pytorchReplicaSpecs", role, "template", "metadata")
	}
	w := newWorld(t, child, observed, later, object(kinds.JobSet{}, "never", func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }))
	if all := w.named(); len(all) != 0 {
		t.Errorf("admitted are %v", all)
	}
	if n := w.server.Reads(kinds.JobSet{}); n != 0 {
		t.Errorf("an object without the annotation was read %d times", n)
	}
}

// TestJobsOfOneName: the oldest job comes first, whatever its kind.
func TestJobsOfOneName(t *testing.T) {
	at := func(second int64) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) { u.SetCreationTimestamp(metav1.Unix(second, 0)) }
	}
	w := newWorld(
		t,
		object(kinds.VolcanoJob{}, "c"),
		batchJob("b"),
		object(kinds.JobSet{}, "oldest", at(999)),
		object(kinds.PyTorchJob{}, "newest", at(1001)),
	)
	w.uids("oldest", "b", "c", "newest")
}

// TestAnObjectIsReplacedUnderItsName: no fact about the former object is used for the new one.
func TestAnObjectIsReplacedUnderItsName(t *testing.T) {
	kind := kinds.PyTorchJob{}
	w := newWorld(t, object(kind, "uid-1"))
	w.uids("uid-1")
	next := w.requests()
	next("it is there")
	w.remove(object(kind, "uid-1"))
	next("it is gone")
	w.uids()
	w.add(object(kind, "uid-2", func(u *unstructured.Unstructured) {
		for _, role := range []string{"Master", "Worker"} {
			if err := unstructured.SetNestedField(u.Object, "7", "spec", "pytorchReplicaSpecs", role, "template", "metadata", "annotations", v1alpha1.AnnotationGangSize); err != nil {
				t.Fatal(err)
			}
		}
	}))
	next("another one is there")
	w.uids("uid-2")
	if n := w.named()[0].Admitted.Members; n != 7 {
		t.Errorf("%d members", n)
	}
	for uid, want := range map[types.UID]bool{"uid-1": false, "uid-2": true} {
		if _, obj, err := w.reader.Live(context.Background(), key, uid); err != nil || (obj != nil) != want {
			t.Errorf("%s: %v, %v", uid, obj, err)
		}
	}
}

// TestAnAnnotationThatIsRemoved: a job from which the annotation is removed is still returned, also by a Reader that starts later and knows
// the job's Gang.
func TestAnAnnotationThatIsRemoved(t *testing.T) {
	kind := kinds.JobSet{}
	w := newWorld(t, object(kind, "uid-1"))
	w.uids("uid-1")
	w.change(kind, func(u *unstructured.Unstructured) { u.SetAnnotations(nil) })
	w.server.Knows(w.reader, kind, key)
	w.uids("uid-1")
	w.reader = w.server.Reader(w.api)
	w.uids()
	w.add(&v1alpha1.Gang{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec:       v1alpha1.GangSpec{JobRef: v1alpha1.JobReference{UID: "uid-1"}},
	})
	w.uids("uid-1")
}

// TestAKindComesAndGoes: the cluster begins to serve a kind, and stops, while the Reader runs.
func TestAKindComesAndGoes(t *testing.T) {
	kind := kinds.JobSet{}
	w := newServer(t, batchJob("batch"))
	w.server.Undefine(kind)
	w.reader = w.server.Reader(w.api)
	ref := v1alpha1.JobReference{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"}
	w.uids("batch")
	next := w.requests()
	for _, uid := range []types.UID{"uid-1", "uid-2"} {
		w.server.Serve(kind, true)
		w.add(object(kind, uid))
		w.server.Look()
		next("the kind came")
		w.uids("batch", string(uid))
		if err := w.reader.Unread(context.Background(), ref); err != nil {
			t.Error(err)
		}
		if k, obj, err := w.reader.Live(context.Background(), key, uid); err != nil || k != kind || obj == nil {
			t.Errorf("%v, %v, %v", k, obj, err)
		}
		w.remove(object(kind, uid))
		w.server.Serve(kind, false)
		w.server.Look()
		next("the kind went")
		w.uids("batch")
	}
}

// TestAnObjectOfAKindThatIsNotServed: where neither its Gang nor a watch knew its kind, and where one does, it is not known whether the
// object is gone while the kind's definition is there or cannot be read; once that is gone, the object is.
func TestAnObjectOfAKindThatIsNotServed(t *testing.T) {
	kind, ref := kinds.PyTorchJob{}, v1alpha1.JobReference{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", UID: "uid-1"}
	gang := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: v1alpha1.GangSpec{JobRef: ref}}
	gone := func(t *testing.T, w *world, uid types.UID, want string) {
		t.Helper()
		_, obj, err := w.reader.Live(context.Background(), key, uid)
		if obj != nil || (err == nil) != (want == "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", uid, obj, err, want)
		}
	}
	for name, c := range map[string]struct {
		there   []client.Object
		watched bool
	}{
		"of no known kind": {[]client.Object{object(kind, "uid-1")}, false},
		"its Gang is left": {[]client.Object{object(kind, "uid-1"), gang}, false},
		"it was watched":   {[]client.Object{object(kind, "uid-1"), gang}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newServer(t, c.there...)
			w.server.Serve(kind, c.watched)
			w.reader = w.server.Reader(w.api)
			w.server.Serve(kind, false)
			gone(t, w, "uid-1", "reading pytorchjobs.kubeflow.org team/llama")
			w.server.Look()
			w.uids()
			if err := w.reader.Unread(context.Background(), ref); err == nil || !strings.Contains(err.Error(), "does not serve pytorchjobs.kubeflow.org") {
				t.Error(err)
			}
			w.server.BreakDiscovery(errors.New("the server is busy"))
			gone(t, w, "uid-1", "reading the definition of pytorchjobs.kubeflow.org: the server is busy")
			if err := w.reader.Unread(context.Background(), ref); err == nil {
				t.Error("a kind whose definition cannot be read is taken for read")
			}
			if _, err := w.reader.Undefined(context.Background(), ref); err == nil {
				t.Error("a definition that cannot be read is taken for known")
			}
			w.server.BreakDiscovery(nil)
			if is, err := w.reader.Undefined(context.Background(), ref); is || err != nil {
				t.Error(is, err)
			}
			w.server.Undefine(kind)
			gone(t, w, "uid-1", "")
			gone(t, w, "never", "")
			if err := w.reader.Unread(context.Background(), ref); err != nil {
				t.Error(err)
			}
			if is, err := w.reader.Undefined(context.Background(), ref); !is || err != nil {
				t.Error(is, err)
			}
		})
	}
}

// TestAKindThatCannotBeRead: other kinds wait for a kind that cannot be read only at the start, and only for a short time.
func TestAKindThatCannotBeRead(t *testing.T) {
	broken, ref := kinds.JobSet{}, v1alpha1.JobReference{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"}
	w := newServer(t, batchJob("batch"), object(broken, "set"), object(kinds.PyTorchJob{}, "pytorch"))
	w.server.Break(broken, errors.New("forbidden"))
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(10 * time.Millisecond):
				if w.server.Clock.HasWaiters() {
					w.server.Look() // and the time for the first reading passes
				}
			}
		}
	}()
	w.reader = w.server.Reader(w.api)
	close(done)
	w.uids("batch", "pytorch")
	if err := w.reader.Unread(context.Background(), ref); err == nil || !strings.Contains(err.Error(), "have not been read yet") {
		t.Error(err)
	}
	w.server.Break(broken, nil)
	w.uids("batch", "pytorch", "set")
	if err := w.reader.Unread(context.Background(), ref); err != nil {
		t.Error(err)
	}
}

// TestOneObjectThatCannotBeRead: an object that cannot be read does not stop the reading of others.
func TestOneObjectThatCannotBeRead(t *testing.T) {
	other := object(kinds.JobSet{}, "other", func(u *unstructured.Unstructured) { u.SetName("other") })
	w := newServer(t, object(kinds.JobSet{}, "uid-1"), other)
	failing := true
	w.server.Live = failingFor{w.server.Live, func(name string) bool { return failing && name == key.Name }}
	w.reader = w.server.Reader(w.api)
	if all, err := w.reader.Named(context.Background(), key); err == nil || !strings.Contains(err.Error(), "reading jobsets.jobset.x-k8s.io team/llama") {
		t.Errorf("%v, %v", all, err)
	}
	if all, err := w.reader.Named(context.Background(), client.ObjectKeyFromObject(other)); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	failing = false
	w.uids("uid-1")
}

// failingFor is a client that fails to read objects of some names.
type failingFor struct {
	client.WithWatch
	name func(string) bool
}

func (f failingFor) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if f.name(key.Name) {
		return errors.New("the server is busy")
	}
	return f.WithWatch.Get(ctx, key, o, opts...)
}

// TestDiscoveryThatFails: if discovery fails, the kinds that were served are still read.
func TestDiscoveryThatFails(t *testing.T) {
	kind := kinds.VolcanoJob{}
	w := newWorld(t, object(kind, "uid-1"))
	w.server.BreakDiscovery(errors.New("the server is busy"))
	w.server.Look()
	w.change(kind, func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) })
	w.server.Knows(w.reader, kind, key)
	w.uids("uid-1")
}

// TestBatchJobsCostNoRequest: batch Jobs are read from the cache.
func TestBatchJobsCostNoRequest(t *testing.T) {
	w := newWorld(t, batchJob("batch"))
	w.uids("batch")
	if n := w.server.Reads(kinds.BatchJob{}); n != 0 {
		t.Errorf("%d requests", n)
	}
	kind, obj, err := w.reader.Live(context.Background(), key, "batch")
	if err != nil || kind != (kinds.BatchJob{}) || obj == nil || w.server.Reads(kind) != 1 {
		t.Errorf("%v, %v, %v, %d requests", kind, obj, err, w.server.Reads(kinds.BatchJob{}))
	}
	for _, other := range others {
		if n := w.server.Reads(other); n != 0 {
			t.Errorf("%d requests for %s", n, other.Resource())
		}
	}
}
