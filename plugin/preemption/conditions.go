package preemption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/preemption"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/planner"
)

// A gang may lack more than room: a pod's anti-affinity, its host port, the spread of pods, or a volume for one pod may exclude it. Only
// the framework's filters decide about these, so they select the victims.

const (
	// checksAtMost and checksFor bound the number and the time of such filter runs in one search; no pod is scheduled meanwhile. Each run
	// filters every node for each kind of the gang's pods.
	checksAtMost = 128
	checksFor    = 2 * time.Second
)

// choice is the selected victims and where the gang then goes. If room is nil there are none, and why, if set, explains to users what the
// gang lacks beside room.
type choice struct {
	victims []int
	room    *room
	// conditions: filters, not counts alone, selected the victims.
	conditions bool
	why        string
}

// choose selects victims by counts of free resources, or by the framework's filters if these refuse that selection.
func (s *whatIf) choose() (choice, error) {
	selected, ok := preemption.SelectVictims(s.world, s.gang)
	if !ok {
		return choice{}, nil
	}
	found, _, err := s.check(selected.Victims)
	if err != nil || found != nil {
		return choice{victims: selected.Victims, room: found}, err
	}
	t, err := s.try()
	c := choice{conditions: true}
	switch t.verdict {
	case preemption.Suffices:
		c.victims, c.room = t.victims, t.room
	case preemption.Protected:
		c.why = someOf(s.names(t.victims)) + " would have to be preempted, which a disruption budget does not allow now"
	case preemption.Unfinished:
		c.why = fmt.Sprintf("the search for pods to preempt reached its limit of %d checks or %v: none is preempted",
			checksAtMost, checksFor)
	case preemption.Futile:
		c.why = "preempting pods of lower priority would not help: without them, " + t.refusal
	}
	return c, err
}

// trial is the result of a selection by filters; refusal is their first refusal.
type trial struct {
	victims []int
	verdict preemption.Verdict
	room    *room
	refusal string
}

// try runs the framework's filters with fewer and fewer victims.
func (s *whatIf) try() (t trial, err error) {
	all := s.ctx
	ctx, cancel := context.WithDeadline(all, s.until)
	defer cancel()
	s.ctx = ctx
	t.victims, t.verdict, err = preemption.TryVictims(s.world, s.gang, func(gone []int) (bool, error) {
		found, refusal, err := s.check(gone)
		switch {
		case found != nil:
			t.room = found // with the smallest sufficient set so far
		case refusal != nil && t.refusal == "":
			t.refusal = refusal.Message
		}
		return found != nil, err
	}, checksAtMost, func() bool { return ctx.Err() != nil })
	s.ctx = all
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && all.Err() == nil {
		return trial{}, nil
	}
	return t, err
}

func (s *whatIf) names(units []int) []string {
	all := make([]string, len(units))
	for i, u := range units {
		all[i] = s.world.Units[u].Name
	}
	return all
}

// taking returns the pods of assignments.
func (s *whatIf) taking(assignments []gang.Assignment) []planner.Taking {
	pods := make(map[string]*v1.Pod, len(s.b.snapshot.Members))
	for _, m := range s.b.snapshot.Members {
		pods[m.Pod.Name] = m.Pod
	}
	all := make([]planner.Taking, len(assignments))
	for i, one := range assignments {
		all[i] = planner.Taking{Pod: pods[one.Member], Node: one.Node}
	}
	return all
}

// ofOtherPods are the filters whose result depends on where other pods are.
var ofOtherPods = []string{names.InterPodAffinity, names.PodTopologySpread, names.NodePorts, names.VolumeRestrictions}

// explain records which units of equal or higher priority exclude a gang.
func (p *Preemptor) explain(ctx context.Context, b *blocked, now time.Time) error {
	kept := slices.ContainsFunc(slices.Collect(maps.Keys(b.refusal.Excluded)), func(c gang.Cause) bool {
		return c.Kind == gang.Refused && slices.Contains(ofOtherPods, c.Name)
	})
	if !kept {
		return nil
	}
	priority, _ := b.priority()
	s, err := p.newWhatIf(ctx, b, priority, now, func(*preemption.Unit) bool { return true })
	if err != nil {
		return err
	}
	if selected, ok := preemption.SelectVictims(s.world, s.gang); !ok || len(selected.Victims) > 0 {
		return nil // it lacks room
	}
	t, err := s.try()
	if t.verdict != preemption.Suffices {
		return err
	}
	unpreemptible := slices.DeleteFunc(t.victims, func(u int) bool { return s.world.Units[u].Priority < priority })
	if len(unpreemptible) > 0 {
		p.noteWhy(b.key, someOf(s.names(unpreemptible))+" would have to be preempted, but its priority is not lower")
	}
	return nil
}

// noteWhy records a search's explanation for users.
func (p *Preemptor) noteWhy(key types.NamespacedName, why string) {
	a := p.tried[key]
	a.why = why
	p.tried[key] = a
}

// Why returns what a gang or pod lacks beside room, for users, from the last search; "": unknown.
func (p *Preemptor) Why(key types.NamespacedName) string { return p.tried[key].why }

// Disturbed returns a gang for which pods were preempted and which would not fit beside pods that are about to get nodes: held room does
// not reserve conditions such as a host port.
func (p *Preemptor) Disturbed(ctx context.Context, nodes []fwk.NodeInfo, own types.NamespacedName, leader *v1.Pod, priority int32,
	taking []planner.Taking) (of types.NamespacedName, disturbed bool, err error) {
	end := settings.WouldEnd(leader, time.Now())
	rooms := p.rooms.keys()
	byName := func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(rooms), byName) {
		h := rooms[key]
		if !h.conditions || key == own || !h.Excludes(priority, end) {
			continue
		}
		snapshot, waits := p.config.Gangs.WaitingInput(key)
		if !waits || !planner.MayKeepAway(snapshot, taking) {
			continue
		}
		disturbed, err := p.disturbs(ctx, &blocked{key: key, snapshot: snapshot, nodes: nodes}, h, taking)
		if err != nil {
			return key, false, err
		}
		if disturbed {
			return key, true, nil
		}
	}
	return types.NamespacedName{}, false, nil
}

// disturbs reports whether a gang fits once its victims are gone, and would not beside the given pods.
func (p *Preemptor) disturbs(ctx context.Context, b *blocked, h HeldRoom, taking []planner.Taking) (bool, error) {
	victims := sets.New(h.victims...)
	s, err := p.newWhatIf(ctx, b, h.Priority, time.Now(), func(u *preemption.Unit) bool { return victims.Has(u.Name) })
	if err != nil {
		return false, err
	}
	all := make([]int, len(s.world.Units))
	for u := range all {
		all[u] = u
	}
	alone, _, err := s.check(all)
	if alone == nil {
		return false, err // it does not fit for another reason
	}
	s.adding = taking
	beside, _, err := s.check(all)
	return beside == nil && err == nil, err
}
