package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientcache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth/budget"
	nodecontroller "holdfast.dev/holdfast/nodehealth/controller"
	"holdfast.dev/holdfast/test/bench/figure"
)

// writeQPS and writeBurst are the product's (cmd/holdfast-controller).
const (
	writeQPS   = 1000
	writeBurst = 2000
)

// cordon measures two thirds of the nodes failing at once, with the budget opened, and then single ones. The limit is the same patches by a
// client that decides nothing.
func cordon(ctx context.Context, b *bench) (err error) {
	s, err := b.simulate(ctx)
	if err != nil {
		return err
	}
	bad := s.nodes[:len(s.nodes)*2/3]
	tainted, err := s.watchTaints(ctx)
	if err != nil {
		return err
	}
	// The limit first, on nodes whose verdicts no controller watches.
	rate, err := s.rate(ctx, tainted, v1alpha1.TaintUnhealthy, bad, func() error {
		return figure.Each(parallel, bad, func(node string) error { return s.patch(ctx, node, v1alpha1.ActionEvict, true) })
	})
	if err != nil {
		return fmt.Errorf("the limit: %w", err)
	}
	b.Add("cordon", systemLimit, nodesPerSecond, "1/s", rate)
	stop, err := s.lead(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	began := time.Now()
	rate, err = s.rate(ctx, tainted, v1alpha1.TaintOutage, bad, func() error { return nil })
	if err != nil {
		return fmt.Errorf("holdfast: %w", err)
	}
	b.Add("cordon", systemHoldfast, nodesPerSecond, "1/s", rate)
	b.Add("cordon", systemHoldfast, "leader_start_to_last_s", "s", time.Since(began).Seconds())
	return s.single(ctx, b, tainted)
}

// taints records on which nodes a taint was seen.
type taints struct{ watch map[string]*seen }

func (s *sim) watchTaints(ctx context.Context) (*taints, error) {
	t := &taints{
		watch: map[string]*seen{v1alpha1.TaintUnhealthy: newSeen(len(s.nodes) * 2 / 3), v1alpha1.TaintOutage: newSeen(len(s.nodes) * 2 / 3)},
	}
	for _, n := range s.nodes[len(s.nodes)*2/3:] { // the nodes of the single verdicts
		t.watch[n] = newSeen(1)
	}
	factory := informers.NewSharedInformerFactory(s.client, 0)
	look := func(obj any) {
		node, ok := obj.(*corev1.Node)
		if !ok {
			return
		}
		for _, taint := range node.Spec.Taints {
			if w := t.watch[taint.Key]; w != nil {
				w.mark(node.Name)
			}
			if w := t.watch[node.Name]; w != nil && taint.Key == v1alpha1.TaintOutage {
				w.mark(node.Name)
			}
		}
	}
	informer := factory.Core().V1().Nodes().Informer()
	if _, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, obj any) { look(obj) },
	}); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !clientcache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, ctx.Err()
	}
	return t, nil
}

// rate is the number of nodes per second from the first taint of that key to the last.
func (s *sim) rate(ctx context.Context, t *taints, key string, nodes []string, do func() error) (float64, error) {
	if err := do(); err != nil {
		return 0, err
	}
	w := t.watch[key]
	last, err := w.wait(ctx)
	if err != nil {
		return 0, err
	}
	return float64(len(nodes)-1) / last.Sub(w.first).Seconds(), nil
}

// patch writes a verdict as a node's daemon does, with or without its taint.
func (s *sim) patch(ctx context.Context, node string, action v1alpha1.NodeAction, taint bool) error {
	text, err := json.Marshal(v1alpha1.NodeHealth{Action: action, Cause: "GPULost", Message: "GPU 3 fell off the bus", Since: metav1.NowMicro()})
	if err != nil {
		return err
	}
	body := map[string]any{"metadata": map[string]any{"annotations": map[string]string{v1alpha1.AnnotationHealth: string(text)}}}
	if taint {
		body["spec"] = map[string]any{"taints": []corev1.Taint{{Key: v1alpha1.TaintUnhealthy, Value: "GPULost", Effect: corev1.TaintEffectNoSchedule}}}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}

// lead starts the product's controller with the budget opened.
func (s *sim) lead(ctx context.Context) (stop func() error, err error) {
	mgr, err := ctrl.NewManager(s.config, ctrl.Options{Scheme: clientgoscheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:          {Transform: nodecontroller.SlimNode},
			&coordinationv1.Lease{}: {Transform: nodecontroller.SlimLease, Namespaces: map[string]cache.Config{corev1.NamespaceNodeLease: {}}},
		}}})
	if err != nil {
		return nil, err
	}
	own := rest.CopyConfig(s.config)
	own.QPS, own.Burst = writeQPS, writeBurst
	writer, err := client.New(own, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return nil, err
	}
	opened := budget.Defaults()
	opened.MaxOut, opened.MaxOutPerDomain, opened.BreakerPercent = budget.Limit{Percent: 100}, budget.Limit{Percent: 100}, 100
	nodes, err := nodecontroller.New(nodecontroller.Options{Informers: mgr.GetCache(), Reader: mgr.GetCache(), Writer: writer,
		Recorder: mgr.GetEventRecorder("holdfast-nodes"), Now: time.Now, Log: logr.Discard(), Budget: opened})
	if err != nil {
		return nil, err
	}
	if err := nodes.SetupWithManager(mgr); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return func() error { cancel(); return <-ended }, nil
}

// single measures one node at a time: from the written verdict to the observed taint.
func (s *sim) single(ctx context.Context, b *bench, t *taints) error {
	well := s.nodes[len(s.nodes)*2/3:]
	for _, node := range well[:min(len(well)-1, 20)] {
		began := time.Now()
		if err := s.patch(ctx, node, v1alpha1.ActionEvict, false); err != nil {
			return err
		}
		if _, err := t.watch[node].wait(ctx); err != nil {
			return err
		}
		b.Add("cordon", systemHoldfast, "verdict_to_taint_ms", "ms", float64(time.Since(began).Microseconds())/1000)
	}
	return nil
}
