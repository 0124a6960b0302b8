package serve

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
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// Preview answers for a gang of the given pods on the present snapshot, as planning would: with the existing members, and with the room of
// other plans. It belongs to the scheduling goroutine.
func (i *Instance) Preview(ctx context.Context, pods []*v1.Pod) (v1alpha1.PreviewResponse, error) {
	r, err := i.hypothetical(pods)
	if err != nil {
		return v1alpha1.PreviewResponse{}, err
	}
	nodes, err := i.Framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return v1alpha1.PreviewResponse{}, fmt.Errorf("listing the snapshot's nodes: %w", err)
	}
	out := v1alpha1.PreviewResponse{Nodes: int32(len(nodes))}
	if len(r.Members) < r.Size {
		refusal := gang.Incomplete(gang.MemberCounts{Size: r.Size, Exist: len(r.Members), Bound: r.OnNodes()})
		out.Placement = status.Refused(refusal)
		return out, nil
	}
	if unknown := i.unmade(r); unknown != nil {
		out.Placement = status.Refused(*unknown)
		return out, nil
	}
	placement, refusal, err := i.Planner.Answer(ctx, nodes, r)
	if err != nil {
		return v1alpha1.PreviewResponse{}, err
	}
	if refusal != nil {
		out.Placement, out.Excluded = status.Refused(*refusal), excludedByCause(*refusal)
		return out, nil
	}
	out.Placement = status.Placed(placement.Nodes())
	out.Placement.Message = fmt.Sprintf("%d of %d pods would be placed", placement.Placed, len(r.Members))
	out.Placement.Wanted, out.Placement.Fits = int32(placement.Placed), int32(placement.Placed)
	for _, s := range placement.Assignments {
		out.Assignments = append(out.Assignments, v1alpha1.PreviewAssignment{Slot: int32(s.Slot), Pod: s.Member, Node: s.Node})
	}
	out.Losses, err = i.losses(ctx, nodes, r, placement)
	return out, err
}

// unmade returns a refusal if the answer depends on claims that are created from templates with the pods: the framework's filters know only
// existing claims.
func (i *Instance) unmade(r gangcache.Snapshot) *gang.Refusal {
	first := slices.IndexFunc(r.Members, func(m gangcache.Member) bool { return m.State == gangcache.Pending && claims.Awaited(m.Pod) })
	if first < 0 || i.Framework.SharedDRAManager() == nil {
		return nil
	}
	return &gang.Refusal{Reason: gang.Unsupported, Wanted: r.Size, Message: fmt.Sprintf(
		"a preview does not know which devices pod %s would get, because its resource claims are created from a template after the pod: remove spec.resourceClaims to preview the rest", r.Members[first].Pod.Name)}
}

// hypothetical returns the snapshot of the gang as if the pods existed, beside its existing members.
func (i *Instance) hypothetical(pods []*v1.Pod) (gangcache.Snapshot, error) {
	key, ok := i.gangOf(pods[0])
	if !ok {
		return gangcache.Snapshot{}, invalid("pod %s belongs to no gang: it has no label %s and names no PodGroup: preview a job that Holdfast places", pods[0].Name, v1alpha1.LabelGang)
	}
	terms, err := i.Terms(key, pods[0])
	if err != nil {
		return gangcache.Snapshot{}, invalid("%v", err)
	}
	r := i.Gangs.List(key)
	r.Size, r.Terms = max(terms.Size, len(r.Members)), terms
	taken, names := map[gangcache.Slot]bool{}, map[string]bool{}
	for _, m := range r.Members {
		taken[m.Slot], names[m.Pod.Name] = m.Slot.Known, true
	}
	for n, pod := range pods {
		if other, ok := i.gangOf(pod); !ok || other != key {
			return gangcache.Snapshot{}, invalid("pod %s does not belong to gang %s, as pod %s does: preview one gang at a time", pod.Name, key.Name, pods[0].Name)
		}
		pod = pod.DeepCopy()
		pod.Spec.NodeName, pod.UID = "", types.UID(fmt.Sprintf("preview-%d", n))
		askForLimits(pod)
		if pod.Name == "" {
			pod.Name = fmt.Sprintf("%s-%d", key.Name, n)
		}
		m := gangcache.Member{Pod: pod, Slot: gangcache.SlotOf(pod), Role: planner.RoleOf(pod), Task: membership.TaskOf(pod)}
		if taken[m.Slot] {
			continue // another pod holds the slot
		}
		if names[pod.Name] {
			return gangcache.Snapshot{}, invalid("two pods are named %s: give each a name", pod.Name)
		}
		taken[m.Slot], names[pod.Name] = m.Slot.Known, true
		r.Members = append(r.Members, m)
	}
	if terms.Min > 0 {
		r.Size = max(terms.Size, len(r.Members))
	}
	r.Required = r.Least(0)
	slices.SortFunc(r.Members, gangcache.BySlot)
	return r, nil
}

// askForLimits sets requests that are missing to the limits, as the API server does.
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

// excludedByCause returns excluded nodes by cause, the largest group first.
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
