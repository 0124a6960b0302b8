package plugin

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/groups"
	"holdfast.dev/holdfast/topology"
)

// Gangs that other people's APIs make. What such an object says comes and changes by itself, apart from pods; all else is
// as with any other gang.

func isForeign(key types.NamespacedName) bool {
	_, _, foreign := membership.Foreign(key)
	return foreign
}

// revise takes over what a group's object says now. The object's own status is brought up to date as well: it may wait
// for that before there are any pods.
func (p *Plugin) revise(logger klog.Logger, key types.NamespacedName) {
	change, again, broken := p.ledger.revise(key)
	if broken {
		p.abandon(logger, key, "the group was changed")
	}
	if again != nil {
		p.activate(logger, []*v1.Pod{again})
	} else if change.completed {
		p.wake(logger, key)
	}
	p.status.soon(key)
}

// reviseAll does so for all gangs of an API, and has gangs that were refused planned anew where the fabric changed.
func (p *Plugin) reviseAll(logger klog.Logger, resource string) {
	if resource == groups.HyperNodes {
		for _, key := range p.ledger.keys(func(_ types.NamespacedName, g *group) bool { return g.refusal != nil }) {
			p.wake(logger, key)
		}
		return
	}
	for _, key := range p.ledger.keys(func(key types.NamespacedName, _ *group) bool { return strings.HasPrefix(key.Name, resource+"/") }) {
		p.revise(logger, key)
	}
}

// tellGroup has people told of something about a group's object.
func (p *Plugin) tellGroup(object *v1.ObjectReference, reason, note string) {
	p.handle.EventRecorder().Eventf(object, nil, v1.EventTypeWarning, reason, "Placing", "%s", note)
}

// revise asks for a gang's terms again. again is the pod that was refused by the old ones, or for lack of room, and is to
// ask once more; broken: an open plan is void.
func (l *ledger) revise(key types.NamespacedName) (c change, again *v1.Pod, broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil {
		return change{}, nil, false
	}
	was, old := g.wanting(), g.terms
	for _, m := range g.members {
		g.agree(l.terms(key, m.pod))
		break
	}
	g.settle()
	if first := g.first(); first != nil && !g.open && (g.told != "" || g.refusal != nil && !reflect.DeepEqual(old, g.terms)) {
		again = first.pod
	}
	return change{completed: !was && g.wants()}, again, g.open && !g.complete()
}

// keys lists gangs.
func (l *ledger) keys(which func(types.NamespacedName, *group) bool) []types.NamespacedName {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []types.NamespacedName
	for key, g := range l.groups {
		if which(key, g) {
			keys = append(keys, key)
		}
	}
	return keys
}

// isOpen says whether a plan stands that not all have followed.
func (l *ledger) isOpen(key types.NamespacedName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	return g != nil && g.open
}

// placedStatus is the status of a gang that is whole.
func (g *group) placedStatus() v1alpha1.PlacementStatus {
	s := status.Placed(g.nodesBySlot())
	if more := len(g.members) - len(s.Nodes); more > 0 {
		s.Message = fmt.Sprintf("%d of %d pods are on nodes, %d are needed", len(s.Nodes), len(g.members), g.terms.Min)
		if g.refusal != nil {
			s.Message += ": " + g.refusal.Message
		}
	}
	return s
}

// essential names the members to be placed that must be, because their tasks need them: those of the lowest slots.
func (r roster) essential() map[types.UID]bool {
	if len(r.terms.Tasks) == 0 {
		return nil
	}
	have, must := map[string]int{}, map[types.UID]bool{}
	for _, m := range r.members {
		have[m.task] += flag(m.state != pending)
	}
	for _, m := range r.members {
		if m.state == pending && have[m.task] < r.terms.Tasks[m.task] {
			have[m.task]++
			must[m.pod.UID] = true
		}
	}
	return must
}

// placed is where a node is, as it was when that was looked up.
type placed struct {
	node    *v1.Node
	domains []string
}

// hypers are the HyperNodes as they are now.
func (f *fabric) hypers() *groups.Tiers {
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
