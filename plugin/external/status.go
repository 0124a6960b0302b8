package external

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// Writer writes the status of groups. It belongs to one goroutine.
type Writer struct {
	book *Book
	// live lists the pods of the scheduler's informer, version is the newest resource version that it has received; client lists the others.
	live    corelisters.PodLister
	version func() string
	client  kubernetes.Interface
	// profile is the scheduler whose groups are written.
	profile string
	// emit emits an event on an object.
	emit func(object *corev1.ObjectReference, reason, note string)
	// written is the last patch of a group, so that it is not sent again before the watch shows it; notified is what events said about it.
	// Both are dropped when the group is gone.
	written  map[types.NamespacedName]sent
	notified map[types.NamespacedName]notified
}

// notified is what events last said of a group: why it is not placed, and which settings are ignored.
type notified struct {
	uid              types.UID
	answer, unheeded string
}

type sent struct {
	version string // of the object that it was computed from
	patch   string
}

// NewWriter returns a Writer for one scheduler's groups.
func NewWriter(
	book *Book,
	live corelisters.PodLister,
	version func() string,
	client kubernetes.Interface,
	profile string,
	emit func(object *corev1.ObjectReference, reason, note string),
) *Writer {
	return &Writer{
		book:     book,
		live:     live,
		version:  version,
		client:   client,
		profile:  profile,
		emit:     emit,
		written:  map[types.NamespacedName]sent{},
		notified: map[types.NamespacedName]notified{},
	}
}

// Write updates a group's status. answer is the scheduler's newest answer, nil: none; member: the group has pods of this scheduler.
func (w *Writer) Write(ctx context.Context, key types.NamespacedName, answer *v1alpha1.PlacementStatus, member bool) error {
	object, a, err := w.book.get(key)
	switch {
	case errors.Is(err, gangcache.ErrTermsUnknown):
		return err // the caller retries
	case err != nil:
		delete(w.written, key)
		delete(w.notified, key)
		return nil // no object to write on
	}
	var status any
	switch pg := object.(type) {
	case *coscheduling.PodGroup:
		pods, err := w.members(ctx, key, coscheduling.PodGroupLabel+"="+pg.Name)
		if err != nil || !w.ours(pods, member) {
			return err
		}
		w.explain(a, pg, answer)
		status = difference(pg.Status, coschedulingStatus(pg, pods))
	case *vcscheduling.PodGroup:
		if handedOver(pg) {
			return nil
		}
		status, err = w.volcano(ctx, key, pg, answer, member)
		if err != nil {
			return err
		}
	case *schedulingv1beta1.PodGroup:
		if condition, news := nativeCondition(pg, answer, metav1.Now()); news && member {
			w.confess(a, pg)
			status = map[string]any{"conditions": append(others(pg.Status.Conditions, condition.Type), condition)}
		}
	}
	if status == nil {
		return nil
	}
	return w.patch(ctx, key, a, object, status)
}

// others returns the conditions of other types, which a merge patch would drop.
func others(all []metav1.Condition, kind string) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c metav1.Condition) bool { return c.Type == kind })
}

// ours reports whether this scheduler places a group's pods.
func (w *Writer) ours(pods []*corev1.Pod, member bool) bool {
	return member || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.SchedulerName == w.profile })
}

// volcano returns the new status of Volcano's PodGroup, nil: unchanged.
func (w *Writer) volcano(
	ctx context.Context,
	key types.NamespacedName,
	pg *vcscheduling.PodGroup,
	answer *v1alpha1.PlacementStatus,
	member bool,
) (any, error) {
	o, ref := ownerOf(pg)
	selector := ""
	if ref != nil {
		selector = o.selector(ref)
	}
	pods, err := w.members(ctx, key, selector)
	if err != nil {
		return nil, err
	}
	if !w.ours(pods, member) {
		if len(pods) > 0 {
			return nil, nil
		}
		if in, err := w.letsIn(ctx, pg, o, ref); !in {
			return nil, err
		}
	}
	w.confess(w.book.of(membership.Volcano), pg)
	return difference(pg.Status, volcanoStatus(pg, pods, answer, metav1.Now())), nil
}

// difference returns the wanted status if it differs from the present one.
func difference[T any](have, want T) any {
	if reflect.DeepEqual(have, want) {
		return nil
	}
	return want
}

