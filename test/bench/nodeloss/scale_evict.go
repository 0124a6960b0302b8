package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	"holdfast.dev/holdfast/elastic/coordinator"
	nodecontroller "holdfast.dev/holdfast/nodehealth/controller"
	"holdfast.dev/holdfast/test/bench/figure"
)

const (
	// podsPerJob is how large a gang is.
	podsPerJob = 10
	namespace  = "default"
)

// evict measures what the elastic controller writes for many gangs at once that lose every pod: each is taken out of its Job and evicted,
// while the Jobs make new ones. That pods go is decided here, where the coordinator would: it is silent, and there are no agents.
// The limit is the same two calls per pod by a client that does nothing else, on the same Jobs. The machine is not equally fast from minute
// to minute, so the two take turns, and each sample of ours is compared with the mean of the limits right before and right after it. What
// evictions cost where nobody makes the pods anew stands next to it.
func evict(ctx context.Context, b *bench) error {
	s, err := b.simulate(ctx)
	if err != nil {
		return err
	}
	if err := s.crd(ctx, b.Root()); err != nil {
		return err
	}
	count := 60
	if b.Quick {
		count = 3
	}
	rate, err := s.evictAlone(ctx, count*podsPerJob)
	if err != nil {
		return fmt.Errorf("the eviction API alone: %w", err)
	}
	b.Add("evict", systemEviction, podsPerSecond, "1/s", rate)
	if err := s.gangs(ctx, count); err != nil {
		return err
	}
	before, err := s.limit(ctx, b)
	if err != nil {
		return fmt.Errorf("the limit: %w", err)
	}
	for range figure.Repeats(b.repeat, b.Quick) {
		ours, err := s.replace(ctx, b, count*podsPerJob)
		if err != nil {
			return fmt.Errorf("holdfast: %w", err)
		}
		after, err := s.limit(ctx, b)
		if err != nil {
			return fmt.Errorf("the limit: %w", err)
		}
		b.Add("evict", systemHoldfast, "vs_limit", figure.Share, ours.gone/((before.gone+after.gone)/2))
		b.Add("evict", systemHoldfast, "whole_vs_limit", figure.Share, ours.whole/((before.whole+after.whole)/2))
		before = after
	}
	return nil
}

// limit has every pod of the gangs replaced by a client that has nothing to decide and nothing to watch.
func (s *sim) limit(ctx context.Context, b *bench) (pace, error) {
	p, err := s.leave(ctx, func(pod corev1.Pod) error { return s.bare(ctx, pod) })
	if err == nil {
		b.Add("evict", systemLimit, podsPerSecond, "1/s", p.gone)
		b.Add("evict", systemLimit, wholePerSecond, "1/s", p.whole)
	}
	return p, err
}

func template(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false),
		NodeSelector:                  map[string]string{"devcluster.holdfast.dev/simulated": "true"},
		TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers:                    []corev1.Container{{Name: "train", Image: "none"}},
	}}
}

// pods follows pods with a label: those that run and were not taken out of a gang, and those that were told to go.
func (s *sim) pods(ctx context.Context, selector string, running, going *seen) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
	look := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		switch {
		case !ok:
		case pod.DeletionTimestamp != nil:
			going.mark(pod.Name)
		case pod.Status.Phase == corev1.PodRunning && pod.Labels[v1alpha1.LabelReplaced] == "":
			running.mark(pod.Name)
		}
	}
	gone := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			going.mark(pod.Name)
		}
	}
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, obj any) { look(obj) },
		DeleteFunc: gone,
	}); err != nil {
		cancel()
		return nil, err
	}
	factory.Start(ctx.Done())
	clientcache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	return cancel, nil
}

// evictAlone is pods per second from the first call to the last pod that is told to go.
func (s *sim) evictAlone(ctx context.Context, count int) (float64, error) {
	running, going := newSeen(count), newSeen(count)
	stop, err := s.pods(ctx, "app=alone", running, going)
	if err != nil {
		return 0, err
	}
	defer stop()
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("alone-%04d", i)
	}
	t := template(map[string]string{"app": "alone"})
	if err := each(names, func(name string) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: t.Labels}, Spec: t.Spec}
		_, err := s.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}); err != nil {
		return 0, err
	}
	if _, err := running.wait(ctx); err != nil {
		return 0, fmt.Errorf("pods that run: %w", err)
	}
	began := time.Now()
	if err := each(names, func(name string) error {
		return s.client.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      name,
		}})
	}); err != nil {
		return 0, err
	}
	last, err := going.wait(ctx)
	return float64(count) / last.Sub(began).Seconds(), err
}

// ignorant is a coordinator that does nothing with terminations: the case asks the controller itself.
type ignorant struct{}

func (ignorant) SetPendingReplacements(context.Context, coordinator.Key, []elastic.Termination) error {
	return nil
}
func (ignorant) Suspended(context.Context, coordinator.Key, []elastic.Termination) error { return nil }
func (ignorant) SetRetention(context.Context, coordinator.Key, elastic.Retention) error  { return nil }
func (ignorant) Over(coordinator.Key)                                                    {}

