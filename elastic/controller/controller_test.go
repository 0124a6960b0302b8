package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/slim/slimtest"
)

var key = coordinator.Key{Namespace: "team-a", Name: "train", Job: "job-uid"}

func objects(policy corev1.RestartPolicy, backoff int32) (*v1alpha1.Gang, *batchv1.Job) {
	g := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train"},
		Spec: v1alpha1.GangSpec{Members: 2, JobRef: v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "job-uid"}}}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train", UID: "job-uid"}}
	job.Spec.Template.Annotations = jobstest.Stamps()
	job.Spec.BackoffLimit = &backoff
	job.Spec.Template.Spec.RestartPolicy = policy
	return g, job
}

type bench struct {
	*Controller
	// api is the API server. Of a Job the controller's client returns only the fields that the cache keeps.
	api      client.WithWatch
	recorder *recorder
	// before is called before each write of a Gang's status.
	before func()
	// beforePatch is called before each patch of a job.
	beforePatch func()
	// patches are the patches of pods.
	patches []string
	// refuse makes patches of Job specs fail.
	refuse bool
}

func newBench(t *testing.T, all ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{recorder: &recorder{}}
	b.api = fake.NewClientBuilder().
		WithScheme(scheme).
		WithObjects(all...).
		WithStatusSubresource(append(foreign(), &v1alpha1.Gang{}, &batchv1.Job{})...).
		WithReturnManagedFields().
		WithIndex(&corev1.Pod{}, PodsByGang, gangNamed).
		WithIndex(&corev1.Pod{}, podNode, nodeOf).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceApply: func(
				ctx context.Context, c client.Client, sub string, ac runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
			) error {
				if b.before != nil {
					b.before()
				}
				return c.SubResource(sub).Apply(ctx, ac, opts...)
			},
			SubResourcePatch: func(
				ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
			) error {
				if err := b.admitPatch(ctx, o, p); err != nil {
					return err
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				if err := b.admitPatch(ctx, o, p); err != nil {
					return err
				}
				if _, is := o.(*corev1.Pod); is {
					body, err := p.Data(o)
					if err != nil {
						return err
					}
					b.patches = append(b.patches, string(body))
				}
				if isJob(o) && b.refuse {
					return apierrors.NewInvalid(batchv1.SchemeGroupVersion.WithKind("Job").GroupKind(), o.GetName(), nil)
				}
				return c.Patch(ctx, o, p, opts...)
			},
		}).
		Build()
	cached := slimtest.Client(t, b.api)
	b.Controller = New(Options{
		Client:   cached,
		Live:     b.api,
		Jobs:     jobs.New(jobs.Options{Client: cached, Live: b.api, Kinds: kinds.Served(), Log: testr.New(t)}), // that watches nothing
		Recorder: b.recorder,
		Log:      testr.New(t),
	})
	return b
}

// isJob reports whether an object is a Job, typed or unstructured.
func isJob(o client.Object) bool {
	_, decoded := o.(*batchv1.Job)
	return decoded || o.GetObjectKind().GroupVersionKind() == kinds.BatchJob{}.GroupVersionKind()
}

// admitPatch refuses a patch that names another UID or another version than the object has, as the API server does.
func (b *bench) admitPatch(ctx context.Context, o client.Object, p client.Patch) error {
	if isJob(o) && b.beforePatch != nil {
		b.beforePatch()
	}
	body, err := p.Data(o)
	patch, now := metav1.PartialObjectMetadata{}, o.DeepCopyObject().(client.Object)
	if err := cmp.Or(err, json.Unmarshal(body, &patch), b.api.Get(ctx, client.ObjectKeyFromObject(o), now)); err != nil {
		return err
	}
	if patch.UID != "" && patch.UID != now.GetUID() || patch.ResourceVersion != "" && patch.ResourceVersion != now.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Resource: "objects"}, o.GetName(), fmt.Errorf("it has UID %s, version %s", now.GetUID(), now.GetResourceVersion()))
	}
	return nil
}

func (b *bench) gang(t *testing.T) *v1alpha1.Gang {
	t.Helper()
	g := &v1alpha1.Gang{}
	if err := b.Client.Get(t.Context(), types.NamespacedName{Namespace: "team-a", Name: "train"}, g); err != nil {
		t.Fatal(err)
	}
	return g
}

