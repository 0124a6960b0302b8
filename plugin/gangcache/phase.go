package gangcache

import "time"

// phase is whether a gang was ever complete, and whether a plan is open:
//
//	no plan stands               a plan stands
//
//	found ────── planOpened ───────▶ resuming
//	  │    ◀───── planEnded ─────────  │
//	  │ stampsFound                    │ stampsFound
//	  ▼                                ▼
//	partial ──── planOpened ───────▶ placing
//	       ◀───── planEnded ─────────
//
//	whole ────── planOpened ───────▶ repairing
//	       ◀───── planEnded ─────────
//
// From every phase firstPlanOpened leads to placing, and completed to whole. rolledBack leads from partial to found, and from placing to
// resuming.
type phase int

const (
	// found: this process has neither seen the gang complete nor opened a first plan for it; it may have been complete before.
	found phase = iota
	// resuming: a plan is open for members of such a gang.
	resuming
	// partial: the gang was never complete, and its first plan ended. It is rolled back if it cannot be completed.
	partial
	// placing: a plan is open for a gang that was never complete.
	placing
	// whole: the gang was complete. It keeps its nodes, even if members are missing.
	whole
	// repairing: a plan is open for missing members of a gang that was complete.
	repairing
)

// happening is an event that may change a phase.
type happening int

const (
	// firstPlanOpened: a plan was opened while no member had a node; planOpened: while others had one.
	firstPlanOpened happening = iota
	planOpened
	// planEnded: all members have followed the plan, or it was given up.
	planEnded
	// completed: all members are bound.
	completed
	// stampsFound: the stamps of bound members show that the gang was never complete.
	stampsFound
	// rolledBack: members of an initial placement are being deleted and no longer count.
	rolledBack
)

// open reports whether a plan is open.
func (p phase) open() bool { return p == resuming || p == placing || p == repairing }

// initial reports whether the gang is known never to have been complete.
func (p phase) initial() bool { return p == partial || p == placing }

// next returns the phase after an event. An event without a rule for the phase does not change it.
func (p phase) next(h happening) phase {
	to := map[phase]phase{}
	switch h {
	case firstPlanOpened:
		return placing
	case completed:
		return whole
	case planOpened:
		to = map[phase]phase{found: resuming, partial: placing, whole: repairing}
	case planEnded:
		to = map[phase]phase{resuming: found, placing: partial, repairing: whole}
	case stampsFound:
		to = map[phase]phase{found: partial, resuming: placing}
	case rolledBack:
		to = map[phase]phase{partial: found, placing: resuming}
	}
	if after, concerned := to[p]; concerned {
		return after
	}
	return p
}

// transition alone changes a group's phase. transition drops the state that belongs to the former phase.
func (g *group) transition(h happening) {
	g.phase = g.phase.next(h)
	switch h {
	case firstPlanOpened:
		g.initialPlacement, g.refusal = nil, nil
	case planOpened:
		g.refusal = nil
	case completed:
		g.initialPlacement, g.refusal, g.givenUp = nil, nil, 0
	case rolledBack:
		g.initialPlacement, g.gapSince = nil, time.Time{}
	case planEnded, stampsFound:
	}
}
