package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

func storedStep(step, generation int64) v1alpha1.StoredStep {
	return v1alpha1.StoredStep{Step: step, Generation: generation, At: metav1.NewMicroTime(time.Unix(1_700_000_000, 0))}
}

// pins returns a cluster with a job whose record has steps 20 and 10. answer does what the coordinator does after a change of the job's
// annotation.
func pins(t *testing.T, annotation string, answer func(g *v1alpha1.Gang, pinned []v1alpha1.StoredStep)) client.Client {
	t.Helper()
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	g := gangOf("train", "u-1")
	durable, older := storedStep(20, 2), storedStep(10, 1)
	g.Spec.Storage = &v1alpha1.GangStorage{Claim: "steps"}
	g.Status.Run = &v1alpha1.RunStatus{Generation: 2, Durable: &durable, Older: &older}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: "train", UID: "u-1", Annotations: map[string]string{}}}
	if annotation != "" {
		job.Annotations[v1alpha1.AnnotationPinnedCheckpoints] = annotation
		for _, m := range settings.PinsOfJob(job) {
			g.Status.Run.Pinned = append(g.Status.Run.Pinned, storedStep(m.Step, m.Generation))
		}
	}
	return fake.NewClientBuilder().
		WithScheme(s).
		WithRESTMapper(served()).
		WithObjects(g, job).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
				if err := c.Patch(ctx, obj, p, opts...); err != nil || answer == nil {
					return err
				}
				var pinned []v1alpha1.StoredStep
				for _, m := range settings.PinsOfJob(obj) {
					pinned = append(pinned, storedStep(m.Step, m.Generation))
				}
				now := &v1alpha1.Gang{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(obj), now); err != nil {
					return err
				}
				if now.Status.Run != nil {
					now.Status.Run.PinWish = settings.PinWishOfJob(obj)
				}
				answer(now, pinned)
				return c.Update(ctx, now)
			}}).
		Build()
}

// TestPinOfAJobThatIsOver: nothing is written, because no coordinator would answer.
func TestPinOfAJobThatIsOver(t *testing.T) {
	api, g := pins(t, "", nil), gangOf("train", "u-1")
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
		t.Fatal(err)
	}
	g.Status.Run.Verdict = &v1alpha1.Verdict{Reason: "Finished"}
	if err := api.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	said, err := pinning{what: "job/train", step: 10, wait: time.Minute}.carryOut(t.Context(), api, g.Namespace)
	g.Status.Run, g.Spec.Storage.Pins = nil, []v1alpha1.Checkpoint{{Step: 5, Generation: 1}} // a re-created Gang
	if err := api.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if said, err := (pinning{what: "job/train", step: 5, off: true, wait: time.Minute}).carryOut(t.Context(), api, g.Namespace); err != nil ||
		!strings.Contains(said, "is not pinned any more") {
		t.Errorf("of one that has no record yet: %q, %v", said, err)
	}
	job := &batchv1.Job{}
	if more := api.Get(t.Context(), client.ObjectKeyFromObject(g), job); more != nil || err != nil ||
		!strings.Contains(said, "nothing removes its steps any more") ||
		len(job.Annotations) > 0 {
		t.Errorf("%q, %v, the job says %v, %v", said, err, job.Annotations, more)
	}
}

func obliging(g *v1alpha1.Gang, pinned []v1alpha1.StoredStep) { g.Status.Run.Pinned = pinned }

// passed is a coordinator whose record no longer had the step when it read the pin.
func passed(g *v1alpha1.Gang, _ []v1alpha1.StoredStep) {
	next := storedStep(30, 2)
	g.Status.Run.Durable, g.Status.Run.Older = &next, g.Status.Run.Durable
}

