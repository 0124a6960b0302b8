package elastic

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/quorum"
)

// A gang with a minimum goes on with fewer pods than it has slots. A slot without a pod that can start is a hole. Package quorum decides
// with which slots the next generation begins; the others take no part in it (members/part.go). With a unit these are whole blocks of
// slots: ready pods of a block with a hole are idle, as candidates are, until their block is whole.
//
//	all slots ──► a pod is lost, and is not worth the wait ──► the others train ──► the pod is there again ──► all slots
//	                                                              ▲      │ a candidate                             │
//	                                                              └──────┴── planned halt (grow.go), or any other ─┘

// Placement is how far the pod of a slot is, at the API server.
type Placement struct {
	Slot Slot
	Pod  string // UID
	Node string
	// Refusal is the scheduler's text about why the pod has no node; "": none is known.
	Refusal string
}

// sizes is what a gang with a minimum knows of its pods. All but where they are is recorded.
type sizes struct {
	quorum.Limits
	// placed are the pods at the API server, by slot.
	placed map[Slot]placed
	// starts are the newest times from a node to an agent that reports.
	starts []time.Duration
	// struck are the sizes with which the script cannot run, oldest first; retried is the newest Limits.Retry that cleared them.
	struck  []quorum.Struck
	retried int64
	// absent is the time of all slots together in which they took no part in the newest generation, up to since.
	absent  time.Duration
	since   time.Time
	growths Growths
}

// Sizes is what a gang with a minimum has learned about numbers of pods.
type Sizes struct {
	// Struck are numbers with which the script cannot run, oldest first; Retried is the newest Limits.Retry that cleared them.
	Struck  []quorum.Struck
	Retried int64
	// Absent is the time of all slots together in which they took no part in the newest generation, up to Since, when that began; zero: it
	// has all slots.
	Absent time.Duration
	Since  time.Time
	// Start is how long pods take from a node to an agent that reports, the median; 0: unknown.
	Start time.Duration
	Growths
}

// recordedSizes returns what an earlier coordinator recorded.
func recordedSizes(r Sizes) sizes {
	z := sizes{struck: r.Struck, retried: r.Retried, absent: r.Absent, since: r.Since, growths: r.Growths}
	if r.Start > 0 {
		z.starts = []time.Duration{r.Start}
	}
	return z
}

// record returns what must be stored.
func (z *sizes) record() Sizes {
	return Sizes{Struck: z.struck, Retried: z.retried, Absent: z.absent, Since: z.since, Start: median(z.starts), Growths: z.growths}
}

// noteParts records that a generation begins, after one in which so many slots took no part and with so many that take none. Ranks first
// ran at started; zero: they have not.
func (z *sizes) noteParts(before, out int, started, now time.Time) {
	if before > 0 && !started.IsZero() && now.After(started) {
		z.absent += time.Duration(before) * now.Sub(latest(z.since, started))
	}
	if z.since = (time.Time{}); out > 0 {
		z.since = now
	}
}

// latest returns the later time.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// placed is a Placement, and since when it has its node.
type placed struct {
	Placement
	since time.Time
}

// maxStarts bounds sizes.starts.
const maxStarts = 16

// notePlaced takes over where the pods of the gang are.
func (s *State) notePlaced(pods []Placement, now time.Time) {
	next := map[Slot]placed{}
	for _, p := range pods {
		if !s.members.Has(p.Slot) {
			continue
		}
		n := placed{Placement: p}
		if old := s.sizes.placed[p.Slot]; p.Node != "" && old.Pod == p.Pod && !old.since.IsZero() {
			n.since = old.since
		} else if p.Node != "" {
			n.since = now
		}
		next[p.Slot] = n
	}
	s.sizes.placed = next
}

// noteStart records how long a pod took from its node to its agent's first report.
func (s *State) noteStart(slot Slot, now time.Time) {
	p := s.sizes.placed[slot]
	if s.sizes.Min > 0 && !p.since.IsZero() && s.members.At(slot).Is(p.Pod) {
		s.sizes.starts = append(s.sizes.starts[max(0, len(s.sizes.starts)-maxStarts+1):], now.Sub(p.since))
	}
}

