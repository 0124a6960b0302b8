//go:build linux

package loop

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

func (a *Agent) carryOut(e ckptagent.Effect) {
	switch e := e.(type) {
	case ckptagent.Start:
		a.start(e)
	case ckptagent.End:
		a.end(e)
	case ckptagent.TakeInventory:
		a.inventory(e.Abandoned)
	case ckptagent.Levels:
		if a.arenas != nil {
			a.arenas.Levels(e.CommonStep, e.ReclaimBelow)
			a.arenas.SetDurable(e.Durable)
		}
	case ckptagent.SetBarrier:
		if a.arenas != nil {
			a.arenas.SetBarrier(e.Step)
			a.peek()
		}
	case ckptagent.CopyStep:
		if a.uploader != nil {
			a.uploader.copy(e)
		}
	case ckptagent.AwaitCopy:
		if a.uploader != nil {
			a.uploader.drafts.await(e)
		}
	case ckptagent.WriteManifest:
		if a.uploader != nil {
			a.uploader.manifest(e, a.job)
		}
	case ckptagent.Fetch:
		if a.uploader != nil {
			a.uploader.fetch(e)
		}
	case ckptagent.Adopt:
		if a.command == nil {
			return // a later agent may be able to read the command
		}
		a.keepContainer(a.command.Process)
		a.logf("no launcher has come: the whole command is one rank of this pod and is restarted as a whole: %s", proc.Line(a.command.Argv))
	case ckptagent.Release:
		a.release()
	case ckptagent.InspectCommand:
		if a.command != nil {
			a.later(ckptagent.CommandSeen{Command: proc.Line(a.command.Argv), Now: a.command.Running(), PassedBy: proc.PassedBy()})
		}
	case ckptagent.Notice:
		a.logf("%s", e.Text)
	case ckptagent.Return:
		if a.state.Whole {
			a.writeExitCode(e.Returned.Code)
		} else if a.launch != nil {
			a.logf("the launcher returns %d", e.Returned.Code)
			a.checks.End()
			a.standbys.Close() // readers of the launcher's output wait for all processes that have it open
			a.returnLauncher(a.launch, a.outcome(e.Returned))
		}
	case ckptagent.LookAt:
		a.lookAt(e)
	case ckptagent.KeepEvidence:
		a.keepEvidence(e)
	case ckptagent.Try:
		a.try(e.Trial)
	case ckptagent.EndTrial:
		a.stopTrial(e.Trial)
	case ckptagent.OfferPort:
		a.offerPort()
	case ckptagent.Standbys:
		a.standbys.SetWarm(e.Warm, a.state.Run)
	case ckptagent.SetModules:
		a.setModules(e.Modules, 0)
		a.standbys.Prove()
	}
}

// peek reports the barrier together with the steps that ranks have reached without having read it. follow reports a step only once it is
// sealed, which takes seconds for a big state.
func (a *Agent) peek() {
	for local := range a.state.Ranks {
		p, _ := a.arenas.Peek(local)
		a.later(progress(local, p))
	}
}

func progress(local int, p arena.Progress) ckptagent.Progress {
	return ckptagent.Progress{
		Generation: p.Generation,
		Local:      local,
		Attached:   p.Attached,
		Restored:   p.Restored,
		Restoring:  p.Restoring,
		Step:       p.Step,
		Span:       p.Span,
		Grouped:    p.Grouped,
	}
}

// start starts the ranks of a generation, after a wait for standbys if it pays.
func (a *Agent) start(e ckptagent.Start) {
	if a.state.Whole {
		a.startCommand(e)
		return
	}
	run := e.Run
	a.checks.End()
	a.watchers, a.ranks, a.ranksOf = &sync.WaitGroup{}, map[int]proc.Process{}, run.Number
	a.clearErrors()
	if a.arenas != nil {
		arena.Prune(a.c.Root.Memory(), e.Ranks)
		a.arenas.Begin(run.Number, run.Branch, run.Restores())
	}
	a.starting = &e
	standbys := a.standbys.Await()
	if standbys == nil {
		a.startRanks(e)
		return
	}
	go func() {
		<-standbys
		a.do(func() {
			if a.starting == &e { // else the generation was ended meanwhile
				a.startRanks(e)
				a.take(ckptagent.Tick{}) // handles what was deferred
			}
		})
	}()
}

// startRanks starts the ranks, each in its standby if that is ready.
func (a *Agent) startRanks(e ckptagent.Start) {
	run := e.Run
	a.starting = nil
	if run.BaseRank == 0 {
		if err := proc.CheckPort(run.MasterPort); err != nil {
			a.unstartable(run, 0, 1, err)
			return
		}
	}
	if err := a.job.MakeLogs(run); err != nil {
		a.unstartable(run, 0, 1, err)
		return
	}
	a.tails.Finish()
	a.tails = a.job.Tail(run, false)
	warm := 0
	a.pageOff = ""
	for local := range e.Ranks {
		a.preparePage(local)
		p, ended, standby := a.standbys.Take(run, local)
		var err error
		if standby {
			warm++
		} else if p, err = a.job.Start(run, local); err != nil {
			a.unstartable(run, local, exitNotFound, err)
			continue
		}
		a.ranks[local] = p
		a.watch(local, p, ended)
		a.later(ckptagent.Started{Generation: run.Number, Local: local, PID: p.PID, FromStandby: standby})
	}
	a.store()
	a.logf("generation %d: ranks %d to %d of %d started (%d warm), from step %d", run.Number, run.BaseRank, run.BaseRank+e.Ranks-1, run.WorldSize, warm, run.RestoreStep)
}

