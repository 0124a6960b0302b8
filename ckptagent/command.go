package ckptagent

import (
	"fmt"
	"time"
)

// Bounds of waiting for what a command becomes.
const (
	// unprotectedAfter is how long a command may run without a rank until that is said.
	unprotectedAfter = time.Minute
	// forlornAfter is how long a command that has ended badly waits for the generation that would restart it: the others of the
	// gang may not have come yet, or may never come.
	forlornAfter = 10 * time.Minute
)

// Command is the container's own command.
type Command struct {
	PID     int       `json:"pid,omitempty"`
	BeganAt time.Time `json:"beganAt,omitzero"`
	// Patience is how long it may run without a launcher until it counts as the one rank of its pod; below zero: always.
	Patience time.Duration `json:"patience,omitempty"`
	// Exit is how its run that init began ended.
	Exit *Exit `json:"exit,omitempty"`
}

// CommandBegan says what init began; again after each incarnation.
type CommandBegan struct{ Command Command }

// CommandEnded says that the run of the command that init began has ended.
type CommandEnded struct{ Exit Exit }

// CommandSeen answers LookAtCommand: Command is what the container was told to run, Now what its newest process is.
type CommandSeen struct{ Command, Now string }

// Adopt says that the container's command is the one rank of this pod from now on: its end does not end the container.
type Adopt struct{}

// Release takes Adopt back.
type Release struct{}

// LookAtCommand asks what runs in the container; answered by CommandSeen.
type LookAtCommand struct{}

// Notice is a line for the pod's log.
type Notice struct{ Text string }

func (Adopt) effect()         {}
func (Release) effect()       {}
func (LookAtCommand) effect() {}
func (Notice) effect()        {}

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
		Signalled{Signal: sigterm}.apply(m) // nothing is left that the container would stay for
	}
}

func (e CommandSeen) apply(m *machine) {
	if !m.s.Looking {
		return
	}
	m.s.Looking = false
	text := "no launcher has started a rank since the command began: " + e.Command
	if e.Now != "" && e.Now != e.Command {
		text += "; now running: " + e.Now
	}
	switch {
	case m.s.Refused != "":
		text += "; its launcher was refused: " + m.s.Refused
	case m.s.Command.Patience < 0:
		text += "; what runs is protected once its launcher starts: where that takes no launcher at all, leave its name out of the command, which is then restarted whole"
	default:
		text += fmt.Sprintf("; it is protected once its launcher starts, or as a whole once it has run for %s", m.s.Command.Patience)
	}
	m.s.Unprotected = text
	m.emit(Notice{text})
}

// adoptable says whether the command becomes the rank of this pod now. Where a launcher was here it does not: what that
// returned is for the command to judge.
func (s State) adoptable(now time.Time) bool {
	c := s.Command
	switch {
	case c.PID == 0 || c.Patience < 0 || s.Whole || s.Launcher != "" || s.Refused != "" || s.Leaving || s.Returned != nil:
		return false
	case !s.Clean || s.Ending || s.Counting:
		return false
	case c.Exit != nil:
		return c.Exit.Code != 0
	}
	// A pod that takes another's place keeps the others waiting, and waits itself where these have launchers.
	return s.Want.WholeCommand || !s.Want.Launched && now.Sub(c.BeganAt) >= c.Patience
}

// adopt makes the command the one rank of this pod. What init began is then a process that may have to be ended.
func (m *machine) adopt() {
	if !m.s.adoptable(m.now) {
		return
	}
	c := m.s.Command
	m.s.Whole, m.s.Original, m.s.Attached = true, true, true
	m.s.Ranks, m.s.Rank = 1, []Rank{{PID: c.PID, Alive: c.Exit == nil, Exit: c.Exit}}
	if m.s.Generation > 0 { // the container came back; what it ran is gone
		m.s.Phase = Halted
	}
	m.s.Clean, m.s.Inventoried, m.s.Known = false, false, true // it has no state in memory that would have to be looked at
	m.emit(Adopt{})
}

