package plugin

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/plugin/external"
)

// Groups of other APIs. Their objects appear and change independently of their pods; otherwise they are gangs like any other.

// revise reads a group's object again and updates the object's status: another controller may wait for the status before it creates pods.
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

// reviseAll revises all groups of an API. If the fabric changed, refused gangs are planned again.
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
