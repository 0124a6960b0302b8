package generation

import (
	"cmp"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
)

// Suspect is what was known of a failure, beside exits, when the halt began. Ordered: the coordinator ended the generation before any
// failure. Then a rank whose peer was halted earlier fails for that reason.
type Suspect struct {
	*cause.Cause
	Ordered bool
}

// Blame returns the cause of a failure that is seen while pods are terminating: a termination explains lost ranks and everything in its own
// slot.
// the slots of pods that must go.
func (g *Generation) Blame(lost, pressing *cause.Cause) *cause.Cause {
	if lost.Unexplained() || g.rs.For(members.Slot(lost.Slot)) != nil || lost.Slot == pressing.Slot {
		return pressing
	}
	return lost
}

// Cause returns the first cause that one of these functions finds. exit is the rank that failed first; nil: no agent reported an exit.
func (g *Generation) Cause(s Suspect) cause.Cause {
	exit := g.firstExit()
	if c := cmp.Or(g.terminatedPod(exit), g.explained(exit, s), g.exited(exit)); c != nil {
		return *c
	}
	return cause.Cause{Code: cause.RanksLost, Slot: -1, Rank: -1, Message: "no agent reported how a rank ended"}
}

// followed returns c as the cause of the failure that also ended exit's rank.
func followed(c cause.Cause, exit *cause.Cause) *cause.Cause {
	if c.Cascade = 0; exit != nil {
		c.Cascade = exit.Cascade + 1
	}
	return &c
}

// terminatedPod returns the cause when a pod was terminated and its ranks ended before the gang was halted for it: they ended for
// that reason, and their peers' failures are a consequence.
func (g *Generation) terminatedPod(exit *cause.Cause) *cause.Cause {
	for _, d := range g.rs.Uncommitted() {
		if m := g.ms.At(d.Slot); !d.Dead && m.Is(d.Pod) && g.endedWithPod(d.Slot, exit) {
			return followed(*d.Loss(g.BaseRank(d.Slot)), exit)
		}
	}
	return nil
}

// explained returns the cause from lost pods and ranks, if it says more than an exit.
func (g *Generation) explained(exit *cause.Cause, s Suspect) *cause.Cause {
	peer := cmp.Or(g.deadPeer(), g.restartedPeer())
	if exit != nil && exit.External() && exit.Suspect == "" {
		peer = nil // a killed rank reports no lost peer
	}
	known := cmp.Or(s.Cause, peer)
	for slot, m := range g.ms.Each {
		if l := g.layout; known == nil && l != nil && !m.Is(l.Pods[slot]) {
			known = g.lost(slot)
		}
	}
	if known == nil ||
		exit != nil && !exit.Weak && peer == nil && !s.Ordered && !(known.Displaced() && g.rs.For(members.Slot(exit.Slot)) != nil) {
		return nil
	}
	return followed(*known, exit)
}

// exited returns the exit itself. A kill in a terminating pod is the end of that pod.
func (g *Generation) exited(exit *cause.Cause) *cause.Cause {
	if exit == nil {
		return nil
	}
	c := *exit
	switch {
	case c.Code == cause.RestoreFailed && !g.CanGiveUpStep():
		c.Code = cause.RankFailed
	case c.Code == cause.RankKilled && g.ms.At(members.Slot(exit.Slot)).Report().Terminating:
		c.Code, c.Message = cause.PodLost, "the pod is being shut down"
	}
	return &c
}

// MayBeTerminating reports whether a pod has ended for a reason that the API server has not given yet: the agent's report may arrive
// before the pod's deletion. The next generation waits for that pod's successor anyway.
func (g *Generation) MayBeTerminating() bool {
	exit := g.firstExit()
	for slot := range g.ms.Each {
		if g.endedWithPod(slot, exit) && g.rs.For(slot) == nil {
			return true
		}
	}
	return false
}

// endedWithPod reports whether a terminating pod ended its ranks itself, or one of them was killed before any other rank failed.
func (g *Generation) endedWithPod(slot members.Slot, exit *cause.Cause) bool {
	m := g.ms.At(slot)
	killed := exit != nil && exit.Slot == int(slot) && exit.Code == cause.RankKilled
	return m.EndedItself(g.Number) || killed && m.Known() && m.Report().Terminating
}

// deadPeer returns the cause if a dead pod ran the generation and no exit of its ranks was reported: the other ranks lost their peer,
// whatever their tracebacks contain. Counting that as a failure of the script would end a gang that loses two nodes before its next step.
func (g *Generation) deadPeer() *cause.Cause {
	for _, d := range g.rs.ToReplace() {
		if d.Dead && g.mayHaveRun(d) && !g.reportedExit(d.Slot) {
			return d.Loss(g.BaseRank(d.Slot))
		}
	}
	return nil
}

// restartedPeer is deadPeer for a container whose processes all ended: the other ranks lost their peer.
func (g *Generation) restartedPeer() *cause.Cause {
	for slot, m := range g.ms.Each {
		if m.RestartedIn(g.Number) && !g.reportedExit(slot) {
			return g.restarted(slot)
		}
	}
	return nil
}

// reportedExit reports whether an agent reported a failed rank of the slot.
func (g *Generation) reportedExit(slot members.Slot) bool {
	for of, e := range g.exits {
		if of.slot == slot && (e.Code != 0 || e.Signal != 0) {
			return true
		}
	}
	return false
}

// mayHaveRun reports whether a pod to be replaced ran the generation. If an earlier coordinator started that, the pod's own report decides;
// without a report the pod may already have been dead, so it counts as having run.
func (g *Generation) mayHaveRun(d replacements.Termination) bool {
	if g.layout != nil {
		return g.layout.Pods[d.Slot] == d.Pod
	}
	m := g.ms.At(d.Slot)
	return !m.Known() || m.Is(d.Pod) && m.RanIn(g.Number)
}