// TestPin: a pin that the command reports is in the stored record. A refused pin is not in the annotation either.
func TestPin(t *testing.T) {
	sixteen := "1@1,2@1,3@1,4@1,5@1,6@1,7@1,8@1,9@1,11@1,12@1,13@1,14@1,15@1,16@1,17@1"
	for name, c := range map[string]struct {
		had    string
		ask    pinning
		answer func(*v1alpha1.Gang, []v1alpha1.StoredStep)
		says   string // text in the output or in the error
		failed bool
		has    string
	}{
		"a recorded step":            {"", pinning{step: 10}, obliging, "step 10 of generation 1 is pinned", false, "10@1"},
		"one more":                   {"5@1", pinning{step: 20, generation: 2}, obliging, "step 20 of generation 2 is pinned", false, "5@1,20@2"},
		"a pinned one":               {"5@1", pinning{step: 5}, nil, "step 5 of generation 1 is pinned", false, "5@1"},
		"one that is not recorded":   {"", pinning{step: 15}, obliging, "those that can be pinned are step 20 of generation 2, step 10 of generation 1", true, ""},
		"of another generation":      {"", pinning{step: 10, generation: 2}, obliging, "step 10 is not recorded as complete", true, ""},
		"of two generations":         {"20@1", pinning{step: 20}, obliging, "give --generation", true, "20@1"},
		"beyond the limit":           {sixteen, pinning{step: 10}, obliging, v1alpha1.AnnotationPinnedCheckpoints + ": 16 steps are pinned, and that is the most: unpin one", true, sixteen},
		"superseded meanwhile":       {"5@1", pinning{step: 10}, passed, "may be removed: those that can be pinned are step 30 of generation 2, step 20 of generation 2", true, "5@1"},
		"no answer":                  {"", pinning{step: 10, wait: 10 * time.Millisecond}, nil, "it is not promised yet", true, "10@1"},
		"unpinned":                   {"5@1,10@1", pinning{step: 5, off: true}, obliging, "is not pinned any more", false, "10@1"},
		"the last one unpinned":      {"5@1", pinning{step: 5, off: true}, obliging, "is not pinned any more", false, ""},
		"unpinned, though it is not": {"5@1", pinning{step: 10, off: true}, obliging, "step 10 is not pinned; pinned are step 5", true, "5@1"},
	} {
		t.Run(name, func(t *testing.T) {
			api := pins(t, c.had, c.answer)
			c.ask.what = "job/train"
			if c.ask.wait == 0 {
				c.ask.wait = time.Minute
			}
			said, err := c.ask.carryOut(t.Context(), api, gangOf("train", "u-1").Namespace)
			if (err != nil) != c.failed || err == nil && !strings.Contains(said, c.says) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q, %v", said, err)
			}
			job := &batchv1.Job{}
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: gangOf("train", "u-1").Namespace, Name: "train"}, job); err != nil {
				t.Fatal(err)
			}
			if has := job.Annotations[v1alpha1.AnnotationPinnedCheckpoints]; has != c.has {
				t.Errorf("the job says %q, want %q", has, c.has)
			}
			if changed := c.has != c.had ||
				c.answer != nil && strings.Contains(c.says, "may be removed"); changed != (job.Annotations[v1alpha1.AnnotationPinWish] != "") {
				t.Errorf("the wish has number %q", job.Annotations[v1alpha1.AnnotationPinWish])
			}
		})
	}
}

