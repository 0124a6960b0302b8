package elastic

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// scenes are the histories from which backups are taken. In each history a generation restores an older step than the newest recorded one,
// so that steps with the same numbers are trained again.
var scenes = map[string]func(*world, int){
	"a file is torn as a node dies": func(w *world, turn int) { w.tear(turn, func() { w.die(0) }) },
	"a file is torn as a node restarts": func(w *world, turn int) {
		w.tear(turn, func() { // the pod stays, but its memory is lost
			a := w.agents[0]
			a.inc, a.state, a.ranks = a.inc+1, protocol.StateIdle, make([]simRank, 2)
			w.lose()
		})
	},
	"a node dies while another one is drained": func(w *world, turn int) {
		switch {
		case turn == 24:
			w.level = []Termination{w.terminationOf(1, false)}
		case len(w.stored.Copies) > 0 && w.stored.Generation == 1 && w.failures == 0:
			w.die(0)
		}
	},
}

// tear kills a rank and makes the newest stored step unreadable for a while. Meanwhile the memory of a pod is lost.
func (w *world) tear(turn int, lose func()) {
	switch turn {
	case 26:
		w.torn[w.stored.Durable.Mark] = true
		lose()
	case 34:
		clear(w.torn)
	case 58:
		w.kill(0, 1, protocol.Exit{Code: 137, Signal: 9})
	}
}

const sceneTurns = 66

// die ends a pod because its node dies.
func (w *world) die(slot int) {
	w.dies(slot)
	w.level = append(
		slices.DeleteFunc(slices.Clone(w.level), func(d Termination) bool { return int(d.Slot) == slot }),
		w.terminationOf(slot, true),
	)
}

func (w *world) play(scene func(*world, int), from, to int) {
	for turn := from; turn < to; turn++ {
		scene(w, turn)
		w.now = w.now.Add(200 * time.Millisecond)
		w.turn(func() {})
	}
}

// restore sets the API server back to an earlier time and starts another coordinator, which reads the record of that time. Pods that were
// created later are ended, and others are created in their place. With comeBack the earlier pods return with empty memory. restore returns
// the number of ended pods.
func (w *world) restore(record Record, then []Pod, comeBack bool) (ended int) {
	w.stored, w.pending, w.replacing, w.zombies, w.seeks = record, nil, nil, nil, nil
	clear(w.torn)
	w.state = New(len(w.agents), w.interval(), record)
	w.promises.successor()
	w.forgetBests(w.stored.BestStep)
	survivors := int64(0)
	for slot, a := range w.agents {
		if a.pod.UID == then[slot].UID && !a.dead {
			survivors = max(survivors, a.gen)
			continue
		}
		ended++
		w.replace(slot)
		if comeBack {
			w.agents[slot].pod = then[slot]
		}
	}
	w.level = slices.DeleteFunc(slices.Clone(w.level), func(d Termination) bool { return w.agents[d.Slot].pod.UID != d.Pod })
	maps.DeleteFunc(w.promises.runs, func(number int64, _ protocol.Run) bool { return number > survivors }) // their ranks are gone
	w.acked = w.within(survivors > record.Generation)
	w.tellNot(record)
	w.notef("restored: generation %d, durable %+v, %d pods ended, the newest generation is %d", record.Generation, record.Durable, ended, survivors)
	return ended
}

// tellNot records the steps that are complete in storage according to the record, unless some rank's memory shows that they were given up.
func (w *world) tellNot(record Record) {
	w.untold = map[protocol.Mark]bool{}
	for _, d := range []*StoredStep{record.Durable, record.Older} {
		if d == nil || slices.ContainsFunc(w.agents, func(a *simAgent) bool {
			return slices.ContainsFunc(a.ranks, func(k simRank) bool { return len(k.sealed) > 0 && k.sealed[len(k.sealed)-1].step < d.Step })
		}) {
			continue
		}
		w.untold[protocol.Mark{Step: d.Step, Generation: w.files[d.Mark][0].born}] = true
	}
}

