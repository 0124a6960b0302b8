// Package gang places pods that are only useful together. Place returns one answer for the whole gang: a Placement,
// which names a node for each member that lacks one, or a Refusal with counts.
//
//   - A placement is never partial, never puts more on a node than is free there, and never uses an excluded node.
//   - The same input gives the same answer.
//   - The message is part of the answer, so that condition, event, metric and command line agree.
package gang

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/topology"
)

// Gang is what must be placed together.
type Gang struct {
	// Size is the full number of members; Min is the number with which it can run if not all fit, 0: all.
	Size, Min int
	// Unit: a gang that runs with fewer does so with whole blocks of so many consecutive slots: of members beyond those that it needs, those
	// of one block are placed together or left out together. 0: 1.
	Unit int
	// Topology is its constraints on the fabric.
	Topology Topology
	// Members are the existing ones, by slot.
	Members []Member
	// Roles are the different shapes of members.
	Roles []Role
	// Free is what must be free on all nodes together before any member is placed; FreeShown is its form in messages.
	Free      topology.Resources
	FreeShown map[string]string
	// Agree, if set, is called before a member is put on a node beside the members placed so far (assignments, in the order of
	// placement). It is for rules among members that counts cannot express, such as anti-affinity, and must return the same for the
	// same arguments.
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
	// Node is the member's present node; empty: it must be placed. What it uses there is not free in the tree.
	Node string
	// Essential: it is placed even if not all members fit.
	Essential bool
}

// Role is a shape that members share.
type Role struct {
	// Requests is what one member takes from a node.
	Requests topology.Resources
	// Shown is the requests' form in messages, by resource; a missing one is shown as its plain number.
	Shown map[string]string
	// Out names the nodes that are excluded for this role, and why.
	Out map[string]Cause
	// OutAll, if set, excludes every node: the pod itself cannot run anywhere now.
	OutAll *Cause
}

// Assignment is a member on its node.
type Assignment struct {
	Slot   int
	Member string
	Node   string
}

// Placement is an assignment for every member, by slot, including those that were placed before. If Gang.Min allows it, members
// that do not fit have none: those of the highest slots, never essential ones.
type Placement struct {
	Assignments []Assignment
	// Placed counts the new assignments.
	Placed int
}

// Nodes returns the nodes by slot.
func (p Placement) Nodes() []string {
	nodes := make([]string, len(p.Assignments))
	for i, s := range p.Assignments {
		nodes[i] = s.Node
	}
	return nodes
}

// At returns the node of each member that has an assignment, by the member's name.
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
	// Excluded lists the nodes on which not even one member fits, by cause, in the tree's order.
	Excluded map[Cause][]string
	// Levels are the searched topology levels, widest first; none if the gang has no constraints on the fabric.
	Levels []LevelCount
	// Unblock is what would let the gang be placed; empty if there is no short answer.
	Unblock string
	// Message is the text of all of it.
	Message string
	// NoNodeHelps: more nodes like those of the cluster would not change the answer.
	NoNodeHelps bool
	// Undecided: the search has not run yet, and will.
	Undecided bool
}

// Reasons of a Refusal.
const (
	WaitingForMembers = "WaitingForMembers"
	MemberLost        = "MemberLost"
	InsufficientNodes = "InsufficientNodes"
	// InvalidTopology: the gang names a topology level that the cluster does not have, or an invalid value.
	InvalidTopology = "InvalidTopology"
	// Unsupported: the pods request something that Holdfast does not count for a gang.
	Unsupported = "Unsupported"
)

// Cause is why one node is excluded.
type Cause struct {
	Kind Kind
	// Name is the missing resource, or the rule that refuses.
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
	// Unhealthy: Holdfast, or the node's own kubelet, found the node unusable; Name is the cause, such as "XidOffBus".
	Unhealthy
	// Refused: the rule Name refuses the node.
	Refused
	// InUse: other pods are there, and the gang requests whole nodes.
	InUse
	// Whole: a gang with exclusive nodes uses it.
	Whole
	// Spare: it is left free for replaced members.
	Spare
	// Unlabelled: it is in no domain of level Name, at which spares are kept.
	Unlabelled
)

// String is the cause's short name, as in a status and a metric label.
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

// NoNodes returns the refusal for a cluster without nodes, whose topology levels are unknown.
func NoNodes(wanted int) Refusal {
	return Refusal{Reason: InsufficientNodes, Wanted: wanted, Message: fmt.Sprintf("%s wanted, 0 fit: the cluster has no nodes", Count(wanted, "pod", "pods"))}
}

// MemberCounts are the numbers of members of a gang.
type MemberCounts struct {
	// Size is the full number of members, Exist how many exist, Bound how many of these are on nodes, Ended how many succeeded and need no
	// pod any more.
	Size, Exist, Bound, Ended int
	// Gaps are the slots without a pod, by slot; none where slots are unknown.
	Gaps []Gap
}

// Gap is a slot without a pod.
type Gap struct {
	Slot int
	// Terminating is the pod that held the slot and is still terminating, Node its node; empty: none.
	Terminating, Node string
}

// Incomplete returns the refusal while members are missing.
func Incomplete(c MemberCounts) Refusal {
	r := Refusal{Reason: WaitingForMembers, Wanted: c.Size - c.Ended - c.Bound, Message: fmt.Sprintf("%d of %s", c.Exist, Count(c.Size, "pod exists", "pods exist"))}
	if c.Ended > 0 {
		r.Message += fmt.Sprintf(", %d succeeded", c.Ended)
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
		return "the others to be re-created"
	}
	var slots, leaving []string
	for _, g := range gaps[:min(len(gaps), shownNames)] {
		slots = append(slots, fmt.Sprint(g.Slot))
		if g.Terminating != "" {
			leaving = append(leaving, fmt.Sprintf("pod %s is still terminating on node %s", g.Terminating, g.Node))
		}
	}
	text := "slot " + strings.Join(slots, ", ")
	if len(gaps) > 1 {
		text = "slots " + strings.Join(slots, ", ")
	}
	if more := len(gaps) - len(slots); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	text += " to be re-created"
	if len(leaving) > 0 {
		text += " (" + strings.Join(leaving, ", ") + ")"
	}
	return text
}

// Count formats a number of things.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
