package elastic

import (
	"fmt"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// branches has the rollbacks of a world as the store has them, independent of the core.
type branches struct {
	// asked has the step of each rollback, by the branch that the rollback began; begun has those whose branch is stored.
	asked                map[int64]protocol.Point
	begun                []begunBranch
	refused, fromStorage int
}

type begunBranch struct {
	branch int64
	to     protocol.Point
}

func newer(a, b protocol.Point) protocol.Point {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// newest returns the newest branch that is stored.
func (w *world) newest() int64 { return max(w.stored.Branch, w.stored.Branches.Newest()) }

// givenUp returns the branch that gave up a step, according to the store; 0: none.
func (w *world) givenUp(p protocol.Point) int64 {
	for _, b := range w.branches.begun {
		if b.branch > p.Branch && b.to.Step < p.Step {
			return b.branch
		}
	}
	return 0
}

// goBack requests a rollback to some step: mostly one that exists, else one that was given up or never existed.
func (w *world) goBack() {
	steps := []protocol.Point{{Step: w.state.generation.CommonStep(), Branch: w.state.generation.Mark(w.state.generation.CommonStep()).Branch}}
	for _, d := range w.state.rec().durable() {
		steps = append(steps, d.Point())
	}
	for _, b := range w.branches.begun {
		steps = append(steps, protocol.Point{Branch: b.to.Branch, Step: b.to.Step + int64(w.rng.Intn(3))})
	}
	to := steps[w.rng.Intn(len(steps))]
	if w.rng.Intn(10) == 0 {
		to.Step += int64(w.rng.Intn(4))
	}
	if to.Step > 0 || w.rng.Intn(10) == 0 {
		w.goBackTo(to)
	}
}

func (w *world) goBackTo(to protocol.Point) {
	w.fault()
	refused, branch := w.refused, w.state.generation.NewestBranch()
	w.apply(GoBack{to})
	if w.refused > refused {
		if w.state.generation.NewestBranch() != branch {
			w.failf("who is refused changes nothing", "to %v", to)
		}
		return
	}
	switch given := w.givenUp(to); {
	case given > 0:
		w.failf("what is given up stays so", "went back to %v, which branch %d gave up", to, given)
	case w.state.generation.NewestBranch() != branch+1:
		w.failf("each has a branch of its own", "branch %d after %d", w.state.generation.NewestBranch(), branch)
	}
	w.asked[branch+1] = to
	w.forgetBests(w.state.rec().BestStep)
	w.notef("goes back to %v, branch %d", to, branch+1)
}

// noteBranch records a stored branch. From then on no step that the branch gives up may return, and its restore point must not be lost
// while it exists.
func (w *world) noteBranch() {
	newest := w.stored.Branches.Newest()
	if n := len(w.branches.begun); newest == 0 || n > 0 && w.branches.begun[n-1].branch >= newest {
		return
	}
	for n := len(w.branches.begun); n > 0 && w.branches.begun[n-1].branch >= newest; n = len(w.branches.begun) {
		w.branches.begun = w.branches.begun[:n-1]
	}
	for branch := range newest + 1 { // of several requests at once the store may get only the newest
		if to, asked := w.asked[branch]; asked {
			w.branches.begun = append(w.branches.begun, begunBranch{branch, to})
			delete(w.asked, branch)
		}
	}
	marks := []protocol.Mark{}
	for _, d := range []*StoredStep{w.stored.Durable, w.stored.Older} {
		if d != nil {
			marks = append(marks, d.Mark)
		}
	}
	for _, d := range w.stored.Kept {
		marks = append(marks, d.Mark)
	}
	for _, c := range w.stored.Copies {
		marks = append(marks, c.Mark)
	}
	for _, m := range marks {
		if b := w.givenUp(m.Point()); b > 0 {
			w.failf("what is given up leaves the record", "%+v, which branch %d gave up", m, b)
		}
	}
	last := w.branches.begun[len(w.branches.begun)-1].to
	if w.acked = last; !w.has(last) {
		w.acked = protocol.Point{} // the step is no longer promised
	}
}

// checkBranch checks that the branch of a directive is stored, and that the directive names no given-up step.
func (w *world) checkBranch(slot int, d protocol.Directive) {
	if newest := w.newest(); d.Run.Branch > newest || d.Run.RestoreBranch > newest || d.Copy.Branch > newest || d.Fetch.Branch > newest {
		w.failf("nothing of a branch before it is stored", "slot %d is told %+v, branch %d is stored", slot, d, newest)
	}
	for _, p := range []protocol.Point{d.Fetch.Point(), d.Manifest.Point()} {
		if b := w.givenUp(p); b > 0 && w.state.ledger.LineStored() {
			w.failf("no step that was given up", "slot %d is told of %v, which branch %d gave up", slot, p, b)
		}
	}
	if d.Order != protocol.OrderRun || d.Run.WorldSize == 0 {
		return
	}
	if b := w.givenUp(d.Run.Restores()); b > 0 || d.Run.Branch < w.newest() {
		w.failf("no step that was given up", "slot %d runs %+v, branch %d gave that up, and branch %d is stored", slot, d.Run, b, w.newest())
	}
}

// TestCrashWhileABranchBegins ends the coordinator at every event after a rollback was requested, before and after pending writes have
// reached the store. It does so with all pods alive, while a pod dies, and while a pod is cut off. Either the branch is stored, and all
// ranks continue from its restore point, or the previous branch continues and loses nothing.
func TestCrashWhileABranchBegins(t *testing.T) {
	for name, meanwhile := range map[string]func(*world){
		"nothing else": func(*world) {},
		"a pod dies":   func(w *world) { w.die(1) },
		"a pod drains": func(w *world) { w.level = []Termination{w.terminationOf(1, false)} },
		"a rank dies":  func(w *world) { w.kill(0, 0, protocol.Exit{Code: 137, Signal: 9}) },
		"a container comes back": func(w *world) {
			a := w.agents[1]
			a.inc, a.state = a.inc+1, protocol.StateIdle
			for i := range a.ranks {
				a.ranks[i].alive = false
			}
		},
	} {
		branched := 0
		points := goBackWithCrash(t, meanwhile, -1, false, &branched)
		if points < 10 || branched != 1 {
			t.Errorf("%s: %d points, %d branches", name, points, branched)
		}
		branched = 0
		for at := range points {
			for _, arrives := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", name, at, arrives), func(t *testing.T) { goBackWithCrash(t, meanwhile, at, arrives, &branched) })
			}
		}
		if branched < points || branched == 2*points {
			t.Errorf("%s: %d of %d histories have a branch: some coordinators should have ended before it was stored", name, branched, 2*points)
		}
	}
}

// goBackWithCrash plays one history with a crash at the given event, and returns the number of events of the history.
func goBackWithCrash(t *testing.T, meanwhile func(*world), at int, arrives bool, branched *int) int {
	t.Helper()
	w := newWorld(t, 1, 2)
	running := func() bool {
		r := w.state.rec()
		return r.Phase == Running && len(r.PendingReplacements) == 0 && len(w.level) == 0 &&
			!slices.ContainsFunc(w.agents, func(a *simAgent) bool {
				return a.dead || a.state != protocol.StateRunning || a.gen != r.Generation
			})
	}
	w.settleUntil(running)
	for range 5 {
		w.trainAll()
	}
	w.settleUntil(func() bool { return w.state.rec().Durable != nil && running() })
	for range 3 {
		w.turn(func() {})
	}
	to := w.state.rec().Durable.Point()
	generation, events := w.state.generation.Number, 0
	crash := func() {
		if events++; events-1 != at {
			return
		}
		for arrives && len(w.pending) > 0 {
			w.store()
		}
		w.pending, w.replacing = nil, nil
		w.state = New(len(w.agents), w.interval(), w.stored)
		w.promises.successor()
	}
	w.goBackTo(to)
	meanwhile(w)
	crash()
	done := func() bool {
		return running() && (w.newest() == 0 || w.agents[0].branch == w.newest()) && events > at
	}
	for round := 0; !done() || round < 3; round++ {
		if round > 400 {
			w.failf("every point leads to the end", "phase %s generation %d: %s", w.state.Record.Phase, w.state.generation.Number, w.state.waitsFor())
		}
		w.turn(crash)
	}
	r := w.state.Snapshot()
	switch newest := w.newest(); {
	case newest > 1 || newest == 1 && r.Branch != 1:
		w.failf("one branch", "%d, the generation is of %d", newest, r.Branch)
	case newest == 1 && (r.RestoreStep != to.Step || r.RestoreBranch != to.Branch) && r.RestoreBranch == 0:
		w.failf("it goes back to where people wanted", "step %d of branch %d, not %v", r.RestoreStep, r.RestoreBranch, to)
	case newest == 1:
		*branched++
	case r.Generation > generation+2:
		w.failf("the branch before goes on", "generation %d after %d", r.Generation, generation)
	}
	if r.WithoutProgress > 2 {
		w.failf("to go back is no failure", "%d restarts without progress", r.WithoutProgress)
	}
	return events
}