// longestShutdown bounds the launcher's shutdown timeout while the whole gang waits: after two minutes the coordinator counts the ranks as
// stuck.
const longestShutdown = 90 * time.Second

// exitNotFound is a shell's exit code for a program that could not be started.
const exitNotFound = 127

// unstartable reports a rank that could not be started, as if it had ended with that code.
func (a *Agent) unstartable(run protocol.Run, local, code int, err error) {
	a.later(
		ckptagent.Exited{
			Generation: run.Number,
			Local:      local,
			Exit:       protocol.Exit{Code: code, At: time.Now(), Traceback: "holdfast: " + err.Error()},
		},
	)
}

func (a *Agent) clearErrors() {
	files, _ := filepath.Glob(filepath.Join(a.c.Root.Ranks(), "error-*.txt*"))
	for _, f := range files {
		os.Remove(f)
	}
}

// end ends all processes in another goroutine, and posts Gone when none is left and all their exits were reported.
func (a *Agent) end(e ckptagent.End) {
	if a.state.Whole {
		a.endCommand(e)
		return
	}
	a.starting = nil
	a.standbys.Forgo()
	a.standbys.SetWarm(false, a.state.Run)
	ended := slices.Collect(maps.Values(a.ranks))
	grace := e.Within
	if e.ByLauncher {
		least := launch.DefaultShutdownTimeout
		if a.launch != nil {
			least = min(a.job.Spec.ShutdownTimeout, longestShutdown)
		}
		grace = max(grace, least)
	}
	locals := map[int]int{}
	for local, p := range a.ranks {
		locals[p.PID] = local
	}
	job, generation, ranks, watchers, tails := a.job, a.state.Run.Number, a.state.Ranks, a.watchers, a.tails
	go func() {
		gone := ckptagent.Gone{Tracebacks: map[int]ckptagent.Traceback{}}
		for _, pid := range proc.EndAll(a.c.Container, ended, a.standbys.Sessions(), grace, job.Hidden) {
			gone.Waited = append(gone.Waited, locals[pid])
		}
		slices.Sort(gone.Waited)
		a.clearShared(job)
		watchers.Wait()
		tails.Finish()
		for local := range ranks {
			if tb, ok := proc.ReadTraceback(a.c.Root, generation, local); ok {
				gone.Tracebacks[local] = tb
			}
		}
		a.do(func() { a.gone(gone, watchers) })
	}()
}

// clearShared removes what ended ranks have left in shared memory: the next ranks would open it, and it would fill up.
func (a *Agent) clearShared(job proc.Job) {
	removed, kept := proc.ClearShared(a.c.Root, job.SharedUse())
	if len(removed) > 0 {
		a.logf("removed from shared memory what ended ranks had left: %d files, %s", len(removed), proc.Line(removed))
	}
	if len(kept) > 0 {
		a.logf("left in shared memory, because processes of other users may use them: %d files, %s", len(kept), proc.Line(kept))
	}
}

// gone records that the watchers' ranks are gone: their pids may be reused from now on.
func (a *Agent) gone(e ckptagent.Gone, watchers *sync.WaitGroup) {
	if a.watchers == watchers {
		a.ranks = map[int]proc.Process{}
	}
	a.take(e)
}

// inventory takes the inventory of the arenas.
func (a *Agent) inventory(past ckptagent.Abandoned) {
	arenas := a.arenas
	if arenas == nil {
		a.later(ckptagent.Inventoried{})
		return
	}
	a.following.Go(func() {
		a.post(ckptagent.Inventoried{Sealed: arenas.Inventory(past.Generation, past.Restores(), time.Now())})
	})
}

// offerPort replaces the offered port. If there is no free one, it retries.
func (a *Agent) offerPort() {
	before := a.port
	if a.c.Ports != (proc.Ports{}) {
		before.Close() // it may be the only free one
	}
	p, err := proc.OfferPort(a.c.Ports, before.Number)
	if a.c.Ports == (proc.Ports{}) {
		before.Close()
	}
	if a.port, a.noPort = p, ""; err != nil {
		a.noPort = "rank 0 has no port to listen on: " + err.Error()
	}
	a.later(ckptagent.PortOffered{Port: p.Number})
}

// returnLauncher makes the launcher return once all output of its ranks is on the console.
func (a *Agent) returnLauncher(l *proc.Launch, o proc.Outcome) {
	a.tails.Finish()
	if a.tails == nil {
		l.Close()
		l.Return(o)
		return
	}
	a.returning.Go(func() {
		a.tails.Wait(tailsWait)
		l.Close()
		l.Return(o)
	})
}

// outcome is the launcher's result: how the newest generation ended here.
func (a *Agent) outcome(r ckptagent.Returned) proc.Outcome {
	o := proc.Outcome{Exit: r.Code, Message: r.Message, BaseRank: a.state.Run.BaseRank, Ranks: len(a.state.Rank)}
	if r.Code == 0 {
		return o
	}
	for local, rank := range a.state.Rank {
		if rank.Exit != nil && rank.Exit.Code != 0 {
			o.Failures = append(
				o.Failures,
				proc.Failure{Local: local, PID: rank.PID, Code: rank.Exit.Code, Signal: rank.Exit.Signal, At: rank.Exit.At.Unix(),
					ErrorFile: a.job.ErrorFile(a.state.Run, local)},
			)
		}
	}
	return o
}
