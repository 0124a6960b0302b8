// Package gang places pods that are only useful together. It promises one answer for the whole gang: a Placement that
// names a node for every missing member, or a Refusal with counts. Never a partial one, never more on a node than is
// free there, never a node that was excluded. The same input gives the same answer; the message is part of the
// answer, so condition, event, metric and command line agree.
package gang

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/topology"
)

// Gang is what must be placed together.
type Gang struct {
	// Size is how many members there are when all are there; Min is with how many on nodes it can do where not all
	// fit, 0: with all.
	Size, Min int
	// Topology is what it asks of the fabric.
	Topology Topology
	// Members are those that exist, by slot.
	Members []Member
	// Roles are the different shapes of members.
	Roles []Role
	// Free is what must be free on all nodes together before anybody is placed; FreeShown is how people write it.
	Free      topology.Resources
	FreeShown map[string]string
	// Agree, where set, is asked before a member is put on a node beside the members placed so far (assignments,
	// in the order in which they were placed). It is for rules among members that counts cannot express,
	// such as anti-affinity, and must answer the same to the same question.
	Agree func(member int, node string, assignments []Assignment) (Cause, bool)
}

// Member is one pod.
type Member struct {
	// Slot is the member's place in the gang, from 0.
	Slot int
	// Name is the pod's name.
	Name string
	// Role is an index in Gang.Roles.
	Role int
	// Node is where the member is already; empty: it must be placed. What it holds there is not free in the
	// tree.
	Node string
	// Essential: it is not among those that are left out where not all fit.
	Essential bool
}

// Role is a shape that members share.
type Role struct {
	// Requests is what one member takes from a node.
	Requests topology.Resources
	// Shown is how people write the requests, by resource; a missing one is shown as its plain number.
	Shown map[string]string
	// Out names the nodes that are ruled out for this role, and why.
	Out map[string]Cause
	// OutAll, where set, rules out every node: the pod itself cannot run anywhere now.
	OutAll *Cause
}

// Assignment is a member on its node.
type Assignment struct {
	Slot   int
	Member string
	Node   string
}

// Placement is the plan: an assignment for every member, by slot, those that were there before included. Members that do
// not fit, where Gang.Min allows that, have none; they are those of the highest slots, essential ones never.
type Placement struct {
	Assignments []Assignment
	// Placed counts the assignments that are new.
	Placed int
}

// Nodes lists the nodes by slot.
func (p Placement) Nodes() []string {
	nodes := make([]string, len(p.Assignments))
	for i, s := range p.Assignments {
		nodes[i] = s.Node
	}
	return nodes
}

// At is the node of each member that has an assignment, by the member's name.
func (p Placement) At() map[string]string {
	at := make(map[string]string, len(p.Assignments))
	for _, s := range p.Assignments {
		at[s.Member] = s.Node
	}
	return at
}

// Refusal is why there is no Placement.
type Refusal struct {
	// Reason is a condition reason: WaitingForMembers, MemberLost, InsufficientNodes, InvalidTopology or Unsupported.
	Reason string
	// Wanted counts members that must be placed, Fits how many of them would have fitted.
	Wanted, Fits int
	// Nodes counts all nodes.
	Nodes int
	// Excluded lists the nodes on which not even one member fits, by why, in the tree's order.
	Excluded map[Cause][]string
	// Levels say what was looked for in one domain of a level, widest level first; none where the gang asks
	// nothing of the fabric.
	Levels []LevelCount
	// Unblock is what would let the gang be placed; empty where nothing short can be said.
	Unblock string
	// Message says all of it for people.
	Message string
	// NoNodeHelps: however many nodes like those of the cluster were added, the answer would stay.
	NoNodeHelps bool
	// Undecided: nothing was looked at yet, and it will be.
	Undecided bool
}

// Reasons of a Refusal.
const (
	WaitingForMembers = "WaitingForMembers"
	MemberLost        = "MemberLost"
	InsufficientNodes = "InsufficientNodes"
	// InvalidTopology: the gang names a topology level that the cluster does not have, or a value that makes no sense.
	InvalidTopology = "InvalidTopology"
	// Unsupported: the pods ask for something that is not counted for a gang.
	Unsupported = "Unsupported"
)

