// Package gang decides for pods that only make sense together. It promises one answer for the whole gang:
// a Placement that names a node for every missing member, or a Refusal that says with counts why there
// is none. Never half of it, never more on a node than is free there, never a node that was ruled out.
// The same values in give the same answer out; the message of an answer is part of it, so condition,
// event, metric and command line say the same.
package gang

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/topology"
)

// Gang is what must be placed together.
type Gang struct {
	// Size is how many members there must be.
	Size int
	// Members are those that exist, by slot.
	Members []Member
	// Roles are the different shapes of members.
	Roles []Role
	// Agree, where set, is asked before a member is put on a node beside the members placed so far (seats,
	// in the order in which they were placed). It is for rules among members that counts cannot express,
	// such as anti-affinity, and must answer the same to the same question.
	Agree func(member int, node string, seats []Seat) (Cause, bool)
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

// Seat is a member on its node.
type Seat struct {
	Slot   int
	Member string
	Node   string
}

// Placement is the plan: a seat for every member, by slot, those that were there before included.
type Placement struct {
	Seats []Seat
	// Placed counts the seats that are new.
	Placed int
}

// Nodes lists the nodes by slot.
func (p Placement) Nodes() []string {
	nodes := make([]string, len(p.Seats))
	for i, s := range p.Seats {
		nodes[i] = s.Node
	}
	return nodes
}

// Refusal is why there is no Placement.
type Refusal struct {
	// Reason is a condition reason: WaitingForMembers, MemberLost or InsufficientNodes.
	Reason string
	// Wanted counts members that must be placed, Fits how many of them would have fitted.
	Wanted, Fits int
	// Nodes counts all nodes.
	Nodes int
	// Excluded lists the nodes on which not even one member fits, by why, in the tree's order.
	Excluded map[Cause][]string
	// Message says all of it for people.
	Message string
}

// Reasons of a Refusal.
const (
	WaitingForMembers = "WaitingForMembers"
	MemberLost        = "MemberLost"
	InsufficientNodes = "InsufficientNodes"
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
	// Unhealthy: Holdfast found the node to be of no use; Name is the cause, such as "XidOffBus".
	Unhealthy
	// Refused: the rule Name says no.
	Refused
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

// Census is who of a gang is there.
type Census struct {
	// Size is how many members there must be, Exist how many do, Bound how many of these are on nodes, Ended
	// how many ended well and are not needed any more.
	Size, Exist, Bound, Ended int
	// Gaps are the slots that nobody holds, by slot; none where slots are unknown.
	Gaps []Gap
}

// Gap is a slot that nobody holds.
type Gap struct {
	Slot int
	// Leaving names the pod that held the slot and is still ending, Node where; empty: there is none.
	Leaving, Node string
}

// Incomplete is the answer while members are missing.
func Incomplete(c Census) Refusal {
	r := Refusal{Reason: WaitingForMembers, Wanted: c.Size - c.Ended - c.Bound, Message: fmt.Sprintf("%d of %s", c.Exist, count(c.Size, "pod exists", "pods exist"))}
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
		if g.Leaving != "" {
			leaving = append(leaving, fmt.Sprintf("pod %s is still ending on node %s", g.Leaving, g.Node))
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

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// insufficientNodes is the answer when not all members fit; blocked is the role of the first that did not.
func insufficientNodes(tree *topology.Tree, g Gang, wanted, fits, blocked int) *Refusal {
	r := &Refusal{Reason: InsufficientNodes, Wanted: wanted, Fits: fits, Nodes: tree.Len(), Excluded: map[Cause][]string{}}
	role := g.Roles[blocked]
	for i := range tree.Len() {
		if cause, out := excluded(tree, i, role); out {
			r.Excluded[cause] = append(r.Excluded[cause], tree.Name(i))
		}
	}
	r.Message = r.text(g, role)
	return r
}

// excluded says whether not even one member of the role fits on the i-th node, and why.
func excluded(tree *topology.Tree, i int, role Role) (Cause, bool) {
	if role.OutAll != nil {
		return *role.OutAll, true
	}
	lacks := tree.Lacks(i, role.Requests)
	cause, out := role.Out[tree.Name(i)]
	switch {
	case out && cause.Kind != Insufficient:
		return cause, true
	case len(lacks) > 0:
		return Cause{Kind: Insufficient, Name: scarcest(lacks)}, true
	default:
		return cause, out
	}
}

// scarcest picks the resource to name where several are lacking: a device before what every node has.
func scarcest(names []string) string {
	for _, n := range names {
		if strings.Contains(n, "/") {
			return n
		}
	}
	return names[0]
}

func (r *Refusal) text(g Gang, role Role) string {
	var b strings.Builder
	b.WriteString(count(r.Wanted, "pod wanted", "pods wanted"))
	if r.Wanted < g.Size {
		fmt.Fprintf(&b, " (%d of %d are on nodes)", g.Size-r.Wanted, g.Size)
	}
	fits := "fit"
	if r.Fits == 1 {
		fits = "fits"
	}
	fmt.Fprintf(&b, ", %d %s: ", r.Fits, fits)
	if r.Nodes == 0 {
		return b.String() + "there are no nodes"
	}
	b.WriteString(count(r.Nodes, "node", "nodes"))
	for _, c := range sortedCauses(r.Excluded) {
		nodes := r.Excluded[c]
		fmt.Fprintf(&b, ", %d %s", len(nodes), c.phrase(role))
		if c.Kind == Unhealthy { // somebody has to go and see
			b.WriteString(": " + some(nodes))
		}
	}
	return b.String()
}

// some names the first few.
func some(names []string) string {
	text := strings.Join(names[:min(len(names), shownNames)], " ")
	if more := len(names) - shownNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (c Cause) phrase(role Role) string {
	switch c.Kind {
	case Insufficient:
		shown, ok := role.Shown[c.Name]
		if !ok {
			shown = fmt.Sprint(role.Requests[c.Name])
		}
		return fmt.Sprintf("without free %s (%s asked)", c.Name, shown)
	case Refused:
		return "refused by " + c.Name
	default:
		return c.String()
	}
}