// gangs makes many Jobs and waits until their pods run; the pods are in no order.
func (s *sim) gangs(ctx context.Context, jobs int) error {
	running := newSeen(jobs * podsPerJob)
	stop, err := s.pods(ctx, inJobs, running, newSeen(0))
	if err != nil {
		return err
	}
	defer stop()
	numbers := make([]int, jobs)
	for i := range numbers {
		numbers[i] = i
	}
	if err := each(numbers, func(i int) error {
		name := fmt.Sprintf("gang-%03d", i)
		_, err := s.client.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
			Parallelism:          ptr.To[int32](podsPerJob),
			Completions:          ptr.To[int32](podsPerJob),
			CompletionMode:       ptr.To(batchv1.IndexedCompletion),
			BackoffLimit:         ptr.To[int32](0),
			PodReplacementPolicy: ptr.To(batchv1.Failed),
			Template:             template(map[string]string{v1alpha1.LabelGang: name}),
		}}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if _, err := running.wait(ctx); err != nil {
		return fmt.Errorf("pods of Jobs that run: %w", err)
	}
	return nil
}

// inJobs selects pods of gangs that were not taken out.
const inJobs = v1alpha1.LabelGang + "," + v1alpha1.LabelReplaced + "!=true"

// pace is pods per second since the first call: to the last call that returned, to the last pod that is told to go, and until
// there runs a new pod for each.
type pace struct{ taken, gone, whole float64 }

// leave has every pod of the gangs replaced: take is called for each, some at a time. It is over when the Jobs are whole again.
func (s *sim) leave(ctx context.Context, take func(corev1.Pod) error) (p pace, err error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: inJobs})
	if err != nil {
		return p, err
	}
	count := len(list.Items)
	old := map[string]bool{}
	for i := range list.Items {
		old[list.Items[i].Name] = true
	}
	running, going := newSeen(count), newSeen(count)
	running.counts = func(name string) bool { return !old[name] }
	going.counts = func(name string) bool { return old[name] } // an earlier one may still be going
	stop, err := s.pods(ctx, v1alpha1.LabelGang, running, going)
	if err != nil {
		return p, err
	}
	defer stop()
	began := time.Now()
	rate := func(until time.Time) float64 { return float64(count) / until.Sub(began).Seconds() }
	if err := each(list.Items, take); err != nil {
		return p, err
	}
	p.taken = rate(time.Now())
	last, err := going.wait(ctx)
	if err != nil {
		return p, fmt.Errorf("pods that are told to go: %w", err)
	}
	p.gone = rate(last)
	if last, err = running.wait(ctx); err != nil {
		return p, fmt.Errorf("new pods that run: %w", err)
	}
	p.whole = rate(last)
	return p, nil
}

// bare does by two calls of its own what the product does, with nothing to decide and nothing to watch.
func (s *sim) bare(ctx context.Context, pod corev1.Pod) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:"true","controller-uid":null,%q:null}}}`, pod.UID, v1alpha1.LabelReplaced, batchv1.ControllerUidLabel)
	if _, err := s.client.CoreV1().Pods(namespace).Patch(
		ctx,
		pod.Name,
		types.MergePatchType,
		[]byte(patch),
		metav1.PatchOptions{},
	); err != nil {
		return err
	}
	return s.client.PolicyV1().
		Evictions(namespace).
		Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name}})
}

// replace has the product's elastic controller replace every pod of the gangs, as if the coordinator had told it to.
func (s *sim) replace(ctx context.Context, b *bench, count int) (pace, error) {
	var calls atomic.Int64
	store, stopStore, err := s.elastic(ctx, &calls)
	if err != nil {
		return pace{}, err
	}
	at := time.Now()
	calls.Store(0)
	p, err := s.leave(ctx, func(pod corev1.Pod) error {
		key := coordinator.Key{Namespace: namespace, Name: pod.Labels[v1alpha1.LabelGang], Job: string(metav1.GetControllerOf(&pod).UID)}
		return store.Replace(ctx, key, elastic.Termination{Pod: string(pod.UID), Name: pod.Name, Node: pod.Spec.NodeName, Cause: "GPULost", At: at})
	})
	if err == nil {
		b.Add("evict", systemHoldfast, podsPerSecond, "1/s", p.gone)
		b.Add("evict", systemHoldfast, wholePerSecond, "1/s", p.whole)
		b.Add("evict", systemHoldfast, "released_per_s", "1/s", p.taken)
		b.Add("evict", systemHoldfast, "calls_per_pod", "", float64(calls.Load())/float64(count))
	}
	return p, errors.Join(err, stopStore())
}

// counted counts the requests that pass.
type counted struct {
	next http.RoundTripper
	n    *atomic.Int64
}

func (c counted) RoundTrip(q *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.next.RoundTrip(q)
}

// elastic starts the product's elastic controller as cmd/holdfast-controller does, but for the coordinator, and counts its requests.
func (s *sim) elastic(ctx context.Context, calls *atomic.Int64) (*elasticcontroller.Controller, func() error, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	tuned := rest.CopyConfig(s.config)
	elasticcontroller.Tune(tuned)
	tuned.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, calls} })
	ofGangs, err := labels.Parse(v1alpha1.LabelGang)
	if err != nil {
		return nil, nil, err
	}
	mgr, err := ctrl.NewManager(tuned, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, // it is started anew for each sample
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:  {Label: ofGangs},
				&corev1.Node{}: {Transform: nodecontroller.SlimNode},
			}}})
	if err != nil {
		return nil, nil, err
	}
	store := elasticcontroller.New(
		elasticcontroller.Options{
			Client:   mgr.GetClient(),
			Live:     mgr.GetAPIReader(),
			Recorder: mgr.GetEventRecorder("holdfast-elastic"),
			Log:      logr.Discard(),
		},
	)
	if err := store.SetupWithManager(mgr, ignorant{}); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		cancel()
		return nil, nil, errors.Join(errors.New("the caches did not fill"), <-ended)
	}
	return store, func() error { cancel(); return <-ended }, nil
}