// Cause is why one node is out.
type Cause struct {
	Kind Kind
	// Name is the resource that is lacking, or the rule that refused.
	Name string
}

// Kind sorts causes.
type Kind int

const (
	// Insufficient: too little of the resource Name is free.
	Insufficient Kind = iota
	// Cordoned: the node takes no new pods.
	Cordoned
	// Tainted: the node has the taint Name, which the member does not tolerate; Name may be empty.
	Tainted
	// Unhealthy: Holdfast, or the node's own kubelet, found the node to be of no use; Name is the cause, such as "XidOffBus".
	Unhealthy
	// Refused: the rule Name says no.
	Refused
	// InUse: other pods are there, and the gang wants whole nodes.
	InUse
	// Whole: a gang that wants whole nodes has it.
	Whole
	// Spare: it is left free for members that are to be replaced.
	Spare
	// Unlabelled: it is in no domain of level Name, in which spares are to be left.
	Unlabelled
)

// String is the cause's short name, as it stands in a status and as a metric label.
func (c Cause) String() string {
	switch c.Kind {
	case Insufficient:
		return "insufficient " + c.Name
	case Cordoned:
		return "cordoned"
	case Tainted:
		return named("tainted", c.Name)
	case Unhealthy:
		return named("unhealthy", c.Name)
	case Refused:
		return c.Name
	case InUse:
		return "used by other pods"
	case Whole:
		return "used exclusively by another gang"
	case Spare:
		return "kept as spare"
	case Unlabelled:
		return "in no domain of level " + c.Name
	default:
		panic(fmt.Sprintf("gang: cause of kind %d", c.Kind))
	}
}

func named(kind, name string) string {
	if name == "" {
		return kind
	}
	return kind + " (" + name + ")"
}

// NoNodes is the answer where there is no node at all: what a level of the fabric is called is not known then.
func NoNodes(wanted int) Refusal {
	return Refusal{Reason: InsufficientNodes, Wanted: wanted, Message: fmt.Sprintf("%s wanted, 0 fit: there are no nodes", Count(wanted, "pod", "pods"))}
}

// MemberCounts is who of a gang is there.
type MemberCounts struct {
	// Size is how many members there must be, Exist how many do, Bound how many of these are on nodes, Ended
	// how many ended well and are not needed any more.
	Size, Exist, Bound, Ended int
	// Gaps are the slots that nobody holds, by slot; none where slots are unknown.
	Gaps []Gap
}

// Gap is a slot that nobody holds.
type Gap struct {
	Slot int
	// Terminating names the pod that held the slot and is still ending, Node where; empty: there is none.
	Terminating, Node string
}

// Incomplete is the answer while members are missing.
func Incomplete(c MemberCounts) Refusal {
	r := Refusal{Reason: WaitingForMembers, Wanted: c.Size - c.Ended - c.Bound, Message: fmt.Sprintf("%d of %s", c.Exist, Count(c.Size, "pod exists", "pods exist"))}
	if c.Ended > 0 {
		r.Message += fmt.Sprintf(", %d ended well", c.Ended)
	}
	if c.Bound > 0 {
		r.Reason = MemberLost
		r.Message += fmt.Sprintf(", %d on nodes: waiting for %s", c.Bound, awaited(c.Gaps))
	}
	return r
}

// shownNames bounds how many slots or nodes a message names.
const shownNames = 3

func awaited(gaps []Gap) string {
	if len(gaps) == 0 {
		return "the others to be created again"
	}
	var slots, leaving []string
	for _, g := range gaps[:min(len(gaps), shownNames)] {
		slots = append(slots, fmt.Sprint(g.Slot))
		if g.Terminating != "" {
			leaving = append(leaving, fmt.Sprintf("pod %s is still ending on node %s", g.Terminating, g.Node))
		}
	}
	text := "slot " + strings.Join(slots, ", ")
	if len(gaps) > 1 {
		text = "slots " + strings.Join(slots, ", ")
	}
	if more := len(gaps) - len(slots); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	text += " to be created again"
	if len(leaving) > 0 {
		text += " (" + strings.Join(leaving, ", ") + ")"
	}
	return text
}

// Count is a number of things, as people write it.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
