package gang

import (
	"fmt"
	"sort"
	"time"
)

// View is what is known of a gang at one moment.
type View struct {
	// Wanted is how many members there must be.
	Wanted int
	// Pods are the members that exist, at most one per slot.
	Pods []ViewPod
	// Answer is the scheduler's present answer; nil: none yet.
	Answer *Answer
	// Run is the coordinator's record; nil: none yet.
	Run *ViewRun
	// Ended is set once the job itself is over.
	Ended *Ended
	// StateBytes is the size of the state that each rank keeps in memory; 0: off.
	StateBytes int64
	// Standbys says whether standby processes are on.
	Standbys bool
}

// ViewPod is one member that exists.
type ViewPod struct {
	Slot int
	Name string
	// Node is empty until the pod is bound.
	Node  string
	Ranks int
	// Notes are what injection left out and why.
	Notes []string
}

// Answer is the scheduler's answer for the whole gang.
type Answer struct {
	Placed          bool
	Reason, Message string
}

// ViewRun is the coordinator's record, as far as a gang's standing hangs on it.
type ViewRun struct {
	Generation int64
	Restarts   int
	// Running says that the newest generation was handed out and no failure was seen since.
	Running   bool
	StartedAt time.Time
	// Ranks is the world size, StandbysReady how many of them have a warm standby.
	Ranks, StandbysReady int
	// Step is the newest step that all ranks finished, SavedStep the newest that all hold sealed.
	Step, SavedStep int64
	SavedAt         time.Time
	Lost            time.Duration
	Attached        []int
	Notes           []string
	// Verdict is set once the gang has ended.
	Verdict *Ended
}

// Ended says how a gang or its job ended.
type Ended struct {
	Good            bool
	Reason, Message string
	At              time.Time
}

// Standing is what a gang's status says, but for the parts that others write.
type Standing struct {
	Phase           Phase
	Nodes           string
	Step, SavedStep int64
	Saved, Goodput  string
	Slots           []SlotStanding
	Notes           []string
	Conditions      []Condition
}

// SlotStanding is one slot of the gang.
type SlotStanding struct {
	Slot      int
	Pod, Node string
	Ranks     int
	Attached  bool
}

// Condition is one statement about the gang.
type Condition struct {
	Type            string
	True            bool
	Reason, Message string
}

// Phase is one word for people.
type Phase string

// The phases; a Gang's status carries the same words.
const (
	Waiting    Phase = "Waiting"
	Starting   Phase = "Starting"
	Running    Phase = "Running"
	Recovering Phase = "Recovering"
	Finished   Phase = "Finished"
	Failed     Phase = "Failed"
)

// Types and reasons of the conditions; the API carries the same words.
const (
	condPlaced   = "Placed"
	condRunning  = "Running"
	condState    = "StateInMemory"
	condStandbys = "StandbysReady"
	condFinished = "Finished"

	reasonWaiting    = "WaitingForMembers"
	reasonMemberLost = "MemberLost"
	reasonSized      = "SizeAnnotated"
	reasonNoSize     = "NoStateSize"
	reasonWarm       = "StandbysReady"
	reasonWarming    = "StandbysWarming"
	reasonOff        = "StandbysOff"
)

// Assess says where the gang stands now.
func Assess(v View, now time.Time) Standing {
	bound := 0
	for _, p := range v.Pods {
		if p.Node != "" {
			bound++
		}
	}
	s := Standing{Phase: phase(v, bound), Nodes: fmt.Sprintf("%d/%d", bound, v.Wanted), Slots: slots(v), Notes: notes(v)}
	s.Conditions = []Condition{placed(v, bound), running(v, s.Phase), state(v), standbys(v, s.Phase), finished(v, s.Phase)}
	if v.Run != nil {
		s.Step, s.SavedStep = v.Run.Step, v.Run.SavedStep
		if v.Run.SavedStep > 0 && !v.Run.SavedAt.IsZero() {
			s.Saved = age(stopOf(v, now).Sub(v.Run.SavedAt))
		}
		s.Goodput = goodput(*v.Run, stopOf(v, now))
	}
	return s
}

// end is how the gang ended; the coordinator's verdict says more than the job.
func (v View) end() *Ended {
	if v.Run != nil && v.Run.Verdict != nil {
		return v.Run.Verdict
	}
	return v.Ended
}

// stopOf is the moment that durations count to.
func stopOf(v View, now time.Time) time.Time {
	if e := v.end(); e != nil && !e.At.IsZero() && e.At.Before(now) {
		return e.At
	}
	return now
}

func phase(v View, bound int) Phase {
	ran := v.Run != nil && v.Run.Generation > 0
	switch e := v.end(); {
	case e != nil && e.Good:
		return Finished
	case e != nil:
		return Failed
	case bound < v.Wanted:
		return Waiting
	case !ran:
		return Starting
	case v.Run.Running:
		return Running
	}
	return Recovering
}

