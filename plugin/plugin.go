// Package plugin adds gangs to an unforked kube-scheduler. The pods of a gang are bound together or not at all: pods
// wait at PreEnqueue until all members exist, one leader plans for all members in one scheduling cycle, and each member
// is then scheduled to its node of the plan. If a member cannot be scheduled there, the missing part is planned again,
// or the placement is rolled back, newest pod first.
//
//   - A plan names a node only if the framework's own filters accept the node and Holdfast does not exclude it.
//   - Only the replica that schedules writes to the API server.
//   - A pod of no gang cannot use room that is held for gangs. Such a pod preempts a gang as a whole, never single
//     members, and gets no node that a waiting gang ahead of the pod could use.
//
// Package plugin has the extension points, the writing of statuses and the wiring. The packages in its subfolders have
// the state of gangs, the decisions and the answers to queries. None of them imports package plugin; internal/layers
// lists which of them may import which.
//
// PreEnqueue and queueing hints are called under the lock of the scheduling queue, and take the lock of the gang cache.
// So code that holds the lock of the gang cache must not call a function that takes the lock of the scheduling queue,
// such as Activate.
package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/external"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/plugin/preemption"
	"holdfast.dev/holdfast/plugin/serve"
)

// Name is the plugin's name in a KubeSchedulerConfiguration.
const Name = "Holdfast"

// inspection is the interval of the periodic check for state that no event reports.
const inspection = 5 * time.Second

var (
	_ fwk.QueueSortPlugin   = (*Plugin)(nil)
	_ fwk.PreEnqueuePlugin  = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PostFilterPlugin  = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.BindPlugin        = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
)

// releaser deallocates devices that earlier bindings left with claims of gangs that have no nodes.
type releaser interface {
	Release(ctx context.Context, gang types.NamespacedName, of gangcache.Snapshot, nodes []fwk.NodeInfo)
	// ReleaseFirst reports whether the gang must be planned after such a release.
	ReleaseFirst(ctx context.Context, gang types.NamespacedName, of gangcache.Snapshot, nodes []fwk.NodeInfo) bool
}

// handle is a plugin's handle with further parts of the framework that planning uses.
type handle interface {
	fwk.Handle
	planner.Framework
}

// Plugin is one instance, for one scheduler profile.
type Plugin struct {
	args   schedulingv1alpha1.HoldfastArgs
	handle handle
	pods   corelisters.PodLister
	gangs  *gangcache.Cache
	status *publisher
	// conditions writes those of members without a node; nil: kube-scheduler's stay.
	conditions *memberConditions
	// watched is synced once all pods that existed at the start were seen.
	watched        cache.ResourceEventHandlerRegistration
	deferredEvents *deferredEvents
	measures       *measures
	rejections     *rejections
	// queueKeys are the sort keys in the scheduling queue.
	queueKeys *queueKeys
	// binding has an entry for each binding under way.
	binding chan struct{}

	planner *planner.Planner
	// preemption preempts pods; reservations are all held room.
	preemption   *preemption.Preemptor
	reservations *preemption.HeldRooms
	// answers serves queries about this instance.
	answers *serve.Instance
	// claims deallocates devices that earlier bindings left with claims.
	claims releaser
	// gate: another plugin of the profile holds members back.
	gate     bool
	gateOnce sync.Once
}