func (b *bench) readJob(t *testing.T) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	if err := b.api.Get(t.Context(), types.NamespacedName{Namespace: "team-a", Name: "train"}, job); err != nil {
		t.Fatal(err)
	}
	return job
}

// recorder stores the events on the job and those on the Gang.
type recorder struct{ onJob, onGang []string }

func (r *recorder) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	on := &r.onJob
	if _, ok := regarding.(*v1alpha1.Gang); ok {
		on = &r.onGang
	}
	*on = append(*on, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

// event returns and removes the oldest event on the job. The Gang must have the same event.
func (b *bench) event(t *testing.T) string {
	t.Helper()
	if !slices.Equal(b.recorder.onJob, b.recorder.onGang) {
		t.Errorf("on the job stands %q, on the Gang %q", b.recorder.onJob, b.recorder.onGang)
	}
	if len(b.recorder.onJob) == 0 {
		return ""
	}
	oldest := b.recorder.onJob[0]
	b.recorder.onJob, b.recorder.onGang = b.recorder.onJob[1:], b.recorder.onGang[1:]
	return oldest
}

func TestPersistAndLoad(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	g.Status.Placement = &v1alpha1.PlacementStatus{Placed: true, Reason: "Placed"}
	b := newBench(t, g, job)
	want := elastic.Record{Generation: 3, RestoreStep: 7, Phase: elastic.Running, BestStep: 7}
	if err := b.Persist(t.Context(), key, want); err != nil {
		t.Fatal(err)
	}
	members, _, got, err := b.Load(t.Context(), key)
	if err != nil || members != 2 || got.Generation != 3 || got.RestoreStep != 7 || got.Phase != elastic.Running {
		t.Errorf("Load = %d, %+v, %v", members, got, err)
	}
	after := b.gang(t)
	if after.Status.Placement == nil || !after.Status.Placement.Placed {
		t.Error("another writer's part of the status is gone")
	}
	managed := false
	for _, m := range after.ManagedFields {
		managed = managed || m.Manager == FieldManager && m.Operation == metav1.ManagedFieldsOperationApply
	}
	if !managed {
		t.Errorf("status.run is not applied as %s: %+v", FieldManager, after.ManagedFields)
	}
	if _, _, _, err := b.Load(t.Context(), coordinator.Key{Namespace: "team-a", Name: "train", Job: "a newer job"}); !apierrors.IsNotFound(err) {
		t.Errorf("the Gang of an older job is loaded: %v", err)
	}
}

// TestGangsBeyondTheLimitAreNotLoaded: a Gang larger than MaxMembers may exist, created while the definition had no limit. It is not
// loaded.
func TestGangsBeyondTheLimitAreNotLoaded(t *testing.T) {
	for members, taken := range map[int32]bool{
		-1:                      false,
		0:                       false,
		1:                       true,
		v1alpha1.MaxMembers:     true,
		v1alpha1.MaxMembers + 1: false,
		math.MaxInt32:           false,
	} {
		g, job := objects(corev1.RestartPolicyNever, 6)
		g.Spec.Members = members
		got, _, _, err := newBench(t, g, job).Load(t.Context(), key)
		if taken && (err != nil || got != int(members)) {
			t.Errorf("%d members: %d, %v", members, got, err)
		}
		if want := fmt.Sprintf("gang team-a/train has %d members: must be 1 to 5000", members); !taken && (err == nil || err.Error() != want) {
			t.Errorf("%d members: %v, want %s", members, err, want)
		}
	}
}

func TestPersistNeverLowersAGeneration(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	b := newBench(t, g, job)
	if err := b.Persist(t.Context(), key, elastic.Record{Generation: 3, Phase: elastic.Running}); err != nil {
		t.Fatal(err)
	}
	if err := b.Persist(t.Context(), key, elastic.Record{Generation: 2}); !errors.Is(err, ErrSuperseded) {
		t.Errorf("generation 2 after 3: %v", err)
	}
	// Another leader writes generation 9 between this leader's read and its write.
	once := false
	b.before = func() {
		if once {
			return
		}
		once = true
		other := b.gang(t)
		other.Status.Run.Generation = 9
		if err := b.Client.Status().Update(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Persist(t.Context(), key, elastic.Record{Generation: 4}); !errors.Is(err, ErrSuperseded) {
		t.Errorf("generation 4 after another leader's 9: %v", err)
	}
	if got := b.gang(t).Status.Run.Generation; got != 9 {
		t.Errorf("generation %d is stored", got)
	}
}

// Two processes both act as leader. The process that read last writes its record. The write of the other process, which comes later, fails,
// although both know the same generation.
func TestPersistOfADeposedLeader(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	b := newBench(t, g, job)
	write := func(c *Controller, step int64) error {
		return c.Persist(t.Context(), key, elastic.Record{Generation: 3, Phase: elastic.Running, BestStep: step})
	}
	if err := errors.Join(write(b.Controller, 1), write(b.Controller, 2)); err != nil {
		t.Fatal(err)
	}
	heir := New(b.Options)
	if err := write(heir, 9); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a process writes over what it has not read: %v", err)
	}
	if _, _, _, err := heir.Load(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if err := write(b.Controller, 3); err != nil { // between the new leader's read and its write
		t.Fatal(err)
	}
	if err := write(heir, 9); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a record that was written meanwhile is lost: %v", err)
	}
	if _, _, r, err := heir.Load(t.Context(), key); err != nil || r.BestStep != 3 {
		t.Fatalf("step %d, %v", r.BestStep, err)
	}
	if err := errors.Join(write(heir, 10), write(heir, 11)); err != nil {
		t.Fatal(err)
	}
	if err := write(b.Controller, 4); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a deposed leader writes over its heir's record: %v", err)
	}
	if got := b.gang(t).Status.Run.BestStep; got != 11 {
		t.Errorf("step %d stands", got)
	}
}

func TestPersistBesideAnotherWriter(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	b := newBench(t, g, job)
	times := 0
	b.before = func() {
		if times++; times > 1 {
			return
		}
		other := b.gang(t)
		other.Status.Phase = v1alpha1.PhaseRunning
		if err := b.Client.Status().Update(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Persist(t.Context(), key, elastic.Record{Generation: 1, Phase: elastic.Running}); err != nil {
		t.Fatal(err)
	}
	if got := b.gang(t); got.Status.Run == nil || got.Status.Run.Generation != 1 || got.Status.Phase != v1alpha1.PhaseRunning {
		t.Errorf("status is %+v", got.Status)
	}
}

func verdict(at time.Time) elastic.Verdict {
	return elastic.Verdict{Reason: elastic.ReasonSameFailureTwice, ExitCode: 7, At: at,
		Cause: &cause.Cause{Code: cause.RankFailed, Rank: 3, Slot: 1, ExitCode: 7, Message: "Traceback (most recent call last):\nValueError: bad", Cascade: 2}}
}

func failureTarget(job *batchv1.Job) *batchv1.JobCondition {
	for i, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailureTarget {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

func TestEnd(t *testing.T) {
	for name, c := range map[string]struct {
		policy    corev1.RestartPolicy
		backoff   int32
		failed    int32
		refuse    bool
		wantLimit int32
		wantFail  bool
	}{
		"Never":                       {corev1.RestartPolicyNever, 6, 0, false, 0, false},
		"Never, large limit":          {corev1.RestartPolicyNever, 1 << 30, 0, false, 0, false},
		"Never, no retries":           {corev1.RestartPolicyNever, 0, 0, false, 0, false},
		"Never, pods failed before":   {corev1.RestartPolicyNever, 6, 2, false, 2, false},
		"Never, the limit is refused": {corev1.RestartPolicyNever, 6, 0, true, 6, true},
		"OnFailure":                   {corev1.RestartPolicyOnFailure, 6, 0, false, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			g, job := objects(c.policy, c.backoff)
			job.Status.Failed = c.failed
			b := newBench(t, g, job)
			b.refuse = c.refuse
			for range 2 { // twice is once
				if err := b.End(t.Context(), key, verdict(time.Now())); err != nil {
					t.Fatal(err)
				}
			}
			after := b.readJob(t)
			if *after.Spec.BackoffLimit != c.wantLimit {
				t.Errorf("backoffLimit %d, want %d", *after.Spec.BackoffLimit, c.wantLimit)
			}
			target := failureTarget(after)
			if (target != nil) != c.wantFail {
				t.Fatalf("conditions %+v", after.Status.Conditions)
			}
			if target != nil && (target.Reason != "SameFailureTwice" || !strings.Contains(target.Message, "rank 3 in slot 1 failed first, with exit code 7")) {
				t.Errorf("condition %+v", target)
			}
			if e := b.event(t); !strings.Contains(e, "SameFailureTwice") || !strings.Contains(e, "ValueError: bad") || !strings.Contains(e, "2 further ranks") {
				t.Errorf("event %q", e)
			}
		})
	}
}

func TestEndOfAJobThatIsGone(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	job.UID = "a newer job"
	b := newBench(t, g, job)
	if err := b.End(t.Context(), key, verdict(time.Now())); err != nil {
		t.Fatal(err)
	}
	if got := *b.readJob(t).Spec.BackoffLimit; got != 6 {
		t.Errorf("another job of the same name was touched: backoffLimit %d", got)
	}
}

// TestEndOfAJobThatIsMadeAgain: the Job is deleted, and created again under its name, between the read and the patch.
func TestEndOfAJobThatIsMadeAgain(t *testing.T) {
	for name, policy := range map[string]corev1.RestartPolicy{
		"its backoffLimit is lowered": corev1.RestartPolicyNever, "it is failed": corev1.RestartPolicyOnFailure,
	} {
		t.Run(name, func(t *testing.T) {
			g, job := objects(policy, 6)
			b := newBench(t, g, job)
			b.beforePatch = func() {
				if b.readJob(t).UID != "job-uid" {
					return
				}
				if err := b.api.Delete(t.Context(), b.readJob(t)); err != nil {
					t.Error(err)
				}
				_, again := objects(policy, 6)
				again.UID = "a newer job"
				if err := b.api.Create(t.Context(), again); err != nil {
					t.Error(err)
				}
			}
			if err := b.End(t.Context(), key, verdict(time.Now())); err == nil {
				t.Error("the patch was accepted")
			}
			if after := b.readJob(t); after.UID != "a newer job" || *after.Spec.BackoffLimit != 6 || failureTarget(after) != nil {
				t.Errorf("another job of the same name was touched: %s, backoffLimit %d, conditions %+v", after.UID, *after.Spec.BackoffLimit, after.Status.Conditions)
			}
			if err := b.End(t.Context(), key, verdict(time.Now())); err != nil {
				t.Errorf("it is not known that the job is gone: %v", err)
			}
		})
	}
}

func TestReconcileEndsWhatIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		age       time.Duration
		wantFail  bool
		wantAgain bool
	}{
		"within the grace":         {time.Second, false, true},
		"pods did not end by then": {time.Minute, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, job := objects(corev1.RestartPolicyNever, 6)
			b := newBench(t, g, job)
			v := verdict(time.Now().Add(-c.age))
			if err := b.Persist(t.Context(), key, elastic.Record{Generation: 2, Phase: elastic.GivenUp, Verdict: &v}); err != nil {
				t.Fatal(err)
			}
			req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "train"}}
			res, err := b.Reconcile(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if (res.RequeueAfter > 0) != c.wantAgain {
				t.Errorf("result %+v", res)
			}
			after := b.readJob(t)
			if (failureTarget(after) != nil) != c.wantFail {
				t.Errorf("conditions %+v", after.Status.Conditions)
			}
			if !c.wantFail && *after.Spec.BackoffLimit != 0 {
				t.Errorf("backoffLimit %d", *after.Spec.BackoffLimit)
			}
		})
	}
}

