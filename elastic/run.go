package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// run is what is done about the newest generation. The next one begins with another run: nothing has to be reset.
type run struct {
	// halting and forming are what belongs to these phases; nil in any other. A verdict leaves them as they were. Running has
	// nothing of its own: all that it learns is the generation's.
	halting *halting
	forming *forming
}

// Held is what is kept of a slot's reports: the newest that counted, and about how many bytes of exits, which stay until the
// next generation, whatever reports say after.
func (s *State) Held(slot Slot) (newest *protocol.Report, exits int64) {
	return s.members.At(slot).Report(), s.generation.ExitBytes(slot)
}

// halting is what is known while everything of a generation is being ended.
type halting struct {
	// suspect is what is known of the failure that no exit tells of; detected is when it was seen, by our clock.
	suspect  generation.Suspect
	detected time.Time
	// watch follows which pods have yet to halt.
	watch *replacements.Watch
	// haltedAt is when all was halted; zero: it is not.
	haltedAt time.Time
}

// forget drops what is known of a slot: another pod holds it.
func (h *halting) forget(slot Slot) {
	if h != nil {
		h.watch.Forget(slot)
	}
}

// forming is what is known while the next generation is being prepared.
type forming struct {
	// since is when this coordinator began to prepare it.
	since time.Time
	// haltedAt is when all of the generation before was halted; zero: nobody saw it. readyAt is when all pods were there.
	haltedAt, readyAt time.Time
	// fetching is what comes from storage, fetched whether something did; planned: it follows from what was told last.
	fetching restore.Point
	fetched  bool
	planned  bool
	// unread is one more than the step that people were told cannot be read; 0: they were told of none.
	unread int64
	// containers is how many each pod had had when the gang began to form; deaths is how often the container of one of them ended
	// at most since.
	containers []uint64
	deaths     uint64
}

// replan has what comes from storage planned again.
func (f *forming) replan() {
	if f != nil {
		f.planned = false
	}
}

// noteFirst takes note of from which number on containers count for a pod whose agent reports for the first time. Before the first
// generation all of them count; later those that ended before this coordinator started may have been counted already.
func (f *forming) noteFirst(slot Slot, r *protocol.Report, generation int64) {
	if f.containers[slot] = 1; generation > 0 {
		f.containers[slot] = r.Containers
	}
}

// becomeRunning begins the run of the newest generation, which is handed out once it is stored.
func (s *State) becomeRunning() {
	s.drain.Drop()
	s.run, s.Record.Phase = run{}, Running
}

// becomeHalting ends the run; suspect is what is known of its failure beside exits.
func (s *State) becomeHalting(suspect generation.Suspect, now time.Time) {
	watch := replacements.NewWatch(s.members, s.replacements, s.generation.Number, now)
	s.run.halting = &halting{suspect: suspect, detected: now, watch: watch}
	s.Record.Phase = Halting
	s.emit(PersistLater{})
}

// becomeForming prepares the generation after one that was halted and judged.
func (s *State) becomeForming() {
	f := &forming{haltedAt: s.run.halting.haltedAt, containers: s.members.Containers()}
	s.run.halting, s.run.forming = nil, f
	s.Record.Phase = Forming
}

// becomeFinal ends all of it with a verdict.
func (s *State) becomeFinal(v Verdict, p Phase) {
	s.Record.Phase, s.Record.Verdict = p, &v
	s.verdictRevision = s.revision + 1
	s.save()
}
