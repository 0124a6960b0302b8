//go:build linux

package loop

import (
	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/ckptagent/ras"
	"holdfast.dev/holdfast/ckptagent/watch"
)

// lookAt looks at the ranks in another goroutine, and posts Looked.
func (a *Agent) lookAt(e ckptagent.LookAt) {
	ranks, world := a.watched()
	watcher := a.watcher
	go func() {
		a.post(ckptagent.Looked{Number: e.Number, Generation: e.Generation, Looks: watcher.Look(ranks, world)})
	}()
}

// watched returns the ranks to look at, and the size of their world; 0: a whole command numbers its own ranks. Global rank 0 asks NCCL's
// RAS for all, unless RAS of another gang may answer on its network.
func (a *Agent) watched() (ranks []watch.Rank, world int) {
	for local := range a.state.Rank {
		p, ok := a.ranks[local]
		if !ok {
			continue
		}
		r := watch.Rank{Local: local, Process: p, Page: a.pageOf(local), Files: a.c.Root.LooksFile(local), Quiet: []int{a.state.Run.MasterPort}}
		if a.state.Run.BaseRank+local == 0 && !a.c.HostNetwork {
			r.RAS = a.rasAddress()
		}
		ranks = append(ranks, r)
	}
	if a.state.Whole {
		return ranks, 0
	}
	return ranks, a.state.Run.WorldSize
}

// rasAddress returns where NCCL's RAS listens in this pod.
func (a *Agent) rasAddress() string {
	if a.launch != nil && a.launch.Env[ras.EnvAddress] != "" {
		return a.launch.Env[ras.EnvAddress]
	}
	return ras.DefaultAddress
}

// pageOf returns the page of a rank, if it is of the present generation.
func (a *Agent) pageOf(local int) page.Page {
	if local >= len(a.pages) || a.optimizerSteps(local, a.pages[local].page).Generation != a.state.Run.Number {
		return page.Page{}
	}
	return a.pages[local].page
}
