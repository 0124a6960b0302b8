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

	"holdfast.dev/holdfast/api/v1alpha1"
)

const atomicClass = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"

var requestKey = types.NamespacedName{Namespace: key.Namespace, Name: "holdfast-" + key.Name}

// asking returns a world whose gang of two pods requests nodes and is refused for lack of room.
func asking(t *testing.T) *world {
	t.Helper()
	owned := admitted()
	j := job(owned)
	j.Spec.Template.Annotations[v1alpha1.AnnotationProvisioningClass] = atomicClass
	waits := func(p *corev1.Pod) {
		p.Annotations[v1alpha1.AnnotationConsumesRequest] = requestKey.Name
		p.Spec.Hostname, p.Spec.SchedulerName, p.Spec.NodeSelector = "h", "s", map[string]string{"pool": "gpu"}
		p.Spec.Containers = []corev1.Container{{
			Name:         "train",
			Image:        "i",
			Command:      []string{"torchrun"},
			Env:          append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "TOKEN", Value: "secret"}),
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
			Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
		}}
		unschedulable := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}
		p.Status.Conditions = []corev1.PodCondition{unschedulable}
	}
	w := newWorld(t, j, pod(0, "", waits), pod(1, "", waits))
	w.reconcile()
	w.others("holdfast-scheduler", map[string]any{"placement": map[string]any{
		"placed": false, "reason": "InsufficientNodes", "message": "0 of 2 pods would fit now", "observedAt": "2026-01-02T03:04:05.000000Z"}})
	return w
}

func (w *world) request() *unstructured.Unstructured {
	w.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(requestKind)
	if err := w.client.Get(context.Background(), requestKey, u); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		w.t.Fatal(err)
	}
	return u
}

func (w *world) template() *corev1.PodTemplate {
	w.t.Helper()
	p := &corev1.PodTemplate{}
	if err := w.client.Get(context.Background(), requestKey, p); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		w.t.Fatal(err)
	}
	return p
}

// answers sets the autoscaler's answer to the request.
func (w *world) answers(condition string, is bool, reason string) {
	w.t.Helper()
	u := w.request()
	value := metav1.ConditionFalse
	if is {
		value = metav1.ConditionTrue
	}
	u.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": condition, "status": string(value), "reason": reason, "message": "m", "lastTransitionTime": w.now.Format(time.RFC3339)}}}
	if err := w.client.Update(context.Background(), u); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) placedMessage() string {
	w.t.Helper()
	return meta.FindStatusCondition(w.gang().Status.Conditions, v1alpha1.ConditionPlaced).Message
}