// newPlugin wires an instance. It watches and answers, but starts no writes before act. The given clients write only the status of
// Gangs and deferred events.
func newPlugin(
	ctx context.Context,
	args schedulingv1alpha1.HoldfastArgs,
	plain fwk.Handle,
	c clients,
	book *external.Book,
	terms func(types.NamespacedName, *v1.Pod) (gangcache.Terms, error),
	m *measures,
) (_ *Plugin, err error) {
	h, ok := plain.(handle)
	if !ok {
		return nil, fmt.Errorf("plugin %s: the handle (%T) cannot run PreFilter plugins: this is not the Kubernetes version that the plugin was built for", Name, plain)
	}
	logger, informer := klog.FromContext(ctx), h.SharedInformerFactory().Core().V1().Pods()
	p := &Plugin{args: args, measures: m, handle: h, pods: informer.Lister(), binding: make(chan struct{}, *args.ParallelBindings)}
	p.gangs = gangcache.New(gangcache.Config{Terms: terms, Role: planner.RoleOf, AwaitsClaims: func(pod *v1.Pod) bool {
		return h.SharedDRAManager() != nil && claims.Awaited(pod) // without a manager such claims are refused later
	}})
	p.rejections, p.reservations, p.queueKeys = newRejections(), preemption.NewHeldRooms(), &queueKeys{of: map[types.UID]gangcache.QueueKey{}}
	core := h.SharedInformerFactory().Core().V1()
	p.planner = planner.New(planner.Config{
		Framework:    h,
		Args:         args,
		Gangs:        p.gangs,
		Health:       p.rejections,
		BoundVolumes: planner.BoundVolumes(core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister()),
		Tiers:        func() *external.Tiers { return book.Tiers(logger) },
		Reserved:     p.reservations.HeldAgainst,
		TakeFreed:    p.reservations.TakeFreed,
		Wake:         p.wake,
		Metrics:      m.planner,
	})
	p.claims = claims.NewReleaser(h.ClientSet(), h.SharedDRAManager(), p.gangs, p.wake)
	p.status = newPublisher(c.gangs, p.standing)
	if *args.MarkUnschedulable {
		p.conditions = newMemberConditions(h.ClientSet(), p.waits)
		p.status.conditions = p.conditions
	}
	version := informer.Informer().LastSyncResourceVersion
	p.status.external = external.NewWriter(book, p.pods, version, h.ClientSet(), h.ProfileName(), p.emitGroupEvent)
	book.Subscribe(func(key types.NamespacedName) { p.revise(logger, key) }, func(resource string) { p.reviseAll(logger, resource) })
	p.preemption = preemption.New(
		preemption.Config{Framework: h, Args: &p.args, Planner: p.planner, Gangs: p.gangs, Health: p.rejections, Pods: p.pods,
			Budgets: h.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister(), Stored: p.status.gangs,
			Wake: p.wake, Activate: p.activate, Publish: p.status.soon, Metrics: m.preemption},
		p.reservations,
	)
	p.answers = &serve.Instance{Framework: h, Gangs: p.gangs, Planner: p.planner, Preemption: p.preemption, Terms: terms}
	p.deferredEvents = &deferredEvents{timeout: args.EventTimeout.Duration, placing: p.gangs.AnyOpen, create: writeEvents(c.events)}
	if p.watched, err = informer.Informer().AddEventHandler(p.podEvents(logger)); err != nil {
		return nil, fmt.Errorf("plugin %s: watching pods: %w", Name, err)
	}
	return p, nil
}

// act starts the goroutines that write beside scheduling cycles. It is called before the first cycle and waits until all existing pods were
// seen: a gang that is not known has no turn.
func (p *Plugin) act(ctx context.Context) {
	cache.WaitForCacheSync(ctx.Done(), p.watched.HasSynced)
	p.rejections.begin()
	go p.status.run(ctx)
	if p.conditions != nil {
		p.conditions.run(ctx)
	}
	go p.deferredEvents.run(ctx)
	go wait.UntilWithContext(ctx, p.inspect, inspection)
}

// Name returns the plugin's name.
func (p *Plugin) Name() string { return Name }

// gangOf reports whether the pod belongs to a gang that this scheduler places.
func (p *Plugin) gangOf(pod *v1.Pod) (types.NamespacedName, bool) {
	return gangcache.GangOf(pod, p.handle.ProfileName())
}

// isMember reports whether the pod belongs to any gang now.
func isMember(pod *v1.Pod) bool {
	_, ok := membership.GroupOf(pod)
	return ok
}

