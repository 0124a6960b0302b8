//go:build linux

package loop

import (
	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/ckptagent/watch"
)

// lookAt looks at the ranks in another goroutine, and posts Looked.
func (a *Agent) lookAt(e ckptagent.LookAt) {
	var ranks []watch.Rank
	for local := range a.state.Rank {
		if p, ok := a.ranks[local]; ok {
			ranks = append(ranks, watch.Rank{Local: local, Process: p, Page: a.pageOf(local), Files: a.c.Root.LooksFile(local)})
		}
	}
	world := a.state.Run.WorldSize
	if a.state.Whole {
		world = 0 // it numbers its own ranks
	}
	watcher := a.watcher
	go func() {
		a.post(ckptagent.Looked{Number: e.Number, Generation: e.Generation, Looks: watcher.Look(ranks, world)})
	}()
}

// pageOf returns the page of a rank, if it is of the present generation.
func (a *Agent) pageOf(local int) page.Page {
	if local >= len(a.pages) || a.optimizerSteps(local, a.pages[local].page).Generation != a.state.Run.Number {
		return page.Page{}
	}
	return a.pages[local].page
}