// TestAGangAsksForItsNodes: one request is created for all pods that lack room, and the Gang shows the autoscaler's answers. A failed
// request is created again. When all pods are on nodes the request is removed.
func TestAGangAsksForItsNodes(t *testing.T) {
	w := asking(t)
	if result := w.reconcile(); result.RequeueAfter != requestAgain {
		t.Errorf("again after %v", result.RequeueAfter)
	}
	u, template := w.request(), w.template()
	if u == nil || template == nil {
		t.Fatalf("made are %v and %v: %s", u, template, w.placedMessage())
	}
	want := "map[podSets:[map[count:2 podTemplateRef:map[name:holdfast-llama]]] provisioningClassName:" + atomicClass + "]"
	if got := fmt.Sprint(u.Object["spec"]); got != want {
		t.Errorf("it asks for %s, want %s", got, want)
	}
	for _, o := range []client.Object{u, template} {
		owner := metav1.GetControllerOf(o)
		if owner == nil || owner.Kind != "Gang" || owner.UID != w.gang().UID || ptr.Deref(owner.BlockOwnerDeletion, false) {
			t.Errorf("%T is %+v's", o, owner)
		}
	}
	spec := template.Template.Spec
	c := spec.Containers[0]
	if c.Resources.Requests.Name("nvidia.com/gpu", resource.DecimalSI).Value() != 8 || len(c.Env)+len(c.Command)+len(c.VolumeMounts) > 0 ||
		spec.NodeSelector["pool"] != "gpu" || spec.Hostname != "" || template.Template.Labels[v1alpha1.LabelGang] != key.Name {
		t.Errorf("the template is %+v", template.Template)
	}
	for _, c := range []struct {
		condition    string
		is           bool
		reason, want string
	}{
		{"Accepted", true, "Accepted", "for 2 pods was accepted: Accepted: m"},
		{"Provisioned", false, "CapacityIsNotFound", "for 2 pods is retried: CapacityIsNotFound: m"},
		{"Provisioned", true, "CapacityIsProvisioned", "for 2 pods was provisioned: CapacityIsProvisioned: m"},
		{"BookingExpired", true, "ReservationExpired", "for 2 pods expired: ReservationExpired: m; the next one is created at "},
		{"CapacityRevoked", true, "Taken", "for 2 pods was revoked: Taken: m; the next one is created at "},
		{"Failed", true, "Expired", "for 2 pods failed: Expired: m; the next one is created at "},
	} {
		w.now = w.now.Add(requestAgain)
		w.answers(c.condition, c.is, c.reason)
		said := "0 of 2 pods would fit now; ProvisioningRequest holdfast-llama (" + atomicClass + ") " + c.want
		if w.reconcile(); !strings.Contains(w.placedMessage(), said) {
			t.Errorf("%s %v: %s", c.condition, c.is, w.placedMessage())
		}
	}
	w.restart() // the request holds the number of attempts
	w.now = w.now.Add(time.Minute)
	w.reconcile()
	if u = w.request(); u == nil || u.Object["status"] != nil || u.GetAnnotations()[v1alpha1.AnnotationAttempt] != "2" {
		t.Errorf("after the pause there is %v", u)
	}
	for slot := range 2 {
		p := pod(slot, fmt.Sprint("n", slot))
		if err := w.client.Delete(context.Background(), p); err != nil {
			t.Fatal(err)
		}
		p.ResourceVersion = ""
		w.add(p)
	}
	if w.reconcile(); w.request() != nil || w.template() != nil {
		t.Errorf("left are %v and %v", w.request(), w.template())
	}
}

// TestNoRequestIsMade: if the API is not served, or another request covers the pods, no request is created, and the Gang says why.
func TestNoRequestIsMade(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string
	}{
		"no API": {func(w *world) { w.c.Live = unserved{w.client} },
			"; no ProvisioningRequest is created: the cluster serves no autoscaling.x-k8s.io/v1: run Cluster Autoscaler"},
		"pods of Kueue's": {func(w *world) {
			p := pod(0, "")
			if err := w.client.Get(context.Background(), client.ObjectKeyFromObject(p), p); err != nil {
				t.Fatal(err)
			}
			p.Annotations[v1alpha1.AnnotationConsumesRequest] = "kueue-1"
			if err := w.client.Update(context.Background(), p); err != nil {
				t.Fatal(err)
			}
		}, `; no ProvisioningRequest is created: pod llama-0 consumes "kueue-1", which belongs to another gang`},
		"another's request": {func(w *world) {
			u := &unstructured.Unstructured{Object: map[string]any{}}
			u.SetGroupVersionKind(requestKind)
			u.SetNamespace(requestKey.Namespace)
			u.SetName(requestKey.Name)
			w.add(u)
		}, "; no ProvisioningRequest is created: ProvisioningRequest holdfast-llama belongs to no Gang of this Job: remove it"},
		"pods that no node would help": {func(w *world) {
			for slot := range 2 {
				p := pod(slot, "")
				if err := w.client.Get(context.Background(), client.ObjectKeyFromObject(p), p); err != nil {
					t.Fatal(err)
				}
				p.Status.Conditions[0].Reason = "InsufficientNodes"
				if err := w.client.Status().Update(context.Background(), p); err != nil {
					t.Fatal(err)
				}
			}
		}, "0 of 2 pods would fit now"},
	} {
		w := asking(t)
		c.change(w)
		if w.reconcile(); !strings.Contains(w.placedMessage(), c.want) || w.template() != nil {
			t.Errorf("%s: %s", name, w.placedMessage())
		}
	}
}

// unserved is an API server that does not serve ProvisioningRequests.
type unserved struct{ client.Reader }

func (u unserved) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if o.GetObjectKind().GroupVersionKind() == requestKind {
		return &meta.NoKindMatchError{GroupKind: requestKind.GroupKind(), SearchedVersions: []string{requestKind.Version}}
	}
	return u.Reader.Get(ctx, key, o, opts...)
}
