//go:build linux

package loop

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/proc"
)

// followCommand tells the core of the container's command, and when its run that init began has ended.
func (a *Agent) followCommand() {
	c, ok := proc.ReadCommand(a.c.Root, a.c.Container)
	if !ok {
		return
	}
	a.command = &c
	a.tell() // the pod's grace, above all
	patience, err := c.Patience()
	if err != nil {
		a.logf("%v", err)
	}
	a.take(ckptagent.CommandBegan{Command: ckptagent.Command{PID: c.Process.PID, BeganAt: c.Began, Patience: patience}})
	go func() {
		end := c.Process.Wait(a.exits)
		exit := ckptagent.Exit{Code: end.Code, Signal: end.Signal, At: end.At}
		if tb, ok := proc.ReadTraceback(a.c.Root, 0, 0); ok && end.Code != 0 {
			exit.Traceback = tb.Text
		}
		a.do(func() {
			a.noteLeaving()
			a.take(ckptagent.CommandEnded{Exit: exit})
		})
	}()
}

// noteLeaving takes in that the pod was told to go before what a command did about it: init tells both at once.
func (a *Agent) noteLeaving() {
	if sig, ok := a.exits.Leaving(); ok && !a.signalled {
		a.signalled = true
		a.take(ckptagent.Signalled{Signal: sig})
	}
}

// resumeCommand does again what an agent that died may have left undone.
func (a *Agent) resumeCommand() {
	if a.state.Whole {
		a.followPages(1)
		a.hold(a.ranks[0])
		a.startAgain()
		if r := a.state.Returned; r != nil {
			a.leaveCode(r.Code)
		}
	} else if !a.state.Forgot {
		os.Remove(a.c.Root.HeldFile()) // of a release that was stored and not carried out
	}
	if a.state.Whole || a.state.Launcher != "" {
		a.noteLeaving()
	}
}

// hold keeps the container although its command ends. Init passes signals on to the process that runs it now.
func (a *Agent) hold(p proc.Process) {
	if err := proc.Replace(a.c.Root.HeldFile(), []byte(strconv.Itoa(p.PID))); err != nil {
		a.logf("taking the command over: %v", err)
	}
}

func (a *Agent) release() {
	os.Remove(a.c.Root.HeldFile())
	a.logf("the command is a rank no more: launchers start its ranks")
}

// leaveCode tells init what the container's exit code is; it is read when this agent has ended. Where it cannot be written this
// agent ends with an error, and the next one tries again.
func (a *Agent) leaveCode(code int) {
	a.logf("the container ends with exit code %d", code)
	a.codeless = nil
	if err := proc.Replace(a.c.Root.CodeFile(), []byte(strconv.Itoa(code))); err != nil {
		a.codeless = fmt.Errorf("leaving the container's exit code: %w", err)
	}
}

// startCommand starts the whole command as the rank of a generation; the run that init began counts as it where nothing had
// to be ended before.
func (a *Agent) startCommand(e ckptagent.Start) {
	run := e.Run
	a.watchers, a.ranks, a.ranksOf = &sync.WaitGroup{}, map[int]proc.Process{}, run.Number
	if a.command == nil {
		a.unstartable(run, 0, exitNotFound, fmt.Errorf("what init began in this container cannot be read: %s", a.c.Root.CommandFile()))
		return
	}
	p, what := a.command.Process, "is the run that began with the container"
	if !e.Original {
		a.clearErrors()
		var err error
		if p, err = a.command.Start(a.c.Root, a.c.Container, run); err != nil {
			a.unstartable(run, 0, exitNotFound, err)
			return
		}
		what = "started"
	}
	a.hold(p)
	a.ranks[0] = p
	a.followPages(1)
	a.watch(0, p, nil)
	a.later(ckptagent.Started{Generation: run.Number, Local: 0, PID: p.PID})
	a.store()
	a.logf("generation %d: the whole command, rank %d of %d, %s", run.Number, run.BaseRank, run.WorldSize, what)
}

// endCommand ends all that the command has started, and says so when none of it is left and its exit has been told.
func (a *Agent) endCommand(e ckptagent.End) {
	p, original := a.ranks[0], a.state.Original
	if original && a.command != nil {
		p = a.command.Process
	}
	var grace time.Duration
	if e.Gentle {
		grace = e.Within
	}
	generation, watchers := a.state.Run.Number, a.watchers
	if original {
		generation = 0
	}
	go func() {
		proc.EndBelow(p, original, grace)
		watchers.Wait()
		gone := ckptagent.Gone{Tracebacks: map[int]ckptagent.Traceback{}}
		if tb, ok := proc.ReadTraceback(a.c.Root, generation, 0); ok {
			gone.Tracebacks[0] = tb
		}
		a.do(func() { a.gone(gone, watchers) })
	}()
}

// wholeNote says what a whole command cannot have.
func (a *Agent) wholeNote() string {
	if !a.state.Whole || a.c.StateBytes == 0 && !a.c.Standbys {
		return ""
	}
	return "state in memory and standbys are off: no launcher starts the ranks of this pod, so its whole command is restarted; start the script with torchrun, or python -m torch.distributed.run, to have them"
}
