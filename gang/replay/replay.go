// Package replay keeps everything that one decision about a gang was made from, so that it can be made again elsewhere
// and later. It promises that Run gives the recorded answer, for a record of the same version of the core; where it does
// not, the decision hangs on something that is not in the record, which is a defect. What the record cannot hold it says
// (Overruled).
package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/topology"
)

// Version is that of the record's form.
const Version = 2

// Record is one decision.
type Record struct {
	Version int `json:"version"`
	// At is when it was made, By which scheduler, Name which gang it was about.
	At   time.Time `json:"at"`
	By   string    `json:"by,omitempty"`
	Name string    `json:"name"`
	// Levels and Nodes are what the tree was made of.
	Levels []topology.Level `json:"levels,omitempty"`
	Nodes  []topology.Node  `json:"nodes"`
	// Taken is what was held on nodes for pods that are on their way there, in order.
	Taken []topology.Assumed `json:"taken,omitempty"`
	// Gang is what was to be placed; Agreed are the answers of the scheduler's filters about members beside others,
	// where Asked says that they were asked.
	Gang   Gang     `json:"gang"`
	Asked  bool     `json:"asked,omitempty"`
	Agreed []Agreed `json:"agreed,omitempty"`
	// Answer is what came out of the core. Overruled is what the scheduler said instead, where it tried that placement on
	// and members got no devices for their resource claims: devices and claims are not in the record.
	Answer    Answer `json:"answer"`
	Overruled string `json:"overruled,omitempty"`
}

// Gang is a gang.Gang without its function.
type Gang struct {
	Size int `json:"size"`
	Min  int `json:"min,omitempty"`
	// Free is what had to be free on all nodes together, FreeShown how people write it.
	Free      topology.Resources `json:"free,omitempty"`
	FreeShown map[string]string  `json:"freeShown,omitempty"`
	Topology  gang.Topology      `json:"topology,omitzero"`
	Members   []gang.Member      `json:"members"`
	Roles     []gang.Role        `json:"roles"`
}

// Answer is a placement or a refusal.
type Answer struct {
	Placed      bool              `json:"placed"`
	Assignments []gang.Assignment `json:"assignments,omitempty"`
	Reason      string            `json:"reason,omitempty"`
	Message     string            `json:"message,omitempty"`
	Wanted      int               `json:"wanted,omitempty"`
	Fits        int               `json:"fits,omitempty"`
}

// AnswerOf is the answer as it is recorded.
func AnswerOf(p gang.Placement, no *gang.Refusal) Answer {
	if no != nil {
		return Answer{Reason: no.Reason, Message: no.Message, Wanted: no.Wanted, Fits: no.Fits}
	}
	return Answer{Placed: true, Assignments: p.Assignments}
}

// Of is a gang as it is recorded.
func Of(g gang.Gang) Gang {
	return Gang{Size: g.Size, Min: g.Min, Free: g.Free, FreeShown: g.FreeShown, Topology: g.Topology, Members: g.Members, Roles: g.Roles}
}

// Run makes the decision again.
func Run(r Record) (Answer, error) {
	if r.Version != Version {
		return Answer{}, fmt.Errorf("the record has version %d, this program reads %d", r.Version, Version)
	}
	tree := topology.New(r.Levels, r.Nodes...)
	for _, t := range r.Taken {
		i, ok := tree.Find(t.Node)
		if !ok {
			return Answer{}, fmt.Errorf("the record holds something on node %s, which it does not list", t.Node)
		}
		tree.Assume(i, t.Usage)
	}
	g := gang.Gang{Size: r.Gang.Size, Min: r.Gang.Min, Free: r.Gang.Free, FreeShown: r.Gang.FreeShown, Topology: r.Gang.Topology, Members: r.Gang.Members, Roles: r.Gang.Roles}
	var missing error
	if r.Asked {
		g.Agree = r.teller(&missing)
	}
	placement, no := gang.Place(tree, g)
	return AnswerOf(placement, no), missing
}

// Differences says in what another answer differs; nothing where they are the same.
func (a Answer) Differences(b Answer) []string {
	var all []string
	if a.Placed != b.Placed || a.Reason != b.Reason || a.Message != b.Message || a.Wanted != b.Wanted || a.Fits != b.Fits {
		all = append(all, fmt.Sprintf("recorded: %s; again: %s", a, b))
	}
	if len(a.Assignments) != len(b.Assignments) {
		return append(all, fmt.Sprintf("recorded: %d assignments; again: %d", len(a.Assignments), len(b.Assignments)))
	}
	for i, s := range a.Assignments {
		if s != b.Assignments[i] {
			all = append(all, fmt.Sprintf("recorded: %s in slot %d on %s; again: %s in slot %d on %s", s.Member, s.Slot, s.Node, b.Assignments[i].Member, b.Assignments[i].Slot, b.Assignments[i].Node))
		}
	}
	return all
}

func (a Answer) String() string {
	if a.Placed {
		return fmt.Sprintf("placed, %d assignments", len(a.Assignments))
	}
	return a.Reason + ": " + a.Message
}

// Read reads a record.
func Read(from io.Reader) (Record, error) {
	var r Record
	d := json.NewDecoder(from)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("reading a record: %w", err)
	}
	return r, nil
}

// Write writes the record as one line of JSON.
func (r Record) Write(to io.Writer) error { return json.NewEncoder(to).Encode(r) }
