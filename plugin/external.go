package plugin

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/plugin/external"
)

// Gangs that other people's APIs make. What such an object says comes and changes by itself, apart from pods; all else is
// as with any other gang.

// revise takes over what a group's object says now, and updates the object's own status: some other controller may wait
// for that before it creates pods.
func (p *Plugin) revise(logger klog.Logger, key types.NamespacedName) {
	change, again, broken := p.gangs.Revise(key)
	if broken {
		p.abandon(logger, key, "the group was changed")
	}
	if again != nil {
		p.activate(logger, []*v1.Pod{again})
	} else if change.Completed {
		p.wake(logger, key)
	}
	p.status.soon(key)
}

// reviseAll revises all gangs of an API, and has refused gangs planned again where the fabric changed.
func (p *Plugin) reviseAll(logger klog.Logger, resource string) {
	if resource == external.HyperNodes {
		for _, key := range p.gangs.AllRefused() {
			p.wake(logger, key)
		}
		return
	}
	for _, key := range p.gangs.OfResource(resource) {
		p.revise(logger, key)
	}
}

// emitGroupEvent emits an event on a group's object.
func (p *Plugin) emitGroupEvent(object *v1.ObjectReference, reason, note string) {
	p.handle.EventRecorder().Eventf(object, nil, v1.EventTypeWarning, reason, "Placing", "%s", note)
}