func placed(v View, bound int) Condition {
	c := Condition{Type: condPlaced}
	ran := v.Run != nil && v.Run.Generation > 0
	switch {
	case bound >= v.Wanted, v.end() != nil:
		c.True, c.Reason = true, condPlaced
		c.Message = fmt.Sprintf("all %d members have a node", v.Wanted)
		if v.end() != nil {
			c.Message = "the gang has ended"
		}
	case v.Answer != nil && !v.Answer.Placed && v.Answer.Reason != "":
		c.Reason, c.Message = v.Answer.Reason, v.Answer.Message
	case ran:
		c.Reason, c.Message = reasonMemberLost, fmt.Sprintf("%d of %d members have a node", bound, v.Wanted)
	default:
		c.Reason, c.Message = reasonWaiting, fmt.Sprintf("%d of %d members exist, %d have a node", len(v.Pods), v.Wanted, bound)
	}
	return c
}

func running(v View, p Phase) Condition {
	c := Condition{Type: condRunning, True: p == Running, Reason: string(p)}
	switch p {
	case Waiting:
		c.Reason, c.Message = reasonWaiting, "not all members have a node"
	case Starting:
		c.Message = "members have nodes; their agents have yet to start the first generation"
	case Running:
		c.Message = fmt.Sprintf("generation %d runs on %d ranks", v.Run.Generation, v.Run.Ranks)
	case Recovering:
		c.Message = fmt.Sprintf("generation %d ended by a failure; the next one is being made", v.Run.Generation)
	case Finished, Failed:
		c.Reason, c.Message = endReason(v, p), "the gang has ended"
	}
	return c
}

func state(v View) Condition {
	if v.StateBytes == 0 {
		return Condition{Type: condState, Reason: reasonNoSize,
			Message: `state in memory is off because the job has no annotation holdfast.dev/state-size; to turn it on, create the job with it: the size of what one rank saves, such as "40Gi"`}
	}
	return Condition{Type: condState, True: true, Reason: reasonSized,
		Message: fmt.Sprintf("each rank has room for three copies of %d bytes in memory", v.StateBytes)}
}

func standbys(v View, p Phase) Condition {
	c := Condition{Type: condStandbys, Reason: reasonWarming}
	switch {
	case !v.Standbys:
		c.Reason, c.Message = reasonOff, `standby processes are off by annotation holdfast.dev/standbys: "off"`
	case p == Finished || p == Failed:
		c.Reason, c.Message = endReason(v, p), "the gang has ended"
	case v.Run == nil || v.Run.Ranks == 0:
		c.Message = "no generation runs yet"
	case v.Run.StandbysReady >= v.Run.Ranks:
		c.True, c.Reason = true, reasonWarm
		c.Message = fmt.Sprintf("each of %d ranks has a warm standby", v.Run.Ranks)
	default:
		c.Message = fmt.Sprintf("%d of %d ranks have a warm standby", v.Run.StandbysReady, v.Run.Ranks)
	}
	return c
}

func finished(v View, p Phase) Condition {
	c := Condition{Type: condFinished, Reason: string(p)}
	if e := v.end(); e != nil {
		c.True, c.Reason, c.Message = true, endReason(v, p), e.Message
	} else if p == Waiting {
		c.Reason = reasonWaiting
	}
	return c
}

func endReason(v View, p Phase) string {
	if e := v.end(); e != nil && e.Reason != "" {
		return e.Reason
	}
	return string(p)
}

func slots(v View) []SlotStanding {
	out := make([]SlotStanding, v.Wanted)
	for i := range out {
		out[i].Slot = i
	}
	for _, p := range v.Pods {
		if p.Slot >= 0 && p.Slot < len(out) {
			out[p.Slot].Pod, out[p.Slot].Node, out[p.Slot].Ranks = p.Name, p.Node, p.Ranks
		}
	}
	if v.Run != nil {
		for _, slot := range v.Run.Attached {
			if slot >= 0 && slot < len(out) {
				out[slot].Attached = true
			}
		}
	}
	return out
}

// notes are all notes, each once, sorted.
func notes(v View) []string {
	seen := map[string]bool{}
	for _, p := range v.Pods {
		for _, n := range p.Notes {
			seen[n] = true
		}
	}
	if v.Run != nil {
		for _, n := range v.Run.Notes {
			seen[n] = true
		}
	}
	var out []string
	for n := range seen {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// goodput is the share of time since the first start that was spent on steps that were kept.
func goodput(r ViewRun, until time.Time) string {
	total := until.Sub(r.StartedAt)
	if r.StartedAt.IsZero() || total <= 0 {
		return ""
	}
	share := 1 - float64(r.Lost)/float64(total)
	return fmt.Sprintf("%.1f%%", 100*max(0, min(1, share)))
}

// age writes a duration in one unit, as kubectl does.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
