// Package quorum decides with which slots the next generation of a gang begins that may go on with fewer pods than it has slots. A pod is
// waited for only as long as that costs less than to go on without it and to take it in later. Fewer pods than the minimum are never
// enough. Time is an argument; the package has no clock.
package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits are what a job sets. The zero Limits: all pods are needed.
type Limits struct {
	// Min is the least number of pods that can train.
	Min int
	// Unit: generations with fewer pods than all consist of whole blocks of so many consecutive slots, the first from slot 0; 0: 1. It
	// divides Min and the number of slots.
	Unit int
	// ShrinkAfter is how long a pod is waited for whose coming cannot be foretold; 0: shrinkAfter.
	ShrinkAfter time.Duration
	Grow        Grow
	// Retry is the number of the newest request to try struck sizes again.
	Retry int64
}

// Struck is a number of pods below all with which the script cannot run: it raised an exception before any step.
type Struck struct {
	Pods       int
	Generation int64
	// Text is the exception, for users.
	Text string
}

// MaxStruck bounds the struck sizes. After that many only all pods are enough.
const MaxStruck = 8

// Grow is for which pods ranks are ended that train with fewer than all. Pods join any generation that begins for another reason.
type Grow int

const (
	// GrowAuto: for pods that can join at a step at which all ranks stay, so that no step is done again.
	GrowAuto Grow = iota
	// GrowWithRestart: also where ranks cannot stay at a step, because the script loads its own checkpoint.
	GrowWithRestart
	// GrowOff: for none.
	GrowOff
)

const (
	shrinkAfter = 30 * time.Second
	// costKept is what another generation costs until it is known, costOwn the same if the script loads its own checkpoint.
	costKept, costOwn = 3 * time.Second, time.Minute
	// worthNum and worthDen: a wait is worth 3/2 of what it saves.
	worthNum, worthDen = 3, 2
	// maxNamed bounds the slots that a text names.
	maxNamed = 4
)

// Stage is how far a pod is that cannot start the next generation yet.
type Stage int

const (
	// Absent: there is no pod, or it is not known how far it is.
	Absent Stage = iota
	// Unplaced: the scheduler refuses it for lack of a node.
	Unplaced
	// Starting: it has a node, and its agent is expected.
	Starting
)

// Slot is one slot of the gang.
type Slot struct {
	// Lacks is why its pod cannot start the next generation, for users; "": it can.
	Lacks string
	Stage Stage
	// Refusal is the scheduler's text, for Unplaced.
	Refusal string
	// Since is since when its pod has a node, for Starting.
	Since time.Time
	// Newest is the newest step that its pod holds; 0: none.
	Newest int64
}

// View is what is known of a gang whose next generation is to begin.
type View struct {
	Limits
	Slots  []Slot
	Struck []Struck
	// Since is since when at least Min pods could have started the generation; zero: they cannot.
	Since time.Time
	// Bound is why the state allows no generation with the pods that are ready alone, for users; "": it does.
	Bound string
	// Cost is what another generation costs; 0: unknown. Kept: ranks restore from memory.
	Cost time.Duration
	Kept bool
	// Start is how long pods of this gang take from a node to a ready agent; 0: unknown.
	Start time.Duration
}

// Decision is how a gang goes on. Either Form has the slots of the next generation, or Why is what it waits for.
type Decision struct {
	Form []int
	// Why is, for users, what is waited for or, with Form, why slots are left out; "": none is. All agents get it each time that it
	// changes: of a gang that waits it does not have the number of pods that are ready.
	Why string
	// Until is when the decision changes by time alone; zero: it does not.
	Until time.Time
}

// Waits reports whether the gang waits.
func (d Decision) Waits() bool { return d.Form == nil }

// Ready returns the slots whose pods can start the next generation.
func (v View) Ready() (slots []int) {
	for i, s := range v.Slots {
		if s.Lacks == "" {
			slots = append(slots, i)
		}
	}
	return slots
}

// Whole returns the ready slots of the blocks that have all their pods ready.
func (v View) Whole() (slots []int) {
	return v.Blocks(len(v.Slots), func(i int) bool { return v.Slots[i].Lacks == "" })
}

// Blocks returns the slots of so many that are in a block in which is holds for each.
func (l Limits) Blocks(slots int, is func(int) bool) (whole []int) {
	unit := l.block()
	for first := 0; first < slots; first += unit {
		n := len(whole)
		for i := first; i < min(first+unit, slots); i++ {
			if !is(i) {
				whole = whole[:n]
				break
			}
			whole = append(whole, i)
		}
	}
	return whole
}

// AnyOfBlock reports whether is holds for a slot, of so many, of the block of one.
func (l Limits) AnyOfBlock(slot, slots int, is func(int) bool) bool {
	first := slot - slot%l.block()
	for i := first; i < min(first+l.block(), slots); i++ {
		if is(i) {
			return true
		}
	}
	return false
}

// block returns the number of slots of a block.
func (l Limits) block() int { return max(1, l.Unit) }

// Fits returns the largest number of pods, of so many that are ready, with which a gang of all pods can go on; 0: none.
func (l Limits) Fits(ready, all int, struck []Struck) int {
	if ready >= all {
		return all
	}
	for n := ready - ready%l.block(); n > 0 && n >= l.Min && len(struck) < MaxStruck; n -= l.block() {
		if !slices.ContainsFunc(struck, func(s Struck) bool { return s.Pods == n }) {
			return n
		}
	}
	return 0
}

