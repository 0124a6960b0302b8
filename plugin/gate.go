package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// GateName is the name, in a KubeSchedulerConfiguration, of the plugin that holds members back. It does at PreEnqueue what plugin Name
// would do, and is separate for the queue's speed: at each change of the cluster the queue calls a plugin for every pod that it gates, one
// after another under its lock, unless the plugin registered no event of that kind. The gang cache wakes this plugin's pods, and changes of
// the pod itself. Without GateName, Name holds members back, and large waiting gangs slow down others.
const GateName = "HoldfastGate"

var (
	_ fwk.PreEnqueuePlugin  = (*gate)(nil)
	_ fwk.EnqueueExtensions = (*gate)(nil)
)

type gate struct {
	instances *Instances
	profile   string
	plugin    atomic.Pointer[Plugin]
}

// NewGate is the factory of the plugin GateName.
func (s *Instances) NewGate(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &gate{instances: s, profile: h.ProfileName()}, nil
}

func (g *gate) Name() string { return GateName }

func (g *gate) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{releases}, nil
}

// PreEnqueue runs under the queue's lock.
func (g *gate) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	p := g.plugin.Load()
	if p == nil { // the framework creates a profile's plugins in any order
		g.instances.mu.Lock()
		p = g.instances.plugins[g.profile]
		g.instances.mu.Unlock()
		if p == nil {
			return fwk.AsStatus(fmt.Errorf("plugin %s is enabled in profile %s, and plugin %s is not: enable both", GateName, g.profile, Name))
		}
		g.plugin.Store(p)
	}
	return p.queueGate(ctx, pod)
}

// gated reports whether the profile has plugin GateName.
func (p *Plugin) gated() bool {
	p.gateOnce.Do(func() {
		p.gate = slices.ContainsFunc(p.handle.ListPlugins().PreEnqueue.Enabled, func(e schedulerapi.Plugin) bool { return e.Name == GateName })
	})
	return p.gate
}
