package elastic

import (
	"fmt"
	"slices"
	"testing"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

// launches are the launchers that the command of each pod runs one after another.
type launches struct {
	// most is the number of launchers; ending is the launcher whose scripts end now, 0: none.
	most, ending int
	// of has the launcher of each generation; finished has the slots whose scripts of a launcher ended well; over has the launchers whose
	// scripts ended well on all slots.
	of       map[int64]int
	finished map[int64]map[int]bool
	over     map[int]bool
	begun    int // the number of launchers that began after the first
}

func newLaunches(most int) launches {
	return launches{most: most, of: map[int64]int{}, finished: map[int64]map[int]bool{}, over: map[int]bool{}}
}

// finish ends the script of a slot with exit code 0, if the script is to end now.
func (w *world) finish(slot int) {
	a := w.agents[slot]
	if a.dead || a.exited || a.launch != w.ending || a.state != protocol.StateRunning ||
		slices.ContainsFunc(a.ranks, func(k simRank) bool { return !k.alive }) {
		return
	}
	a.state = protocol.StateFinished
	for i := range a.ranks {
		a.ranks[i].alive, a.ranks[i].exit = false, &protocol.Exit{At: w.now}
	}
	of := w.finished[a.gen]
	if of == nil {
		of = map[int]bool{}
		w.finished[a.gen] = of
	}
	of[slot] = true
	if len(of) == len(w.agents) {
		w.over[a.launch], w.ending = true, 0
	}
	w.notef("slot %d has finished launcher %d in generation %d", slot, a.launch, a.gen)
}

// endScripts makes the scripts of the present launcher end.
func (w *world) endScripts() {
	if w.most > 0 {
		w.ending = w.state.members.Launch()
	}
}

// pass reports whether a directive says that the launcher of a slot is over, and ends that launcher.
func (w *world) pass(slot int, d protocol.Directive) bool {
	a := w.agents[slot]
	if w.most == 0 || d.Launch <= a.launch {
		return false
	}
	if !w.over[a.launch] {
		w.failf("no launcher returns before all have finished", "slot %d is told of launcher %d at launcher %d", slot, d.Launch, a.launch)
	}
	if a.launch == w.most {
		a.exited = true
		return true
	}
	a.begins(a.launch + 1)
	w.notef("slot %d is at launcher %d", slot, a.launch)
	return true
}

// begins starts another launcher, which waits for its first generation. The pod keeps its memory.
func (a *simAgent) begins(launch int) {
	a.launch = launch
	if a.state = protocol.StateHalted; a.gen == 0 {
		a.state = protocol.StateIdle
	}
	for i := range a.ranks {
		k := &a.ranks[i]
		k.alive, k.exit, k.step, k.copied = false, nil, 0, protocol.Mark{}
	}
}

// checkLaunch checks that all pods of a generation are at the same launcher, and that the generation restores no step of an earlier
// launcher.
func (w *world) checkLaunch(slot int, run protocol.Run) {
	a := w.agents[slot]
	if of, known := w.of[run.Number]; known && of != a.launch {
		w.failf("a generation is of one launcher", "generation %d of launcher %d starts on slot %d, which is at %d", run.Number, of, slot, a.launch)
	}
	w.of[run.Number] = a.launch
	for _, k := range a.ranks {
		for _, s := range k.sealed {
			if s.step == run.RestoreStep && s.branch == run.RestoreBranch && w.of[s.born] != a.launch {
				w.failf("no step of another launcher", "slot %d restores step %d of launcher %d at launcher %d", slot, s.step, w.of[s.born], a.launch)
			}
		}
	}
}

// noteLaunch records that the core has reached another launcher. Acknowledged steps of earlier launchers are no longer promised.
func (w *world) noteLaunch(was, now *Record) {
	if now.Launch.Number < was.Launch.Number {
		w.failf("launchers only rise", "%d after %d", now.Launch.Number, was.Launch.Number)
	}
	if now.Launch.Number == was.Launch.Number {
		return
	}
	w.launches.begun++
	w.bests, w.bugs, w.done = []best{{}}, map[int]int{}, 0
	if w.acked = (protocol.Point{}); now.Branches.Newest() > was.Branches.Newest() {
		w.asked[now.Branches.Newest()] = protocol.Point{Branch: was.Branches.Newest()}
	}
}

// TestCrashBetweenLaunchers ends the coordinator, an agent or a pod at every event from the end of the first launcher's scripts until the
// ranks of the second launcher run on all pods, before and after pending writes have reached the store. In each history a launcher returns
// once all of its ranks have finished, the second launcher begins at step 0 on all pods together, and only real failures count as failures.
func TestCrashBetweenLaunchers(t *testing.T) {
	for name, c := range map[string]struct {
		failures int
		then     func(*world)
	}{
		"the coordinator": {0, func(*world) {}},
		"an agent":        {0, func(w *world) { w.agents[1].inc++ }},
		"a container": {2, func(w *world) {
			a := w.agents[1]
			if a.inc++; members.Ran(a.state) {
				a.state = protocol.StateIdle
			}
			a.launch = 1
			for i := range a.ranks {
				a.ranks[i].alive = false
			}
		}},
		"a pod": {2, func(w *world) { w.die(1) }},
	} {
		points := launchWithCrash(t, -1, false, c.failures, nil)
		if points < 10 {
			t.Errorf("%s: %d points only", name, points)
		}
		for at := range points {
			for _, arrives := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", name, at, arrives), func(t *testing.T) { launchWithCrash(t, at, arrives, c.failures, c.then) })
			}
		}
	}
}

func launchWithCrash(t *testing.T, at int, arrives bool, failures int, then func(*world)) int {
	t.Helper()
	w := newWorld(t, 1, 2)
	w.launches = newLaunches(2)
	runs := func(launch int) bool {
		return w.state.Record.Phase == Running && !slices.ContainsFunc(w.agents, func(a *simAgent) bool {
			return a.dead || a.launch != launch || a.state != protocol.StateRunning || a.gen != w.state.generation.Number
		})
	}
	w.settleUntil(func() bool { return runs(1) })
	for range 5 {
		w.trainAll()
	}
	w.settleUntil(func() bool { return w.state.rec().Durable != nil && runs(1) })
	before, events := w.state.Snapshot(), 0
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
		then(w)
	}
	for round := 0; !runs(2) || events <= at; round++ {
		if round > 400 {
			w.failf("every point leads to the second launcher", "phase %s launcher %d generation %d: %s", w.state.Record.Phase, w.state.members.Launch(), w.state.generation.Number, w.state.waitsFor())
		}
		if w.state.members.Launch() == 1 {
			w.endScripts() // again, in case the coordinator did not receive that all scripts had ended
		}
		for slot := range w.agents {
			w.finish(slot)
		}
		w.turn(crash)
	}
	switch r := w.state.Snapshot(); {
	case r.Launch.Number != 2 || r.Verdict != nil:
		w.failf("one launcher after another", "launcher %+v, verdict %+v", r.Launch, r.Verdict)
	case r.RestoreStep > 0 && w.of[r.Generation-1] != 2:
		w.failf("a launcher begins at step 0", "generation %d restored step %d", r.Generation, r.RestoreStep)
	case r.Restarts > before.Restarts+failures:
		w.failf("no failure", "restarts %d", r.Restarts)
	case r.Generation == before.Generation+1 && (len(r.Launch.Kept) != 1 || r.Launch.Kept[0].Step < before.Durable.Step):
		w.failf("what the launcher before stored stays", "%+v after %+v", r.Launch.Kept, before.Durable)
	}
	return events
}
