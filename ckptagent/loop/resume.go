//go:build linux

package loop

import (
	"encoding/json"
	"os"
	"slices"
	"sync"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

// resume goes on from what the agent before left, if there was one.
func (a *Agent) resume() {
	var k persisted
	raw, err := os.ReadFile(a.c.Root.StateFile())
	if err == nil {
		err = json.Unmarshal(raw, &k)
	}
	forgot := err != nil && !os.IsNotExist(err)
	if err != nil {
		k = persisted{State: ckptagent.New().Durable}
	}
	if forgot {
		a.logf("reading the state of the agent before, which is lost; what runs is ended: %v", err)
		k.State = ckptagent.StateLost(uint64(time.Now().UnixNano())).Durable // above all that counted from 1, and above those before
	}
	same := err == nil && k.Container == a.c.Container
	a.state = ckptagent.State{Durable: k.State}
	a.loadModules()
	if same {
		a.shim, a.user = k.Shim, k.User
		if k.RanksOf == k.State.Run.Number { // else they were proven gone before the agent before took this generation
			a.ranks, a.ranksOf = k.Ranks, k.RanksOf
		}
		for _, b := range k.Standbys { // they have lost the agent that they listened to
			b.Kill()
		}
	}
	if a.ranks == nil {
		a.ranks = map[int]proc.Process{}
	}
	a.take(ckptagent.Resumed{SameContainer: same || forgot})
	a.followCommand()
	if !same {
		return
	}
	a.logf("agent %d takes over: generation %d is %s", a.state.Incarnation, a.state.Generation, a.state.Phase)
	a.adopt()
	a.resumeCommand()
	if a.state.Ranks > 0 && !a.state.Whole {
		a.followPages(a.state.Ranks)
		a.openArenas(a.state.Ranks)
		if a.arenas != nil && !a.state.Clean {
			// The agent before may have died between storing this generation and preparing the arenas for it.
			run := a.state.Run
			a.arenas.Begin(run.Number, run.Branch, run.Restores())
			a.arenas.SetBarrier(a.state.BarrierStep)
			// What was announced last has no checksum yet, and to take one of a big slot may last seconds, in which nobody would
			// hear this agent: who follows the arena seals it aside, and tells.
			for local := range a.state.Ranks {
				p, sealed := a.arenas.Peek(local)
				a.take(progress(local, p))
				a.take(ckptagent.Sealed{Generation: p.Generation, Local: local, Steps: sealed})
				a.polls[local] <- struct{}{} // the first of all, and there is room for one
			}
		}
	}
	if a.state.Launcher != "" && a.state.Returned == nil && !a.shim.Alive() {
		a.take(ckptagent.LauncherGone{})
	}
}

// loadModules reads the list of modules that a rank told an agent before this one, in this container or
// an earlier one of the pod. Others are told of it only where that agent has seen it imported.
func (a *Agent) loadModules() {
	raw, err := os.ReadFile(a.c.Root.KnownModulesFile())
	var known knownModules
	if err != nil || json.Unmarshal(raw, &known) != nil {
		return
	}
	a.modules = known.Modules
	a.standbys.SetModules(known.Modules, known.Memory)
	if _, err := os.Stat(a.c.Root.ProvenModulesFile()); err == nil {
		a.standbys.Prove()
	}
}

// adopt watches the ranks that still run and learns how the others ended.
func (a *Agent) adopt() {
	if a.state.Clean || a.state.Run.Number == 0 {
		return
	}
	begun := func(r ckptagent.Rank) bool { return r.PID != 0 || r.Exit != nil }
	if a.state.Phase == protocol.StateRunning && !a.state.FirstRun && len(a.ranks) == 0 && !slices.ContainsFunc(a.state.Rank, begun) {
		a.unstarted = true
		return
	}
	for local, r := range a.state.Rank {
		if r.Exit != nil {
			continue
		}
		p, known := a.ranks[local]
		if a.state.FirstRun && a.command != nil {
			p, known = a.command.Process, true
		}
		if !known {
			a.take(proc.Lost(a.state.Run.Number, local))
			continue
		}
		a.watch(local, p, nil)
	}
}

// startAgain starts the ranks of a generation that the agent before had taken and died over: those of a launcher once that has said
// anew how. It may have started some of them: they are ended first.
func (a *Agent) startAgain() {
	generation := a.state.Run.Number
	due := func() bool {
		s := a.state
		return s.Run.Number == generation && s.Phase == protocol.StateRunning && !s.Clean && !s.Ending
	}
	if !a.unstarted || !due() {
		return
	}
	a.unstarted = false
	whole, spared, job := a.state.Whole, a.standbys.Sessions(), a.job
	go func() {
		if whole {
			proc.EndBelow(a.c.Init, proc.Process{}, true, 0)
		} else {
			proc.EndAll(a.c.Container, nil, spared, 0, job.Hidden)
		}
		a.do(func() {
			if due() {
				a.start(ckptagent.Start{Run: a.state.Run, Ranks: a.state.Ranks})
				a.take(ckptagent.Tick{}) // which brings what was put off
			}
		})
	}()
}

// watch tells the core when a rank's process has ended; ended brings it where somebody waits already.
func (a *Agent) watch(local int, p proc.Process, ended <-chan protocol.Exit) {
	generation := a.state.Run.Number
	watchers, original := a.watchers, a.state.FirstRun
	watchers.Add(1)
	go func() {
		var end protocol.Exit
		if ended != nil {
			end = <-ended
		} else {
			end = p.Wait(a.exits)
		}
		traceback := generation
		if original {
			traceback = 0 // init began it
		}
		e := ckptagent.Exited{Generation: generation, Local: local, Exit: proc.Traced(end, a.c.Root, traceback, local)}
		if tb, ok := proc.ReadTraceback(a.c.Root, traceback, local); ok {
			e.TracebackAt = tb.At
		}
		p, err := page.Read(a.c.Root.PageFile(local)) // for the last time
		a.do(func() {
			if err == nil && p.Hook {
				a.take(a.optimizerSteps(local, p))
			}
			if a.arenas != nil {
				last, _ := a.arenas.Peek(local)
				a.take(progress(local, last))
			}
			if a.state.Whole {
				a.noteTerminating()
			}
			a.take(e)
			watchers.Done()
		})
	}()
}

// openArenas opens or makes the arenas, or notes why there are none.
func (a *Agent) openArenas(ranks int) {
	if a.arenas != nil {
		return
	}
	a.arenas, a.arenaOff = openArenas(a.c, ranks, time.Now())
	if a.arenas == nil {
		return
	}
	set := a.arenas
	a.polls, a.following = make([]chan struct{}, ranks), &sync.WaitGroup{}
	for local := range ranks {
		poll := make(chan struct{}, 1)
		a.polls[local] = poll
		a.following.Go(func() { a.follow(set, local, poll) })
	}
}

// closeArenas lets the arenas go of a launcher that has returned, and then calls next, once nobody reads them any more.
func (a *Agent) closeArenas(next func()) {
	set, following := a.arenas, a.following
	for _, poll := range a.polls {
		close(poll)
	}
	a.arenas, a.polls, a.following = nil, nil, nil
	go func() {
		following.Wait()
		set.Close()
		a.do(next)
	}()
}
