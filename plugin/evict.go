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
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/internal/translate"
)

const (
	// evictAtOnce is how many evictions are under way at a time; evictAgain is how long one waits that a disruption
	// budget refused.
	evictAtOnce = 32
	evictAgain  = time.Second
)

// evict tells pods to leave, with their own grace, until a time. A gang of ours is drained by that as when somebody
// drains its nodes.
func (p *Plugin) evict(ctx context.Context, key types.NamespacedName, pods []*v1.Pod, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	logger := klog.FromContext(ctx)
	told := map[types.NamespacedName]bool{}
	for _, pod := range pods {
		unit, member := translate.GroupOf(pod)
		if !member {
			unit = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		}
		if !told[unit] { // once for a whole gang
			told[unit] = true
			p.handle.EventRecorder().WithLogger(logger).Eventf(pod, nil, v1.EventTypeNormal, reasonPreempted, "Preempting", "makes room for gang %s of higher priority, with all of its gang", key)
		}
	}
	workqueue.ParallelizeUntil(ctx, evictAtOnce, len(pods), func(i int) {
		pod := pods[i]
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}}
		err := wait.PollUntilContextCancel(ctx, evictAgain, true, func(ctx context.Context) (bool, error) {
			err := p.handle.ClientSet().PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction)
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				logger.V(2).Info("Evicting a pod that makes room; will be tried again", "gang", key, "pod", klog.KObj(pod), "reason", err)
				return false, nil
			}
			return true, nil
		})
		if err != nil {
			logger.Error(err, "A pod that was to make room was not evicted in time", "gang", key, "pod", klog.KObj(pod))
		}
	})
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

// known says whether what gangs would lose is known well enough; if not it is read, and then told.
func (w *worth) known(now time.Time, tell func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.at) < worthAge {
		return true
	}
	if !w.reading {
		w.reading = true
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), worthAge/2)
			defer cancel()
			w.read(ctx)
			tell()
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
	key, member := translate.GroupOf(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.stored[key]; member && at.After(from) {
		return at
	}
	return from
}
