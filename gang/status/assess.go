// Package status says what a Gang's status says of it: phase, conditions, members, figures, and what the scheduler
// answered. It promises to be pure: the same objects at the same time give the same words.
package status

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// View is what is known of a gang when its status is written.
type View struct {
	// Size is how many members there must be.
	Size int
	// Members are the pods that exist and are not on their way out.
	Members []MemberView
	// Answer is what the scheduler said last; the zero value: nothing.
	Answer v1alpha1.PlacementStatus
	// Run is the coordinator's record.
	Run RunView
	// State and Standbys say what was injected.
	State    Feature
	Standbys Feature
	// Observed: nothing is done to the pods, so that neither scheduler nor coordinator says anything of them.
	Observed bool
	// JobEnded is set once the job itself is over; JobFailed says how.
	JobEnded, JobFailed bool
	// JobMessage is the job's own explanation of its end.
	JobMessage string
}

// MemberView is one pod.
type MemberView struct {
	Slot int
	// Pod is its name.
	Pod string
	// Node is where the pod is; empty: nowhere yet.
	Node string
	// Running is asked of observed gangs alone: all containers of the pod run.
	Running bool
}

// RunView is the coordinator's record, as far as a status needs it.
type RunView struct {
	State      v1alpha1.RunState // "": the coordinator has said nothing yet
	Generation int64
	// Ranks is the world size, StandbysReady how many of them have a warm standby.
	Ranks, StandbysReady int
	// ResumeUnknown counts recoveries of which nobody knows where training resumed.
	ResumeUnknown int
	// WholeCommand: a failure restarts the whole command of each pod.
	WholeCommand bool
	// UnprotectedPods counts pods in which something runs that was not started under the agent; Unprotected says what, of the first.
	UnprotectedPods int
	Unprotected     string
	// Trouble says what is being repaired, for people.
	Trouble string
	// VerdictReason and VerdictMessage are set once the run is over.
	VerdictReason, VerdictMessage string
}

// Feature is something that may be off, with the reason why and words for people.
type Feature struct {
	On              bool
	Reason, Message string
}

// Status is the part of a gang's status that follows from a View.
type Status struct {
	Phase v1alpha1.GangPhase
	// Nodes is "on nodes/wanted".
	Nodes      string
	Conditions []Condition
}

// Condition is one line of the status.
type Condition struct {
	Type            string
	True            bool
	Reason, Message string
}

// Assess says what the status of a gang is.
func Assess(v View) Status {
	bound := 0
	for _, m := range v.Members {
		if m.Node != "" {
			bound++
		}
	}
	if v.Observed {
		return v.observed(bound)
	}
	s := Status{Nodes: fmt.Sprintf("%d/%d", bound, v.Size), Phase: v.phase(bound)}
	s.Conditions = []Condition{v.placed(bound), v.running(s.Phase), v.stateInMemory(), v.standbysReady(), v.finished(s.Phase)}
	if v.Run.State != "" {
		s.Conditions = append(s.Conditions, v.unprotected(), v.launcherRestarts())
	}
	if v.Run.Generation > 0 {
		s.Conditions = append(s.Conditions, v.goodputKnown())
	}
	return s
}

func (v View) phase(bound int) v1alpha1.GangPhase {
	switch {
	case v.Run.State == v1alpha1.RunGivenUp || (v.JobEnded && v.JobFailed):
		return v1alpha1.PhaseFailed
	case v.Run.State == v1alpha1.RunFinished || v.JobEnded:
		return v1alpha1.PhaseFinished
	case v.Run.Generation > 0 && (bound < v.Size || v.Run.State != v1alpha1.RunRunning):
		return v1alpha1.PhaseRecovering
	case bound < v.Size:
		return v1alpha1.PhaseWaiting
	case v.Run.State == v1alpha1.RunRunning:
		return v1alpha1.PhaseRunning
	default:
		return v1alpha1.PhaseStarting
	}
}

