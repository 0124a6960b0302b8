package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/elastic/replacements"
)

// The pod in place of one that a check named may find no node: the gang waits, and says how to overrule the check. A slow node is better
// than none: its exclusion is withdrawn, and the gang goes on there. A pod that computes wrong results never trains while the job wants a
// check.

// roomAfter is how long a pod may take to get a node until that is reported.
const roomAfter = 30 * time.Second

// room is what is known of the pods in place of named ones.
type room struct {
	// since is when this coordinator first waited for the pod of a slot, none the pods that have no node.
	since map[Slot]time.Time
	none  map[Slot]string
	// askedAt is when their pods were last queried; reported: an event reported that one has no node.
	askedAt  time.Time
	reported bool
}

// seekRoom queries the pods in place of named ones that do not come.
func (s *State) seekRoom(now time.Time) {
	c, r := &s.Record.Check, &s.run.forming.room
	if len(c.Named) == 0 || c.Before != s.generation.Number+1 || !c.Ended.IsZero() {
		return
	}
	var due []Slot
	for _, n := range c.Named {
		m := s.members.At(n.Slot)
		if s.replacements.For(n.Slot) != nil || m.Attached() && !s.replacements.Fenced(m.Pod().UID) {
			delete(r.since, n.Slot)
			delete(r.none, n.Slot)
			continue
		}
		if r.since == nil {
			r.since, r.none = map[Slot]time.Time{}, map[Slot]string{}
		}
		if r.since[n.Slot].IsZero() {
			r.since[n.Slot] = now
		}
		if now.Sub(r.since[n.Slot]) >= roomAfter {
			due = append(due, n.Slot)
		}
	}
	if len(due) > 0 && now.Sub(r.askedAt) >= replacements.LookupEvery {
		r.askedAt = now
		s.emit(LookupHolders{due})
	}
}

// noteRoom records whether the pod in place of a named one has a node.
func (s *State) noteRoom(e SlotHolder) {
	r := &s.run.forming.room
	if r.since[e.Slot].IsZero() {
		return
	}
	if e.Pod.UID == "" || e.Pod.Node != "" {
		delete(r.none, e.Slot)
		return
	}
	r.none[e.Slot] = e.Pod.Name
	n := s.named(e.Slot)
	if n.Cause == replacements.NodeSlow {
		s.Record.Check.KeepsSlow = true
		s.emit(Forgive{n.Node})
	}
	if !r.reported {
		r.reported = true
		s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeNoHealthyNode, Message: s.noRoom()}})
		s.emit(PersistLater{})
	}
}

// named returns the newest entry of a slot.
func (s *State) named(slot Slot) (last Named) {
	for _, n := range s.Record.Check.Named {
		if n.Slot == slot {
			last = n
		}
	}
	return last
}

// noRoom returns, for users, which pod finds no node, why, and how to overrule that; "": none.
func (s *State) noRoom() string {
	r := &s.run.forming.room
	for slot := range Slot(s.members.Len()) {
		pod, none := r.none[slot]
		if !none {
			continue
		}
		n := s.named(slot)
		text := fmt.Sprintf("%s: pod %s of slot %d finds no node, and %s is excluded: %s", NoticeNoHealthyNode, pod, slot, n.Node, n.Text)
		if n.Cause == replacements.NodeSlow {
			return text + "; the exclusion is withdrawn, and the gang goes on with the slow node"
		}
		return text + fmt.Sprintf("; add or repair a node, or use this one again: kubectl holdfast evict node/%s --undo", n.Node)
	}
	return ""
}

// holdWrong makes the gang wait instead of training with a pod that computes wrong results and may not be replaced.
func (s *State) holdWrong(v *check.Verdict) bool {
	c := &s.Record.Check
	for _, f := range v.Findings {
		if f.Kind != check.ComputeWrong {
			continue
		}
		text := fmt.Sprintf("%s: %s; %d pods were replaced before, and this one cannot be: delete it, with the steps that only its memory holds, to have another one tried, or %s to train with it",
			NoticeNoHealthyNode, f.Evidence, c.Replaced, s.overrules())
		if c.Result != CheckNoHealthyNode || c.Text != cause.Cut(text, maxCheckText) {
			c.Result, c.Text = CheckNoHealthyNode, cause.Cut(text, maxCheckText)
			s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeNoHealthyNode, Message: text}})
			s.emit(Checked{Result: c.Result})
			s.saveAndTell()
		}
		return true
	}
	return false
}
