package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// evictable is a cluster with the node gpu-07, on which pod train-0 of a gang runs, and the control plane's node. decide is what the
// controller decides on a request; nil: it does not run. A refused client may not change Nodes.
type evictable struct {
	client.Client
	writes int
}

func newEvictable(t *testing.T, refused bool, decide func(*v1alpha1.NodeEviction) *v1alpha1.NodeOutage) *evictable {
	t.Helper()
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, node string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: "u-1", Labels: labels},
			Spec:       corev1.PodSpec{NodeName: node},
		}
	}
	gang := map[string]string{v1alpha1.LabelGang: "train"}
	e := &evictable{}
	e.Client = fake.NewClientBuilder().
		WithScheme(s).
		WithObjects(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-07"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cp", Labels: map[string]string{labelControlPlane: ""}}},
			pod("train-0", "gpu-07", gang), pod("waits", "", gang), pod("single", "gpu-07", nil),
		).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
				if review, is := obj.(*authenticationv1.SelfSubjectReview); is {
					review.Status.UserInfo.Username = "ada"
					return nil
				}
				return c.Create(ctx, obj)
			},
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
				if refused {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, obj.GetName(), nil)
				}
				e.writes++
				if err := c.Patch(ctx, obj, p, opts...); err != nil || decide == nil {
					return err
				}
				node := &corev1.Node{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(obj), node); err != nil {
					return err
				}
				delete(node.Annotations, v1alpha1.AnnotationOutage)
				if r, err := v1alpha1.NodeEvictionOf(node); err != nil {
					return err
				} else if r != nil {
					text, err := json.Marshal(decide(r))
					if err != nil {
						return err
					}
					node.Annotations[v1alpha1.AnnotationOutage] = string(text)
				}
				return c.Update(ctx, node)
			},
		}).
		Build()
	return e
}

// run is the command with kubectl's namespace team-a.
func (e *evictable) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	r := evicting{namespace: "team-a", span: evictFor, wait: 5 * time.Second}
	for _, arg := range args[1:] {
		switch {
		case arg == "--now":
			r.now = true
		case arg == "--undo":
			r.undo = true
		case arg == "--short":
			r.wait = 300 * time.Millisecond
		default:
			r.reason = arg
		}
	}
	if err := r.read(args[0]); err != nil {
		return "", err
	}
	return r.carryOut(t.Context(), e)
}

func (e *evictable) request(t *testing.T) *v1alpha1.NodeEviction {
	t.Helper()
	node := &corev1.Node{}
	if err := e.Get(t.Context(), client.ObjectKey{Name: "gpu-07"}, node); err != nil {
		t.Fatal(err)
	}
	r, err := v1alpha1.NodeEvictionOf(node)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func granted(r *v1alpha1.NodeEviction) *v1alpha1.NodeOutage {
	o := &v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: v1alpha1.CauseEvictedByHand}
	if r.Pod != nil {
		o.Pod = r.Pod.UID
	}
	return o
}

func held(r *v1alpha1.NodeEviction) *v1alpha1.NodeOutage {
	if r.Now {
		return granted(r)
	}
	return &v1alpha1.NodeOutage{Decision: v1alpha1.DecisionHold, Cause: v1alpha1.CauseEvictedByHand, Reason: "ClusterBudget", Message: "held: 1 of 1"}
}

// TestEvict: each command is carried out once however often it runs, and --undo withdraws it.
func TestEvict(t *testing.T) {
	for name, c := range map[string]struct{ what, says, again string }{
		"node": {"node/gpu-07", "all pods of gangs on it move", "node/gpu-07"},
		"pod":  {"pod/train-0", "pod team-a/train-0 moves to another node", "po/train-0"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvictable(t, false, granted)
			said, err := e.run(t, c.what, "a fan")
			if err != nil || !strings.Contains(said, c.says) || !strings.Contains(said, "node gpu-07 takes no new pods until ") {
				t.Fatalf("%q, %v", said, err)
			}
			first := e.request(t)
			if first.By != "ada" || first.Reason != "a fan" || first.Until.Sub(first.At.Time) != evictFor {
				t.Errorf("the request is %+v", first)
			}
			if name == "pod" { // it was moved meanwhile
				if err := e.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train-0"}}); err != nil {
					t.Fatal(err)
				}
			}
			if again, err := e.run(t, c.again, "a fan"); err != nil || again != said || e.writes != 1 {
				t.Errorf("the second time: %q, %v, %d writes", again, err, e.writes)
			}
			for _, want := range []string{"takes new pods again", map[string]string{"node": "takes new pods again", "pod": "no request to withdraw"}[name]} {
				if said, err := e.run(t, c.what, "--undo"); err != nil || !strings.Contains(said, want) || e.request(t) != nil {
					t.Errorf("--undo: %q, %v", said, err)
				}
			}
			if e.writes != 2 {
				t.Errorf("%d writes, want 2", e.writes)
			}
		})
	}
}

