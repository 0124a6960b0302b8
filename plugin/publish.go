package plugin

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/plugin/external"
)

const (
	// fieldManager owns status.placement of a Gang.
	fieldManager = "holdfast-scheduler"
	// gather is the delay in which changes of a gang's members are collected before a write.
	gather = 250 * time.Millisecond
	// gatherExternal is the delay for groups of other APIs.
	gatherExternal = time.Second
	// retryFirst and retryLast bound the delay between retries of a write, for instance while the Gang does not exist.
	retryFirst = 100 * time.Millisecond
	retryLast  = 10 * time.Second
)

// publisher writes status.placement of Gangs from the gang cache. It runs beside scheduling: callers only queue the Gang's name, the newest
// answer is written, and an unchanged answer is not.
type publisher struct {
	gangs    dynamic.NamespaceableResourceInterface
	standing func(types.NamespacedName) (s v1alpha1.PlacementStatus, ok, exists bool)
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// external writes the status of groups of other APIs.
	external *external.Writer
	// conditions writes those of members; nil: they are not written.
	conditions *memberConditions
	// written is the status that the API server has, as far as known. It belongs to run.
	written map[types.NamespacedName]written
}

type written struct {
	uid    types.UID
	status v1alpha1.PlacementStatus
}

func newPublisher(client dynamic.Interface, standing func(types.NamespacedName) (v1alpha1.PlacementStatus, bool, bool)) *publisher {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryFirst, retryLast)
	return &publisher{
		gangs:    client.Resource(v1alpha1.GroupVersion.WithResource("gangs")),
		standing: standing,
		queue:    workqueue.NewTypedRateLimitingQueue(limiter),
		written:  map[types.NamespacedName]written{},
	}
}

// soon queues a Gang for writing now, eventually after a delay. Neither blocks.
func (p *publisher) soon(key types.NamespacedName) {
	p.conditions.soon(key)
	if external.Is(key) { // each time counts the group's pods
		p.queue.AddAfter(key, gatherExternal)
		return
	}
	p.queue.Add(key)
}
func (p *publisher) eventually(key types.NamespacedName) {
	p.conditions.soon(key)
	if external.Is(key) {
		p.queue.AddAfter(key, gatherExternal)
		return
	}
	p.queue.AddAfter(key, gather)
}

// run writes until the context ends.
func (p *publisher) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		p.queue.ShutDown()
	}()
	for {
		key, stop := p.queue.Get()
		if stop {
			return
		}
		if err := p.publish(ctx, key); err != nil {
			klog.FromContext(ctx).V(3).Info("Writing the placement of a Gang failed; retrying", "gang", key, "reason", err)
			p.queue.AddRateLimited(key)
		} else {
			p.queue.Forget(key)
		}
		p.queue.Done(key)
	}
}

// publish writes the present answer if the API server has another one.
func (p *publisher) publish(ctx context.Context, key types.NamespacedName) error {
	want, ok, exists := p.standing(key)
	if external.Is(key) {
		var answer *v1alpha1.PlacementStatus
		if ok {
			answer = &want
		}
		return p.external.Write(ctx, key, answer, exists)
	}
	if !exists {
		delete(p.written, key)
	}
	if !ok {
		return nil
	}
	have, known := p.written[key]
	if !known {
		var err error
		if have, err = p.read(ctx, key); err != nil {
			return err
		}
		p.written[key] = have
	}
	if status.SamePlacement(have.status, want) {
		return nil
	}
	want.ObservedAt = metav1.NewMicroTime(time.Now())
	err := p.apply(ctx, key, have.uid, want)
	if err != nil {
		delete(p.written, key) // the Gang may be gone or replaced
		return err
	}
	p.written[key] = written{uid: have.uid, status: want}
	return nil
}

func (p *publisher) read(ctx context.Context, key types.NamespacedName) (written, error) {
	u, err := p.gangs.Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return written{}, fmt.Errorf("reading Gang %s: it does not exist yet", key)
	}
	if err != nil {
		return written{}, fmt.Errorf("reading Gang %s: %w", key, err)
	}
	var g v1alpha1.Gang
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &g); err != nil {
		return written{}, fmt.Errorf("reading Gang %s: %w", key, err)
	}
	w := written{uid: g.UID}
	if g.Status.Placement != nil {
		w.status = *g.Status.Placement
	}
	return w, nil
}

func (p *publisher) apply(ctx context.Context, key types.NamespacedName, uid types.UID, s v1alpha1.PlacementStatus) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&s)
	if err != nil {
		return fmt.Errorf("encoding the placement of Gang %s: %w", key, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"placement": fields}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Gang"))
	u.SetName(key.Name)
	u.SetNamespace(key.Namespace)
	u.SetUID(uid)
	if _, err := p.gangs.Namespace(key.Namespace).ApplyStatus(ctx, key.Name, u, metav1.ApplyOptions{
		FieldManager: fieldManager,
		Force:        true,
	}); err != nil {
		return fmt.Errorf("applying the placement of Gang %s: %w", key, err)
	}
	return nil
}

// standing returns the placement status that a gang should have, with its held room.
func (p *Plugin) standing(key types.NamespacedName) (s v1alpha1.PlacementStatus, ok, exists bool) {
	s, ok, exists = p.gangs.Status(key)
	if h, held := p.reservations.Get(key); held && ok && !s.Placed {
		s.Held = h.Status()
	}
	return s, ok, exists
}
