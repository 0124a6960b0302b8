//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/ckptagent/proc"
)

func (a *Agent) carryOut(e ckptagent.Effect) {
	switch e := e.(type) {
	case ckptagent.Start:
		a.start(e)
	case ckptagent.End:
		a.end(e)
	case ckptagent.TakeInventory:
		a.inventory(e.Past)
	case ckptagent.Levels:
		if a.arenas != nil {
			a.arenas.Levels(e.Common, e.Frontier)
		}
	case ckptagent.Hold:
		if a.arenas != nil {
			a.arenas.Hold(e.Step)
			a.glance()
		}
	case ckptagent.CopyStep:
		if a.keeper != nil {
			a.keeper.copy(e)
		}
	case ckptagent.WriteManifest:
		if a.keeper != nil {
			a.keeper.manifest(e)
		}
	case ckptagent.Fetch:
		if a.keeper != nil {
			a.keeper.fetch(e)
		}
	case ckptagent.Return:
		if a.launch != nil {
			a.logf("the launcher returns %d", e.Returned.Code)
			a.standbys.Close() // whoever reads the launcher's output waits for all that could write to it
			a.launch.Close()
			a.launch.Return(e.Returned.Code, e.Returned.Message)
		}
	case ckptagent.OfferPort:
		a.offerPort()
	case ckptagent.Standbys:
		a.standbys.SetWarm(e.Warm, a.state.Run)
	}
}

// glance has the hold told together with how far ranks are that may not have seen it. Who follows an arena tells of a step once it
// is sealed, which may be seconds later where the state is big.
func (a *Agent) glance() {
	for local := range a.state.Ranks {
		p, _ := a.arenas.Glance(local)
		a.later(ckptagent.Progress{Generation: p.Generation, Local: local, Attached: p.Attached, Restored: p.Restored, Step: p.Step})
	}
}

// start starts the ranks of a generation: in standbys where these are ready, else cold.
func (a *Agent) start(e ckptagent.Start) {
	run := e.Run
	a.watchers, a.ranks = &sync.WaitGroup{}, map[int]proc.Process{}
	a.clearErrors()
	if a.arenas != nil {
		a.arenas.Begin(run.Number, run.RestoreStep)
	}
	if run.BaseRank == 0 {
		if err := proc.CheckPort(run.MasterPort); err != nil {
			a.later(ckptagent.Exited{Generation: run.Number, Local: 0, Code: 1, At: time.Now(), Traceback: "holdfast: " + err.Error()})
			return
		}
	}
	warm := 0
	for local := range e.Ranks {
		p, ended, standby := a.standbys.Take(run, local)
		var err error
		if standby {
			warm++
		} else if p, err = a.job.Start(run, local); err != nil {
			a.later(ckptagent.Exited{Generation: run.Number, Local: local, Code: 127, At: time.Now(), Traceback: "holdfast: " + err.Error()})
			continue
		}
		a.ranks[local] = p
		a.watch(local, p, ended)
		a.later(ckptagent.Started{Generation: run.Number, Local: local, PID: p.PID, FromStandby: standby})
	}
	a.store()
	a.logf("generation %d: ranks %d to %d of %d started (%d warm), from step %d", run.Number, run.BaseRank, run.BaseRank+e.Ranks-1, run.WorldSize, warm, run.RestoreStep)
}

func (a *Agent) clearErrors() {
	files, _ := filepath.Glob(filepath.Join(a.c.Root.Run(), "error-*.txt*"))
	for _, f := range files {
		os.Remove(f)
	}
}

// end ends all processes aside from the agent's goroutine, and says so when none is left and all of their
// exits have been told.
func (a *Agent) end(e ckptagent.End) {
	a.standbys.SetWarm(false, a.state.Run)
	var sessions []int
	for _, p := range a.ranks {
		sessions = append(sessions, p.PID)
	}
	var grace time.Duration
	if e.Gentle {
		grace = launch.DefaultShutdownTimeout
		if a.launch != nil {
			grace = a.job.Spec.ShutdownTimeout
		}
		grace = min(grace, e.Within)
	}
	generation, ranks, watchers := a.state.Run.Number, a.state.Ranks, a.watchers
	go func() {
		proc.EndAll(a.c.Container, sessions, a.standbys.Sessions(), grace)
		watchers.Wait()
		gone := ckptagent.Gone{Tracebacks: map[int]ckptagent.Traceback{}}
		for local := range ranks {
			if tb, ok := proc.ReadTraceback(a.c.Root, generation, local); ok {
				gone.Tracebacks[local] = tb
			}
		}
		a.post(gone)
	}()
}

// inventory takes stock of the arenas.
func (a *Agent) inventory(past ckptagent.Past) {
	arenas := a.arenas
	if arenas == nil {
		a.later(ckptagent.Inventoried{})
		return
	}
	go func() {
		a.post(ckptagent.Inventoried{Sealed: arenas.Inventory(past.Generation, past.Step, time.Now())})
	}()
}

// offerPort keeps a fresh port; the one before is let go.
func (a *Agent) offerPort() {
	p, err := proc.OfferPort()
	if err != nil {
		a.logf("offering a port: %v", err)
		return
	}
	a.port.Close()
	a.port = p
	a.later(ckptagent.PortOffered{Port: p.Number})
}