// limit takes over the job's minimum.
func (s *State) limit(l quorum.Limits) {
	if s.sizes.Limits = l; l.Min > 0 {
		s.members.SetElastic(l.Unit)
	}
	if l.Retry > s.sizes.retried {
		s.sizes.struck, s.sizes.retried = nil, l.Retry
		s.saveAndTell()
	}
}

// fits returns with how many of so many pods the next generation can begin; 0: with none.
func (s *State) fits(pods int) int { return s.sizes.Fits(pods, s.members.Len(), s.sizes.struck) }

// choose decides with which slots the next generation begins.
func (s *State) choose(now time.Time) {
	f := s.run.forming
	if s.sizes.Min <= 0 {
		return
	}
	v := s.view(now)
	if f.decision = quorum.Decide(v, now); !f.decision.Waits() && !s.drain.HaltedOver() && len(f.decision.Form) < len(v.Slots) {
		f.decision = quorum.Decision{Why: "pods that leave copy their state to storage"}
	}
	if why := s.dividesState(&v); why != "" {
		f.decision = quorum.Decision{Why: why}
	}
	if f.decision.Waits() {
		return
	}
	out := s.members.Out()
	if s.members.LeaveOut(s.leftOut(f.decision.Form)); !slices.Equal(out, s.members.Out()) {
		f.replan()
	}
}

// leftOut returns the slots that a generation goes on without.
func (s *State) leftOut(form []int) (out []Slot) {
	for i := range s.members.Len() {
		if _, takes := slices.BinarySearch(form, i); !takes {
			out = append(out, Slot(i))
		}
	}
	return out
}

// view returns what is known of the pods for the next generation.
func (s *State) view(now time.Time) quorum.View {
	f := s.run.forming
	v := quorum.View{Limits: s.sizes.Limits, Slots: s.pods(), Struck: s.sizes.struck}
	enough := len(v.Whole())
	if enough < v.Min {
		f.enoughAt = time.Time{}
		return v // all else has no effect
	}
	v.Bound, v.Start = s.bound(), median(s.sizes.starts)
	for i := range v.Slots {
		v.Kept = v.Kept || s.members.At(Slot(i)).Report().StateBytes > 0
	}
	if v.Bound == "" {
		v.Bound = s.heldElsewhere(&v)
	}
	ungiven := s.ungiven()
	enough = s.without(&v, enough, func(slot Slot) string { return s.stateless(slot, ungiven) })
	if enough < len(v.Slots) {
		enough = s.without(&v, enough, s.unshrinkable)
	}
	switch {
	case enough < s.sizes.Min:
		f.enoughAt = time.Time{}
	case f.enoughAt.IsZero():
		f.enoughAt = now
	}
	v.Since = f.enoughAt
	v.Cost = s.account.GenerationCost()
	return v
}

// without leaves out the pods of whole blocks that cannot take part, and returns how many of so many are left: a block goes on whole or not
// at all. If there are too few without them, they bind the gang instead: it would begin without a step, or be refused.
func (s *State) without(v *quorum.View, enough int, why func(Slot) string) int {
	unit, lost, shared := max(1, v.Unit), -1, true // lost is the newest block that lost a pod here; shared: with the cache
	for _, i := range v.Whole() {
		switch text := why(Slot(i)); {
		case text == "":
		case lost == i/unit || enough-unit >= s.sizes.Min:
			if shared {
				v.Slots, shared = slices.Clone(v.Slots), false
			}
			if v.Slots[i].Lacks = text; lost != i/unit {
				lost, enough = i/unit, enough-unit
			}
		case v.Bound == "":
			v.Bound = text
		}
	}
	return enough
}

