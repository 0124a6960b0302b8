package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/membership"
)

// InvalidError says what is wrong with a question.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

func invalid(format string, args ...any) error {
	return &InvalidError{text: fmt.Sprintf(format, args...)}
}

// preview answers for a gang of the given pods on the present snapshot, as planning would: beside the members
// that exist, and what other plans hold. It belongs to the scheduling goroutine.
func (p *Plugin) preview(ctx context.Context, pods []*v1.Pod) (v1alpha1.PreviewResponse, error) {
	r, err := p.supposed(pods)
	if err != nil {
		return v1alpha1.PreviewResponse{}, err
	}
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return v1alpha1.PreviewResponse{}, fmt.Errorf("listing the snapshot's nodes: %w", err)
	}
	out := v1alpha1.PreviewResponse{Nodes: int32(len(nodes))}
	if len(r.members) < r.size {
		no := gang.Incomplete(gang.Census{Size: r.size, Exist: len(r.members), Bound: r.onNodes()})
		out.Placement = status.Refused(no)
		return out, nil
	}
	if unknown := p.unmade(r); unknown != nil {
		out.Placement = status.Refused(*unknown)
		return out, nil
	}
	placement, no, err := p.answer(ctx, nodes, r, nil)
	if err != nil {
		return v1alpha1.PreviewResponse{}, err
	}
	if no != nil {
		out.Placement, out.Excluded = status.Refused(*no), excludedByCause(*no)
		return out, nil
	}
	out.Placement = status.Placed(placement.Nodes())
	out.Placement.Message = fmt.Sprintf("%d of %d pods would be placed", placement.Placed, len(r.members))
	out.Placement.Wanted, out.Placement.Fits = int32(placement.Placed), int32(placement.Placed)
	for _, s := range placement.Seats {
		out.Seats = append(out.Seats, v1alpha1.PreviewSeat{Slot: int32(s.Slot), Pod: s.Member, Node: s.Node})
	}
	return out, nil
}

// unmade says so where an answer hangs on claims that are made from templates once the pods are there: the framework's filters
// know of no other claims than those that exist.
func (p *Plugin) unmade(r roster) *gang.Refusal {
	i := slices.IndexFunc(r.members, func(m member) bool { return m.state == pending && awaitsClaims(m.pod) })
	if i < 0 || p.handle.SharedDRAManager() == nil {
		return nil
	}
	return &gang.Refusal{Reason: gang.Unsupported, Wanted: r.size, Message: fmt.Sprintf(
		"a preview cannot tell which devices pod %s would get: its resource claims are made from a template once the pod is there: leave spec.resourceClaims out to ask about all else", r.members[i].pod.Name)}
}

// supposed is the roster of the gang if the pods existed: they come beside the members that do.
func (p *Plugin) supposed(pods []*v1.Pod) (roster, error) {
	key, ok := p.mine(pods[0])
	if !ok {
		return roster{}, invalid("pod %s is in no gang, it has no label %s and names no PodGroup: preview a job that Holdfast places", pods[0].Name, v1alpha1.LabelGang)
	}
	terms, err := p.groups.Terms(key, pods[0])
	if err != nil {
		return roster{}, invalid("%v", err)
	}
	r := p.ledger.muster(key)
	r.size, r.terms, r.least = max(terms.Size, len(r.members)), terms, terms.Min
	taken, names := map[slot]bool{}, map[string]bool{}
	for _, m := range r.members {
		taken[m.slot], names[m.pod.Name] = m.slot.known, true
	}
	for i, pod := range pods {
		if other, ok := p.mine(pod); !ok || other != key {
			return roster{}, invalid("pod %s is not of gang %s, as pod %s is: preview one gang at a time", pod.Name, key.Name, pods[0].Name)
		}
		pod = pod.DeepCopy()
		pod.Spec.NodeName, pod.UID = "", types.UID(fmt.Sprintf("preview-%d", i))
		askForLimits(pod)
		if pod.Name == "" {
			pod.Name = fmt.Sprintf("%s-%d", key.Name, i)
		}
		m := member{pod: pod, slot: slotOf(pod), role: roleOf(pod), task: membership.TaskOf(pod)}
		if taken[m.slot] {
			continue // somebody holds the slot
		}
		if names[pod.Name] {
			return roster{}, invalid("two pods are named %s: give each a name", pod.Name)
		}
		taken[m.slot], names[pod.Name] = m.slot.known, true
		r.members = append(r.members, m)
	}
	if terms.Min > 0 {
		r.size = max(terms.Size, len(r.members))
	}
	slices.SortFunc(r.members, bySlot)
	return r, nil
}

// askForLimits requests what is limited and not requested, as the API server does with a pod that it stores.
func askForLimits(pod *v1.Pod) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for name, limit := range r.Limits {
				if _, ok := r.Requests[name]; ok {
					continue
				}
				if r.Requests == nil {
					r.Requests = v1.ResourceList{}
				}
				r.Requests[name] = limit
			}
		}
	}
}

// muster returns the members that exist, whatever is missing.
func (l *ledger) muster(key types.NamespacedName) roster {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r roster
	if g := l.groups[key]; g != nil {
		for _, m := range g.members {
			r.members = append(r.members, *m)
		}
	}
	return r
}

func (r roster) onNodes() int {
	n := 0
	for _, m := range r.members {
		if m.state != pending {
			n++
		}
	}
	return n
}

// excludedByCause lists excluded nodes by why, the most first.
func excludedByCause(r gang.Refusal) []v1alpha1.PreviewExcluded {
	var all []v1alpha1.PreviewExcluded
	for cause, nodes := range r.Excluded {
		named := slices.Sorted(slices.Values(nodes))
		named = named[:min(len(named), v1alpha1.MaxPreviewNames)]
		all = append(all, v1alpha1.PreviewExcluded{Cause: cause.String(), Count: int32(len(nodes)), Nodes: named})
	}
	slices.SortFunc(all, func(a, b v1alpha1.PreviewExcluded) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cause, b.Cause))
	})
	return all
}
