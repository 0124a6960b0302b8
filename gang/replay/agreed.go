package replay

import (
	"fmt"

	"holdfast.dev/holdfast/gang"
)

// maxAgreed bounds a record: a search among members with rules may ask millions of questions.
const maxAgreed = 100_000

// mostAgreed is maxAgreed but in a test of what happens beyond it.
var mostAgreed = maxAgreed

// Agreed is one answer to gang.Gang's Agree. Who was there before is not written out, which would take the square of
// the gang's size, but told by the answer that let the last of them in.
type Agreed struct {
	Member int    `json:"member"`
	Node   string `json:"node"`
	// After is that answer, counted from 1; 0: nobody was there.
	After int        `json:"after,omitempty"`
	OK    bool       `json:"ok"`
	Cause gang.Cause `json:"cause,omitzero"`
}

func (a Agreed) question() question { return question{a.After, a.Member, a.Node} }

type question struct {
	after, member int
	node          string
}

// book finds answers by what was asked.
type book struct {
	answers map[question]int
	// member is a member's index by name.
	member map[string]int
	// path are the answers for the assignments of the last question; the next one has these assignments but for the last few.
	path []step
}

type step struct {
	assignment gang.Assignment
	answer     int
}

func newBook(members []gang.Member) *book {
	b := &book{answers: map[question]int{}, member: make(map[string]int, len(members))}
	for i, m := range members {
		b.member[m.Name] = i
	}
	return b
}

// after is the answer that let the last of the assignments in; unknown is asked for assignments that no answer let in.
func (b *book) after(assignments []gang.Assignment, unknown func(question) int) int {
	b.path = b.path[:min(len(b.path), len(assignments))]
	if n := len(b.path); n > 0 && b.path[n-1].assignment != assignments[n-1] {
		b.path = b.path[:0]
	}
	last := 0
	if n := len(b.path); n > 0 {
		last = b.path[n-1].answer
	}
	for _, assignment := range assignments[len(b.path):] {
		q := question{last, b.member[assignment.Member], assignment.Node}
		answer, ok := b.answers[q]
		if !ok {
			answer = unknown(q)
		}
		last = answer
		b.path = append(b.path, step{assignment, answer})
	}
	return last
}

// Listen has all that g's Agree answers recorded, up to a limit; beyond it Agree says no to everything and Full is true.
func (r *Record) Listen(g *gang.Gang) {
	ask := g.Agree
	if ask == nil {
		return
	}
	r.Asked = true
	b := newBook(g.Members)
	note := func(a Agreed) int {
		r.Agreed = append(r.Agreed, a)
		b.answers[a.question()] = len(r.Agreed)
		return len(r.Agreed)
	}
	g.Agree = func(member int, node string, assignments []gang.Assignment) (gang.Cause, bool) {
		after := b.after(assignments, func(q question) int { return note(Agreed{Member: q.member, Node: q.node, After: q.after, OK: true}) })
		if at, ok := b.answers[question{after, member, node}]; ok {
			return r.Agreed[at-1].Cause, r.Agreed[at-1].OK
		}
		if r.Full() {
			return gang.Cause{}, false
		}
		cause, ok := ask(member, node, assignments)
		note(Agreed{Member: member, Node: node, After: after, OK: ok, Cause: cause})
		return cause, ok
	}
}

// Full says that there were more answers than a record takes: it is of no use.
func (r *Record) Full() bool { return len(r.Agreed) >= mostAgreed }

// teller gives the recorded answers again; missing is set where there is none.
func (r *Record) teller(missing *error) func(int, string, []gang.Assignment) (gang.Cause, bool) {
	b := newBook(r.Gang.Members)
	for i, a := range r.Agreed {
		b.answers[a.question()] = i + 1
	}
	return func(member int, node string, assignments []gang.Assignment) (gang.Cause, bool) {
		after := b.after(assignments, func(question) int { return -1 })
		if at, ok := b.answers[question{after, member, node}]; ok {
			return r.Agreed[at-1].Cause, r.Agreed[at-1].OK
		}
		if *missing == nil {
			*missing = fmt.Errorf("the record does not say whether member %d may be on node %s beside %d others", member, node, len(assignments))
		}
		return gang.Cause{}, false
	}
}
