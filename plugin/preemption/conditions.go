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
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/preemption"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/planner"
)

// What keeps a gang away need not be a lack of room: a pod's anti-affinity, its host port, the spread of pods, a volume that one pod
// may hold. Only the framework's filters know, so they are asked who would have to leave.

const (
	// checksAtMost and checksFor bound how often, and for how long, filters are asked that within one search; nothing is scheduled
	// meanwhile. Asked once, they look at each node for each kind of the gang's pods.
	checksAtMost = 128
	checksFor    = 2 * time.Second
)

// choice is who leaves for a gang and where it then goes. Where room is nil no unit does, and why, if set, says for people what
// more than room it lacks.
type choice struct {
	victims []int
	room    *room
	// conditions: counts alone did not say who leaves.
	conditions bool
	why        string
}

// choose selects by counts of free resources, and by the framework's filters where those refuse that selection.
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

// trial is the result of asking filters who would have to leave; refusal is their first answer of no.
type trial struct {
	victims []int
	verdict preemption.Verdict
	room    *room
	refusal string
}

// try asks the framework's filters about fewer and fewer units.
func (s *whatIf) try() (t trial, err error) {
	all := s.ctx
	ctx, cancel := context.WithDeadline(all, s.until)
	defer cancel()
	s.ctx = ctx
	t.victims, t.verdict, err = preemption.TryVictims(s.world, s.gang, func(gone []int) (bool, error) {
		found, refusal, err := s.check(gone)
		switch {
		case found != nil:
			t.room = found // of the fewest that were found to be enough so far
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

// taking are the pods of assignments.
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

// ofOtherPods are the filters whose answer hangs on which other pods are where.
var ofOtherPods = []string{names.InterPodAffinity, names.PodTopologySpread, names.NodePorts, names.VolumeRestrictions}

// explain notes which units of no lower priority keep a gang away.
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

// noteWhy records what a search found out for people.
func (p *Preemptor) noteWhy(key types.NamespacedName, why string) {
	a := p.tried[key]
	a.why = why
	p.tried[key] = a
}

// Why says for people what more than room a gang or pod lacks, as the last search for room found out; "": nothing is known.
func (p *Preemptor) Why(key types.NamespacedName) string { return p.tried[key].why }

// Disturbed returns a gang for which units leave and which would not fit any more beside pods that are about to be given nodes: holding
// the room does not hold the conditions.
func (p *Preemptor) Disturbed(ctx context.Context, nodes []fwk.NodeInfo, own types.NamespacedName, leader *v1.Pod,
	taking []planner.Taking) (of types.NamespacedName, disturbed bool, err error) {
	priority, end := corev1helpers.PodPriority(leader), settings.WouldEnd(leader, time.Now())
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

// disturbs reports whether a gang that fits once its victims are gone would not if pods were given nodes.
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
		return false, err // something else has come between
	}
	s.adding = taking
	beside, _, err := s.check(all)
	return beside == nil && err == nil, err
}
