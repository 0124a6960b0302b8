//go:build linux

package loop

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

// followCommand reports the container's command to the core, and the end of its first run.
func (a *Agent) followCommand() {
	c, ok := proc.ReadCommand(a.c.Root, a.c.Container)
	if !ok {
		return
	}
	a.command = &c
	a.reportCapabilities() // the pod's grace period, above all
	timeout, err := c.Timeout()
	if err != nil {
		a.logf("%v", err)
	}
	a.take(
		ckptagent.CommandBegan{Command: ckptagent.Command{PID: c.Process.PID, BeganAt: c.Began, Timeout: timeout, MaxRestarts: a.c.MaxRestarts}},
	)
	go func() {
		exit := proc.Traced(c.Process.Wait(a.exits), a.c.Root, 0, 0)
		a.do(func() {
			a.noteTerminating()
			a.take(ckptagent.CommandEnded{Exit: exit})
		})
	}()
}

// noteTerminating passes on the pod's termination before the command's reaction to it: init reports both together.
func (a *Agent) noteTerminating() {
	if sig, ok := a.exits.Leaving(); ok && !a.signalled {
		a.signalled = true
		a.take(ckptagent.Signalled{Signal: sig})
	}
}

// resumeCommand repeats what an agent that died may have left undone.
func (a *Agent) resumeCommand() {
	if a.state.Whole {
		a.followPages(1)
		a.keepContainer(a.ranks[0])
		a.startAgain()
		if r := a.state.Returned; r != nil {
			a.writeExitCode(r.Code)
		}
	} else if !a.state.StateLost {
		os.Remove(a.c.Root.HeldFile()) // left by a release that was stored and not carried out
	}
	if a.state.Whole || a.state.Launcher != "" {
		a.noteTerminating()
	}
}

// keepContainer keeps the container running when its command ends. Init forwards signals to the process that then runs.
func (a *Agent) keepContainer(p proc.Process) {
	if err := p.Hold(a.c.Root); err != nil {
		a.logf("taking the command over: %v", err)
	}
}

func (a *Agent) release() {
	os.Remove(a.c.Root.HeldFile())
	a.logf("the command is no longer a rank: launchers start its ranks")
}

// writeExitCode writes the container's exit code for init, which reads it once this agent has ended. After a failed write this agent ends
// with an error and the next one retries.
func (a *Agent) writeExitCode(code int) {
	a.logf("the container ends with exit code %d", code)
	a.noExitCode = nil
	if err := proc.Replace(a.c.Root.CodeFile(), []byte(strconv.Itoa(code))); err != nil {
		a.noExitCode = fmt.Errorf("leaving the container's exit code: %w", err)
	}
}

// startCommand starts the whole command as the rank of a generation; the run that init began counts as the rank if nothing had to be ended
// before.
func (a *Agent) startCommand(e ckptagent.Start) {
	run := e.Run
	a.watchers, a.ranks, a.ranksOf = &sync.WaitGroup{}, map[int]proc.Process{}, run.Number
	if a.command == nil {
		a.unstartable(run, 0, exitNotFound, fmt.Errorf("what init began in this container cannot be read: %s", a.c.Root.CommandFile()))
		return
	}
	p, what := a.command.Process, "is the run that began with the container"
	if !e.FirstRun {
		a.clearErrors()
		var err error
		if p, err = a.command.Start(a.c.Root, a.c.Container, run); err != nil {
			a.unstartable(run, 0, exitNotFound, err)
			return
		}
		what = "started"
	}
	a.keepContainer(p)
	a.ranks[0] = p
	a.followPages(1)
	a.watch(0, p, nil)
	a.later(ckptagent.Started{Generation: run.Number, Local: 0, PID: p.PID})
	a.store()
	a.logf("generation %d: the whole command, rank %d of %d, %s", run.Number, run.BaseRank, run.WorldSize, what)
}

// endCommand ends all processes that the command started, and posts Gone when all are gone and its exit was reported.
func (a *Agent) endCommand(e ckptagent.End) {
	p, original, byInit := a.ranks[0], a.state.FirstRun, a.state.Terminating // by a signal, which init has forwarded
	if original && a.command != nil {
		p = a.command.Process
	}
	grace := e.Within
	if e.ByLauncher {
		grace = max(grace, launch.DefaultShutdownTimeout)
	}
	generation, watchers := a.state.Run.Number, a.watchers
	if original {
		generation = 0
	}
	go func() {
		gone := ckptagent.Gone{Tracebacks: map[int]ckptagent.Traceback{}}
		if proc.EndBelow(a.c.Init, p, original && byInit, grace) {
			gone.Waited = []int{0}
		}
		a.clearShared(proc.Job{})
		watchers.Wait()
		if tb, ok := proc.ReadTraceback(a.c.Root, generation, 0); ok {
			gone.Tracebacks[0] = tb
		}
		a.do(func() { a.gone(gone, watchers) })
	}()
}

// rangeNote returns a note on a launcher that requests a range of pods, in a gang that needs all.
func rangeNote(spec *launch.Spec, run *protocol.Run) string {
	if spec.MinNodes == 0 || run.Number == 0 || run.Slots > 0 {
		return ""
	}
	return fmt.Sprintf("%s: training needs all %d pods, unless annotation holdfast.dev/min-pods of a batch Job is the least number of them", spec.NodesFlag, spec.Nodes)
}

// wholeNote returns a note on what a whole command does not get.
func (a *Agent) wholeNote() string {
	if !a.state.Whole || a.c.StateBytes == 0 && !a.c.Standbys {
		return ""
	}
	return "state in memory and standbys are off: no launcher starts the ranks of this pod, so its whole command is restarted; start the script with torchrun, or python -m torch.distributed.run, to have them"
}
