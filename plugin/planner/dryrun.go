package planner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// assignmentOf is a pod on the node that is planned for it.
type assignmentOf struct {
	pod  *v1.Pod
	node string
}

// dryRunReserve reserves the members of a plan one after the other by the framework's plugins, beside the members of
// other open plans, where they may compete for devices that belong to no node; then it undoes all of it. A member that
// cannot be reserved ends the plan.
func (s *planCycle) dryRunReserve(c claims.Needs, placement gang.Placement) (*gang.Refusal, error) {
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
	if refusal := s.p.trials.again(s.snapshot, time.Now(), s.again); refusal != nil {
		return refusal, nil
	}
	began := time.Now()
	for _, other := range others {
		if undo, err := s.reserve(other); err == nil && undo != nil {
			defer undo() // one that gets nothing will find that out by itself
		}
	}
	for _, one := range own {
		if err := s.ctx.Err(); err != nil {
			return nil, err // a preview or a record has a deadline
		}
		undo, err := s.reserve(one)
		if err != nil {
			return nil, err
		}
		if undo == nil {
			refusal := &gang.Refusal{Reason: gang.InsufficientNodes, Wanted: placement.Placed, Fits: got, Nodes: len(s.nodes), Message: fmt.Sprintf(
				"%s wanted: %d of those with resource claims get devices together, of which some are no node's own (driver %s); %s", pods(placement.Placed), got, driver, claims.NobodyLeaves)}
			s.p.trials.failed(s.snapshot, refusal, began, time.Now())
			return refusal, nil
		}
		defer undo()
		got++
	}
	return nil, nil
}

// pods counts pods, as people write it.
func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// again has the gang planned again.
func (s *planCycle) again() {
	if key, ok := s.p.gangOf(s.snapshot.Members[0].Pod); ok {
		s.p.config.Wake(klog.FromContext(s.ctx), key)
	}
}

// competitors returns members of other open plans that have no devices yet. The framework knows only those that are
// reserved.
func (s *planCycle) competitors() []assignmentOf {
	manager := s.p.config.Framework.SharedDRAManager()
	key, _ := s.p.gangOf(s.snapshot.Members[0].Pod)
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

// trials remembers plans that were refused after much work, by a dry run or of many kinds of pods: nothing is scheduled
// meanwhile, so all of them together take no more time than searches for room may. It belongs to the scheduling cycle.
type trials map[types.UID]*trial

type trial struct {
	refusal gang.Refusal
	until   time.Time
	// asked: a plan was asked for too early; its gang is woken when it is time.
	asked bool
}

// again returns the last answer where it is too early for another one. Only planning is paced; previews are answered.
func (t trials) again(r gangcache.Snapshot, now time.Time, wake func()) *gang.Refusal {
	last := t[r.Leader]
	if r.Leader == "" || last == nil || !now.Before(last.until) {
		return nil
	}
	if !last.asked {
		last.asked = true
		time.AfterFunc(last.until.Sub(now), wake)
	}
	refusal := last.refusal
	return &refusal
}

func (t trials) failed(r gangcache.Snapshot, refusal *gang.Refusal, began, now time.Time) {
	if r.Leader == "" {
		return
	}
	delete(t, r.Leader)
	maps.DeleteFunc(t, func(_ types.UID, old *trial) bool { return now.After(old.until) })
	t[r.Leader] = &trial{refusal: *refusal, until: now.Add(Cooldown(now.Sub(began)) * time.Duration(len(t)+1))}
}
