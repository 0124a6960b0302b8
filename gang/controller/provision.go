package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/gang/provision"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/membership"
)

// A gang whose job names a class of ProvisioningRequests has one while it is refused for lack of room. The API belongs to Cluster
// Autoscaler and may be installed and removed at any time, so requests are not watched. A request is read while one is needed or exists.
// The Gang owns the request and its PodTemplate, and both are deleted with the Gang.

// requestAgain is the interval at which a request that is needed or exists is read.
const requestAgain = 10 * time.Second

var requestKind = schema.GroupVersionKind{Group: "autoscaling.x-k8s.io", Version: "v1", Kind: "ProvisioningRequest"}

var errNotServed = errors.New("the cluster serves no autoscaling.x-k8s.io/v1: run Cluster Autoscaler with --enable-provisioning-requests " +
	"and install its CRD, or create the job without " + v1alpha1.AnnotationProvisioningClass)

// asked is what was last read of a gang's request, and when.
type asked struct {
	job     types.UID
	at      time.Time
	request *provision.Request
	// problem is why there is no request.
	problem string
}

// provision handles a gang's request. said is a text for users, again is when to call it again.
func (c *Controller) provision(
	ctx context.Context, g *v1alpha1.Gang, job *jobs.Job, gang status.View, pods []corev1.Pod, now time.Time,
) (said string, again time.Duration) {
	class := job.Admitted.Settings.ProvisioningClass
	if class == "" {
		return "", 0
	}
	waiting := short(gang, membership.Holders(job.UID, gang.Size, pods))
	view := provision.View{
		Class: class,
		Short: len(waiting),
		Done:  gang.JobEnded || job.State.Suspended || gang.OnNodes() >= gang.Size,
	}
	key := job.Key()
	last, seen := c.lastAsked(key, job.UID)
	none := last.request == nil && last.problem == ""
	switch {
	case seen && none && len(waiting) == 0:
		return "", 0
	case seen && !none && now.Sub(last.at) < requestAgain && (last.request == nil || !view.Done):
		return last.text(view, now), requestAgain - now.Sub(last.at)
	}
	next := asked{job: job.UID, at: now}
	var err error
	if next.request, err = c.settle(ctx, g, view, waiting, now); err != nil {
		next.problem = "no ProvisioningRequest is created: " + cause.Tail(cause.Printable(err.Error()), maxRefusal)
	}
	c.setAsked(key, next)
	if next.request == nil && next.problem == "" {
		return "", 0
	}
	return next.text(view, now), requestAgain
}

// settle reads the present request and carries out the decision about it. settle returns the request that exists then.
func (c *Controller) settle(
	ctx context.Context, g *v1alpha1.Gang, v provision.View, waiting []*corev1.Pod, now time.Time,
) (*provision.Request, error) {
	if len(waiting) > 0 {
		if others := waiting[0].Annotations[v1alpha1.AnnotationConsumesRequest]; others != v1alpha1.RequestName(g.Name) {
			return nil, fmt.Errorf("pod %s consumes %q, which belongs to another gang", waiting[0].Name, others)
		}
	}
	u := newRequest(g)
	switch err := c.Live.Get(ctx, client.ObjectKeyFromObject(u), u); {
	case meta.IsNoMatchError(err) && v.Short > 0:
		return nil, errNotServed
	case absent(err):
	case err != nil:
		return nil, fmt.Errorf("reading ProvisioningRequest %s: %w", u.GetName(), err)
	case metav1.IsControlledBy(u, g):
		v.Request = requestOf(u)
	case !v.Done:
		return nil, fmt.Errorf("ProvisioningRequest %s belongs to no Gang of this Job: remove it", u.GetName())
	}
	switch d := provision.Decide(v, now); d.Action {
	case provision.Remove:
		return nil, c.withdraw(ctx, g)
	case provision.Make:
		if err := c.withdraw(ctx, g); err != nil {
			return v.Request, err
		}
		return c.create(ctx, g, v, d.Attempt, waiting[0])
	case provision.Keep:
	}
	return v.Request, nil
}

func (a asked) text(v provision.View, now time.Time) string {
	if a.request == nil {
		return a.problem
	}
	v.Request = a.request
	return provision.Text(*a.request, provision.Decide(v, now))
}

