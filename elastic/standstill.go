package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/quiet"
	"holdfast.dev/holdfast/elastic/waiting"
	"holdfast.dev/holdfast/internal/protocol"
)

// A running gang that makes no step is looked at (package quiet), and a verdict says who waits for whom (package waiting). The verdict is
// reported once, until it changes. What it ends is decided in hang.go.

// HangMode is what is done about a gang that stands still.
type HangMode int

const (
	// HangOff: no rank is looked at.
	HangOff HangMode = iota
	// HangReport: the verdict is reported.
	HangReport
	// HangAct: ranks that stand still are also restarted.
	HangAct
)

// Supervision is what a job requests for ranks that stand still.
type Supervision struct {
	Hang HangMode
	// Timeout is the longest time without a step after which ranks are ended whatever they do; 0: none.
	Timeout time.Duration
	// NodeCheck is before which generations pods are tried alone and in pairs.
	NodeCheck NodeCheck
	// ReplaceSlow: pods that the check finds slow are replaced.
	ReplaceSlow bool
	// CheckWish is the number of the newest request of a check before the next generation, CheckNow that ranks are restarted for it.
	CheckWish int64
	CheckNow  bool
}

// standstill is what is known of the silence of one generation.
type standstill struct {
	// at only rises, with steps and with the start of ranks. reported: all slots have reported theirs to this coordinator; until then a
	// silence that an earlier one recorded may be over.
	at       Position
	reported bool
	// answers are the newest looks of each slot, oldest first, of one incarnation of its agent.
	answers map[Slot][]answer
	// phase is when the newest look came in at which a rank had a phase open; zero: none had.
	phase time.Time
	// worked is how much of the silence agents had reported when a rank was last seen at work, or in a phase.
	worked time.Duration
	// said is the newest verdict. declined: an event reported that its ranks are not restarted again.
	said     waiting.Verdict
	declined bool
	keeping  keeping
}

// answer is one agent's answer to a look.
type answer struct {
	number      int64
	at          time.Time
	pod         string
	incarnation uint64
	looks       []protocol.Look
}

// resumeStandstill continues a silence that was recorded, with its verdict until new looks are in.
func (s *State) resumeStandstill(recorded Standstill) {
	if recorded.Since.IsZero() {
		return
	}
	s.Record.Progress.Standstill = recorded
	s.run.still.at, s.run.still.said.Kind = recorded.At, recorded.Verdict
	if recorded.Verdict == waiting.Busy {
		s.run.still.worked = recorded.Seen
	}
	s.quiet.Resume(recorded.Since, recorded.Seen, recorded.At.Steps > 0)
}

// supervise takes over the job's setting.
func (s *State) supervise(job Supervision, now time.Time) {
	if job.Hang == HangOff {
		s.forgetLooks()
	}
	if job == s.supervision {
		return
	}
	s.supervision = job
	s.takeWish(now)
	s.emit(Broadcast{})
}

// wantedLook returns the number of the look that agents must answer; 0: none.
func (s *State) wantedLook() int64 {
	if s.supervision.Hang == HangOff {
		return 0
	}
	return s.quiet.Wanted()
}

// HeldLooks returns the looks of a slot's ranks that are kept until the gang moves.
func (s *State) HeldLooks(slot Slot) (all [][]protocol.Look) {
	for _, a := range s.run.still.answers[slot] {
		all = append(all, a.looks)
	}
	return all
}

// noteSigns records signs of life of the newest generation: steps, and before the first one what ranks reach in their start.
func (s *State) noteSigns(steps members.Steps, now time.Time) {
	st := &s.run.still
	if s.quiet.Since().IsZero() {
		s.quiet.Begin(now)
	}
	st.reported = true
	before := st.at
	st.at.Steps = max(before.Steps, steps.Lowest+steps.Counted.Lowest+steps.Counted.Most+s.generation.CommonStep())
	st.at.Started = max(before.Started, s.started())
	// A person's act, or unseen: it did not end by itself. With a phase the script had said so: no other silence need be as long.
	if v := st.said; st.at != before && (v.Kind == waiting.Stopped || v.Missing > 0 || !st.phase.IsZero()) {
		s.movedOn(s.quiet.NoteInterrupt, now)
	}
	switch {
	case st.at.Steps > before.Steps && s.stepped(): // else it is the step that was restored
		s.movedOn(s.quiet.NoteStep, now)
	case st.at != before:
		s.movedOn(s.quiet.NoteLife, now)
	}
}

// started counts the phases of their start that ranks have reached, by pod.
func (s *State) started() (n int64) {
	for _, m := range s.members.Each {
		t := &m.Report().Timeline
		for _, at := range []time.Time{t.Started, t.Restored, t.FirstStep} {
			if !at.IsZero() {
				n++
			}
		}
	}
	return n
}

// movedOn records a sign of life, and says so if the gang was said to stand still. The time until then is lost.
func (s *State) movedOn(note func(time.Time) bool, now time.Time) {
	silent, stood, said := s.quiet.Seen(now), s.stood(now), s.run.still.said.Kind
	longest := s.quiet.Longest()
	if !note(now) && said == "" {
		return
	}
	if s.quiet.Longest() != longest {
		s.emit(PersistLater{})
	}
	if said.Stands() {
		s.account.NoteStill(stood)
		s.emit(EmitEvent{Notice{Reason: NoticeStandsStill, Message: fmt.Sprintf("is over: the gang moves again after %s", silent.Round(time.Second))}})
	}
	s.forgetLooks()
	s.emit(Broadcast{})
}

// forgetLooks drops the looks and the verdict.
func (s *State) forgetLooks() {
	st := &s.run.still
	st.answers, st.said, st.declined, st.keeping = nil, waiting.Verdict{}, false, keeping{}
	st.phase, st.worked = time.Time{}, 0
	s.show(Standstill{})
}