// Decide decides for a gang.
func Decide(v View, now time.Time) Decision {
	ready := v.Whole()
	form := v.form(ready)
	first := ""
	if i := slices.IndexFunc(v.Slots, func(s Slot) bool { return s.Lacks != "" }); i >= 0 {
		first = v.Slots[i].Lacks
	}
	switch {
	case first == "":
		return Decision{Form: ready}
	case v.Min <= 0:
		return Decision{Why: first}
	case len(ready) < v.Min:
		return Decision{Why: fmt.Sprintf("too few %s are ready (min-pods is %d): %s", v.counted(), v.Min, first)}
	case len(form) == 0:
		return Decision{Why: fmt.Sprintf("%s; %s", first, v.Strikes(len(ready)))}
	case v.Bound != "":
		return Decision{Why: fmt.Sprintf("%s; cannot go on without it: %s", first, v.Bound)}
	}
	worth, until := v.worth(len(form)), time.Time{}
	for i := range v.Slots {
		s := &v.Slots[i]
		if s.Lacks == "" || v.blocked(i) {
			continue
		}
		if at, waits := v.awaits(s, worth, now); waits && (until.IsZero() || at.Before(until)) {
			until, first = at, s.Lacks
		}
	}
	if !until.IsZero() {
		why := fmt.Sprintf("%s; goes on at %s with the pods that are ready", first, until.UTC().Format(time.TimeOnly))
		return Decision{Why: why, Until: until}
	}
	return Decision{Form: form, Why: v.evidence(form, len(ready))}
}

// counted returns, for users, what a number of ready pods counts.
func (v View) counted() string {
	if unit := v.block(); unit > 1 {
		return fmt.Sprintf("pods of whole blocks of %d", unit)
	}
	return "pods"
}

// form returns which of the slots of whole blocks take part, ascending: if not all can, the blocks that hold the newest steps.
func (v View) form(ready []int) []int {
	n := v.Fits(len(ready), len(v.Slots), v.Struck)
	if n == len(ready) {
		return ready
	}
	all, one := map[int]int64{}, map[int]int64{} // the newest step that all pods of a block hold, and that one of them does
	for _, i := range ready {
		block, step := i/v.block(), v.Slots[i].Newest
		if at, known := all[block]; !known || step < at {
			all[block] = step
		}
		one[block] = max(one[block], step)
	}
	form := slices.SortedStableFunc(slices.Values(ready), func(a, b int) int {
		a, b = a/v.block(), b/v.block()
		return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(one[b], one[a]))
	})
	form = form[:n]
	slices.Sort(form)
	return form
}

// Strikes returns, for users, why a gang does not go on with so many pods.
func (v View) Strikes(pods int) string {
	i := slices.IndexFunc(v.Struck, func(s Struck) bool { return s.Pods == pods })
	if i < 0 {
		return fmt.Sprintf("is not tried with fewer pods than all: the script does not start with %d other numbers of pods", len(v.Struck))
	}
	return fmt.Sprintf("the script does not start with %d of %d pods (generation %d: %s)", pods, len(v.Slots), v.Struck[i].Generation, v.Struck[i].Text)
}

// blocked reports whether a pod of the slot's block has no node: until it has one, none of the block can take part.
func (v View) blocked(slot int) bool {
	return v.AnyOfBlock(slot, len(v.Slots), func(i int) bool { return v.Slots[i].Lacks != "" && v.Slots[i].Stage == Unplaced })
}

// awaits reports whether a pod is waited for, and until when. One that has a node is due after the usual time, and is waited for if that is
// worth it.
func (v View) awaits(s *Slot, worth time.Duration, now time.Time) (until time.Time, waits bool) {
	due := s.Since.Add(v.Start)
	switch {
	case s.Stage == Starting && v.Start > 0 && now.Before(due):
		return due, due.Sub(now) <= worth
	}
	after := v.ShrinkAfter
	if after <= 0 {
		after = shrinkAfter
	}
	until = v.Since.Add(after)
	return until, now.Before(until)
}

// Price returns what another generation costs.
func (v View) Price() time.Duration {
	switch {
	case v.Cost > 0:
		return v.Cost
	case v.Kept:
		return costKept
	}
	return costOwn
}

// worth returns how long a wait may be for the gang to lose less by it than by another generation later: so many pods stand still
// meanwhile.
func (v View) worth(ready int) time.Duration {
	return v.Price() * worthNum / worthDen * time.Duration(len(v.Slots)) / time.Duration(ready)
}

// evidence returns why slots are left out.
func (v View) evidence(form []int, ready int) string {
	var named []string
	more := 0
	for i := range v.Slots {
		switch s := &v.Slots[i]; {
		case s.Lacks == "":
		case len(named) == maxNamed:
			more++
		case s.Stage == Unplaced:
			named = append(named, fmt.Sprintf("no node for slot %d (%s)", i, s.Refusal))
		case s.Stage == Starting:
			named = append(named, fmt.Sprintf("the pod of slot %d is only starting", i))
		default:
			named = append(named, fmt.Sprintf("no pod in slot %d", i))
		}
	}
	if more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	switch n := len(v.Ready()) - ready; {
	case n == 1:
		named = append(named, fmt.Sprintf("1 waits with its block of %d", v.block()))
	case n > 1:
		named = append(named, fmt.Sprintf("%d wait with their blocks of %d", n, v.block()))
	}
	if n := ready - len(form); n > 0 {
		named = append(named, fmt.Sprintf("%d ready left out, because %s", n, v.Strikes(ready)))
	}
	about := "costs"
	if v.Cost == 0 {
		about = "is taken to cost"
	}
	return fmt.Sprintf("goes on with %d of %d pods: %s; another generation %s %s",
		len(form), len(v.Slots), strings.Join(named, ", "), about, v.Price().Round(100*time.Millisecond))
}
