package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// watched records when the API server showed bound pods and refused gangs.
type watched struct {
	cancel context.CancelFunc
	// id is system.id.
	id func(string) string

	mu sync.Mutex
	// unmade are pods that were not seen; left are pods that are not bound yet; untold are pods without a Scheduled event; refused is the
	// time of a gang's first refusal, by name. Guarded by mu.
	unmade, left, untold          map[string]bool
	lastMade, lastBound, lastTold time.Time
	firstBound                    time.Time
	refused                       map[string]time.Time
	broken                        error
	// news gets a value, without waiting, when one of them changed.
	news chan struct{}
}

// watch starts with the API server's present state. left are the pods that should be bound, never those that should not. The watches are
// informers: if the API server ends the watch of a client that reads too slowly, an informer continues from the version that it has seen.
func (p *plane) watch(ctx context.Context, s system, left, never map[string]bool) (*watched, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watched{
		cancel: cancel, id: s.id, unmade: maps.Clone(left), left: left, untold: maps.Clone(left),
		refused: map[string]time.Time{}, news: make(chan struct{}, 1),
	}
	maps.Copy(w.unmade, never)
	typed := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithNamespace(namespace))
	kinds := dynamicinformer.NewFilteredDynamicSharedInformerFactory(p.dynamic, 0, namespace, nil)
	err := errors.Join(w.follow(typed.Core().V1().Pods().Informer(), w.pod), w.follow(typed.Core().V1().Events().Informer(), w.event))
	switch s.name {
	case systemHoldfast:
		err = errors.Join(err, w.follow(kinds.ForResource(gangsResource).Informer(), w.gang))
	case systemNative:
		err = errors.Join(err, w.follow(typed.Scheduling().V1beta1().PodGroups().Informer(), w.podGroup))
	}
	typed.StartWithContext(ctx)
	kinds.Start(ctx.Done())
	synced, done := context.WithTimeout(ctx, timeout)
	defer done()
	err = errors.Join(err, typed.WaitForCacheSyncWithContext(synced).AsError())
	for kind, ok := range kinds.WaitForCacheSync(synced.Done()) {
		if !ok {
			err = errors.Join(err, fmt.Errorf("the watch of %s did not begin", kind.Resource))
		}
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watching what the systems write: %w", err)
	}
	return w, nil
}

// follow notes each state of an object that an informer receives.
func (w *watched) follow(informer cache.SharedIndexInformer, note func(any)) error {
	seen := func(obj any) {
		w.mu.Lock()
		note(obj)
		w.mu.Unlock()
		w.tell()
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, obj any) { seen(obj) }})
	return err
}

func (w *watched) tell() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// fail ends all waits.
func (w *watched) fail(err error) {
	w.mu.Lock()
	w.broken = err
	w.mu.Unlock()
	w.tell()
}

func (w *watched) stop() { w.cancel() }

func (w *watched) pod(obj any) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	id := w.id(p.Name)
	if w.unmade[id] {
		delete(w.unmade, id)
		w.lastMade = time.Now()
	}
	if p.Spec.NodeName != "" && w.left[id] {
		delete(w.left, id)
		w.lastBound = time.Now()
		if w.firstBound.IsZero() {
			w.firstBound = w.lastBound
		}
	}
	// Coscheduling writes a gang's refusal on each of its pods.
	if group := p.Labels["scheduling.x-k8s.io/pod-group"]; group != "" {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				w.refuse(group)
			}
		}
	}
}

// scheduledReason is the reason of the event for a bound pod.
const scheduledReason = "Scheduled"

func (w *watched) event(obj any) {
	e, ok := obj.(*corev1.Event)
	if !ok || e.Reason != scheduledReason {
		return
	}
	if id := w.id(e.InvolvedObject.Name); w.untold[id] {
		delete(w.untold, id)
		w.lastTold = time.Now()
	}
}