// pods returns what is known of each pod by itself. While no pod must terminate, a report changes only what is known of its own.
func (s *State) pods() []quorum.Slot {
	f := s.run.forming
	if f.slots == nil || !s.replacements.None() {
		f.slots, f.news = make([]quorum.Slot, s.members.Len()), nil
		for i := range f.slots {
			f.news = append(f.news, Slot(i))
		}
	}
	for _, slot := range f.news {
		f.slots[slot] = s.podOf(slot)
	}
	f.news = f.news[:0]
	return f.slots
}

// podOf returns what is known of a slot's pod by itself.
func (s *State) podOf(slot Slot) quorum.Slot {
	q := s.stageOf(slot)
	q.Lacks = s.replacements.Lacks(slot, s.generation.Number)
	q.Newest = s.members.Newest(slot, s.ledger.Line())
	return q
}

// stageOf returns how far the pod of a slot is that is not ready yet.
func (s *State) stageOf(slot Slot) quorum.Slot {
	m, p := s.members.At(slot), s.sizes.placed[slot]
	q := quorum.Slot{Refusal: p.Refusal, Since: p.since}
	leaves := s.members.Superseded(p.Pod) || s.replacements.Fenced(p.Pod) || s.replacements.Of(p.Pod) != nil
	switch {
	case p.Pod == "" || leaves || m.Known() && m.Is(p.Pod) && !m.Attached():
	case p.Refusal != "":
		q.Stage = quorum.Unplaced
	case p.Node != "":
		q.Stage = quorum.Starting
	}
	return q
}

// bound returns, for users, why the gang cannot go on with some of its pods; "": it can.
func (s *State) bound() string {
	for slot := range Slot(s.members.Len()) {
		if why := s.oldAgent(slot); why != "" && s.generation.TookPart(slot) {
			return why
		}
	}
	return s.members.Divided()
}

// unshrinkable returns, for users, why the pod of a slot that took no part takes none in a generation with fewer pods than all; "": it can.
func (s *State) unshrinkable(slot Slot) string {
	if s.generation.TookPart(slot) {
		return ""
	}
	return s.oldAgent(slot)
}

// oldAgent returns, for users, that the agent of a slot's pod cannot run with fewer pods than all; "": it can.
func (s *State) oldAgent(slot Slot) string {
	m := s.members.At(slot)
	if !m.Known() || m.Report().Shrinks || m.Report().Ranks == 0 {
		return ""
	}
	return fmt.Sprintf("the agent of pod %s of slot %d cannot run with fewer pods; create the pod again, so that it gets the present agent",
		m.Pod().Name, slot)
}

// heldElsewhere returns, for users, which pod that cannot take part may hold a newer step than all that can; "": none. Pods that are dead
// or must be replaced are not waited for.
func (s *State) heldElsewhere(v *quorum.View) string {
	saved, whole := s.account.Figures().SavedStep, v.Whole()
	if !s.generation.Begun() || s.holds(v, whole, max(1, saved)) {
		return ""
	}
	able := "no pod that is ready does"
	if v.Unit > 1 {
		able = "the blocks whose pods are all ready do not"
	}
	for slot := range Slot(len(v.Slots)) {
		_, takes := slices.BinarySearch(whole, int(slot))
		if step := cmp.Or(saved, v.Slots[slot].Newest); !takes && step > 0 && s.mayHold(slot) {
			return fmt.Sprintf("the pod of slot %d may hold step %d, and %s", slot, step, able)
		}
	}
	return ""
}

// holds reports whether the pods of some slots hold a step together, or a newer one.
func (s *State) holds(v *quorum.View, slots []int, step int64) bool {
	return s.members.Together(func(slot Slot) bool {
		_, has := slices.BinarySearch(slots, int(slot))
		return has && v.Slots[slot].Newest >= step
	})
}

// dividesState returns, for users, why the gang does not go on with the slots that were decided: blocks that are left out hold parts of the
// state that these lack; "": it does.
func (s *State) dividesState(v *quorum.View) string {
	form, whole, saved := s.run.forming.decision.Form, v.Whole(), s.account.Figures().SavedStep
	if len(form) == 0 || len(form) == len(whole) || !s.holds(v, whole, saved) || s.holds(v, form, saved) {
		return ""
	}
	return fmt.Sprintf("waits for further pods: with %d of them parts of step %d would be left out; %s", len(form), saved, v.Strikes(len(whole)))
}