// show makes a standstill visible to users.
func (s *State) show(now Standstill) {
	if p := &s.Record.Progress; p.Standstill != now {
		p.Standstill = now
		s.emit(PersistLater{})
	}
}

// WantsLooks reports whether the looks in a report answer the present look at the newest generation.
func (s *State) WantsLooks(r *protocol.Report) bool {
	wanted := s.wantedLook()
	return wanted > 0 && r.Look == wanted && s.Record.Phase == Running && r.Generation == s.generation.Number
}

// noteLooks keeps the answer of a slot's agent to the present look.
func (s *State) noteLooks(slot Slot, now time.Time) {
	m, wanted := s.members.At(slot), s.wantedLook()
	r, st := m.Report(), &s.run.still
	if !s.WantsLooks(r) {
		return
	}
	list := st.answers[slot]
	if n := len(list); n > 0 {
		last := &list[n-1]
		if last.number == wanted {
			return
		}
		if last.pod != m.Pod().UID || last.incarnation != r.Incarnation {
			list = nil
		}
	}
	list = append(slices.Clone(list[max(0, len(list)-quiet.Looks+1):]), answer{wanted, now, m.Pod().UID, r.Incarnation, r.Looks})
	if st.answers == nil {
		st.answers = map[Slot][]answer{}
	}
	st.answers[slot] = list
	if slices.ContainsFunc(r.Looks, func(l protocol.Look) bool { return l.Phase != nil }) {
		st.phase, st.worked = now, s.quiet.Seen(now)
	}
}

// watch requests looks at a gang that is quiet, and reports the verdict on them.
func (s *State) watch(now time.Time) {
	if !s.run.still.reported {
		return
	}
	if s.quiet.NoteSight(s.members.All((*members.Member).Attached), now) && !s.account.CountsSteps() {
		s.movedOn(s.quiet.NoteInterrupt, now) // no count of steps proves that the ranks stood still meanwhile
	}
	if s.supervision.Hang == HangOff {
		return
	}
	if s.drain.Begun() || s.run.growth.begun() { // its ranks wait at a step
		s.movedOn(s.quiet.NoteInterrupt, now)
		return
	}
	newest, wanted, answered := int64(0), s.wantedLook(), true
	for _, m := range s.members.Each {
		newest = max(newest, m.Report().Look)
		answered = answered && m.Known() && m.Report().Look == wanted
	}
	if wanted > 0 && answered {
		s.quiet.NoteAnswers()
	}
	switch s.quiet.Advance(newest, now) {
	case quiet.Look:
		s.emit(Broadcast{})
	case quiet.Judge:
		s.judgeStandstill(now)
	case quiet.Nothing:
	}
	s.endKept(now)
}

// judgeStandstill reports the verdict on the newest looks, if it is another one than before, and decides whether it ends the generation.
func (s *State) judgeStandstill(now time.Time) {
	v, st := waiting.Judge(s.evidence()), &s.run.still
	if v.Moves && !s.account.CountsSteps() { // no step is expected, so that it is a sign of life
		s.movedOn(s.quiet.NoteInterrupt, now)
		return
	}
	if v.Moves {
		st.worked = s.quiet.Seen(now)
	}
	silent, other := now.Sub(s.quiet.Since()), v.Kind != st.said.Kind
	news := other || !slices.Equal(v.Culprits, st.said.Culprits)
	st.said = v
	s.show(Standstill{Verdict: v.Kind, Since: s.quiet.Since(), Seen: s.quiet.Seen(now), Text: v.Text, At: st.at})
	if news {
		s.emit(Judged{v.Kind})
	}
	if news && v.Kind.Stands() {
		s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeStandsStill, Message: fmt.Sprintf("no step for %s: %s", silent.Round(time.Second), describe(v))}})
		if other { // files of the same verdict about other ranks would replace the first ones
			s.keep(now)
		}
	}
	s.endStill(v, now)
}

// describe returns a verdict in one line.
func describe(v waiting.Verdict) string {
	if meaning := v.Kind.Meaning(); meaning != "" {
		return fmt.Sprintf("%s, %s: %s", v.Kind, meaning, v.Text)
	}
	return fmt.Sprintf("%s: %s", v.Kind, v.Text)
}

// evidence returns the looks at each rank, as far as they are of its present process. A rank that the newest look missed has none.
func (s *State) evidence() []waiting.Rank {
	ranks := make([]waiting.Rank, s.members.World())
	for slot, m := range s.members.Each {
		base := s.generation.BaseRank(slot)
		for i := range s.members.Ranks(slot) {
			if base+i >= len(ranks) {
				continue
			}
			k := &ranks[base+i]
			k.Slot, k.Node = int(slot), m.Pod().Node
			if reports := m.Report().Rank; i < len(reports) {
				e := reports[i].Exit
				k.Ended = e != nil && e.Code == 0 && e.Signal == 0
			}
			k.Looks = s.looksAt(slot, i)
		}
	}
	return ranks
}

// looksAt returns the looks at the present process of one rank of a slot, oldest first; nil if it is not in the newest look.
func (s *State) looksAt(slot Slot, local int) (looks []waiting.Look) {
	number := s.quiet.Wanted()
	for _, a := range slices.Backward(s.run.still.answers[slot]) {
		i := slices.IndexFunc(a.looks, func(l protocol.Look) bool { return l.Local == local })
		if len(looks) == 0 && a.number != number || i < 0 || len(looks) > 0 && looks[0].PID != a.looks[i].PID {
			return looks
		}
		looks = slices.Insert(looks, 0, waiting.Look{At: a.at, Look: &a.looks[i]})
	}
	return looks
}
