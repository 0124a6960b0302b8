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
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	"holdfast.dev/holdfast/elastic/coordinator"
	nodecontroller "holdfast.dev/holdfast/nodehealth/controller"
)

const (
	// podsPerJob is how large a gang is.
	podsPerJob = 10
	namespace  = "default"
)

// evict measures many gangs at once that lose every pod: each is taken out of its Job and evicted, while the Jobs make new ones.
// The limit is the same two calls per pod by a client that does nothing else, on the same Jobs, before and after. What evictions cost where
// nobody makes the pods anew stands next to it.
func evict(ctx context.Context, b *bench) error {
	s, err := b.simulate(ctx)
	if err != nil {
		return err
	}
	if err := s.crd(ctx, b.source); err != nil {
		return err
	}
	count := 60
	if b.quick {
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
	take := func(pod corev1.Pod) error { return s.bare(ctx, pod) }
	_, before, err := s.leave(ctx, take)
	if err != nil {
		return fmt.Errorf("the limit: %w", err)
	}
	if rate, err = s.replace(ctx, b, count*podsPerJob); err != nil {
		return fmt.Errorf("holdfast: %w", err)
	}
	_, after, err := s.leave(ctx, take)
	if err != nil {
		return fmt.Errorf("the limit, once more: %w", err)
	}
	b.Add("evict", systemLimit, podsPerSecond, "1/s", before, after)
	b.Add("evict", systemHoldfast, podsPerSecond, "1/s", rate)
	b.Add("evict", systemHoldfast, "vs_limit", "", rate/max(before, after))
	return nil
}

func template(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false),
		NodeSelector:                  map[string]string{"devcluster.holdfast.dev/simulated": "true"},
		TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers:                    []corev1.Container{{Name: "train", Image: "none"}},
	}}
}

// pods follows pods with a label: those that run, and those that were told to go.
func (s *sim) pods(ctx context.Context, selector string, count int) (running, going *seen, stop func(), err error) {
	running, going = newSeen(count), newSeen(count)
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
	look := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		switch {
		case !ok:
		case pod.DeletionTimestamp != nil:
			going.mark(pod.Name)
		case pod.Status.Phase == corev1.PodRunning:
			running.mark(pod.Name)
		}
	}
	gone := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			going.mark(pod.Name)
		}
	}
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }, DeleteFunc: gone}); err != nil {
		cancel()
		return nil, nil, nil, err
	}
	factory.Start(ctx.Done())
	clientcache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	return running, going, cancel, nil
}

// evictAlone is pods per second from the first call to the last pod that is told to go.
func (s *sim) evictAlone(ctx context.Context, count int) (float64, error) {
	running, going, stop, err := s.pods(ctx, "app=alone", count)
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
		return s.client.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}); err != nil {
		return 0, err
	}
	last, err := going.wait(ctx)
	return float64(count) / last.Sub(began).Seconds(), err
}

// silent is a coordinator that does nothing with dooms: the case asks the controller itself.
type silent struct{}

func (silent) Doomed(context.Context, coordinator.Key, []elastic.Doom) error { return nil }
func (silent) Over(coordinator.Key)                                          {}

// gangs makes many Jobs and waits until their pods run; the pods are in no order.
func (s *sim) gangs(ctx context.Context, jobs int) error {
	running, _, stop, err := s.pods(ctx, inJobs, jobs*podsPerJob)
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
			Parallelism: ptr.To[int32](podsPerJob), Completions: ptr.To[int32](podsPerJob), CompletionMode: ptr.To(batchv1.IndexedCompletion), BackoffLimit: ptr.To[int32](0),
			PodReplacementPolicy: ptr.To(batchv1.Failed), Template: template(map[string]string{v1alpha1.LabelGang: name}),
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

// leave has every pod of the gangs replaced: take is called for each, some at a time, and all is over when the last one is
// told to go. It returns pods per second to the last call that returned, and to the last pod that is told to go, and waits
// until the Jobs are whole again.
func (s *sim) leave(ctx context.Context, take func(corev1.Pod) error) (taken, gone float64, err error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: inJobs})
	if err != nil {
		return 0, 0, err
	}
	count := len(list.Items)
	_, going, stop, err := s.pods(ctx, v1alpha1.LabelGang, count)
	if err != nil {
		return 0, 0, err
	}
	defer stop()
	began := time.Now()
	if err := each(list.Items, take); err != nil {
		return 0, 0, err
	}
	taken = float64(count) / time.Since(began).Seconds()
	last, err := going.wait(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("pods that are told to go: %w", err)
	}
	running, _, stopRunning, err := s.pods(ctx, inJobs, count)
	if err != nil {
		return 0, 0, err
	}
	defer stopRunning()
	if _, err := running.wait(ctx); err != nil {
		return 0, 0, fmt.Errorf("new pods that run: %w", err)
	}
	return taken, float64(count) / last.Sub(began).Seconds(), nil
}

// bare does by two calls of its own what the product does, with nothing to decide and nothing to watch.
func (s *sim) bare(ctx context.Context, pod corev1.Pod) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:"true","controller-uid":null,%q:null}}}`, pod.UID, v1alpha1.LabelReplaced, batchv1.ControllerUidLabel)
	if _, err := s.client.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return err
	}
	return s.client.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name}})
}

// replace has the product's controller replace every pod of the gangs.
func (s *sim) replace(ctx context.Context, b *bench, count int) (float64, error) {
	var calls atomic.Int64
	store, stopStore, err := s.elastic(ctx, &calls)
	if err != nil {
		return 0, err
	}
	at := time.Now()
	calls.Store(0)
	taken, gone, err := s.leave(ctx, func(pod corev1.Pod) error {
		key := coordinator.Key{Namespace: namespace, Name: pod.Labels[v1alpha1.LabelGang], Job: string(metav1.GetControllerOf(&pod).UID)}
		return store.Replace(ctx, key, elastic.Doom{Pod: string(pod.UID), Name: pod.Name, Node: pod.Spec.NodeName, Cause: "GPULost", At: at})
	})
	if err == nil {
		b.Add("evict", systemHoldfast, "released_per_s", "1/s", taken)
		b.Add("evict", systemHoldfast, "calls_per_pod", "", float64(calls.Load())/float64(count))
	}
	return gone, errors.Join(err, stopStore())
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

// elastic starts the product's controller as cmd/holdfast-controller does, and counts its requests.
func (s *sim) elastic(ctx context.Context, calls *atomic.Int64) (*elasticcontroller.Controller, func() error, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	config := rest.CopyConfig(s.config)
	elasticcontroller.Tune(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, calls} })
	ofGangs, err := labels.Parse(v1alpha1.LabelGang)
	if err != nil {
		return nil, nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Cache: cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: ofGangs}, &corev1.Node{}: {Transform: nodecontroller.SlimNode}}}})
	if err != nil {
		return nil, nil, err
	}
	store := elasticcontroller.New(elasticcontroller.Options{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("holdfast-elastic"), Log: logr.Discard()})
	if err := store.SetupWithManager(mgr, silent{}); err != nil {
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
