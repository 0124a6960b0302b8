package story

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Training is the name of the training container in every example.
const Training = "trainer"

// Play plays the whole story and reports the results; it stops at the first broken promise, with the report so far.
func Play(ctx context.Context, w *World) (*Report, error) {
	r := &Report{Started: w.Started, Machine: fmt.Sprintf("one machine, %d cores, 3 kubelets", runtime.NumCPU())}
	played := &run{World: w, report: r, steps: NewSteps(), endComparison: func() {}}
	defer func() { played.endComparison() }()
	for _, c := range []struct {
		title string
		play  func(*run, context.Context) ([]string, error)
	}{
		{"Holdfast is installed by the manifests that a user would apply", (*run).install},
		{"Placed all together or not at all", (*run).placed},
		{"Injected, and started from the user's own command", (*run).injected},
		{"Ranks are killed: restarted in place, state from memory", (*run).ranksKilled},
		{"The agent is killed: training does not stop", (*run).agentKilled},
		{"A GPU falls off the bus: one pod goes to the spare node", (*run).gpuLost},
		{"The controller is away: training goes on", (*run).controllerAway},
		{"The GPU works again", (*run).healed},
		{"A node is drained", (*run).drained},
		{"A job with no changed line", (*run).unchanged},
		{"A rank waits for data that does not come: it is named, and nothing is restarted", (*run).stands},
		{"A node that multiplies wrongly is found before the first step, kept out, and its pod replaced", (*run).checked},
		{"Meanwhile, in other jobs: a bug ends one, which says what rank failed first; one that was held up goes on", (*run).othersTold},
		{"Every loss equals that of an undisturbed run", (*run).losses},
	} {
		w.Say("%s", c.title)
		began := time.Now()
		saw, err := c.play(played, ctx)
		for _, s := range saw {
			w.Say("  ✓ %s", s)
		}
		r.Chapters = append(r.Chapters, Chapter{Title: c.title, Took: time.Since(began), Saw: saw})
		if err != nil {
			return r, fmt.Errorf("%s: %w", c.title, err)
		}
	}
	return r, nil
}

// run is a story in progress.
type run struct {
	*World
	report *Report
	steps  *Steps
	// kills are the failures that the story caused, in order.
	kills []kill
	// pods are the names of the job's pods by slot, and their UIDs when they were first seen.
	pods, uids []string
	// well reports when the node whose GPU fell off the bus was healthy again.
	well aside[[]string]
	// late reports when the pod that was refused while the controller was unavailable ran.
	late aside[[]string]
	// bugs reports the result of the job with the bug.
	bugs aside[[]string]
	// still reports what was said of the job whose rank waits for data.
	still aside[[]string]
	// tried reports what was found of the job whose pods are tried.
	tried aside[[]string]
	// undisturbed has the losses of the comparison run on this machine.
	undisturbed aside[[]Loss]
	// endComparison ends that run and waits until all its processes have ended.
	endComparison func()
}

// kill is one failure that the story caused while generation `after` ran.
type kill struct {
	what  string
	at    time.Time
	after int64
}