// TestEvictASuccessor: a pod of the same name that took the place of a moved one can be moved as well.
func TestEvictASuccessor(t *testing.T) {
	e := newEvictable(t, false, granted)
	if _, err := e.run(t, "pod/train-0", "a fan"); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := e.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "train-0"}, pod); err != nil {
		t.Fatal(err)
	}
	if err := e.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-08"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train-0", UID: "u-2", Labels: pod.Labels}, Spec: corev1.PodSpec{NodeName: "gpu-08"}},
	} {
		if err := e.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.run(t, "pod/train-0", "another fan"); err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{}
	if err := e.Get(t.Context(), client.ObjectKey{Name: "gpu-08"}, node); err != nil {
		t.Fatal(err)
	}
	if r, err := v1alpha1.NodeEvictionOf(node); err != nil || r == nil || r.Pod == nil || r.Pod.UID != "u-2" {
		t.Errorf("the request on the successor's node is %+v, %v", r, err)
	}
}

// TestEvictHeld: the budget's reason is shown, and the same command with --now goes past it with the first request's times.
func TestEvictHeld(t *testing.T) {
	e := newEvictable(t, false, held)
	if said, err := e.run(t, "node/gpu-07", "a fan"); err != nil || !strings.Contains(said, "(ClusterBudget): held: 1 of 1; --now") {
		t.Errorf("%q, %v", said, err)
	}
	first := e.request(t)
	if said, err := e.run(t, "node/gpu-07", "a fan", "--now"); err != nil || !strings.Contains(said, "move to other nodes") {
		t.Errorf("with --now: %q, %v", said, err)
	}
	if r := e.request(t); !r.Now || !r.Until.Equal(&first.Until) {
		t.Errorf("the request is %+v, was %+v", r, first)
	}
}

// TestEvictRefuses: every error names what is wrong and the remedy, and nothing is written.
func TestEvictRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		refused bool
		want    string
	}{
		"unknown node":   {[]string{"node/gpu-99", "r"}, false, "there is no node gpu-99: see kubectl get nodes"},
		"unknown pod":    {[]string{"pod/train-9", "r"}, false, "there is no pod team-a/train-9: name another namespace with -n"},
		"no kind":        {[]string{"gpu-07", "r"}, false, "use node/NAME or pod/NAME"},
		"no reason":      {[]string{"node/gpu-07"}, false, "--reason is missing"},
		"undo and now":   {[]string{"node/gpu-07", "--undo", "--now"}, false, "leave out --reason and --now"},
		"control plane":  {[]string{"node/cp", "r"}, false, "use kubectl drain"},
		"of no gang":     {[]string{"pod/single", "r"}, false, "use kubectl delete pod"},
		"no node":        {[]string{"pod/waits", "r"}, false, "has no node yet"},
		"no right":       {[]string{"node/gpu-07", "r"}, true, "ClusterRole holdfast-evict"},
		"a long reason":  {[]string{"node/gpu-07", strings.Repeat("r", maxReason+1)}, false, "shorten it"},
		"nothing undone": {[]string{"pod/train-0", "--undo"}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvictable(t, c.refused, granted)
			said, err := e.run(t, c.args...)
			if c.want == "" && err == nil && strings.Contains(said, "no request") {
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || e.writes != 0 {
				t.Errorf("%q, %v, %d writes", said, err, e.writes)
			}
		})
	}
	for _, span := range []time.Duration{0, -time.Hour, time.Second, 31 * 24 * time.Hour} {
		if err := (&evicting{reason: "r", span: span}).read("node/gpu-07"); err == nil || !strings.Contains(err.Error(), "give a time from 1m to 720h") {
			t.Errorf("--for %s: %v", span, err)
		}
	}
}

// TestEvictAnother: a node with a request takes no other one; an ended one is replaced.
func TestEvictAnother(t *testing.T) {
	e := newEvictable(t, false, granted)
	if _, err := e.run(t, "pod/train-0", "a fan"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.run(t, "node/gpu-07", "all"); err == nil || !strings.Contains(err.Error(), "for pod team-a/train-0 by ada (a fan)") ||
		!strings.Contains(err.Error(), "evict node/gpu-07 --undo") {
		t.Errorf("another request: %v", err)
	}
	node := &corev1.Node{}
	if err := e.Get(t.Context(), client.ObjectKey{Name: "gpu-07"}, node); err != nil {
		t.Fatal(err)
	}
	r := e.request(t)
	r.Until = metav1.NewMicroTime(time.Now().Add(-time.Second))
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	node.Annotations[v1alpha1.AnnotationEvict] = string(text)
	if err := e.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if said, err := e.run(t, "node/gpu-07", "all"); err != nil || !strings.Contains(said, "all pods of gangs") {
		t.Errorf("after the end of the first: %q, %v", said, err)
	}
}

// TestEvictWithoutController: the request stays, and the error says what to check.
func TestEvictWithoutController(t *testing.T) {
	e := newEvictable(t, false, nil)
	if _, err := e.run(t, "node/gpu-07", "a fan", "--short"); err == nil || !strings.Contains(err.Error(), "--nodes=act") || e.request(t) == nil {
		t.Errorf("%v, %+v", err, e.request(t))
	}
}