// TestPinRightAfterUnpin: until the coordinator has read the unpin, its record still lists the earlier pin. The command must not take that
// for the answer to the new pin: the step may be removed first. If the coordinator reads both changes at once, the earlier pin may simply
// stay.
func TestPinRightAfterUnpin(t *testing.T) {
	for name, c := range map[string]struct {
		hears func(run *v1alpha1.RunStatus)
		says  string
	}{
		"the unpin is received first": {func(run *v1alpha1.RunStatus) { run.PinWish, run.Pinned = 7, nil }, "may be removed"},
		"both are received at once":   {func(run *v1alpha1.RunStatus) { run.PinWish = 8 }, "step 5 of generation 1 is pinned"},
	} {
		t.Run(name, func(t *testing.T) {
			api := pins(t, "5@1", nil)
			job := &batchv1.Job{}
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: gangOf("train", "u-1").Namespace, Name: "train"}, job); err != nil {
				t.Fatal(err)
			}
			settings.SetPins(job, nil) // as the command ckpt unpin has just done
			settings.SetPinWish(job, 7)
			if err := api.Update(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			looks := 0
			watched := interceptor.NewClient(
				api.(client.WithWatch),
				interceptor.Funcs{
					Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
						if g, ok := obj.(*v1alpha1.Gang); ok {
							if err := cl.Get(ctx, key, g, opts...); err != nil {
								return err
							}
							if looks++; looks == 4 { // one read finds the job, two reads are in vain
								c.hears(g.Status.Run)
								return cl.Update(ctx, g)
							}
						}
						return cl.Get(ctx, key, obj, opts...)
					},
				},
			)
			said, err := pinning{what: "job/train", step: 5, wait: time.Minute}.carryOut(t.Context(), watched, job.Namespace)
			if err != nil {
				said = err.Error()
			}
			if looks != 4 || !strings.Contains(said, c.says) {
				t.Errorf("after %d looks at the Gang: %q, want %q", looks, said, c.says)
			}
		})
	}
}

// TestPinOfAnotherKind: the command sets the annotation on the object that the Gang names, of whatever kind, and changes nothing else of
// the object.
func TestPinOfAnotherKind(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	g, durable := gangOf("train", "u-2"), storedStep(20, 2)
	g.Spec.JobRef.APIVersion, g.Spec.JobRef.Kind = "kubeflow.org/v1", "PyTorchJob"
	g.Spec.Storage = &v1alpha1.GangStorage{Claim: "steps"}
	g.Status.Run = &v1alpha1.RunStatus{Generation: 2, Durable: &durable}
	theirs := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nprocPerNode": "2"}}}
	theirs.SetGroupVersionKind(schema.GroupVersionKind{Group: "kubeflow.org", Version: "v1", Kind: "PyTorchJob"})
	theirs.SetNamespace(g.Namespace)
	theirs.SetName("train")
	theirs.SetUID("u-2")
	other := job("train", nil, nil)
	allowed := true
	api := fake.NewClientBuilder().
		WithScheme(s).
		WithRESTMapper(served()).
		WithObjects(g, theirs, other).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
				if !allowed {
					return apierrors.NewForbidden(schema.GroupResource{Group: "kubeflow.org", Resource: "pytorchjobs"}, "train", errors.New("no"))
				}
				if err := c.Patch(ctx, obj, p, opts...); err != nil {
					return err
				}
				now := g.DeepCopy()
				if err := c.Get(ctx, client.ObjectKeyFromObject(g), now); err != nil {
					return err
				}
				now.Status.Run.PinWish = settings.PinWishOfJob(obj)
				obliging(now, []v1alpha1.StoredStep{durable})
				return c.Update(ctx, now)
			}}).
		Build()
	ask := pinning{what: "pytorchjob/train", step: 20, wait: time.Minute}
	allowed = false
	if _, err := ask.carryOut(t.Context(), api, g.Namespace); err == nil || !strings.Contains(err.Error(), "patch on pytorchjobs.kubeflow.org in namespace team-a: ") {
		t.Errorf("without the right: %v", err)
	}
	allowed = true
	if said, err := ask.carryOut(t.Context(), api, g.Namespace); err != nil || !strings.Contains(said, "is pinned") {
		t.Fatalf("%q, %v", said, err)
	}
	for _, obj := range []client.Object{theirs, other} {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(g), obj); err != nil {
			t.Fatal(err)
		}
	}
	spec, _, _ := unstructured.NestedString(theirs.Object, "spec", "nprocPerNode")
	if theirs.GetAnnotations()[v1alpha1.AnnotationPinnedCheckpoints] != "20@2" || spec != "2" || len(other.Annotations) > 0 {
		t.Errorf("the PyTorchJob is %v, the Job of its name has %v", theirs.Object, other.Annotations)
	}
}
