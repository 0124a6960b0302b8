package elastic

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestCrashTable ends the coordinator at every event of a pod's replacement, in one history per event, once before and once after pending
// writes have reached the store. The next coordinator starts from the stored record and receives the same reports and the same level. In
// each history the pod is replaced once, training continues from its last step in one more generation, and only real failures count as
// failures. If the coordinator ends between storing a generation and the reports that all pods run it, its layout is lost: that costs one
// more generation, and no restart.
func TestCrashTable(t *testing.T) {
	for name, c := range map[string]crashCase{
		"drained": {prepare: func(w *world) { w.level = []Termination{w.terminationOf(1, false)} }},
		"leaving": {prepare: func(w *world) { w.deleted(1) }},
		"dead":    {prepare: func(w *world) { w.level = []Termination{w.terminationOf(1, true)}; w.dies(1) }},
		"two":     {prepare: func(w *world) { w.level = []Termination{w.terminationOf(0, false), w.terminationOf(1, false)} }},
		"suspended": {prepare: func(w *world) {
			w.level = nil
			for slot := range w.agents {
				w.deleted(slot)
				w.level[slot].Cause = replacements.JobSuspended
			}
			w.suspended = true
		}},
		"silent": {failures: 1, pace: 4 * time.Second, prepare: func(w *world) {
			w.cutOff(1)
			w.kill(0, 0, protocol.Exit{Code: 137, Signal: 9})
		}},
		"silent, its peer says": {failures: 1, pace: 4 * time.Second, prepare: func(w *world) {
			w.cutOff(1)
			w.kill(0, 0, protocol.Exit{Code: 1, Traceback: "ConnectionError: a peer is gone"})
		}},
	} {
		points := replaceWithCrash(t, c, -1, false)
		if points < 20 {
			t.Errorf("%s: a replacement has %d points only", name, points)
		}
		for at := range points {
			for _, arrives := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", name, at, arrives), func(t *testing.T) { replaceWithCrash(t, c, at, arrives) })
			}
		}
	}
}

// crashCase is one row of TestCrashTable.
type crashCase struct {
	prepare  func(*world)
	failures int           // that count
	pace     time.Duration // how much time passes in one turn; 0: little
}

// faltered is how long the ranks of falter make no step.
const faltered = 2 * time.Minute

// falter lets ranks make no step for a while, until they move on by themselves, and stores that.
func (w *world) falter() {
	w.apply(Supervise{Supervision{Hang: HangReport}})
	w.turn(func() {})
	for _, pause := range []time.Duration{faltered, time.Second} {
		w.now = w.now.Add(pause)
		w.turn(func() {})
	}
	w.apply(Supervise{})
	w.settleUntil(func() bool { return len(w.pending) == 0 })
	w.stored = w.state.Snapshot()
}

// cutOff stops the reports of a slot's agent. The agent goes on running.
func (w *world) cutOff(slot int) {
	a := w.agents[slot]
	a.cut = true
	w.apply(Detached{Slot: Slot(slot), Pod: a.pod.UID})
	a.dead = true // the agent's memory is lost with the agent
	w.lose()
	a.dead = false
}

