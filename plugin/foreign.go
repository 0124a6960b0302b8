package plugin

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/plugin/external"
	"holdfast.dev/holdfast/topology"
)

// Gangs that other people's APIs make. What such an object says comes and changes by itself, apart from pods; all else is
// as with any other gang.

// revise takes over what a group's object says now. The object's own status is brought up to date as well: it may wait
// for that before there are any pods.
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

// reviseAll does so for all gangs of an API, and has gangs that were refused planned anew where the fabric changed.
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

// tellGroup has people told of something about a group's object.
func (p *Plugin) tellGroup(object *v1.ObjectReference, reason, note string) {
	p.handle.EventRecorder().Eventf(object, nil, v1.EventTypeWarning, reason, "Placing", "%s", note)
}

// placed is where a node is, as it was when that was looked up.
type placed struct {
	node    *v1.Node
	domains []string
}

// hypers are the HyperNodes as they are now.
func (f *fabric) hypers() *external.Tiers {
	if f.tiers == nil {
		return nil
	}
	return f.tiers()
}

// found are the levels that labels and HyperNodes make. HyperNodes say all that there is to say within a zone.
func (f *fabric) found() []topology.Level {
	levels := topology.Recognise(f.carried)
	tiers := f.hyper.Levels()
	if len(tiers) == 0 {
		return levels
	}
	levels = slices.DeleteFunc(levels, func(l topology.Level) bool { return l.Name != topology.LevelRegion && l.Name != topology.LevelZone })
	return append(levels, tiers...)
}

// domains names a node's domain in each level.
func (f *fabric) domains(node *v1.Node) []string {
	if have, ok := f.places[node.Name]; ok && have.node == node {
		return have.domains
	}
	domains := make([]string, len(f.levels))
	hyper := f.hyper.Place(node)
	for i, l := range f.levels {
		if from := len(f.levels) - len(hyper); i >= from && !f.configured {
			domains[i] = hyper[i-from]
		} else {
			domains[i] = node.Labels[l.Key]
		}
	}
	if f.hyper != nil {
		f.places[node.Name] = placed{node, domains}
	}
	return domains
}
