//go:build linux

package loop

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

// A page is read as often as an arena. After a rank's start it is read more often, until the rank has reported its first step, which ends a
// recovery, and its imports have settled, so that standbys can begin at once.
const (
	pageSoon    = 50 * time.Millisecond
	pageSoonFor = time.Minute
	// noHookAfter is how long ranks run before a missing site hook is reported as the script's doing.
	noHookAfter = 30 * time.Second
)

// rankPage is the last content of a rank's page, and the state of its imports.
type rankPage struct {
	page    page.Page
	names   []string
	imports ckptagent.Imports
}

// followPages starts to read the pages of all ranks.
func (a *Agent) followPages(ranks int) {
	for local := len(a.pages); local < ranks; local++ {
		a.pages = append(a.pages, rankPage{})
		go a.followPage(local)
	}
}

func (a *Agent) followPage(local int) {
	f := page.Follow(a.c.Root.PageFile(local))
	var before page.Page
	var entered, changed time.Time
	names, quiet := 0, true
	for {
		p := f.Poll()
		now := time.Now()
		if p.Generation != before.Generation || p.PID != before.PID {
			entered = now
		}
		if len(f.Names) != names {
			names, changed, quiet = len(f.Names), now, false
		}
		if p != before {
			before = p
			names := slices.Clip(f.Names)
			a.do(func() { a.onPage(local, p, names, now) })
		}
		if !quiet && now.Sub(changed) >= ckptagent.QuietAfterStep {
			quiet = true
			a.do(func() { a.settleModules(now) })
		}
		if (p.OptimizerSteps == 0 || !quiet) && now.Sub(entered) < pageSoonFor {
			time.Sleep(pageSoon)
		} else {
			time.Sleep(pollEvery)
		}
	}
}

// onPage handles the content of a page.
func (a *Agent) onPage(local int, p page.Page, names []string, now time.Time) {
	r := &a.pages[local]
	if p.Generation != r.page.Generation || p.PID != r.page.PID {
		r.imports = ckptagent.Imports{Began: now, Changed: now}
	}
	if len(names) != r.imports.Count {
		r.imports.Count, r.imports.Changed = len(names), now
		r.imports.Took = append(r.imports.Took, ckptagent.Took{Modules: len(names), Bytes: proc.OwnMemory(int(p.PID))})
	}
	r.page, r.names = p, names
	if p.Hook {
		a.take(a.optimizerSteps(local, p))
	}
}

func (a *Agent) optimizerSteps(local int, p page.Page) ckptagent.OptimizerSteps {
	generation := p.Generation
	if generation == 0 && a.state.FirstRun { // init began the command before the first generation
		generation = a.state.Run.Number
	}
	return ckptagent.OptimizerSteps{
		Generation:  generation,
		Local:       local,
		Steps:       p.OptimizerSteps,
		ResumedAt:   p.ResumedAt,
		ResumeKnown: p.ResumeKnown,
	}
}

// settleModules makes standbys import what a rank has imported, once the list has settled.
func (a *Agent) settleModules(now time.Time) {
	for local := range a.pages {
		r := &a.pages[local]
		if !a.present(local) {
			continue
		}
		r.imports.Stepped = r.page.OptimizerSteps > 0 || a.state.Rank[local].Stepped
		if r.imports.Settled(now) {
			r.imports.Published = r.imports.Count
			if ckptagent.Outgrown(len(a.modules), r.imports.Count) {
				a.setModules(r.names, r.imports.Memory())
			}
		}
	}
}

// present reports whether a rank runs and its page is of the present generation, so that the site hook ran in it.
func (a *Agent) present(local int) bool {
	return !a.state.Clean && local < len(a.state.Rank) && a.state.Rank[local].Alive && a.pages[local].page.Generation == a.state.Run.Number
}

// noHook returns why there are no standbys if no rank's site hook has reported imports in time; else "".
func (a *Agent) noHook(now time.Time) string {
	started := a.state.Timeline.Started
	if a.state.Whole || a.state.Phase != protocol.StateRunning || started.IsZero() || now.Sub(started) < noHookAfter || len(a.modules) > 0 {
		return ""
	}
	for local := range a.pages {
		if a.present(local) {
			return ""
		}
	}
	if a.pageOff != "" {
		return "standbys are off: " + a.pageOff
	}
	return "standbys are off: no Python process of the ranks runs Holdfast's site hook, because they are no Python program, or their interpreter ignores PYTHONPATH (-I, -E, -S); ranks start cold"
}

// preparePage creates the page of a rank that is about to start. Without a page the rank reports no steps and gets no standby.
func (a *Agent) preparePage(local int) {
	if err := page.Prepare(a.c.Root.PageFile(local)); err != nil {
		a.pageOff = fmt.Sprintf("creating the page of a rank for its imports and steps: %v", err)
		a.logf("%s", a.pageOff)
	}
}
