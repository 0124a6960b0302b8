package replacements

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// Termination is a pod that must be replaced, and why.
type Termination struct {
	Slot members.Slot
	Pod  string // UID
	Name string
	Node string
	// Cause is the node's cause, or a Cause constant of this package.
	Cause   string
	Message string
	// At is when that was decided; Deadline is until when the coordinator may wait for the pod's state (zero: see deadline.go).
	At, Deadline time.Time
	// Dead: the pod's node does not answer; the pod is fenced.
	Dead bool
}

// Causes of a Termination beside those of nodes.
const (
	// JobSuspended: the Job is suspended; its pods terminate and are not replaced for now.
	JobSuspended = string(cause.JobSuspended)
	// HardwareSuspected: the pod that failed first moves to another node.
	HardwareSuspected = "HardwareSuspected"
	// NodeCheckFailed: a node check named the pod, which moves to another node.
	NodeCheckFailed = "NodeCheckFailed"
	// NodeSlow: a node check found the pod slow, which moves to another node.
	NodeSlow = "NodeSlow"
	// PodDeleted: the pod is being deleted or evicted.
	PodDeleted = "PodDeleted"
	// AgentUnreachable: the pod's agent sends no report while everything must halt.
	AgentUnreachable = "AgentUnreachable"
	// HaltTimeout: the agent reports, but the pod's processes do not end while all ranks must halt: the kernel cannot end a rank, or the
	// agent cannot carry out orders.
	HaltTimeout = "HaltTimeout"
)

// Replacement is a Termination that was carried out; a time that is not reached is zero.
type Replacement struct {
	Termination
	ReleasedAt time.Time
	// By is the new pod's name, Node its node.
	By, NewNode string
	AttachedAt  time.Time
}

// Where returns the pod and its node.
func (d Termination) Where() string {
	if d.Node == "" {
		return "pod " + d.Name
	}
	return fmt.Sprintf("pod %s on node %s", d.Name, d.Node)
}

// Why returns the cause with its message.
func (d Termination) Why() string {
	if d.Message == "" {
		return d.Cause
	}
	return d.Cause + ": " + d.Message
}

// OwnVerdict reports whether the coordinator itself decided that the pod must terminate, so that no other component reports it again.
func (d Termination) OwnVerdict() bool { return d.GivenUp() || d.Suspects() }

// Suspects reports whether the pod's node may be at fault by the gang's own word, and Proven whether trials have proven it.
func (d Termination) Suspects() bool {
	return d.Cause == HardwareSuspected || d.Cause == NodeSlow || d.Proven()
}
func (d Termination) Proven() bool { return d.Cause == NodeCheckFailed }

// GivenUp reports whether the coordinator itself has given the pod up as dead, because it sends no report or does not halt.
func (d Termination) GivenUp() bool { return d.Cause == AgentUnreachable || d.Cause == HaltTimeout }

// Blames reports whether the termination explains a failure that began in its slot: the node was sick. A pod that is deleted, moved
// or was given up does not mean a sick node.
func (d Termination) Blames() bool { return d.Cause != PodDeleted && !d.OwnVerdict() }

// Loss returns the termination as the cause of a generation's end. rank is the first of the slot.
func (d Termination) Loss(rank int) *cause.Cause {
	c := &cause.Cause{Code: cause.PodReplaced, Slot: int(d.Slot), Rank: rank, Message: fmt.Sprintf("%s: %s", d.Where(), d.Why())}
	switch {
	case d.Cause == JobSuspended:
		c.Code, c.Message = cause.JobSuspended, "the Job is suspended"
	case d.GivenUp():
		c.Code = cause.PodLost // the pod may still be in place: repeated failures of this kind count
	}
	return c
}

// Merge returns the pods that must terminate, each once, by slot: those to be replaced, and those whose Job is suspended.
func Merge(pending, suspended []Termination) []Termination {
	if len(suspended) == 0 {
		return pending
	}
	out, replaced := slices.Clone(pending), listed(pending)
	for _, d := range suspended {
		if replaced[d.Pod] == nil {
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

// Bounds of the recorded pods to be replaced. The record must fit into one object of the API server even if all of 5,000 pods are evicted
// repeatedly. Pods that the coordinator itself gave up are listed first: the next coordinator receives them from no other component. If
// there are more, it waits for their agents again.
const (
	// MaxListed limits the listed pods beside the committed ones, keptGivenUp those that were given up here; only the first
	// MaxListed of these keep message and node. keptMessage limits each message.
	MaxListed   = 64
	keptGivenUp = 1024
	keptMessage = 300
)

// Shorten drops what the next coordinator does not need: it receives the pods to be replaced again, but must know the committed ones.
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