// provisional says whether the command was adopted and its run that init began belongs to no generation yet.
func (s State) provisional() bool {
	return s.Whole && s.Original && s.Run.Number == 0 && !s.Ending && s.Concluded == nil
}

// releasable says whether a launcher that comes now may still be served: what init began runs, so that nothing of the gang was
// restarted as a whole. Where other pods are part of a generation with it, the coordinator ends that and has them released too.
func (s State) releasable() bool {
	return s.Whole && s.Original && s.Command.Exit == nil && !s.Ending && s.Concluded == nil
}

// release makes the command what it was before: a process of the user's that belongs to no generation. One that it was part
// of has no process here any more; left is the newest that is over for it.
func (m *machine) release(left uint64) {
	if m.s.Phase == Running || m.s.Phase == Failed {
		m.s.Phase = Halted
	}
	m.s.LeftForLauncher = left
	m.s.Whole, m.s.Original, m.s.Clean, m.s.Known = false, false, true, false
	m.s.Ranks, m.s.Rank = 0, nil
	m.emit(Release{})
}

// await releases a command that may start its launcher yet, and waits for that from now on.
func (m *machine) await(left uint64) {
	m.release(left)
	m.s.Command.Patience = -1
}

// fits says whether a generation was made for the ranks that this pod has now. Every pod has at least one: a whole command can be
// no part of a generation that has more ranks than pods, whose ranks would wait for one that it never becomes; and a launcher that
// came just now is not part of one that was ordered before.
func (s State) fits(run Run) bool {
	switch {
	case run.Nodes == 0: // from a coordinator that does not say
		return true
	case s.Whole:
		return run.WorldSize == run.Nodes
	}
	return run.WorldSize >= run.Nodes-1+s.Ranks
}

// skip leaves a generation that does not fit. A whole command in its first run may start its launcher yet; another one is over.
func (m *machine) skip(run Run) {
	if m.s.Whole {
		m.emit(Notice{fmt.Sprintf("generation %d has %d ranks in %d pods: others of the gang run a launcher, and the command of this pod has started none; give all pods the same command", run.Number, run.WorldSize, run.Nodes)})
		if !m.s.provisional() || m.s.Command.Exit != nil {
			m.conclude()
			return
		}
		m.await(run.Number)
	}
	m.s.Generation, m.s.LeftForLauncher = run.Number, run.Number
	m.s.Phase = Halted
}

// forlorn says whether a command whose run that init began has ended waits no longer for a generation: not at all where it ended well,
// as without us.
func (s State) forlorn(now time.Time) bool {
	e := s.Command.Exit
	return s.provisional() && e != nil && (e.Code == 0 || now.Sub(e.At) >= forlornAfter)
}

func (m *machine) stopWaiting() {
	if m.s.forlorn(m.now) {
		m.conclude()
	}
}

// conclude has the container end as its command did, once nothing of that is left.
func (m *machine) conclude() {
	code := exitRefused
	if e := m.s.Command.Exit; e != nil {
		code = e.Code
	}
	m.s.Concluded = &Returned{Code: code}
	m.endConcluded()
}

func (m *machine) endConcluded() {
	m.clear(false)
	if m.s.Clean {
		m.giveBack(m.s.Concluded.Code, "")
	}
}

// silent says whether a command runs and no rank does.
func (s State) silent() bool {
	c := s.Command
	return c.PID != 0 && c.Exit == nil && !s.Whole && s.Launcher == "" && !s.Leaving && s.Returned == nil
}

// lookAtCommand has it said where a command has been silent for long.
func (m *machine) lookAtCommand() {
	switch {
	case !m.s.silent():
		m.s.Unprotected, m.s.Looking = "", false
	case m.s.Unprotected == "" && !m.s.Looking && m.now.Sub(m.s.Command.BeganAt) >= unprotectedAfter:
		m.s.Looking = true
		m.emit(LookAtCommand{})
	}
}