// members returns a group's pods. A scheduler's informer drops pods that have ended: only these are listed from an API server's cache, and
// after the others, at a version that is not older than the informer's, so that the list has each pod that the informer dropped.
func (w *Writer) members(ctx context.Context, key types.NamespacedName, selector string) ([]*corev1.Pod, error) {
	labeled, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("selecting the pods of %s: %w", key, err)
	}
	pods, err := w.live.Pods(key.Namespace).List(labeled)
	if err != nil {
		return nil, fmt.Errorf("listing the live pods of %s: %w", key, err)
	}
	list, err := w.client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector:   selector,
		FieldSelector:   endedPods.String(),
		ResourceVersion: w.version(), // an API server whose cache is older waits, or refuses with a timeout, and the caller retries
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of %s that have ended: %w", key, err)
	}
	ended := map[types.UID]bool{}
	for i := range list.Items {
		if pod := &list.Items[i]; membership.Ended(pod) {
			ended[pod.UID] = true
			pods = append(pods, pod)
		}
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool {
		of, ok := membership.GroupOf(pod)
		return !ok || of != key || ended[pod.UID] && !membership.Ended(pod)
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods, nil
}

// endedPods selects pods that have ended: field selectors have no "or".
var endedPods = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodPending)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodRunning)),
)

func (w *Writer) patch(ctx context.Context, key types.NamespacedName, a *api, object any, status any) error {
	meta, ok := object.(metav1.Object)
	if !ok {
		return fmt.Errorf("%T has no metadata", object)
	}
	// The counts are written as they are, zeros included.
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": meta.GetUID()}, "status": withZeros(status)})
	if err != nil {
		return fmt.Errorf("encoding the status of %s: %w", key, err)
	}
	if have := w.written[key]; have.version == meta.GetResourceVersion() && have.patch == string(body) {
		return nil
	}
	a.mu.Lock()
	var subresources []string
	if a.subresource {
		subresources = []string{"status"}
	}
	a.mu.Unlock()
	_, name, _ := membership.External(key)
	_, err = w.book.client.Resource(a.gvr).
		Namespace(key.Namespace).
		Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is gone, or replaced by another object
	case err != nil:
		return fmt.Errorf("writing the status of %s: %w", key, err)
	}
	w.written[key] = sent{meta.GetResourceVersion(), string(body)}
	return nil
}

// object is a namespaced API object.
type object interface {
	runtime.Object
	metav1.Object
}

func (a *api) reference(o object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: a.gvr.GroupVersion().String(),
		Kind:       "PodGroup",
		Namespace:  o.GetNamespace(),
		Name:       o.GetName(),
		UID:        o.GetUID(),
	}
}

// keyOf returns the group of an object.
func (a *api) keyOf(o object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: a.resource() + "/" + o.GetName()}
}

// eventsOf returns what events said of a group with the object's UID; nothing for another object of the same name.
func (w *Writer) eventsOf(key types.NamespacedName, o object) notified {
	if n := w.notified[key]; n.uid == o.GetUID() {
		return n
	}
	return notified{uid: o.GetUID()}
}

// explain emits an event on why a group is not placed, where its status has no field for that: once per reason.
func (w *Writer) explain(a *api, o object, answer *v1alpha1.PlacementStatus) {
	if answer == nil {
		return
	}
	key, reason := a.keyOf(o), answer.Reason
	if answer.Placed {
		reason = ""
	}
	n := w.eventsOf(key, o)
	if n.answer == reason {
		return
	}
	n.answer = reason
	w.notified[key] = n
	if reason != "" {
		w.emit(a.reference(o), reason, answer.Message)
	}
}

// confess emits an event on the group's settings that are ignored.
func (w *Writer) confess(a *api, o object) {
	key := a.keyOf(o)
	terms, err := w.book.Terms(key, nil)
	if err != nil {
		return
	}
	n, said := w.eventsOf(key, o), strings.Join(terms.Ignored, "; ")
	if said == "" || n.unheeded == said {
		return
	}
	n.unheeded = said
	w.notified[key] = n
	w.emit(a.reference(o), v1alpha1.ReasonSettingsIgnored, "ignored: "+said)
}

// fieldManager owns the fields that Writer writes.
const fieldManager = "holdfast-scheduler"

// withZeros encodes a status with its zero counts, which their types omit: a merge patch without them would leave the old ones.
func withZeros(status any) any {
	switch s := status.(type) {
	case coscheduling.PodGroupStatus:
		m := map[string]any{"phase": s.Phase, "running": s.Running, "succeeded": s.Succeeded, "failed": s.Failed}
		if s.OccupiedBy != "" {
			m["occupiedBy"] = s.OccupiedBy
		}
		return m
	case vcscheduling.PodGroupStatus:
		return map[string]any{"phase": s.Phase, "conditions": s.Conditions, "running": s.Running, "succeeded": s.Succeeded, "failed": s.Failed}
	default:
		return status
	}
}
