package plugin

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/rejection"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// causeRejecting is the cause of a node that is excluded because it rejects members.
const causeRejecting = planner.RejectingNode

// rejections counts the members that ready nodes reject.
type rejections struct {
	mu sync.Mutex
	// acting: this replica schedules; others record nothing. Guarded by mu, as all below.
	acting  bool
	tracker rejection.Tracker
	// excluded are the nodes excluded at the last refresh.
	excluded map[excludedFor]bool
	// nodes is the number of nodes at the last refresh.
	nodes int
	// stuck is when a member whose containers do not start was last counted.
	stuck map[types.UID]time.Time
	// late is added to the time of a refresh; a test sets it.
	late time.Duration
}

// excludedFor is a node that is excluded for a namespace; none: for all.
type excludedFor struct{ node, namespace string }

func newRejections() *rejections {
	return &rejections{stuck: map[types.UID]time.Time{}}
}

func (r *rejections) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acting = true
}

func (r *rejections) acts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acting
}

// refresh updates excluded and returns the number of excluded nodes; back: a node is no longer excluded.
func (r *rejections) refresh(now time.Time, nodes int) (count int, back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if nodes > 0 {
		r.nodes = nodes
	}
	was, names := r.excluded, map[string]bool{}
	r.excluded = map[excludedFor]bool{}
	for _, a := range r.tracker.Excluded(now.Add(r.late), r.nodes) {
		r.excluded[excludedFor{a.Node, a.Namespace}] = true
		names[a.Node] = true
	}
	for a := range was {
		back = back || !r.excluded[a]
	}
	return len(names), back
}

// Observe receives the number of nodes in a snapshot.
func (r *rejections) Observe(nodes int) { r.refresh(time.Now(), nodes) }

// Renew records that a node was deleted: a new node of the same name has rejected no pod.
func (r *rejections) Renew(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracker.Forget(node)
	maps.DeleteFunc(r.excluded, func(a excludedFor, _ bool) bool { return a.node == node })
}

func (r *rejections) isExcluded(node, namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.excluded[excludedFor{node, ""}] || r.excluded[excludedFor{node, namespace}]
}

// Unhealthy reports whether a namespace's gangs must not use the node, and why: Holdfast excludes it, or it rejects members.
func (r *rejections) Unhealthy(node *v1.Node, namespace string) (cause string, sick bool) {
	if cause, sick = unhealthy(node); !sick && r.isExcluded(node.Name, namespace) {
		return causeRejecting, true
	}
	return cause, sick
}

// rejected records that a node rejected a member.
func (p *Plugin) rejected(logger klog.Logger, key types.NamespacedName, pod, node, said string) {
	if node == "" {
		return
	}
	now := time.Now()
	p.rejections.mu.Lock()
	set := p.rejections.tracker.Reject(node, key.Namespace, said, now)
	p.rejections.mu.Unlock()
	p.measures.rejected.Inc()
	logger.Info("A node rejected a member of a gang", "gang", key, "pod", pod, "node", node, "said", said, "setAside", set)
}

// started records that a member runs on the node that this scheduler gave it.
func (p *Plugin) started(pod *v1.Pod) {
	key, ok := p.gangOf(pod)
	if !ok || !p.gangs.Placed(key, pod) {
		return
	}
	p.rejections.mu.Lock()
	defer p.rejections.mu.Unlock()
	p.rejections.tracker.NoteStarted(pod.Spec.NodeName, pod.Namespace, time.Now())
}

// refusedByKubelet returns the message of a kubelet that did not admit a pod; ok is false for a pod that ended otherwise.
func refusedByKubelet(pod *v1.Pod) (said string, ok bool) {
	if pod.Status.Phase != v1.PodFailed || pod.Spec.NodeName == "" {
		return "", false
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil {
			return "", false
		}
	}
	reason := pod.Status.Reason
	return reason, membership.Rejects(reason)
}

// noteEnd checks whether the node of a member that is gone or has ended rejected it. A scheduler's informer reports a failure as the
// deletion of the pod in its former state, so a pod that never ran is read from the API server. Only a pod that this scheduler placed
// counts: any user can name a node in a pod. A member that its node ends is released before that, with the reason on it.
func (p *Plugin) noteEnd(logger klog.Logger, key types.NamespacedName, pod *v1.Pod) {
	if pod.Spec.NodeName == "" || !p.rejections.acts() || !p.gangs.Placed(key, pod) {
		return
	}
	if said := pod.Annotations[v1alpha1.AnnotationEndedByNode]; said != "" {
		if membership.Rejects(said) {
			p.rejected(logger, key, pod.Name, pod.Spec.NodeName, said)
		}
		return
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodRunning || pod.Status.Phase == v1.PodSucceeded {
		return
	}
	if said, ok := refusedByKubelet(pod); ok {
		p.rejected(logger, key, pod.Name, pod.Spec.NodeName, said)
		return
	}
	if membership.Ended(pod) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		now, err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || now.UID != pod.UID {
			return // the pod is gone, so the cause is unknown
		}
		said, ok := refusedByKubelet(now)
		if ended := now.Annotations[v1alpha1.AnnotationEndedByNode]; ended != "" { // its status may not be stored yet
			said, ok = ended, membership.Rejects(ended)
		}
		if ok {
			p.rejected(logger, key, now.Name, now.Spec.NodeName, said)
		}
	}()
}

// noteBinding checks a failed binding. Only a refusal for this pod on this node counts: other errors of the API server concern all nodes.
func (p *Plugin) noteBinding(logger klog.Logger, key types.NamespacedName, pod *v1.Pod, node string, err error) {
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		p.rejected(logger, key, pod.Name, node, "binding: "+string(apierrors.ReasonForError(err)))
	}
}

// ownFault are reasons of waiting containers that are caused by the image or the pod, on any node.
var ownFault = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable",
	"SignatureValidationFailed", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}

// startsNowhere reports whether the pod itself prevents its containers from starting.
func startsNowhere(pod *v1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(c v1.ContainerStatus) bool {
		return c.State.Waiting != nil && slices.Contains(ownFault, c.State.Waiting.Reason)
	})
}

// noteStuck counts members whose containers do not start though most of their gang run. It wakes refused gangs once a node is no longer
// excluded.
func (p *Plugin) noteStuck(logger klog.Logger, now time.Time) {
	stuck := p.gangs.Stuck(now.Add(-p.args.StartTimeout.Duration))
	p.rejections.mu.Lock()
	var count []gangcache.StuckMember
	there := make(map[types.UID]time.Time, len(stuck))
	for _, m := range stuck {
		if startsNowhere(m.Pod) {
			continue
		}
		last, known := p.rejections.stuck[m.Pod.UID]
		if !known || now.Sub(last) >= p.args.StartTimeout.Duration {
			count, last = append(count, m), now
		}
		there[m.Pod.UID] = last
	}
	p.rejections.stuck = there
	p.rejections.mu.Unlock()
	for _, m := range count {
		p.rejected(logger, m.Key, m.Pod.Name, m.Pod.Spec.NodeName, "containers do not start")
	}
	held, back := p.rejections.refresh(now, 0)
	p.measures.excluded.Set(float64(held))
	if back {
		for _, key := range p.gangs.Refused() {
			p.wake(logger, key)
		}
	}
}