// within returns the newest step that all ranks can get: from memory, or from storage according to the record. With an outdated record a
// recorded step counts only if all steps in memory are newer, because otherwise it may belong to another history.
func (w *world) within(behind bool) protocol.Point {
	for _, step := range w.acknowledged() {
		storage, older, whole := false, false, true
		for slot, a := range w.agents {
			for i, k := range a.ranks {
				memory := !a.dead && slices.ContainsFunc(k.sealed, func(s seal) bool { return s.point() == step })
				older = older || !a.dead && slices.ContainsFunc(k.sealed, func(s seal) bool { return s.point().Compare(step) <= 0 })
				storage = storage || !memory
				whole = whole &&
					(memory ||
						w.recorded(step, rankOf(slot, i)) &&
							!(behind && slices.ContainsFunc(w.stored.Copies, func(c RankCopy) bool { return c.Point() == step })))
			}
		}
		if whole && !(behind && storage && older) {
			return step
		}
	}
	return protocol.Point{}
}

// runAll plays on until every pod runs the newest generation. If the gang waits for users, they do what its message says; waited is the
// number of such waits.
func (w *world) runAll() (waited int) {
	w.settleUntil(func() bool {
		if w.state.waitsFor() == "" && strings.Contains(w.state.unreadable(), "that may belong to another line of training; delete these pods") {
			waited++
			for slot, a := range w.agents {
				w.apply(Detached{Slot: Slot(slot), Pod: a.pod.UID})
				w.replace(slot)
			}
		}
		r := w.state.rec()
		return r.Phase == Running && len(r.PendingReplacements) == 0 && !slices.ContainsFunc(w.agents, func(a *simAgent) bool {
			return a.state != protocol.StateRunning || a.gen != r.Generation || a.dead
		})
	})
	return waited
}

// TestRestoredBackup replaces the content of the API server by that of an earlier time, for any two moments of a history. No generation
// gets a number that a living pod has seen, however old the record is. All ranks continue from one history, and from the newest step that
// all ranks can get. The same holds for the next fault. If all pods are older than the backup, the gang continues undisturbed.
func TestRestoredBackup(t *testing.T) {
	undisturbed, behind, lost, waited := 0, 0, 0, 0
	for name, scene := range scenes {
		for then := 0; then < sceneTurns; then += 4 {
			for now := then; now < sceneTurns; now++ {
				comeBack, next := now%2 == 0, then/4%3
				t.Run(fmt.Sprintf("%s, of turn %d in turn %d", name, then, now), func(t *testing.T) {
					w := newWorld(t, 1, 2)
					w.play(scene, 0, then)
					record, pods := w.stored, []Pod{}
					for _, a := range w.agents {
						pods = append(pods, a.pod)
					}
					w.play(scene, then, now)
					before, quiet := w.state.Snapshot(), len(w.pending) == 0
					for _, a := range w.agents {
						quiet = quiet && a.state == protocol.StateRunning && a.gen == before.Generation && !a.dead && !w.listed(a)
					}
					if before.Generation > record.Generation {
						behind++
					}
					ended := w.restore(record, pods, comeBack)
					waited += w.runAll()
					switch after := w.state.Snapshot(); {
					case ended > 0:
						lost++
					case quiet && before.Phase == Running:
						if undisturbed++; after.Generation != before.Generation {
							w.failf("who lost nothing goes on", "generation %d after %d", after.Generation, before.Generation)
						}
					}
					waited += w.afterwards(next)
				})
			}
		}
	}
	t.Logf("%d gangs lost nothing, %d records lagged behind, %d gangs lost pods, %d waited for people", undisturbed, behind, lost, waited)
	if undisturbed < 100 || behind < 100 || lost < 100 || waited < 5 || waited > lost/20 {
		t.Error("too few to show anything, or too many that wait")
	}
}

// afterwards plays the next fault of a gang: a pod is drained or dies, at once or right after another failure.
func (w *world) afterwards(what int) (waited int) {
	switch what {
	case 0:
		before := w.acked
		w.level = []Termination{w.terminationOf(1, false)}
		w.deliverLevel()
		if waited += w.runAll(); waited == 0 && w.state.generation.RestoreStep < before.Step {
			w.failf("what is drained is not lost", "restored step %d after %v", w.state.generation.RestoreStep, before)
		}
	case 1:
		w.kill(0, 0, protocol.Exit{Code: 137, Signal: 9})
		waited += w.runAll()
		w.die(1)
	default:
		w.die(1)
	}
	return waited + w.runAll()
}