func (v View) placed(bound int) Condition {
	c := Condition{Type: v1alpha1.ConditionPlaced, True: bound >= v.Size}
	switch {
	case c.True:
		c.Reason, c.Message = v1alpha1.ReasonPlaced, fmt.Sprintf("all %s on nodes", count(v.Size, "pod is", "pods are"))
	case !v.Answer.Placed && v.Answer.Reason != "" && !v.staleWait():
		c.Reason, c.Message = v.Answer.Reason, v.Answer.Message
	case len(v.Members) >= v.Size:
		c.Reason, c.Message = v1alpha1.ReasonWaitingForMembers, fmt.Sprintf("%d of %s on nodes", bound, count(v.Size, "pod is", "pods are"))
	default:
		r := gang.Incomplete(gang.Census{Size: v.Size, Exist: len(v.Members), Bound: bound, Gaps: v.gaps()})
		c.Reason, c.Message = r.Reason, r.Message
	}
	return c
}

// gaps lists the slots that no member holds.
func (v View) gaps() []gang.Gap {
	held := make(map[int]bool, len(v.Members))
	for _, m := range v.Members {
		held[m.Slot] = true
	}
	var gaps []gang.Gap
	for slot := range v.Size {
		if !held[slot] {
			gaps = append(gaps, gang.Gap{Slot: slot})
		}
	}
	return gaps
}

// staleWait is true where the scheduler still speaks of missing members though all exist, or the reverse.
func (v View) staleWait() bool {
	ofMembers := v.Answer.Reason == v1alpha1.ReasonWaitingForMembers || v.Answer.Reason == v1alpha1.ReasonMemberLost
	return ofMembers != (len(v.Members) < v.Size)
}

func (v View) running(p v1alpha1.GangPhase) Condition {
	c := Condition{Type: v1alpha1.ConditionRunning, True: p == v1alpha1.PhaseRunning, Reason: string(p)}
	switch p {
	case v1alpha1.PhaseRunning:
		c.Message = fmt.Sprintf("generation %d: %s", v.Run.Generation, count(v.Run.Ranks, "rank runs", "ranks run"))
	case v1alpha1.PhaseWaiting:
		c.Reason, c.Message = v1alpha1.ReasonWaitingForMembers, "not all pods are on nodes"
	case v1alpha1.PhaseStarting:
		c.Message = "agents are attaching"
		if v.Run.Trouble != "" {
			c.Message = v.Run.Trouble
		}
	case v1alpha1.PhaseRecovering:
		c.Message = fmt.Sprintf("generation %d: %s", v.Run.Generation, v.repair())
	case v1alpha1.PhaseFinished, v1alpha1.PhaseFailed:
		c.Reason, c.Message = v.ended(p)
	}
	return c
}

// repair says what a recovering gang is about: what failed, which member is awaited, and what the scheduler
// says of it.
func (v View) repair() string {
	var parts []string
	if v.Run.Trouble != "" {
		parts = append(parts, v.Run.Trouble)
	}
	if who := v.awaited(); who != "" {
		parts = append(parts, who)
		if !v.Answer.Placed && v.Answer.Message != "" && !v.staleWait() {
			parts = append(parts, "the scheduler says: "+v.Answer.Message)
		}
	}
	if len(parts) == 0 {
		return "its ranks are being started again"
	}
	return strings.Join(parts, "; ")
}

// maxAwaited bounds how many slots are named.
const maxAwaited = 4

// awaited names the slots without a pod on a node; "" where there are none.
func (v View) awaited() string {
	have := make(map[int]MemberView, len(v.Members))
	for _, m := range v.Members {
		have[m.Slot] = m
	}
	var slots []string
	more := 0
	for slot := range v.Size {
		switch m, ok := have[slot]; {
		case ok && m.Node != "":
			continue
		case len(slots) == maxAwaited:
			more++
		case ok:
			slots = append(slots, fmt.Sprintf("pod %s of slot %d waits for a node", m.Pod, slot))
		default:
			slots = append(slots, fmt.Sprintf("slot %d waits for a new pod", slot))
		}
	}
	if more > 0 {
		slots = append(slots, fmt.Sprintf("%d more are awaited", more))
	}
	return strings.Join(slots, "; ")
}

