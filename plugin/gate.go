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

// GateName is the name of the plugin that holds members back, in a KubeSchedulerConfiguration. It does what the plugin Name would do at
// PreEnqueue, and is another one for the queue's sake: at each change of the cluster the queue asks a plugin about every pod that it holds
// back, one after another under its lock, unless it registered no event of that kind. This one is woken by the cache of gangs, and by a
// change of the pod itself. Without it Name holds members back itself, and large gangs that wait slow down the others.
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
	if p == nil { // plugins of a profile are made in no order
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

// gated reports whether GateName holds members back in this profile.
func (p *Plugin) gated() bool {
	p.gateOnce.Do(func() {
		p.gate = slices.ContainsFunc(p.handle.ListPlugins().PreEnqueue.Enabled, func(e schedulerapi.Plugin) bool { return e.Name == GateName })
	})
	return p.gate
}
