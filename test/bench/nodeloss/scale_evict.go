package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	"holdfast.dev/holdfast/elastic/coordinator"
)

const (
	// podsPerJob is how large a gang is.
	podsPerJob = 10
	namespace  = "default"
)

// evict measures many gangs at once that lose every pod: each is taken out of its Job and evicted, while the Jobs make new ones.
// The limit is the eviction API alone, on pods that nobody makes anew.
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
		return fmt.Errorf("the limit: %w", err)
	}
	b.Add("evict", systemLimit, podsPerSecond, "1/s", rate)
	if rate, err = s.replace(ctx, b, count); err != nil {
		return fmt.Errorf("holdfast: %w", err)
	}
	b.Add("evict", systemHoldfast, podsPerSecond, "1/s", rate)
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

// replace has the product's controller replace every pod of many Jobs.
func (s *sim) replace(ctx context.Context, b *bench, jobs int) (float64, error) {
	running, going, stop, err := s.pods(ctx, v1alpha1.LabelGang, jobs*podsPerJob)
	if err != nil {
		return 0, err
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
		return 0, err
	}
	if _, err := running.wait(ctx); err != nil {
		return 0, fmt.Errorf("pods of Jobs that run: %w", err)
	}
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelGang})
	if err != nil {
		return 0, err
	}
	store, stopStore, err := s.elastic(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = each(list.Items, func(pod corev1.Pod) error {
		key := coordinator.Key{Namespace: namespace, Name: pod.Labels[v1alpha1.LabelGang], Job: string(metav1.GetControllerOf(&pod).UID)}
		return store.Replace(ctx, key, elastic.Doom{Pod: string(pod.UID), Name: pod.Name, Node: pod.Spec.NodeName, Cause: "GPULost", At: began})
	})
	if err != nil {
		return 0, errors.Join(err, stopStore())
	}
	b.Add("evict", systemHoldfast, "released_per_s", "1/s", float64(len(list.Items))/time.Since(began).Seconds())
	last, err := going.wait(ctx)
	return float64(len(list.Items)) / last.Sub(began).Seconds(), errors.Join(err, stopStore())
}

// elastic starts the product's controller as cmd/holdfast-controller does.
func (s *sim) elastic(ctx context.Context) (*elasticcontroller.Controller, func() error, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	config := rest.CopyConfig(s.config)
	config.QPS, config.Burst = writeQPS, writeBurst
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
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
