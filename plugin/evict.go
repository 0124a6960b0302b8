package plugin

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/util/workqueue"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/internal/membership"
)

const (
	// evictAtOnce is how many evictions are under way at a time; evictAgain is how long one waits that a disruption
	// budget refused.
	evictAtOnce = 32
	evictAgain  = time.Second
)

// eviction is a batch of pods that are told to leave.
type eviction struct {
	// whom they make room for, such as "gang ns/train".
	whom string
	// priority is theirs: who is not of a lower one leaves because it stayed too long in room that is reserved.
	priority int32
	pods     []*v1.Pod
	// until is when it is given up; stands says whether room is still wanted.
	until  time.Time
	stands func() bool
}

// evict tells pods to leave, with their own grace. A gang of ours is drained by that as when somebody drains its nodes.
// Each pod is told once, in one batch; one whose eviction is refused is told again only while the room is wanted: once
// it is found claims.Elsewhere, or nobody needs it, nobody leaves for it any more.
func (p *Plugin) evict(ctx context.Context, e eviction) {
	ctx, cancel := context.WithDeadline(ctx, e.until)
	defer cancel()
	logger := klog.FromContext(ctx)
	told := map[types.NamespacedName]bool{}
	for _, pod := range e.pods {
		unit, member := membership.GroupOf(pod)
		with := ", with all of its gang"
		if !member {
			unit, with = types.NamespacedName{Namespace: pod.Namespace, Name: "pod " + pod.Name}, ""
		}
		if !told[unit] { // once for a whole gang
			told[unit] = true
			why := " of higher priority"
			if corev1helpers.PodPriority(pod) >= e.priority {
				why = ", in whose reserved room it is beyond its declared run time"
			}
			p.handle.EventRecorder().WithLogger(logger).Eventf(pod, nil, v1.EventTypeNormal, reasonPreempted, "Preempting", "makes room for %s%s%s", e.whom, why, with)
		}
	}
	left, batch := e.pods, true
	err := wait.PollUntilContextCancel(ctx, evictAgain, true, func(ctx context.Context) (bool, error) {
		if batch || e.stands() {
			left, batch = p.tell(ctx, e.whom, left), false
			return len(left) == 0, nil
		}
		logger.Info("Evictions that were refused are not tried again: the room is not wanted any more", "for", e.whom, "pods", len(left))
		return true, nil
	})
	if err != nil {
		logger.Error(err, "Pods that were to make room were not evicted in time", "for", e.whom, "pods", len(left), "first", klog.KObj(left[0]))
	}
}

// tell tells each pod to leave and returns those whose eviction was refused.
func (p *Plugin) tell(ctx context.Context, whom string, pods []*v1.Pod) (refused []*v1.Pod) {
	logger := klog.FromContext(ctx)
	no := make([]bool, len(pods))
	workqueue.ParallelizeUntil(ctx, evictAtOnce, len(pods), func(i int) {
		pod := pods[i]
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}}
		err := p.handle.ClientSet().PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction)
		if no[i] = err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err); no[i] {
			logger.V(2).Info("Evicting a pod that makes room; will be tried again", "for", whom, "pod", klog.KObj(pod), "reason", err)
		}
	})
	for i, pod := range pods {
		if no[i] {
			refused = append(refused, pod)
		}
	}
	return refused
}

// reasonPreempted is kube-scheduler's own word for it.
const reasonPreempted = "Preempted"

// budgets are the disruption budgets of the pods that are looked at.
type budgets struct {
	lister  policylisters.PodDisruptionBudgetLister
	byName  map[types.NamespacedName]int
	allowed []int
	// in are the namespaces' budgets, read once.
	in map[string][]budget
}

type budget struct {
	index int
	of    labels.Selector
	// done are pods that the budget has counted as leaving already.
	done map[string]metav1.Time
}

func (p *Plugin) budgets() *budgets {
	return &budgets{lister: p.disruption, in: map[string][]budget{}}
}

// count adds a pod to the budgets of its unit. One that cannot be read allows nothing.
func (b *budgets) count(u *yield.Unit, pod *v1.Pod) {
	all, known := b.in[pod.Namespace]
	if !known {
		list, err := b.lister.PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
		if err != nil {
			list = nil
		}
		for _, pdb := range list {
			selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
			if err != nil || selector.Empty() {
				continue
			}
			all = append(all, budget{index: len(b.allowed), of: selector, done: pdb.Status.DisruptedPods})
			b.allowed = append(b.allowed, max(0, int(pdb.Status.DisruptionsAllowed)))
		}
		b.in[pod.Namespace] = all
	}
	for _, one := range all {
		if _, already := one.done[pod.Name]; already || !one.of.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if u.Budgets == nil {
			u.Budgets = map[int]int{}
		}
		u.Budgets[one.index]++
	}
}

// worthAge is how old the newest stored steps may be, as they are known, when it is decided who leaves.
const worthAge = 10 * time.Second

// worth is since when gangs have work that nobody stored: what they would lose. It is read when it is needed.
type worth struct {
	gangs dynamic.NamespaceableResourceInterface

	mu      sync.Mutex
	reading bool
	at      time.Time
	stored  map[types.NamespacedName]time.Time
}

// firstRead bounds how long scheduling waits for the first reading.
const firstRead = 2 * time.Second

// known says whether what gangs would lose is known well enough: not long ago, or since it was asked for, which may be longer, for who
// asked comes back when it is its turn. If not it is read. The first time it is waited for: a replica that takes over in the middle of a
// batch must hold what becomes free before others are planned.
func (w *worth) known(ctx context.Context, now, asked time.Time) bool {
	w.mu.Lock()
	first := w.at.IsZero()
	w.mu.Unlock()
	if first {
		ctx, cancel := context.WithTimeout(ctx, firstRead)
		defer cancel()
		w.read(ctx)
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.at) < worthAge || (!asked.IsZero() && w.at.After(asked)) {
		return true
	}
	if !w.reading {
		w.reading = true
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), worthAge/2)
			defer cancel()
			w.read(ctx)
		}()
	}
	return false
}

// read asks the API server. What cannot be read counts from when pods started: that is no reason to keep anybody out.
func (w *worth) read(ctx context.Context) {
	list, err := w.gangs.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	stored := map[types.NamespacedName]time.Time{}
	if err == nil {
		for i := range list.Items {
			u := &list.Items[i]
			text, _, _ := unstructured.NestedString(u.Object, "status", "run", "durable", "at")
			if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
				stored[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = at
			}
		}
	} else {
		klog.FromContext(ctx).Info("Reading what gangs have stored; the time since their pods started counts", "reason", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading, w.at = false, time.Now()
	if err == nil {
		w.stored = stored
	}
}

// since is from when on a pod's work would be lost.
func (w *worth) since(pod *v1.Pod) time.Time {
	from := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		from = pod.Status.StartTime.Time
	}
	key, member := membership.GroupOf(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.stored[key]; member && at.After(from) {
		return at
	}
	return from
}
