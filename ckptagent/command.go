package ckptagent

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Timeouts for a container's command.
const (
	// unprotectedAfter is how long a command may run without a rank before the agent reports it as unprotected.
	unprotectedAfter = time.Minute
	// generationWait is how long a command that failed waits for the generation that restarts it: other pods of the gang may be missing.
	generationWait = 10 * time.Minute
)

// Command is the container's own command.
type Command struct {
	PID     int       `json:"pid,omitempty"`
	BeganAt time.Time `json:"beganAt,omitzero"`
	// Timeout is how long the command may run without a launcher before it counts as the one rank of its pod; below zero: it never does.
	Timeout time.Duration `json:"timeout,omitempty"`
	// MaxRestarts is how many restarts the job allows it; nil: unknown.
	MaxRestarts *int `json:"maxRestarts,omitempty"`
	// Exit is how the run that init began ended; nil: it runs.
	Exit *protocol.Exit `json:"exit,omitempty"`
}

// CommandBegan reports which command init began; it is repeated in each incarnation.
type CommandBegan struct{ Command Command }

// CommandEnded reports that the run that init began has ended.
type CommandEnded struct{ Exit protocol.Exit }

// CommandSeen answers InspectCommand: Command is the container's command, Now the command of its newest process. PassedBy is a
// running launcher without the site hook; "": none.
type CommandSeen struct{ Command, Now, PassedBy string }

// Adopt makes the container's command the one rank of this pod: its end no longer ends the container.
type Adopt struct{}

// Release reverts Adopt.
type Release struct{}

// InspectCommand queries what runs in the container; answered by CommandSeen.
type InspectCommand struct{}

// Notice is a line for the pod's log.
type Notice struct{ Text string }

func (Adopt) effect()          {}
func (Release) effect()        {}
func (InspectCommand) effect() {}
func (Notice) effect()         {}

func (e CommandBegan) apply(m *machine) {
	if m.s.Command.PID == 0 {
		m.s.Command = e.Command
	}
	m.s.Attached = m.s.Attached || m.s.Whole
}

func (e CommandEnded) apply(m *machine) {
	if m.s.Command.Exit != nil {
		return
	}
	exit := e.Exit
	m.s.Command.Exit = &exit
	switch {
	case m.s.provisional():
		m.s.Rank[0].Alive, m.s.Rank[0].Exit = false, &exit
	case !m.s.Whole && !m.s.adoptable(m.now):
		if m.s.bypassed() {
			m.emit(Notice{fmt.Sprintf("the command names a launcher and ended with code %d before any launcher came to Holdfast; where one ran, keep "+
				"/run/holdfast/shims first on PATH and /run/holdfast/python on PYTHONPATH", exit.Code)})
		}
		Signalled{Signal: sigterm}.apply(m) // no process needs the container any more
	}
}

func (e CommandSeen) apply(m *machine) {
	if !m.s.Inspecting {
		return
	}
	m.s.Inspecting = false
	text := "no launcher has started a rank since the command began: " + e.Command
	if e.Now != "" && e.Now != e.Command {
		text += "; now running: " + e.Now
	}
	switch {
	case e.PassedBy != "":
		text += "; a launcher runs that Holdfast's site hook did not meet: " + e.PassedBy + "; its line sets PYTHONPATH without the value from before, or its interpreter ignores that (-I, -E, -S): write torchrun, or PYTHONPATH=…:$PYTHONPATH"
	case m.s.Refused != "":
		text += "; its launcher was refused: " + m.s.Refused
	case m.s.Command.Timeout < 0:
		text += "; the processes are protected after their launcher starts: if the command needs no launcher, remove its name from the command, which is then restarted as a whole"
	default:
		text += fmt.Sprintf("; it is protected once its launcher starts, or as a whole once it has run for %s", m.s.Command.Timeout)
	}
	m.s.Unprotected = text
	m.emit(Notice{text})
}

// bypassed reports whether the command failed, names a launcher, and no launcher connected to the agent.
func (s State) bypassed() bool {
	c := s.Command
	return c.Exit != nil && c.Exit.Code != 0 && c.Timeout < 0 && s.Launcher == "" && s.Refused == "" && s.Returned == nil && !s.Terminating
}

// adoptable reports whether the command becomes the rank of this pod now. After a launcher ran here it does not: the command itself handles
// the launcher's result.
func (s State) adoptable(now time.Time) bool {
	c := s.Command
	switch {
	case c.PID == 0 || c.Timeout < 0 || s.Whole || s.Launcher != "" || s.Refused != "" || s.Terminating || s.Returned != nil:
		return false
	case !s.Clean || s.Ending || s.Counting:
		return false
	case c.Exit != nil:
		return c.Exit.Code != 0
	}
	// A replacement pod delays the others, so it becomes a whole command at once, but not where the others have launchers.
	return s.Want.WholeCommand || !s.Want.Launched && now.Sub(c.BeganAt) >= c.Timeout
}

