package plugin

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/gang/avoid"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// causeRejects is the cause under which a node is counted that is set aside because it rejects members.
const causeRejects = "RejectsPods"

// rejects keeps the book of nodes that say they are ready and reject members.
type rejects struct {
	mu sync.Mutex
	// act says that this replica schedules: others ask nothing. Guarded by mu, as all below.
	act  bool
	book avoid.Book
	// aside are the nodes that were set aside at the last look, with what they said.
	aside map[string]string
	// nodes is how many nodes there were then.
	nodes int
	// stuck is when a member whose containers do not start was counted last.
	stuck map[types.UID]time.Time
	// late is added to the time at a look; a test sets it.
	late time.Duration
}

func newRejects() *rejects {
	return &rejects{stuck: map[types.UID]time.Time{}}
}

func (r *rejects) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.act = true
}

func (r *rejects) acts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.act
}

// look brings aside up to date; back says that a node is not set aside any more which was at the last look.
func (r *rejects) look(now time.Time, nodes int) (set []avoid.Aside, back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if nodes > 0 {
		r.nodes = nodes
	}
	set, _ = r.book.Set(now.Add(r.late), r.nodes)
	was := r.aside
	r.aside = make(map[string]string, len(set))
	for _, a := range set {
		r.aside[a.Node] = a.Said
	}
	for name := range was {
		if _, still := r.aside[name]; !still {
			back = true
		}
	}
	return set, back
}

// Observe is told how many nodes a snapshot has.
func (r *rejects) Observe(nodes int) { r.look(time.Now(), nodes) }

// Renew notes that a node of that name is gone: one that comes is another one, which rejected nobody.
func (r *rejects) Renew(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book.Forget(node)
	delete(r.aside, node)
}

func (r *rejects) isAside(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, aside := r.aside[node]
	return aside
}

// Ill says whether nothing of a gang may go to a node, and why: Holdfast has put it aside, or it rejects members.
func (r *rejects) Ill(node *v1.Node) (cause string, sick bool) {
	if cause, sick = unhealthy(node); !sick && r.isAside(node.Name) {
		return causeRejects, true
	}
	return cause, sick
}

// rejected notes that a node rejected a member.
func (p *Plugin) rejected(logger klog.Logger, key types.NamespacedName, pod, node, said string) {
	if node == "" {
		return
	}
	now := time.Now()
	p.rejects.mu.Lock()
	set := p.rejects.book.Reject(node, said, now)
	p.rejects.mu.Unlock()
	p.measures.rejected.Inc()
	logger.Info("A node rejected a member of a gang", "gang", key, "pod", pod, "node", node, "said", said, "setAside", set)
}

// started notes that a member runs on its node.
func (p *Plugin) started(node string) {
	p.rejects.mu.Lock()
	defer p.rejects.mu.Unlock()
	p.rejects.book.Start(node, time.Now())
}

// refusedByKubelet is what a kubelet says that did not admit a pod; ok is false for a pod that ended otherwise.
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
	return reason, strings.HasPrefix(reason, "OutOf") || slices.Contains([]string{"UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "AdmissionError"}, reason)
}

// noteEnd looks at a member that is not there any more, or over: did its node reject it? A scheduler's informer tells a
// failure as the deletion of the pod as it was before, so it is read where it never ran.
func (p *Plugin) noteEnd(logger klog.Logger, key types.NamespacedName, pod *v1.Pod) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || pod.Status.Phase == v1.PodRunning || pod.Status.Phase == v1.PodSucceeded || !p.rejects.acts() {
		return
	}
	if said, ok := refusedByKubelet(pod); ok {
		p.rejected(logger, key, pod.Name, pod.Spec.NodeName, said)
		return
	}
	if over(pod) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		now, err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || now.UID != pod.UID {
			return // it is gone, and nobody can say why
		}
		if said, ok := refusedByKubelet(now); ok {
			p.rejected(logger, key, now.Name, now.Spec.NodeName, said)
		}
	}()
}

// noteBinding looks at a binding that failed. Only a no that is about this pod on this node counts: what is wrong with
// the API server is wrong with all nodes.
func (p *Plugin) noteBinding(logger klog.Logger, key types.NamespacedName, pod *v1.Pod, node string, err error) {
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		p.rejected(logger, key, pod.Name, node, "binding: "+string(apierrors.ReasonForError(err)))
	}
}

// noteStuck counts members whose containers do not start though most of their gang run, and wakes refused gangs once a
// node is back.
func (p *Plugin) noteStuck(logger klog.Logger, now time.Time) {
	stuck := p.gangs.Stuck(now.Add(-p.args.StartPatience.Duration))
	p.rejects.mu.Lock()
	var count []gangcache.StuckMember
	there := make(map[types.UID]time.Time, len(stuck))
	for _, m := range stuck {
		last, known := p.rejects.stuck[m.Pod.UID]
		if !known || now.Sub(last) >= p.args.StartPatience.Duration {
			count, last = append(count, m), now
		}
		there[m.Pod.UID] = last
	}
	p.rejects.stuck = there
	p.rejects.mu.Unlock()
	for _, m := range count {
		p.rejected(logger, m.Key, m.Pod.Name, m.Pod.Spec.NodeName, "containers do not start")
	}
	set, back := p.rejects.look(now, 0)
	p.measures.aside.Set(float64(len(set)))
	if back {
		for _, key := range p.gangs.Refused() {
			p.wake(logger, key)
		}
	}
}