// mayHold reports whether the pod of a slot that is not ready took part in the newest generation, and may still hold a step in memory.
func (s *State) mayHold(slot Slot) bool {
	m, p := s.members.At(slot), s.sizes.placed[slot]
	there := s.sizes.placed == nil || p.Node != "" && (!m.Known() || m.Is(p.Pod))
	return there && s.generation.TookPart(slot) && !s.replacements.Leaves(slot) && (!m.Known() || s.members.Newest(slot, s.ledger.Line()) > 0)
}

// ungiven returns, for users, why no rank gives its state to pods that hold none; "": one does, or it need not.
func (s *State) ungiven() string {
	if !s.generation.Begun() || s.members.NoneHolds() || s.members.Divided() != "" {
		return "" // where the state is divided, all pods are needed, and read it from storage
	}
	return s.members.Ungiven()
}

// stateless returns, for users, why a pod cannot take part: it would have no state; "": it can. ungiven is why no rank gives it one.
func (s *State) stateless(slot Slot, ungiven string) string {
	m, whole := s.members.At(slot), len(s.generation.Out()) == 0
	if ungiven == "" || !m.HoldsNone() || whole && m.Report().Storage {
		return "" // storage has steps for all slots
	}
	return fmt.Sprintf("pod %s of slot %d has no state: %s", m.Pod().Name, slot, ungiven)
}

// median returns the median; 0: there are none.
func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// announceSize reports that the next generation begins with another number of pods than the one before. was are the slots that took no part
// in that.
func (s *State) announceSize(was []Slot) {
	out := s.members.Out()
	s.Record.Progress.Fewer = ""
	if len(out) > 0 {
		s.Record.Progress.Fewer = s.run.forming.decision.Why
	}
	switch n := s.members.Len(); {
	case slices.Equal(was, out):
	case len(out) > 0:
		s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeFewer, Message: s.Record.Progress.Fewer}})
	default:
		s.emit(EmitEvent{Notice{Reason: NoticeFewer, Message: fmt.Sprintf("is over: goes on with all %d pods", n)}})
	}
}

// candidates returns the slots of whole blocks that take no part and whose pods could take part in the next generation, and whether further
// ones are starting, or a generation with these would import modules that standbys have soon.
func (s *State) candidates() (ready []Slot, starting bool) {
	for _, slot := range s.members.Out() {
		switch {
		case s.replacements.Lacks(slot, s.generation.Number) == "":
			ready = append(ready, slot)
			starting = starting || s.members.WarmUp(slot)
		case s.stageOf(slot).Stage == quorum.Starting && !s.blocked(slot):
			starting = true
		}
	}
	if s.members.Parts()+len(ready) < s.members.Len() {
		ready = slices.DeleteFunc(ready, func(slot Slot) bool { return s.unshrinkable(slot) != "" })
	}
	return s.wholeBlocks(ready), starting
}

// blocked reports whether a pod of the slot's block has no node.
func (s *State) blocked(slot Slot) bool {
	return s.sizes.AnyOfBlock(int(slot), s.members.Len(), func(i int) bool {
		return s.replacements.Lacks(Slot(i), s.generation.Number) != "" && s.stageOf(Slot(i)).Stage == quorum.Unplaced
	})
}

// wholeBlocks returns those of the slots, which are ascending, whose blocks they have completely.
func (s *State) wholeBlocks(slots []Slot) (whole []Slot) {
	if s.sizes.Unit <= 1 {
		return slots
	}
	for _, i := range s.sizes.Blocks(s.members.Len(), func(i int) bool {
		_, has := slices.BinarySearch(slots, Slot(i))
		return has
	}) {
		whole = append(whole, Slot(i))
	}
	return whole
}