func TestReconcileLeavesOthersAlone(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	b := newBench(t, g, job)
	v := elastic.Verdict{Reason: elastic.ReasonFinished, At: time.Now().Add(-time.Hour)}
	if err := b.Persist(t.Context(), key, elastic.Record{Generation: 2, Phase: elastic.Finished, Verdict: &v}); err != nil {
		t.Fatal(err)
	}
	req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "train"}}
	if res, err := b.Reconcile(t.Context(), req); err != nil || res.RequeueAfter != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if after := b.readJob(t); *after.Spec.BackoffLimit != 6 || failureTarget(after) != nil {
		t.Errorf("a finished gang's job was touched: %+v", after)
	}
}

func TestAnnounce(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	b := newBench(t, g, job)
	b.Announce(t.Context(), key, elastic.Notice{Reason: elastic.NoticeRecovered, Message: "generation 2 runs"})
	if e := b.event(t); e != "Normal Recovered generation 2 runs" {
		t.Errorf("event %q", e)
	}
	b.Announce(t.Context(), coordinator.Key{Namespace: "team-a", Name: "gone", Job: "x"}, elastic.Notice{Reason: "Recovered", Message: "m"})
	if e := b.event(t); e != "" {
		t.Errorf("event %q of a gang that is gone", e)
	}
}