// short returns the pods of a gang that wait for a node and for which more nodes would help: the scheduler writes that on them.
func short(v status.View, holders []*corev1.Pod) []*corev1.Pod {
	if len(v.Members) < v.Size || v.Answer.Placed || v.Answer.Reason != v1alpha1.ReasonInsufficientNodes {
		return nil
	}
	var waiting []*corev1.Pod
	helps := false
	for _, pod := range holders {
		if pod == nil || pod.Spec.NodeName != "" {
			continue
		}
		waiting = append(waiting, pod)
		for _, c := range pod.Status.Conditions {
			helps = helps || c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	if !helps {
		return nil
	}
	return waiting
}

// absent reports whether an object, or its kind, does not exist.
func absent(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// requestOf reads the relevant fields of a request. Any user who may write requests may have written it, so fields that cannot be read are
// left out.
func requestOf(u *unstructured.Unstructured) *provision.Request {
	r := &provision.Request{Name: u.GetName(), Phase: provision.Made}
	r.Class, _, _ = unstructured.NestedString(u.Object, "spec", "provisioningClassName")
	if sets, _, _ := unstructured.NestedSlice(u.Object, "spec", "podSets"); len(sets) == 1 {
		if set, ok := sets[0].(map[string]any); ok {
			pods, _, _ := unstructured.NestedInt64(set, "count")
			r.Pods = int(pods)
		}
	}
	r.Attempt, _ = strconv.Atoi(u.GetAnnotations()[v1alpha1.AnnotationAttempt])
	r.Attempt = max(1, r.Attempt)
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if in, ok := u.Object["status"].(map[string]any); ok {
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(in, &status) // what cannot be read is left out
	}
	for _, of := range []struct { // the first that holds
		condition string
		status    metav1.ConditionStatus
		phase     provision.Phase
	}{
		{"CapacityRevoked", metav1.ConditionTrue, provision.Revoked},
		{"Failed", metav1.ConditionTrue, provision.Failed},
		{"BookingExpired", metav1.ConditionTrue, provision.Expired},
		{"Provisioned", metav1.ConditionTrue, provision.Provisioned},
		{"Provisioned", metav1.ConditionFalse, provision.Retried},
		{"Accepted", metav1.ConditionTrue, provision.Accepted},
	} {
		if c := meta.FindStatusCondition(status.Conditions, of.condition); c != nil && c.Status == of.status {
			r.Phase, r.Since = of.phase, c.LastTransitionTime.Time
			r.Why = cause.Tail(cause.Printable(c.Reason+": "+c.Message), maxRefusal)
			break
		}
	}
	return r
}

// withdraw deletes the gang's request and its template.
func (c *Controller) withdraw(ctx context.Context, g *v1alpha1.Gang) error {
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: v1alpha1.RequestName(g.Name)}}
	for _, o := range []client.Object{newRequest(g), template} {
		err := c.Live.Get(ctx, client.ObjectKeyFromObject(o), o)
		if absent(err) {
			continue
		}
		if err == nil && !metav1.IsControlledBy(o, g) {
			err = errors.New("it belongs to another gang")
		}
		if err == nil {
			uid := o.GetUID()
			err = c.Client.Delete(ctx, o, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		}
		if err != nil && !absent(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("removing %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// create creates the gang's request for pods like one of those that wait. create creates the request's template first, because the
// autoscaler fails a request without a template.
func (c *Controller) create(
	ctx context.Context, g *v1alpha1.Gang, v provision.View, attempt int, like *corev1.Pod,
) (*provision.Request, error) {
	u := newRequest(g)
	u.SetAnnotations(map[string]string{v1alpha1.AnnotationAttempt: strconv.Itoa(attempt)})
	u.Object["spec"] = map[string]any{"provisioningClassName": v.Class,
		"podSets": []any{map[string]any{"count": int64(v.Short), "podTemplateRef": map[string]any{"name": u.GetName()}}}}
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: u.GetName()}, Template: templateOf(like)}
	for _, o := range []client.Object{template, u} {
		err := controllerutil.SetControllerReference(g, o, c.Client.Scheme(), controllerutil.WithBlockOwnerDeletion(false))
		if err != nil {
			return nil, fmt.Errorf("making Gang %s the owner of %s: %w", g.Name, o.GetName(), err)
		}
		switch err := c.Client.Create(ctx, o, client.FieldOwner(FieldManager)); {
		case o == client.Object(u) && absent(err): // the API was removed meanwhile
			return nil, errors.Join(errNotServed, c.withdraw(ctx, g))
		case err != nil:
			return nil, fmt.Errorf("creating it: %w", err)
		}
	}
	return requestOf(u), nil
}

func newRequest(g *v1alpha1.Gang) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(requestKind)
	u.SetNamespace(g.Namespace)
	u.SetName(v1alpha1.RequestName(g.Name))
	return u
}

// templateOf returns the fields of a pod that decide on which nodes it can run, without the commands and variables of its containers.
func templateOf(pod *corev1.Pod) corev1.PodTemplateSpec {
	out := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}, Spec: *pod.Spec.DeepCopy()}
	for key, value := range pod.Labels {
		if !membership.IsPerPod(pod, key) {
			out.Labels[key] = value
		}
	}
	out.Spec.NodeName, out.Spec.Hostname = "", ""
	out.Spec.EphemeralContainers, out.Spec.SchedulingGates, out.Spec.SchedulingGroup = nil, nil, nil
	for _, list := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i, c := range list {
			list[i] = corev1.Container{
				Name:                     c.Name,
				Image:                    c.Image,
				ImagePullPolicy:          c.ImagePullPolicy,
				Resources:                c.Resources,
				Ports:                    c.Ports,
				RestartPolicy:            c.RestartPolicy,
				SecurityContext:          c.SecurityContext,
				TerminationMessagePolicy: c.TerminationMessagePolicy,
			}
		}
	}
	return out
}

func (c *Controller) lastAsked(job types.NamespacedName, uid types.UID) (asked, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.requests[job]
	return a, ok && a.job == uid
}

func (c *Controller) setAsked(job types.NamespacedName, a asked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[job] = a
}