// adopt makes the command the one rank of this pod. The process that init started then belongs to a generation and may have to be ended.
func (m *machine) adopt() {
	if !m.s.adoptable(m.now) {
		return
	}
	c := m.s.Command
	m.s.Whole, m.s.FirstRun, m.s.Attached = true, true, true
	m.s.Ranks, m.s.Rank = 1, []Rank{{PID: c.PID, Alive: c.Exit == nil, Exit: c.Exit}}
	if m.s.Generation > 0 { // the container restarted, and its processes are gone
		m.s.Phase = protocol.StateHalted
	}
	m.s.Clean, m.s.Inventoried, m.s.Known = false, false, true // no state in memory to take inventory of
	m.emit(Adopt{})
}

// provisional reports whether the command was adopted and its first run belongs to no generation yet.
func (s State) provisional() bool {
	return s.Whole && s.FirstRun && s.Run.Number == 0 && !s.Ending && s.Concluded == nil
}

// releasable reports whether a launcher that starts now may still be served: the command is in its first run, so the gang was never
// restarted as whole commands. If other pods are in a generation with it, the coordinator ends that and releases them too.
func (s State) releasable() bool {
	return s.Whole && s.FirstRun && s.Command.Exit == nil && !s.Ending && s.Concluded == nil
}

// release makes the command an ordinary process again, which belongs to no generation. A generation that it belonged to has no process here
// any more; left is the newest such generation.
func (m *machine) release(left int64) {
	if m.s.Phase == protocol.StateRunning || m.s.Phase == protocol.StateFailed {
		m.s.Phase = protocol.StateHalted
	}
	m.s.LeftForLauncher = left
	m.s.Whole, m.s.FirstRun, m.s.Clean, m.s.Known = false, false, true, false
	m.s.Ranks, m.s.Rank = 0, nil
	m.emit(Release{})
}

// awaitLauncher releases a command that may still start its launcher, and waits for the launcher.
func (m *machine) awaitLauncher(left int64) {
	m.release(left)
	m.s.Command.Timeout = -1
}

// fits reports whether a generation was made for this pod's present ranks. Every pod has at least one. A whole command cannot be part of a
// generation with more ranks than pods: its ranks would wait for one that the command never becomes. A launcher that has just connected is
// not part of a generation that was ordered before.
func (s State) fits(run protocol.Run) bool {
	switch {
	case run.Nodes == 0: // from a coordinator that does not say
		return true
	case s.Whole:
		return run.WorldSize == run.Nodes
	}
	return run.WorldSize >= run.Nodes-1+s.Ranks
}

// skip leaves a generation that does not fit. A whole command in its first run may still start its launcher; any other ends.
func (m *machine) skip(run protocol.Run) {
	if m.s.Whole {
		m.emit(Notice{fmt.Sprintf("generation %d has %d ranks in %d pods: other pods of the gang run a launcher, and the command of this pod started none; give all pods the same command", run.Number, run.WorldSize, run.Nodes)})
		if !m.s.provisional() || m.s.Command.Exit != nil {
			m.conclude()
			return
		}
		m.awaitLauncher(run.Number)
	}
	m.s.Generation, m.s.LeftForLauncher = run.Number, run.Number
	m.s.Phase = protocol.StateHalted
}

// generationTimeout reports whether a command whose first run has ended no longer waits for a generation. A command that succeeded does not
// wait at all, as without Holdfast.
func (s State) generationTimeout(now time.Time) bool {
	e := s.Command.Exit
	return s.provisional() && e != nil && (e.Code == 0 || now.Sub(e.At) >= generationWait)
}

func (m *machine) stopWaiting() {
	if m.s.generationTimeout(m.now) {
		m.conclude()
	}
}

// conclude ends the container with the command's exit code once all its processes are gone.
func (m *machine) conclude() {
	code := protocol.ExitRefused
	if e := m.s.Command.Exit; e != nil {
		code = e.Code
	}
	m.s.Concluded = &Returned{Code: code}
	m.endConcluded()
}

func (m *machine) endConcluded() {
	m.clear(false)
	if m.s.Clean {
		m.returnLauncher(m.s.Concluded.Code, "")
	}
}

// unprotected reports whether a command runs without any rank.
func (s State) unprotected() bool {
	c := s.Command
	return c.PID != 0 && c.Exit == nil && !s.Whole && s.Launcher == "" && !s.Terminating && s.Returned == nil
}

// inspectCommand inspects a command that has run without a rank for unprotectedAfter.
func (m *machine) inspectCommand() {
	switch {
	case !m.s.unprotected():
		m.s.Unprotected, m.s.Inspecting = "", false
	case m.s.Unprotected == "" && !m.s.Inspecting && m.now.Sub(m.s.Command.BeganAt) >= unprotectedAfter:
		m.s.Inspecting = true
		m.emit(InspectCommand{})
	}
}
