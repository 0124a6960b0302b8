// Package status computes the content of a Gang's status: phase, conditions, members, figures, and the scheduler's
// answer. The package is pure: the same objects at the same time give the same text.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// View is what is known of a gang when its status is written.
type View struct {
	// Size is the full number of members.
	Size int
	// Min is the least number of members that can train; 0: all are needed.
	Min int
	// Unit: they train in whole blocks of so many consecutive slots; 0: 1.
	Unit int
	// Members are the pods that exist and are not terminating.
	Members []MemberView
	// Answer is the scheduler's newest answer; the zero value: none.
	Answer v1alpha1.PlacementStatus
	// Queue is the queue of Kueue that the job is in; "": none.
	Queue string
	// Held: the job's controller creates no pod before the answer changes. So the answer says why pods are missing.
	Held bool
	// Refused is why the last attempt to create a pod failed, Creator the controller that made it. "": it did not fail, or is unknown.
	Refused, Creator string
	// Provisioning is the text of the gang's request to an autoscaler; "": none.
	Provisioning string
	// Run is the coordinator's record; the zero value: none yet.
	Run v1alpha1.RunStatus
	// State and Standbys describe what the webhook injected.
	State    Feature
	Standbys Feature
	// Unwatched: no rank of the gang is looked at.
	Unwatched bool
	// Observed: the job is only observed. Neither scheduler nor coordinator reports anything about it.
	Observed bool
	// JobEnded is true once the job itself has ended; JobFailed says how.
	JobEnded, JobFailed bool
	// JobMessage is the job's own explanation of its end.
	JobMessage string
}

// MemberView is one pod.
type MemberView struct {
	Slot int
	// Pod is the pod's name.
	Pod string
	// Node is the pod's node; empty: it has none yet.
	Node string
	// Running: all containers of the pod run; set only for observed gangs.
	Running bool
}

// Feature is a function of Holdfast that may be off, with the reason and its text.
type Feature struct {
	On              bool
	Reason, Message string
}

// Status is the part of a gang's status that follows from a View.
type Status struct {
	Phase v1alpha1.GangPhase
	// Nodes is "on nodes/wanted", with a minimum "on nodes/wanted (least–wanted)".
	Nodes      string
	Conditions []Condition
}

// Condition is one line of the status.
type Condition struct {
	Type            string
	True            bool
	Reason, Message string
	// Unknown: whether it is true is not known.
	Unknown bool
}

// Assess computes the status of a gang.
func Assess(v View) Status {
	bound := v.OnNodes()
	if v.Observed {
		return v.observed(bound)
	}
	s := Status{Nodes: v.nodes(bound), Phase: v.phase(bound)}
	s.Conditions = []Condition{v.placed(bound), v.running(s.Phase, bound), v.stateInMemory(), v.standbysReady()}
	s.Conditions = append(s.Conditions, v.over(s.Phase)...)
	if v.Run.State != "" {
		s.Conditions = append(s.Conditions, v.unprotected(), v.launcherRestarts())
	}
	if v.Run.Generation > 0 {
		s.Conditions = append(s.Conditions, v.goodputKnown())
	}
	if v.Run.Generation > 0 && !v.Unwatched {
		s.Conditions = append(s.Conditions, v.progressing(s.Phase), v.busy(s.Phase))
	}
	return s
}

// needed returns how many members must be on nodes for any to train.
func (v View) needed() int { return cmp.Or(v.Min, v.Size) }

// able returns the number of members on nodes that can train: those of blocks of which all are.
func (v View) able() (n int) {
	if v.Unit <= 1 {
		return v.OnNodes()
	}
	on := map[int]int{}
	for _, m := range v.Members {
		if m.Node != "" {
			on[m.Slot/v.Unit]++
		}
	}
	for _, have := range on {
		if have == v.Unit {
			n += have
		}
	}
	return n
}

// nodes returns how many members are on nodes, of how many, and with how many the gang trains if these may vary.
func (v View) nodes(bound int) string {
	if v.needed() < v.Size {
		return fmt.Sprintf("%d/%d (%d–%d)", bound, v.Size, v.Min, v.Size)
	}
	return fmt.Sprintf("%d/%d", bound, v.Size)
}