// replaceWithCrash plays one history with a crash at the given event, and returns the number of events of the history.
func replaceWithCrash(t *testing.T, c crashCase, at int, arrives bool) int {
	t.Helper()
	w := newWorld(t, 1, 2)
	w.settleUntil(func() bool {
		return w.agents[1].state == protocol.StateRunning && w.agents[0].state == protocol.StateRunning
	})
	for range 5 {
		w.trainAll()
	}
	w.settleUntil(func() bool { return w.state.rec().Durable != nil })
	w.falter()
	before := w.state.Snapshot()
	c.prepare(w)
	acked, events, midway := w.acked, 0, int64(0)
	crash := func() {
		if events++; events-1 != at {
			return
		}
		for arrives && len(w.pending) > 0 {
			w.store()
		}
		w.pending = nil
		midway = w.stored.Generation - before.Generation
		w.state = New(len(w.agents), w.interval(), w.stored)
		w.promises.successor()
		replacing := w.replacing
		w.replacing = nil
		if arrives {
			for _, d := range replacing {
				w.swap(d) // the controller replaced the pod, but did not report it
			}
		}
	}
	done := func() bool {
		r := w.state.rec()
		return r.Generation > before.Generation && r.Phase == Running && w.agents[0].gen == r.Generation && w.agents[1].gen == r.Generation &&
			w.agents[0].state == protocol.StateRunning && w.agents[1].state == protocol.StateRunning && len(r.PendingReplacements) == 0 &&
			len(w.level) == 0
	}
	for round := 0; !done(); round++ {
		if round > 400 {
			w.failf("every point leads to the end", "phase %s generation %d, pending %+v: %s", w.state.Record.Phase, w.state.generation.Number, w.state.rec().PendingReplacements, w.state.waitsFor())
		}
		w.now = w.now.Add(c.pace)
		w.turn(crash)
	}
	r := w.state.Snapshot()
	switch {
	case r.Generation > before.Generation+1+midway:
		w.failf("one recovery", "generation %d after %d", r.Generation, before.Generation)
	case r.Restarts > before.Restarts+c.failures || r.WithoutProgress > before.WithoutProgress+c.failures:
		w.failf("no failure", "restarts %d, without progress %d", r.Restarts, r.WithoutProgress)
	case r.Restarts < before.Restarts+c.failures:
		w.failf("what is a failure counts", "restarts %d", r.Restarts)
	case r.RestoreStep < acked.Step:
		w.failf("no step is lost", "%d after %v", r.RestoreStep, acked)
	case r.Progress.LongestSilence < faltered:
		w.failf("the longest silence stays known", "%s", r.Progress.LongestSilence)
	}
	return events
}

// turn plays each kind of event once: the controller sends the level, agents report, orders are carried out, records are stored, pods are
// replaced, and every rank that can finishes a step.
func (w *world) turn(between func()) {
	w.now = w.now.Add(200 * time.Millisecond)
	between()
	w.deliverLevel()
	between()
	w.apply(Tick{})
	w.seek()
	for slot := range w.agents {
		a := w.agents[slot]
		if a.dead || a.cut {
			continue
		}
		between()
		w.apply(Reported{Slot: Slot(slot), Pod: a.pod, Report: w.report(a)})
		between()
		if len(w.pending) > 0 {
			w.store()
		}
		w.obey(slot, w.state.Directive(Slot(slot), a.pod.UID))
	}
	between()
	if len(w.replacing) > 0 {
		w.carryOut()
	}
	w.resume()
	w.trainAll()
}

// resume resumes a suspended Job once all its pods have ended.
func (w *world) resume() {
	if !w.suspended || slices.ContainsFunc(w.agents, func(a *simAgent) bool { return !a.exited }) {
		return
	}
	w.suspended, w.level = false, nil
	for slot, a := range w.agents {
		w.apply(Detached{Slot: Slot(slot), Pod: a.pod.UID})
		w.replace(slot)
	}
}

func (w *world) settleUntil(done func() bool) {
	for round := 0; !done(); round++ {
		if round > 200 {
			w.failf("it begins", "phase %s generation %d: %s", w.state.Record.Phase, w.state.generation.Number, w.state.waitsFor())
		}
		w.turn(func() {})
	}
}

// trainAll makes all ranks of the gang finish a step together, unless some rank waits in its save.
func (w *world) trainAll() {
	for _, a := range w.agents {
		for i := range a.ranks {
			if k := &a.ranks[i]; !k.alive || a.state != protocol.StateRunning || a.dead || a.held(k) || a.gen != w.agents[0].gen {
				return
			}
		}
	}
	for _, a := range w.agents {
		for i := range a.ranks {
			k := &a.ranks[i]
			k.step++
			if len(k.sealed) == 3 {
				k.sealed = k.sealed[1:]
			}
			k.sealed = append(k.sealed, seal{step: k.step, born: a.gen, branch: a.branch})
		}
	}
	w.acknowledge()
}