func (w *watched) gang(obj any) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	if reason, _, _ := unstructured.NestedString(u.Object, "status", "placement", "reason"); reason == v1alpha1.ReasonInsufficientNodes {
		w.refuse(u.GetName())
	}
}

func (w *watched) podGroup(obj any) {
	g, ok := obj.(*schedulingv1beta1.PodGroup)
	if !ok {
		return
	}
	for _, c := range g.Status.Conditions {
		if c.Status == metav1.ConditionFalse && c.Message != "" {
			w.refuse(g.Name)
		}
	}
}

func (w *watched) refuse(name string) {
	if w.refused[name].IsZero() {
		w.refused[name] = time.Now()
	}
}

// allMade returns the time at which the last pod was seen.
func (w *watched) allMade(ctx context.Context) (time.Time, error) {
	var last time.Time
	err := w.until(ctx, func() string {
		if last = w.lastMade; len(w.unmade) == 0 {
			return ""
		}
		return fmt.Sprintf("%d pods do not exist", len(w.unmade))
	})
	return last, err
}

// allBound returns the times at which the first and the last of them were seen bound.
func (w *watched) allBound(ctx context.Context) (first, last time.Time, err error) {
	err = w.until(ctx, func() string {
		if first, last = w.firstBound, w.lastBound; len(w.left) == 0 {
			return ""
		}
		return fmt.Sprintf("%d pods are not bound", len(w.left))
	})
	return first, last, err
}

// toldQuiet is how long to wait for another event: kube-scheduler drops events if its queue is full.
const toldQuiet = 10 * time.Second

// allTold returns the time of the last Scheduled event, and the number of bound pods without one.
func (w *watched) allTold(ctx context.Context) (last time.Time, missing int, err error) {
	tick := time.NewTicker(toldQuiet / 10)
	defer tick.Stop()
	for {
		w.mu.Lock()
		missing, err = len(w.untold), w.broken
		if last = w.lastBound; w.lastTold.After(last) {
			last = w.lastTold
		}
		w.mu.Unlock()
		if err != nil || missing == 0 || time.Since(last) > toldQuiet {
			return last, missing, err
		}
		select {
		case <-w.news:
		case <-tick.C:
		case <-ctx.Done():
			return last, missing, ctx.Err()
		}
	}
}

// allRefused waits until each gang has its refusal, and returns the longest wait since a gang's last pod was created (whole): not above
// zero if all were refused before.
func (w *watched) allRefused(ctx context.Context, whole map[string]time.Time) (time.Duration, error) {
	var longest time.Duration
	err := w.until(ctx, func() string {
		longest = math.MinInt64
		for name, created := range whole {
			at := w.refused[name]
			if at.IsZero() {
				return "nothing says why gang " + name + " waits"
			}
			longest = max(longest, at.Sub(created))
		}
		return ""
	})
	return longest, err
}

// until waits while missing returns a text.
func (w *watched) until(ctx context.Context, missing func() string) error {
	deadline := time.After(boundTimeout)
	for {
		w.mu.Lock()
		what, broken := missing(), w.broken
		w.mu.Unlock()
		switch {
		case broken != nil:
			return broken
		case what == "":
			return nil
		}
		select {
		case <-w.news:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("after %s %s", boundTimeout, what)
		}
	}
}

// writes is the number of writes that a scheduler's client has sent.
type writes struct{ all float64 }

// written matches the client's count of requests by method; series are few.
var written = regexp.MustCompile(`(?m)^rest_client_requests_total\{.*method="(POST|PUT|PATCH|DELETE)".*\} (\S+)$`)

func scrape(ctx context.Context, port int) (w writes, err error) {
	text, err := get(ctx, port, "/metrics")
	if err != nil {
		return w, fmt.Errorf("counting the scheduler's writes: %w", err)
	}
	for _, m := range written.FindAllSubmatch(bytes.TrimSpace(text), -1) {
		if n, err := strconv.ParseFloat(string(m[2]), 64); err == nil {
			w.all += n
		}
	}
	return w, nil
}
