package replacements

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// Termination says that a pod must be replaced, and why.
type Termination struct {
	Slot members.Slot
	Pod  string // UID
	Name string
	Node string
	// Cause is the node's cause, or one of those below.
	Cause   string
	Message string
	// At is when that was decided; Deadline is how long the pod's state may be waited for (zero: as deadline.go says).
	At, Deadline time.Time
	// Dead: nothing there can be asked; the pod is fenced.
	Dead bool
}

// Causes of a Termination beside those of nodes.
const (
	// JobSuspended: the Job is suspended; its pods go and none is made in their place for now.
	JobSuspended = string(cause.JobSuspended)
	// HardwareSuspected: the pod first at fault tries another node.
	HardwareSuspected = "HardwareSuspected"
	// PodDeleted: the pod is being deleted or evicted.
	PodDeleted = "PodDeleted"
	// AgentUnreachable: no report of the pod's agent arrives while everything must halt.
	AgentUnreachable = "AgentUnreachable"
	// HaltTimeout: the agent reports, and what its pod runs does not end, while everything must halt: a rank that the kernel cannot end,
	// or an agent that can carry nothing out.
	HaltTimeout = "HaltTimeout"
)

// Replacement is a Termination that was carried out; what was not reached is zero.
type Replacement struct {
	Termination
	ReleasedAt time.Time
	// By is the new pod's name, Node where it is.
	By, NewNode string
	AttachedAt  time.Time
}

// Where names the pod and its node.
func (d Termination) Where() string {
	if d.Node == "" {
		return "pod " + d.Name
	}
	return fmt.Sprintf("pod %s on node %s", d.Name, d.Node)
}

// Why is the cause with its message.
func (d Termination) Why() string {
	if d.Message == "" {
		return d.Cause
	}
	return d.Cause + ": " + d.Message
}

// OwnVerdict: the coordinator itself decided that the pod must go, and none tells of it again.
func (d Termination) OwnVerdict() bool { return d.GivenUp() || d.Cause == HardwareSuspected }

// GivenUp: the coordinator itself has given the pod up as dead, because no report of it arrives or it does not halt.
func (d Termination) GivenUp() bool { return d.Cause == AgentUnreachable || d.Cause == HaltTimeout }

// Blames says whether the termination explains a failure that began in its slot: the node was sick. A pod that is deleted, moved or was
// given up does not mean a sick node.
func (d Termination) Blames() bool { return d.Cause != PodDeleted && !d.OwnVerdict() }

// Loss returns the cause of a generation's end that a termination amounts to. rank is the first of the slot.
func (d Termination) Loss(rank int) *cause.Cause {
	c := &cause.Cause{Code: cause.PodReplaced, Slot: int(d.Slot), Rank: rank, Message: fmt.Sprintf("%s: %s", d.Where(), d.Why())}
	switch {
	case d.Cause == JobSuspended:
		c.Code, c.Message = cause.JobSuspended, "the Job is suspended"
	case d.GivenUp():
		c.Code = cause.PodLost // it need not have left its place: what is unreachable or hangs again and again is counted
	}
	return c
}

// Merge returns the pods that must go, each once, by slot: those that are replaced, and those whose Job is suspended.
func Merge(pending, suspended []Termination) []Termination {
	if len(suspended) == 0 {
		return pending
	}
	out := slices.Clone(pending)
	for _, d := range suspended {
		if ofPod(pending, d.Pod) == nil {
			out = append(out, d)
		}
	}
	bySlot(out)
	return out
}

func bySlot(terminations []Termination) {
	slices.SortFunc(terminations, func(a, b Termination) int { return cmp.Compare(a.Slot, b.Slot) })
}

func ofPod(terminations []Termination, pod string) *Termination {
	for i := range terminations {
		if terminations[i].Pod == pod {
			return &terminations[i]
		}
	}
	return nil
}

// What a record lists of pods to be replaced. It must fit into one object of the API server, also where all of 5,000 pods are evicted
// again and again. Those that the coordinator itself gave up are listed first: nothing tells the next coordinator of them. Should there be
// more yet, it awaits their agents again.
const (
	// MaxListed is how many pods are listed beside those that are committed, keptGivenUp how many of those that were given up here, with
	// message and node of the first MaxListed; keptMessage bounds the message of each.
	MaxListed   = 64
	keptGivenUp = 1024
	keptMessage = 300
)

// Shorten leaves out what the coordinator that comes next can do without: it receives again which pods must go, but must
// know which of them are about to.
func Shorten(pending, suspended []Termination, committed func(pod string) bool) (shortPending, shortSuspended []Termination) {
	others, own := 0, 0
	kept := pending[:0:0]
	for _, d := range pending {
		stays := true
		switch {
		case committed(d.Pod):
		case d.OwnVerdict():
			if own++; own > MaxListed {
				d.Message, d.Node = "", ""
			}
			stays = own <= keptGivenUp
		default:
			others++
			stays = others <= MaxListed
		}
		if stays {
			kept = append(kept, d)
		}
	}
	return kept, suspended[:min(len(suspended), max(0, MaxListed-others))]
}