// OnNodes returns the number of members on nodes.
func (v View) OnNodes() int {
	n := 0
	for _, m := range v.Members {
		if m.Node != "" {
			n++
		}
	}
	return n
}

func (v View) phase(bound int) v1alpha1.GangPhase {
	switch {
	case v.Run.State == v1alpha1.RunGivenUp || (v.JobEnded && v.JobFailed):
		return v1alpha1.PhaseFailed
	case v.Run.State == v1alpha1.RunFinished || v.JobEnded:
		return v1alpha1.PhaseFinished
	case v.fewer() != "":
		return v1alpha1.PhaseRunning
	case v.Begun() && (bound < v.Size || v.Run.State != v1alpha1.RunRunning):
		return v1alpha1.PhaseRecovering
	case v.able() < v.needed():
		return v1alpha1.PhaseWaiting
	case v.Run.State == v1alpha1.RunRunning:
		return v1alpha1.PhaseRunning
	default:
		return v1alpha1.PhaseStarting
	}
}

// fewer returns why the gang trains with fewer pods than it has slots; "": it does not.
func (v View) fewer() string {
	if v.Run.State != v1alpha1.RunRunning || len(v.Run.Out) == 0 {
		return ""
	}
	on := make(map[int]bool, len(v.Members))
	for _, m := range v.Members {
		on[m.Slot] = m.Node != ""
	}
	for slot := range v.Size {
		if !on[slot] && !slices.Contains(v.Run.Out, int32(slot)) {
			return "" // one of its own pods is lost
		}
	}
	return cmp.Or(v.Run.Progress.Fewer, "goes on with fewer pods")
}

// Begun reports whether agents received a generation of the gang's present launcher.
func (v View) Begun() bool {
	after := int64(0)
	if l := v.Run.Launch; l != nil {
		after = l.After
	}
	return v.Run.Generation > after
}

