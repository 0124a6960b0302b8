package planner

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/frameworktest"
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

// stage is a planner over a framework, without a scheduler.
type stage struct {
	*frameworktest.Framework
	t       testing.TB
	planner *Planner
}

func newStage(t testing.TB, objects ...runtime.Object) *stage {
	t.Helper()
	s := &stage{Framework: frameworktest.New(t, objects...), t: t}
	var args schedulingv1alpha1.HoldfastArgs
	args.Default()
	s.planner = New(
		Config{Framework: s.Framework, Args: args, Health: frameworktest.Well{}, Metrics: NewMetrics(), Gangs: frameworktest.Cache(),
			Reserved: func(types.NamespacedName, int32, bool, time.Time) []topology.Assumed { return nil },
			Wake:     func(klog.Logger, types.NamespacedName) {},
		},
	)
	return s
}

// asked returns the snapshot of a gang with the given pods, none of which has a node.
func asked(pods []*v1.Pod) gangcache.Snapshot {
	of := gangcache.Snapshot{Size: len(pods)}
	for _, p := range pods {
		of.Members = append(of.Members, gangcache.Member{Pod: p, Slot: gangcache.SlotOf(p), Role: RoleOf(p)})
	}
	return of
}

// answer returns the planner's answer for a gang with the given pods.
func (s *stage) answer(pods []*v1.Pod) (gang.Placement, *gang.Refusal) {
	s.t.Helper()
	placement, refusal, err := s.planner.Answer(s.t.Context(), s.Nodes(), asked(pods))
	if err != nil {
		s.t.Fatal(err)
	}
	return placement, refusal
}
