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

// resume continues from the previous agent's state, if there is one.
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
		k.State = ckptagent.StateLost(uint64(time.Now().UnixNano())).Durable // above all incarnations and sequence numbers used before
	}
	same := err == nil && k.Container == a.c.Container
	a.state = ckptagent.State{Durable: k.State}
	a.loadModules()
	if same {
		a.shim, a.user = k.Shim, k.User
		if k.RanksOf == k.State.Run.Number { // else the previous agent proved them gone before it accepted this generation
			a.ranks, a.ranksOf = k.Ranks, k.RanksOf
		}
		for _, b := range k.Standbys { // their socket to the previous agent is closed
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
			// The previous agent may have died between storing this generation and preparing the arenas for it.
			run := a.state.Run
			a.arenas.Begin(run.Number, run.Branch, run.Restores())
			a.arenas.SetBarrier(a.state.BarrierStep)
			// The newest announced copy has no checksum yet, which takes seconds for a big slot and would delay the first report. So follow
			// seals it in another goroutine.
			for local := range a.state.Ranks {
				p, sealed := a.arenas.Peek(local)
				a.take(progress(local, p))
				a.take(ckptagent.Sealed{Generation: p.Generation, Local: local, Steps: sealed})
				a.polls[local] <- struct{}{} // the channel is empty and has room for one
			}
		}
	}
	if a.state.Launcher != "" && a.state.Returned == nil && !a.shim.Alive() {
		a.take(ckptagent.LauncherGone{})
	}
}

// loadModules reads the list of modules that an earlier agent of the pod stored. It is reported to others only if that agent has seen it
// imported.
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

// adopt watches the ranks that still run and reads how the others ended.
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

// startAgain starts the ranks of a generation that the previous agent accepted before it died: a launcher's once the launcher has sent its
// request again. Ranks that the previous agent did start are ended first.
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
				a.take(ckptagent.Tick{}) // handles what was deferred
			}
		})
	}()
}

// watch reports the end of a rank's process to the core; ended delivers it if another goroutine waits for the process.
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

// openArenas opens or creates the arenas, or records why there are none.
func (a *Agent) openArenas(ranks int) {
	if a.arenas != nil {
		return
	}
	a.arenas, a.arenaOff = openArenas(a.c, ranks, time.Now())
	if a.arenas == nil {
		return
	}
	set := a.arenas
	if a.uploader != nil {
		set.Announced = a.uploader.drafts.begin
	}
	a.polls, a.following = make([]chan struct{}, ranks), &sync.WaitGroup{}
	for local := range ranks {
		poll := make(chan struct{}, 1)
		a.polls[local] = poll
		a.following.Go(func() { a.follow(set, local, poll) })
	}
}

// closeArenas closes the arenas of a launcher that has returned, and calls next once no goroutine reads them.
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
