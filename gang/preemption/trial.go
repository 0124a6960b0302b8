package preemption

import (
	"slices"

	"holdfast.dev/holdfast/gang"
)

// Check reports whether the gang fits without the units given by index and without terminating ones, while all others stay.
type Check func(gone []int) (fits bool, err error)

// Verdict is the result of a trial.
type Verdict int

const (
	// Unfinished: the limit of checks or time was reached, or a check failed, before it was known which units can stay.
	Unfinished Verdict = iota
	// Suffices: the gang fits without the victims, and does not fit if any of them stays.
	Suffices
	// Futile: the gang does not fit even without all units.
	Futile
	// Protected: like Suffices, but disruption budgets do not allow preempting the victims.
	Protected
)

// TryVictims selects the units to preempt if a gang lacks more than free resources, which only check can decide. TryVictims starts with all
// units preempted, and spares units while check still passes: those that a budget protects first, then the most expensive, many at a time.
// TryVictims calls check at most most times, and only if the counts of free resources allow success. TryVictims stops when late returns
// true.
func TryVictims(w World, g gang.Gang, check Check, most int, late func() bool) (victims []int, verdict Verdict, err error) {
	s := &search{w: &w, by: w.index(), g: g, spent: map[int]int{}}
	t := &trial{search: s, check: check, late: late, left: most}
	t.x = w.all(s.by)
	for u := range w.Units {
		if !w.Units[u].Terminating {
			t.order = append(t.order, u)
		}
	}
	slices.SortStableFunc(t.order, func(a, b int) int {
		switch p, q := s.protected(a), s.protected(b); {
		case p == q:
			return s.dearer(a, b)
		case p:
			return -1
		}
		return 1
	})
	if fits := t.ask(); !fits && t.err == nil && !t.stopped {
		return nil, Futile, nil
	}
	t.keep(0, len(t.order), false)
	if t.err != nil || t.stopped {
		return nil, Unfinished, t.err
	}
	victims, verdict = slices.Sorted(slices.Values(t.gone)), Suffices
	for _, u := range victims {
		if allowed := s.spend(u, 1); !allowed {
			verdict = Protected
		}
	}
	return victims, verdict, nil
}

// protected reports whether budgets do not allow preempting a unit, even alone.
func (s *search) protected(u int) bool {
	for b, n := range s.w.Units[u].Budgets {
		if n > s.w.Allowed[b] {
			return true
		}
	}
	return false
}

// trial is a search whose world x has the units that stay; gone are those to preempt, and next is the first undecided one.
type trial struct {
	*search
	check   Check
	late    func() bool
	next    int
	left    int
	stopped bool
	err     error
}

// keep decides which of the units from low to high stay. tooMany: not all of them can, as is already known.
func (t *trial) keep(low, high int, tooMany bool) {
	if low == high || t.err != nil || t.stopped {
		return
	}
	if !tooMany {
		if stay := t.tryKeeping(low, high); stay || t.err != nil || t.stopped {
			return
		}
	}
	if high-low == 1 {
		t.gone, t.next = append(t.gone, t.order[low]), high
		return
	}
	middle, gone := (low+high)/2, len(t.gone)
	t.keep(low, middle, false)
	t.keep(middle, high, len(t.gone) == gone)
}

// tryKeeping puts units back, and removes them again if the gang does not fit beside them.
func (t *trial) tryKeeping(low, high int) bool {
	if t.late() {
		t.stopped = true
		return false
	}
	for _, u := range t.order[low:high] {
		t.x.put(u)
	}
	fits := t.tryPlace(t.x)
	if fits {
		t.next = high
		fits = t.ask()
	}
	if !fits {
		t.next = low
		for _, u := range t.order[low:high] {
			t.x.take(u)
		}
	}
	return fits
}

// ask calls check without the units to preempt and the undecided ones.
func (t *trial) ask() bool {
	if t.left == 0 {
		t.stopped = true
		return false
	}
	t.left--
	var fits bool
	fits, t.err = t.check(slices.Sorted(slices.Values(slices.Concat(t.gone, t.order[t.next:]))))
	return fits && t.err == nil
}
