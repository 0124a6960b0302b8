// Package frameworktest provides kube-scheduler's framework, with its default profile, to tests that need filters but
// no scheduler. Only the test changes the nodes.
package frameworktest

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// Framework is a framework over the nodes and pods that the test adds.
type Framework struct {
	framework.Framework
	// Client is the client of an empty API server.
	Client *fake.Clientset
	// Filtered counts filter runs, one for each pod and node.
	Filtered atomic.Int64

	t     testing.TB
	cache cache.Cache
	view  *cache.Snapshot
}

// RunFilterPluginsWithNominatedPods counts its calls in Filtered.
func (f *Framework) RunFilterPluginsWithNominatedPods(
	ctx context.Context,
	state fwk.CycleState,
	pod *v1.Pod,
	node fwk.NodeInfo,
) *fwk.Status {
	f.Filtered.Add(1)
	return f.Framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
}

// New returns a framework over the given nodes and pods.
func New(t testing.TB, objects ...runtime.Object) *Framework {
	t.Helper()
	metrics.Register()
	f := &Framework{t: t, Client: fake.NewClientset(), cache: cache.New(t.Context(), nil, false, false), view: cache.NewEmptySnapshot()}
	recorder := events.NewFakeRecorder(1000)
	var err error
	f.Framework, err = frameworkruntime.NewFramework(
		t.Context(),
		plugins.NewInTreeRegistry(),
		profile(t),
		frameworkruntime.WithClientSet(f.Client),
		frameworkruntime.WithEventRecorder(recorder),
		frameworkruntime.WithInformerFactory(informers.NewSharedInformerFactory(f.Client, 0)),
		frameworkruntime.WithSnapshotSharedLister(f.view),
		frameworkruntime.WithPodNominator(queue.NewTestQueue(t.Context(), nil)),
	)
	if err != nil {
		t.Fatal(err)
	}
	f.Add(objects...)
	return f
}

// profile is kube-scheduler's default profile without plugins that need a manager of claims or of volumes.
func profile(t testing.TB) *schedulerapi.KubeSchedulerProfile {
	t.Helper()
	obj, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(`{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg, ok := obj.(*schedulerapi.KubeSchedulerConfiguration)
	if !ok {
		t.Fatalf("the default configuration is a %T", obj)
	}
	p := cfg.Profiles[0]
	p.SchedulerName = v1alpha1.SchedulerName
	p.Plugins.MultiPoint.Enabled = slices.DeleteFunc(p.Plugins.MultiPoint.Enabled, func(e schedulerapi.Plugin) bool {
		return e.Name == names.DynamicResources || e.Name == names.NodeVolumeLimits
	})
	return &p
}

// Add adds nodes, and pods on their nodes.
func (f *Framework) Add(objects ...runtime.Object) {
	f.t.Helper()
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			f.cache.AddNode(klog.Background(), o)
		case *v1.Pod:
			if err := f.cache.AddPod(klog.Background(), o); err != nil {
				f.t.Fatal(err)
			}
		default:
			f.t.Fatalf("unexpected %T", o)
		}
	}
}

// Cache returns the cache behind the snapshot.
func (f *Framework) Cache() cache.Cache { return f.cache }

// Remove removes a node.
func (f *Framework) Remove(node *v1.Node) {
	f.t.Helper()
	if err := f.cache.RemoveNode(klog.Background(), node); err != nil {
		f.t.Fatal(err)
	}
}

// Nodes updates the snapshot and returns its nodes.
func (f *Framework) Nodes() []fwk.NodeInfo {
	f.t.Helper()
	if err := f.cache.UpdateSnapshot(klog.Background(), f.view); err != nil {
		f.t.Fatal(err)
	}
	all, err := f.view.NodeInfos().List()
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// Well is a planner.Health without excluded nodes.
type Well struct{}

// Unhealthy returns false.
func (Well) Unhealthy(*v1.Node, string) (string, bool) { return "", false }

// Observe does nothing.
func (Well) Observe(int) {}

// Renew does nothing.
func (Well) Renew(string) {}

// Cache returns a cache of gangs whose terms come from their pods alone; every pod is a role of its own.
func Cache() *gangcache.Cache {
	return gangcache.New(gangcache.Config{
		Terms:        Terms,
		Role:         func(pod *v1.Pod) string { return string(pod.UID) },
		AwaitsClaims: func(*v1.Pod) bool { return false },
	})
}

// Terms returns the terms in a pod's annotations.
func Terms(_ types.NamespacedName, pod *v1.Pod) (gangcache.Terms, error) {
	return gangcache.OwnTerms(pod)
}
