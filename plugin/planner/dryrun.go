package planner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// assignmentOf is a pod and its planned node.
type assignmentOf struct {
	pod  *v1.Pod
	node string
}

// dryRunReserve reserves the members of a plan one after the other by the framework's plugins, after members of other open plans where they
// may compete for devices that belong to no node. Then it undoes all of it. dryRunReserve refuses the plan if a member cannot be reserved.
func (s *planCycle) dryRunReserve(c claims.Needs, placement gang.Placement) (refusal *gang.Refusal, err error) {
	at, got := placement.At(), 0
	var own []assignmentOf
	for i, m := range s.snapshot.Members {
		if m.State == gangcache.Pending && at[m.Pod.Name] != "" && !c.Settled[m.Pod.Name] && s.p.fabric.asked(s.infos[i])[claims.Slot] > 0 {
			own = append(own, assignmentOf{m.Pod, at[m.Pod.Name]})
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	others := s.competitors()
	if len(own)+len(others) < 2 {
		return nil, nil
	}
	driver, are, err := claims.Elsewhere(s.p.config.Framework.SharedDRAManager())
	if err != nil || !are {
		return nil, err
	}
	if s.paced() {
		if refusal := s.takeTurn(s.p.trials); refusal != nil {
			return refusal, nil
		}
		began := s.p.now()
		defer func() {
			if refusal == nil {
				began = s.p.now() // only a failed dry run counts against the time limit
			}
			s.p.trials.done(s.key(), refusal, began, s.p.now())
		}()
	}
	for _, other := range others {
		if undo, err := s.reserve(other); err == nil && undo != nil {
			defer undo() // a competitor that cannot be reserved fails in its own cycle
		}
	}
	for _, one := range own {
		if err := s.ctx.Err(); err != nil {
			return nil, err // a preview has a deadline
		}
		undo, err := s.reserve(one)
		if err != nil {
			return nil, err
		}
		if undo == nil {
			return &gang.Refusal{Reason: gang.InsufficientNodes, Wanted: placement.Placed, Fits: got, Nodes: len(s.nodes), Message: fmt.Sprintf(
				"%s wanted: %d of those with resource claims get devices together, some of which belong to no single node (driver %s); %s", gang.Count(placement.Placed, "pod", "pods"), got, driver, claims.NobodyLeaves)}, nil
		}
		defer undo()
		got++
	}
	return nil, nil
}

// competitors returns the planned members of other open plans that have no devices yet. The framework counts only reserved ones.
func (s *planCycle) competitors() []assignmentOf {
	manager := s.p.config.Framework.SharedDRAManager()
	key := s.key()
	var all []assignmentOf
	expected := s.p.config.Gangs.Expected()
	for _, node := range slices.Sorted(maps.Keys(expected)) {
		if s.byName[node] == nil {
			continue
		}
		for _, pod := range expected[node] {
			if of, ok := s.p.gangOf(pod); (ok && of == key) || !claims.Has(manager, pod) || claims.Settled(manager, pod) {
				continue
			}
			all = append(all, assignmentOf{pod, node})
		}
	}
	slices.SortStableFunc(all, func(a, b assignmentOf) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return all
}

// reserve reserves a member on a node as its own cycle would; undo is nil where filters reject it.
func (s *planCycle) reserve(one assignmentOf) (undo func(), err error) {
	state := NewNestedState()
	only, status, _ := s.p.config.Framework.RunPreFilterPlugins(s.ctx, state, one.pod)
	if status.IsRejected() || (status.IsSuccess() && !only.AllNodes() && !only.NodeNames.Has(one.node)) {
		return nil, nil
	}
	if status.IsSuccess() {
		status = s.p.config.Framework.RunFilterPluginsWithNominatedPods(s.ctx, state, one.pod, s.byName[one.node])
	}
	if status.IsRejected() {
		return nil, nil
	}
	if status.IsSuccess() {
		status = s.p.config.Framework.RunReservePluginsReserve(s.ctx, state, one.pod, one.node)
	}
	undo = func() {
		s.p.config.Framework.RunReservePluginsUnreserve(context.WithoutCancel(s.ctx), state, one.pod, one.node)
	}
	if !status.IsSuccess() {
		undo()
		return nil, fmt.Errorf("trying node %s for pod %s: %w", one.node, one.pod.Name, status.AsError())
	}
	return undo, nil
}
