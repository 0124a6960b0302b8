package planner

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
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

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/plugintest"
	"holdfast.dev/holdfast/topology"
)

const gpu = plugintest.GPU

var (
	node      = plugintest.Node
	labelled  = plugintest.Labelled
	pod       = plugintest.Pod
	memberPod = plugintest.Member
	gangOf    = plugintest.Gang
	on        = plugintest.On
)

// stage is a planner over the filters of kube-scheduler's default profile, on nodes that only the test changes. There is no
// scheduler, and no API server.
type stage struct {
	t       testing.TB
	planner *Planner
	cache   cache.Cache
	view    *cache.Snapshot
	// filters counts nodes that filters were asked about.
	filters *counting
}

// counting is a framework that counts how often its filters are asked.
type counting struct {
	framework.Framework
	filters atomic.Int64
}

func (c *counting) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c.filters.Add(1)
	return c.Framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
}

// well says of all nodes that gangs may go there.
type well struct{}

func (well) Ill(*v1.Node) (string, bool) { return "", false }
func (well) Observe(int)                 {}
func (well) Renew(string)                {}

func newStage(t testing.TB, objects ...runtime.Object) *stage {
	t.Helper()
	metrics.Register()
	s := &stage{t: t, cache: cache.New(t.Context(), nil, false, false), view: cache.NewEmptySnapshot()}
	client := fake.NewClientset()
	f, err := frameworkruntime.NewFramework(t.Context(), plugins.NewInTreeRegistry(), profile(t), frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)), frameworkruntime.WithSnapshotSharedLister(s.view),
		frameworkruntime.WithPodNominator(queue.NewTestQueue(t.Context(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.filters = &counting{Framework: f}
	var args schedulingv1alpha1.HoldfastArgs
	args.Default()
	s.planner = New(Config{Framework: s.filters, Args: args, Health: well{}, Metrics: NewMetrics(),
		Gangs:    gangcache.New(gangcache.Config{Terms: ownTerms, Role: RoleOf, AwaitsClaims: func(*v1.Pod) bool { return false }}),
		Reserved: func(types.NamespacedName, int32, time.Time) []topology.Taking { return nil },
		Wake:     func(klog.Logger, types.NamespacedName) {},
	})
	s.add(objects...)
	return s
}

func ownTerms(_ types.NamespacedName, pod *v1.Pod) (gangcache.Terms, error) {
	return gangcache.OwnTerms(pod)
}

// profile is kube-scheduler's default one but for what needs a manager of claims or of volumes.
func profile(t testing.TB) *schedulerapi.KubeSchedulerProfile {
	t.Helper()
	obj, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(`{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := obj.(*schedulerapi.KubeSchedulerConfiguration).Profiles[0]
	p.SchedulerName = v1alpha1.SchedulerName
	p.Plugins.MultiPoint.Enabled = slices.DeleteFunc(p.Plugins.MultiPoint.Enabled, func(e schedulerapi.Plugin) bool {
		return e.Name == names.DynamicResources || e.Name == names.NodeVolumeLimits
	})
	return &p
}

func (s *stage) add(objects ...runtime.Object) {
	s.t.Helper()
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			s.cache.AddNode(klog.Background(), o)
		case *v1.Pod:
			if err := s.cache.AddPod(klog.Background(), o); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// nodes are those of a snapshot that is up to date.
func (s *stage) nodes() []fwk.NodeInfo {
	s.t.Helper()
	if err := s.cache.UpdateSnapshot(klog.Background(), s.view); err != nil {
		s.t.Fatal(err)
	}
	all, err := s.view.NodeInfos().List()
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// asked is a gang of the given pods, none of which has a node.
func asked(pods []*v1.Pod) gangcache.Snapshot {
	of := gangcache.Snapshot{Size: len(pods)}
	for _, p := range pods {
		of.Members = append(of.Members, gangcache.Member{Pod: p, Slot: gangcache.SlotOf(p), Role: RoleOf(p)})
	}
	return of
}

// answer is the planner's answer for a gang of the given pods.
func (s *stage) answer(pods []*v1.Pod) (gang.Placement, *gang.Refusal) {
	s.t.Helper()
	placement, no, err := s.planner.Answer(s.t.Context(), s.nodes(), asked(pods), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return placement, no
}