func (v View) stateInMemory() Condition {
	return Condition{Type: v1alpha1.ConditionStateInMemory, True: v.State.On, Reason: v.State.Reason, Message: v.State.Message}
}

func (v View) standbysReady() Condition {
	c := Condition{Type: v1alpha1.ConditionStandbysReady}
	switch ready, ranks := v.Run.StandbysReady, v.Run.Ranks; {
	case !v.Standbys.On:
		c.Reason, c.Message = v.Standbys.Reason, v.Standbys.Message
	case ranks > 0 && ready >= ranks:
		c.True, c.Reason, c.Message = true, v1alpha1.ReasonStandbysReady, "every rank has a warm standby"
	default:
		c.Reason, c.Message = v1alpha1.ReasonStandbysWarming, fmt.Sprintf("%d of %s a warm standby", ready, count(ranks, "rank has", "ranks have"))
	}
	return c
}

// goodputKnown says whether a figure of what recoveries cost can be given: one that left the steps out that were done again would be wrong.
func (v View) goodputKnown() Condition {
	c := Condition{Type: v1alpha1.ConditionGoodputKnown, True: v.Run.ResumeUnknown == 0, Reason: v1alpha1.ReasonResumePointKnown, Message: "it is known what each recovery cost"}
	if !c.True {
		c.Reason = v1alpha1.ReasonResumePointUnknown
		c.Message = fmt.Sprintf("of %s nobody knows at which step training resumed, so that no goodput is given: tell each step by the client, attach() and step(n), or let the script's checkpoint hold an optimizer or scheduler that counts its steps",
			count(v.Run.ResumeUnknown, "recovery", "recoveries"))
	}
	return c
}

func (v View) unprotected() Condition {
	c := Condition{Type: v1alpha1.ConditionUnprotected, True: v.Run.UnprotectedPods > 0, Reason: v1alpha1.ReasonProtected, Message: "nothing is known to run that was not started under the pods' agents"}
	if c.True {
		c.Reason = v1alpha1.ReasonUnprotected
		c.Message = fmt.Sprintf("in %s no rank was started under the agent, and nothing restarts what runs there: %s; start the ranks with torchrun, python -m torch.distributed.run or another launcher that docs/launchers.md lists, and create the job again",
			count(v.Run.UnprotectedPods, "pod", "pods"), v.Run.Unprotected)
	}
	return c
}

func (v View) launcherRestarts() Condition {
	if v.Run.WholeCommand {
		return Condition{Type: v1alpha1.ConditionLauncherRestarts, True: true, Reason: v1alpha1.ReasonWholeCommand, Message: "the whole command is restarted on all pods when it ends badly on one; to restart ranks alone use torchrun, python -m torch.distributed.run or another launcher that docs/launchers.md lists"}
	}
	return Condition{Type: v1alpha1.ConditionLauncherRestarts, Reason: v1alpha1.ReasonRanksRestart, Message: "a failure restarts ranks; the launcher goes on"}
}

func (v View) finished(p v1alpha1.GangPhase) Condition {
	c := Condition{Type: v1alpha1.ConditionFinished, True: p == v1alpha1.PhaseFinished || p == v1alpha1.PhaseFailed}
	if c.True {
		c.Reason, c.Message = v.ended(p)
		return c
	}
	c.Reason, c.Message = string(p), "the job is not over"
	return c
}

func (v View) ended(p v1alpha1.GangPhase) (reason, message string) {
	reason, message = v.Run.VerdictReason, v.Run.VerdictMessage
	if reason == "" {
		reason = string(p)
	}
	if message == "" {
		message = v.JobMessage
	}
	if message == "" {
		message = "the job is over"
	}
	return reason, message
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