func (v View) placed(bound int) Condition {
	p := v.phase(bound)
	c := Condition{Type: v1alpha1.ConditionPlaced, True: bound >= v.Size}
	switch {
	case c.True:
		c.Reason, c.Message = v1alpha1.ReasonPlaced, fmt.Sprintf("all %s on nodes", gang.Count(v.Size, "pod is", "pods are"))
	case p == v1alpha1.PhaseFinished || p == v1alpha1.PhaseFailed:
		c.Reason, c.Message = string(p), fmt.Sprintf("the job is over and waits for no pod: %d of %s on nodes", bound, gang.Count(v.Size, "pod is", "pods are"))
		return c
	case !v.Answer.Placed && v.Answer.Reason != "" && !v.staleWait():
		c.Reason, c.Message = v.Answer.Reason, v.Answer.Message
	case len(v.Members) >= v.Size:
		c.Reason, c.Message = v1alpha1.ReasonWaitingForMembers, fmt.Sprintf("%d of %s on nodes", bound, gang.Count(v.Size, "pod is", "pods are"))
	default:
		r := gang.Incomplete(gang.MemberCounts{Size: v.Size, Exist: len(v.Members), Bound: bound, Gaps: v.gaps()})
		c.Reason, c.Message = r.Reason, r.Message
	}
	if v.Refused != "" && !c.True && len(v.Members) < v.Size {
		c.Message += "; " + v.Creator + " cannot create a pod: " + v.Refused
	}
	if v.Provisioning != "" && !c.True {
		c.Message += "; " + v.Provisioning
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

// staleWait reports whether the scheduler's answer is about missing members though all exist, or the reverse.
func (v View) staleWait() bool {
	ofMembers := v.Answer.Reason == v1alpha1.ReasonWaitingForMembers || v.Answer.Reason == v1alpha1.ReasonMemberLost
	return ofMembers != (len(v.Members) < v.Size && !v.Held)
}

func (v View) running(p v1alpha1.GangPhase, bound int) Condition {
	c := Condition{Type: v1alpha1.ConditionRunning, True: p == v1alpha1.PhaseRunning, Reason: string(p)}
	switch p {
	case v1alpha1.PhaseRunning:
		c.Message = fmt.Sprintf("generation %d: %s", v.Run.Generation, gang.Count(int(v.Run.Progress.Ranks), "rank runs", "ranks run"))
		if v.Run.Progress.WholeCommand {
			c.Message += ", each the whole command of its pod, restarted as a whole"
		}
		if why := v.fewer(); why != "" {
			c.Reason = v1alpha1.ReasonRunsWithFewer
			c.Message += "; " + why
			if queued := v.unready(); queued != "" {
				c.Message += "; " + queued
			}
		}
	case v1alpha1.PhaseWaiting:
		c.Reason, c.Message = v.placed(bound).Reason, "not all pods are on nodes"
	case v1alpha1.PhaseStarting:
		c.Message = "agents are attaching"
		if what := trouble(&v.Run); what != "" {
			c.Message = what
		}
	case v1alpha1.PhaseRecovering:
		c.Message = fmt.Sprintf("generation %d: %s", v.Run.Generation, v.repair())
	case v1alpha1.PhaseFinished, v1alpha1.PhaseFailed:
		c.Reason, c.Message = v.ended(p)
	}
	return c
}

// repair returns the text on a recovery: what failed, for which member the gang waits, and the scheduler's answer about it.
func (v View) repair() string {
	var parts []string
	what := trouble(&v.Run)
	if r := v.Run; v.Min > 0 && what == endedText && r.Progress.Waits != "" {
		what = "ended; " + r.Progress.Waits // why it does not go on with the pods that are there
	}
	if what != "" {
		parts = append(parts, what)
	}
	if who := v.awaited(); who != "" {
		parts = append(parts, who)
		if v.Refused != "" {
			parts = append(parts, v.Creator+" cannot create it: "+v.Refused)
		}
		if !v.Answer.Placed && v.Answer.Message != "" && !v.staleWait() {
			parts = append(parts, "the scheduler reports: "+v.Answer.Message)
		}
		if queued := v.unready(); queued != "" {
			parts = append(parts, queued)
		}
	}
	if len(parts) == 0 {
		return "its ranks are restarting"
	}
	return strings.Join(parts, "; ")
}

// maxAwaited bounds how many slots are named.
const maxAwaited = 4

// awaited returns the slots without a pod on a node, as text; "": there are none.
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
		slots = append(slots, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(slots, "; ")
}

// unready returns what Kueue may do to the job because pods have no node; "": all have one, or the job is in no queue of Kueue.
func (v View) unready() string {
	n := v.Size - v.OnNodes()
	if v.Queue == "" || n <= 0 {
		return ""
	}
	return fmt.Sprintf("Kueue (queue %s) counts %s as not ready and suspends the job after recoveryTimeout of waitForPodsReady, if that is on: with recoveryTimeout 0s it does not",
		v.Queue, gang.Count(n, "pod", "pods"))
}

func (v View) stateInMemory() Condition {
	return Condition{Type: v1alpha1.ConditionStateInMemory, True: v.State.On, Reason: v.State.Reason, Message: v.State.Message}
}

func (v View) standbysReady() Condition {
	c := Condition{Type: v1alpha1.ConditionStandbysReady}
	switch ready, ranks := int(v.Run.Progress.StandbysReady), int(v.Run.Progress.Ranks); {
	case !v.Standbys.On:
		c.Reason, c.Message = v.Standbys.Reason, v.Standbys.Message
	case ranks > 0 && ready >= ranks:
		c.True, c.Reason, c.Message = true, v1alpha1.ReasonStandbysReady, "every rank has a warm standby"
	default:
		c.Reason, c.Message = v1alpha1.ReasonStandbysWarming, fmt.Sprintf("%d of %s a warm standby", ready, gang.Count(ranks, "rank has", "ranks have"))
	}
	return c
}

// goodputKnown returns the condition on whether goodput is known. If the number of recomputed steps is unknown, goodput would be wrong.
func (v View) goodputKnown() Condition {
	c := Condition{
		Type:    v1alpha1.ConditionGoodputKnown,
		True:    v.Run.Progress.ResumeUnknown == 0,
		Reason:  v1alpha1.ReasonResumePointKnown,
		Message: "the cost of every recovery is known",
	}
	if !c.True {
		c.Reason = v1alpha1.ReasonResumePointUnknown
		c.Message = fmt.Sprintf("for %s the step at which training resumed is unknown, so no goodput is given: report each step with the client, attach() and step(n), or keep an optimizer or scheduler that counts its steps in the script's checkpoint",
			gang.Count(int(v.Run.Progress.ResumeUnknown), "recovery", "recoveries"))
	}
	return c
}

// progressing returns the condition on whether ranks make steps, or work between two steps.
func (v View) progressing(p v1alpha1.GangPhase) Condition {
	c := Condition{Type: v1alpha1.ConditionProgressing, True: p == v1alpha1.PhaseRunning, Reason: string(p)}
	s := v.Run.Progress.Standstill
	switch {
	case !c.True:
		c.Message = "no rank is expected to make a step"
	case s == nil:
		c.Message = "no rank is known to stand still"
	default:
		c.Reason, c.Message = s.Verdict, standstillText(s)
		c.True, c.Unknown = s.Verdict == v1alpha1.ReasonBusy, s.Verdict == v1alpha1.ReasonUnexplained
	}
	return c
}

// busy returns the condition on whether ranks work for longer than their steps explain.
func (v View) busy(p v1alpha1.GangPhase) Condition {
	c := Condition{Type: v1alpha1.ConditionBusy, Reason: string(p), Message: "no work between two steps is known to last long"}
	if s := v.Run.Progress.Standstill; s != nil && p == v1alpha1.PhaseRunning {
		c.True, c.Reason, c.Message = s.Verdict == v1alpha1.ReasonBusy, s.Verdict, standstillText(s)
	}
	return c
}

// standstillText returns since when a gang makes no step, and who waits for whom.
func standstillText(s *v1alpha1.Standstill) string {
	return fmt.Sprintf("no step since %s: %s", s.Since.UTC().Format(time.RFC3339), s.Message)
}

func (v View) unprotected() Condition {
	c := Condition{
		Type:    v1alpha1.ConditionUnprotected,
		True:    v.Run.Progress.UnprotectedPods > 0,
		Reason:  v1alpha1.ReasonProtected,
		Message: "agents started all ranks",
	}
	if c.True {
		c.Reason = v1alpha1.ReasonUnprotected
		what := ""
		if u := v.Run.Progress.Unprotected; len(u) > 0 {
			what = fmt.Sprintf("pod %s of slot %d: %s", u[0].Pod, u[0].Slot, u[0].Runs)
		}
		c.Message = fmt.Sprintf("in %s the agent started no rank, and nothing restarts the processes that run there: %s; start the ranks with torchrun, python -m torch.distributed.run or another launcher that docs/launchers.md lists, and create the job again",
			gang.Count(int(v.Run.Progress.UnprotectedPods), "pod", "pods"), what)
	}
	return c
}

func (v View) launcherRestarts() Condition {
	if v.Run.Progress.WholeCommand {
		return Condition{Type: v1alpha1.ConditionLauncherRestarts, True: true, Reason: v1alpha1.ReasonWholeCommand, Message: "the whole command is restarted on all pods when it fails on one; to restart only ranks use torchrun, python -m torch.distributed.run or another launcher that docs/launchers.md lists"}
	}
	return Condition{Type: v1alpha1.ConditionLauncherRestarts, Reason: v1alpha1.ReasonRanksRestart, Message: "a failure restarts ranks; the launcher continues"}
}

// over returns two conditions, as a Job has them. With one condition kubectl wait --for=condition=Complete would succeed for a job that
// failed.
func (v View) over(p v1alpha1.GangPhase) []Condition {
	complete, failed := p == v1alpha1.PhaseFinished, p == v1alpha1.PhaseFailed
	reason, message := string(p), "the job is not over"
	if complete || failed {
		reason, message = v.ended(p)
	}
	return []Condition{
		{Type: v1alpha1.ConditionComplete, True: complete, Reason: reason, Message: message},
		{Type: v1alpha1.ConditionFailed, True: failed, Reason: reason, Message: message},
	}
}

func (v View) ended(p v1alpha1.GangPhase) (reason, message string) {
	if d := v.Run.Verdict; d != nil {
		return cmp.Or(d.Reason, string(p)), verdictText(d)
	}
	return string(p), cmp.Or(v.JobMessage, "the job is over")
}
