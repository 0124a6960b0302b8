package gangcache

import "time"

// phase is how far a gang is on its way to being whole, and whether a plan stands which not all members have followed:
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
	// found: this process has not seen the gang whole, and opened no first plan for it: it may have been whole before.
	found phase = iota
	// resuming: a plan stands for members of such a gang.
	resuming
	// partial: the gang never was whole, and its first plan was followed or given up. It is taken back when it cannot be completed.
	partial
	// placing: a plan stands for a gang that never was whole.
	placing
	// whole: the gang was whole. It keeps its nodes, whatever it lacks.
	whole
	// repairing: a plan stands for members that a gang lacks which was whole.
	repairing
)

// happening changes a phase.
type happening int

const (
	// firstPlanOpened: a plan was opened while no member had a node; planOpened: while others had one.
	firstPlanOpened happening = iota
	planOpened
	// planEnded: all members have followed the plan, or it was given up.
	planEnded
	// completed: all members are bound.
	completed
	// stampsFound: the stamps on bound members say that the gang never was whole.
	stampsFound
	// rolledBack: members of an initial placement are to be deleted, and count no more.
	rolledBack
)

// open reports whether a plan stands which not all members have followed.
func (p phase) open() bool { return p == resuming || p == placing || p == repairing }

// initial reports whether the gang is known never to have been whole.
func (p phase) initial() bool { return p == partial || p == placing }

// next is the phase after something has happened. What does not concern a phase leaves it as it is.
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

// transition is the one place where a group changes its phase, and drops what was known for the sake of the one before.
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
