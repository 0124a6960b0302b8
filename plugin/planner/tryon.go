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
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// reserver are the parts of the framework that try a plan on.
type reserver interface {
	RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status
	RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string)
}

// seatOf is a pod on the node that is planned for it.
type seatOf struct {
	pod  *v1.Pod
	node string
}

// tryOn goes through a plan as its members would, one reserved after the other, beside the members of other open plans,
// where they may compete for devices that are no node's own; then all is as it was. One that gets none ends the plan.
func (s *scout) tryOn(c claims.Needs, placement gang.Placement) (*gang.Refusal, error) {
	at, got := placement.At(), 0
	var own []seatOf
	for i, m := range s.roster.Members {
		if m.State == gangcache.Pending && at[m.Pod.Name] != "" && !c.Settled[m.Pod.Name] && s.p.fabric.asked(s.infos[i])[claims.Slot] > 0 {
			own = append(own, seatOf{m.Pod, at[m.Pod.Name]})
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	others := s.rivals()
	if len(own)+len(others) < 2 {
		return nil, nil
	}
	driver, are, err := claims.Elsewhere(s.p.config.Framework.SharedDRAManager())
	if err != nil || !are {
		return nil, err
	}
	if no := s.p.trials.again(s.roster, time.Now(), s.again); no != nil {
		return no, nil
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
			no := &gang.Refusal{Reason: gang.InsufficientNodes, Wanted: placement.Placed, Fits: got, Nodes: len(s.nodes), Message: fmt.Sprintf(
				"%s wanted: %d of those with resource claims get devices together, of which some are no node's own (driver %s); %s", pods(placement.Placed), got, driver, claims.NobodyLeaves)}
			s.p.trials.failed(s.roster, no, began, time.Now())
			return no, nil
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
func (s *scout) again() {
	if key, ok := s.p.gangOf(s.roster.Members[0].Pod); ok {
		s.p.config.Wake(klog.FromContext(s.ctx), key)
	}
}

// rivals are members of other open plans that have no devices yet. The framework knows of those only that are reserved.
func (s *scout) rivals() []seatOf {
	manager := s.p.config.Framework.SharedDRAManager()
	key, _ := s.p.gangOf(s.roster.Members[0].Pod)
	var all []seatOf
	expected := s.p.config.Gangs.Expected()
	for _, node := range slices.Sorted(maps.Keys(expected)) {
		if s.byName[node] == nil {
			continue
		}
		for _, pod := range expected[node] {
			if of, ok := s.p.gangOf(pod); (ok && of == key) || !claims.Has(manager, pod) || claims.Settled(manager, pod) {
				continue
			}
			all = append(all, seatOf{pod, node})
		}
	}
	slices.SortStableFunc(all, func(a, b seatOf) int { return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.pod.UID, b.pod.UID)) })
	return all
}

// reserve has a member reserved on a node as in a cycle of its own; undo is nil where filters do not let it.
func (s *scout) reserve(one seatOf) (undo func(), err error) {
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

// trials remembers plans that were tried on in vain: a trial takes time for each member, in which nobody is scheduled, so all
// of them together take no more of it than searches for room may. It belongs to the scheduling cycle.
type trials map[types.UID]*trial

type trial struct {
	no    gang.Refusal
	until time.Time
	// asked: somebody asked too early, and is told when it is time.
	asked bool
}

// again is the last answer, where it is too early for another one. Only what is planned is paced; questions are answered.
func (t trials) again(r gangcache.Snapshot, now time.Time, wake func()) *gang.Refusal {
	last := t[r.Leader]
	if r.Leader == "" || last == nil || !now.Before(last.until) {
		return nil
	}
	if !last.asked {
		last.asked = true
		time.AfterFunc(last.until.Sub(now), wake)
	}
	no := last.no
	return &no
}

func (t trials) failed(r gangcache.Snapshot, no *gang.Refusal, began, now time.Time) {
	if r.Leader == "" {
		return
	}
	delete(t, r.Leader)
	maps.DeleteFunc(t, func(_ types.UID, old *trial) bool { return now.After(old.until) })
	t[r.Leader] = &trial{no: *no, until: now.Add(Rest(now.Sub(began)) * time.Duration(len(t)+1))}
}
