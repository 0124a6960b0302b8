package generation

import (
	"fmt"
	"maps"
	"slices"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

type exit = cause.Exit

// exitOf identifies an exit: not by rank, which others' reports can shift while the layout is unknown. So a pod has at most as many exits
// as it may have ranks.
type exitOf struct {
	slot  members.Slot
	local int
}

// exitBytes estimates the memory of an exit without its traceback.
const exitBytes = 256

// KeepExits stores how ranks ended. A pod that was not seen running the generation reports an older exit, which is already in the account;
// if an earlier coordinator started the generation, the time of the exit decides.
func (g *Generation) KeepExits(slot members.Slot) {
	m := g.ms.At(slot)
	r, ran := m.Report(), m.RanIn(g.Number)
	if r.Generation != g.Number || !ran && g.layout != nil || !g.ms.Takes(slot) {
		return
	}
	for _, k := range r.Rank {
		if k.Exit == nil || !ran && !k.Exit.At.After(g.account.Accounted()) {
			continue
		}
		of := exitOf{slot, k.Local}
		if old, had := g.exits[of]; had {
			g.exitBytes[slot] -= exitBytes + int64(len(old.Traceback))
		}
		g.exits[of] = exit{Rank: g.BaseRank(slot) + k.Local, Slot: int(slot), Exit: *k.Exit}
		g.exitBytes[slot] += exitBytes + int64(len(k.Exit.Traceback))
	}
}

// ExitBytes estimates the memory of a slot's exits, which stay until the next generation, whatever later reports contain.
func (g *Generation) ExitBytes(slot members.Slot) int64 { return g.exitBytes[slot] }

// Failure reports whether the generation has failed on some pod, and the cause of ranks that are gone without an exit, if known.
func (g *Generation) Failure() (failed bool, lost *cause.Cause) {
	for slot, m := range g.ms.Each {
		switch {
		case !m.Known():
		case m.Report().State == protocol.StateFailed && m.Report().Generation == g.Number:
			failed = true
		case lost == nil:
			lost = g.lost(slot)
		}
	}
	return failed || lost != nil, lost
}

// Finished reports whether all ranks have ended with exit code 0.
func (g *Generation) Finished() bool {
	for slot, m := range g.ms.Each {
		if !m.Finished(g.Number) && !g.ms.HasLeft(slot) {
			return false
		}
	}
	return true
}

// Lost reports whether the ranks that a slot should run are gone without an exit.
func (g *Generation) Lost(slot members.Slot) bool { return g.lost(slot) != nil }

// lost returns the cause if the ranks that a slot should run are gone without an exit.
func (g *Generation) lost(slot members.Slot) *cause.Cause {
	m, n, l := g.ms.At(slot), g.Number, g.layout
	r, pod := m.Report(), m.Pod().Name
	c := &cause.Cause{Code: cause.RanksLost, Rank: g.BaseRank(slot), Slot: int(slot)}
	halted := r.State == protocol.StateHalted && r.Generation >= n
	idle := r.State == protocol.StateIdle && r.Generation == n
	switch {
	case g.ms.HasLeft(slot):
		return nil
	case l != nil && l.Pods[slot] != m.Pod().UID:
		c.Code, c.Message = cause.PodLost, fmt.Sprintf("pod %s took the place of the pod that ran slot %d", pod, slot)
	case g.missedFirst(m):
		return nil
	case l == nil && r.Generation < n && (r.Generation > 0 || !g.account.RanOnAll(n)):
		c.Code, c.Message = cause.StartInterrupted, fmt.Sprintf("the controller changed before pod %s in slot %d had started generation %d", pod, slot, n)
	case l == nil && r.Generation < n:
		c.Message = fmt.Sprintf("pod %s in slot %d does not run generation %d", pod, slot, n)
	case halted && members.LeftForLauncher(r, n):
		c.Code, c.Message = cause.LauncherStarted, fmt.Sprintf("the command of pod %s in slot %d is no longer one rank: a launcher has started, or is expected", pod, slot)
	case (idle || halted) && m.RestartedIn(n), idle && l != nil && l.Incarnations[slot] != r.Incarnation:
		// An agent that restarts in the same container finds its ranks, or how they ended.
		c = g.restarted(slot)
	case halted, idle && (m.RanIn(n) || l == nil || l.Incarnations[slot] != r.Incarnation):
		c.Message = fmt.Sprintf("pod %s in slot %d came back without the ranks of generation %d", pod, slot, n)
	default:
		return nil
	}
	return c
}

// restarted returns the cause for a container that ended with its agent.
func (g *Generation) restarted(slot members.Slot) *cause.Cause {
	p, how, charged := g.ms.At(slot).Pod(), "", ""
	if p.Restarted != "" {
		how = " (" + p.Restarted + ")"
	}
	if p.Charged != "" {
		charged = "; " + p.Charged
	}
	return &cause.Cause{Code: cause.ContainerRestarted, Rank: g.BaseRank(slot), Slot: int(slot),
		Message: fmt.Sprintf("the container of pod %s in slot %d ended%s and was started again without the ranks of generation %d%s", p.Name, slot, how, g.Number, charged)}
}

// Pressing returns the terminations as a failure; nil: there are none.
func (g *Generation) Pressing() *cause.Cause {
	if d := g.rs.Pressing(g.Lost); d != nil {
		return d.Loss(g.BaseRank(d.Slot))
	}
	return nil
}

// Ended returns why no generation can follow one that failed for c; nil: one can. A suspended Job later re-creates the pods that it
// deleted, even if their launcher had returned, but none that had ended.
func (g *Generation) Ended(c cause.Cause) *cause.Cause {
	for slot := range g.ms.Each {
		if g.ms.HasLeft(slot) && !g.rs.Suspended(slot) {
			c.Message = fmt.Sprintf("slot %d had ended with exit code 0 before, and the gang cannot run again without it: %s", slot, c.Message)
			return &c
		}
	}
	return nil
}

// WentBack returns the cause of the end of a generation whose branch was given up.
func (g *Generation) WentBack() *cause.Cause {
	l := g.ledger.Line()
	return &cause.Cause{Code: cause.WentBack, Rank: -1, Slot: -1, Message: fmt.Sprintf("branch %d of training begins after step %d", l.Newest(), l[len(l)-1].From)}
}

func (g *Generation) firstExit() *cause.Cause {
	if c, ok := cause.First(slices.Collect(maps.Values(g.exits))); ok {
		return &c
	}
	return nil
}

// Lacked reports whether a rank of the slot raised an exception about something that is missing where it ran.
func (g *Generation) Lacked(slot members.Slot) bool {
	for of, e := range g.exits {
		if c, ok := cause.First([]exit{e}); of.slot == slot && ok && c.Lacks() {
			return true
		}
	}
	return false
}