// leftGang reports whether a pod belongs to no gang now, or to another one than before.
func leftGang(was, now *v1.Pod) bool {
	before, _ := membership.GroupOf(was)
	after, ok := membership.GroupOf(now)
	return !ok || before != after
}

func (p *Plugin) podEvents(logger klog.Logger) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*v1.Pod); ok {
				p.podSeen(logger, pod)
			}
		},
		UpdateFunc: func(old, obj any) {
			was, _ := old.(*v1.Pod)
			if pod, ok := obj.(*v1.Pod); ok {
				if was != nil && (was.UID != pod.UID || leftGang(was, pod)) {
					// A released pod is no member, though it may still run. Another pod has this one's name where the watch missed the end.
					last := was
					if was.UID == pod.UID {
						last = pod
					}
					p.podGone(logger, was, last)
				}
				if was != nil && was.UID == pod.UID && was.Status.Phase != v1.PodRunning && pod.Status.Phase == v1.PodRunning {
					p.started(pod)
				}
				p.podSeen(logger, pod)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				p.podGone(logger, pod, pod)
			}
		},
	}
}

// podSeen records a pod's state. It wakes the leader once all members exist, or once a plan that left out a member is done.
func (p *Plugin) podSeen(logger klog.Logger, pod *v1.Pod) {
	if membership.Ended(pod) { // the scheduler's informer reports that as a deletion
		p.podGone(logger, pod, pod) // runs once: later updates find no member
		return
	}
	key, ok := p.gangOf(pod)
	if !ok {
		p.gangs.ObserveOther(pod)
		return
	}
	if pod.DeletionTimestamp != nil {
		p.memberRemoved(logger, key, p.gangs.NoteTerminating(key, pod))
		p.gangs.ObserveOther(pod)
		return
	}
	change := p.gangs.Observe(key, pod)
	if claims.Awaited(pod) {
		p.status.eventually(key) // queueGate, which writes the status otherwise, is not called for the pod
	}
	if change.Completed || change.Bound {
		p.wake(logger, key)
	}
	if change.Bound {
		p.queueKeys.forget(pod.UID)
	}
	if change.Bound || change.Phase {
		p.status.soon(key)
	}
	if change.Waited > 0 {
		p.measures.placed.Observe(change.Waited.Seconds())
	}
}

// podGone handles the end of a pod, or its release from its gang; last is its last known state.
func (p *Plugin) podGone(logger klog.Logger, pod, last *v1.Pod) {
	key, ok := p.gangOf(pod)
	if !ok {
		p.gangs.ForgetOther(pod.UID)
		return
	}
	if p.gangs.Has(key, pod.UID) {
		p.noteEnd(logger, key, last)
	}
	p.queueKeys.forget(pod.UID)
	p.memberRemoved(logger, key, p.gangs.Forget(key, pod.UID))
}

// memberRemoved handles the removal of a member; broken: an open plan is invalid.
func (p *Plugin) memberRemoved(logger klog.Logger, key types.NamespacedName, broken bool) {
	if broken {
		p.abandon(logger, key, "a member went away")
	} else {
		p.wake(logger, key) // the plan may have held its successor back
	}
	p.status.soon(key)
}

// wake activates the pod that plans for the gang, if any.
func (p *Plugin) wake(logger klog.Logger, key types.NamespacedName) {
	if leader := p.gangs.Leader(key); leader != nil {
		p.activate(logger, []*v1.Pod{leader})
	}
}

// activate makes the scheduler try pods now, without gate and backoff. It must not be called under the queue's lock or the cache's.
func (p *Plugin) activate(logger klog.Logger, pods []*v1.Pod) {
	if len(pods) == 0 {
		return
	}
	byName := make(map[string]*v1.Pod, len(pods))
	for _, pod := range pods {
		byName[pod.Namespace+"/"+pod.Name] = pod
	}
	p.handle.Activate(logger, byName)
}
