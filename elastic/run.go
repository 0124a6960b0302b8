package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// run is what is known of the newest generation. The next one begins with another run: nothing has to be reset.
type run struct {
	// layout is who takes part; nil where an earlier coordinator handed the generation out.
	layout *members.Layout
	// commonStep and reclaimBelow as in Directive; they only rise.
	commonStep, reclaimBelow int64
	// exits outlive their pod, exitBytes is about what they take of each slot.
	exits     map[exitOf]cause.Exit
	exitBytes map[Slot]int64
	// drain began while this generation ran with pods to be replaced; what it came to is asked for until the next one. postHaltCopy is
	// what pods to be replaced are to copy while everything is halted.
	drain        *drain
	postHaltCopy protocol.Mark

	// halting and forming are what belongs to these phases; nil in any other. A verdict leaves them as they were. Running has
	// nothing of its own: all that it learns is the generation's.
	halting *halting
	forming *forming
}

// exitOf says whose exit it is: not by rank, which others' words can move where nobody knows the layout, so that a pod has as
// many exits as it may have ranks, and no more.
type exitOf struct {
	slot  Slot
	local int
}

// exitBytes is about what an exit takes, beside its traceback.
const exitBytes = 256

// keepExit remembers an exit in the place of the one that the same rank had before.
func (r *run) keepExit(of exitOf, e cause.Exit) {
	if old, had := r.exits[of]; had {
		r.exitBytes[of.slot] -= exitBytes + int64(len(old.Traceback))
	}
	r.exits[of] = e
	r.exitBytes[of.slot] += exitBytes + int64(len(e.Traceback))
}

// Held is what is kept of a slot's reports: the newest that counted, and about how many bytes of exits, which stay until the
// next generation, whatever reports say after.
func (s *State) Held(slot Slot) (newest *protocol.Report, exits int64) {
	return s.members.At(slot).Report(), s.run.exitBytes[slot]
}

// halting is what is known while everything of a generation is being ended.
type halting struct {
	// suspect is what is known of the failure that no exit tells of; detected is when it was seen, by our clock.
	suspect  *cause.Cause
	detected time.Time
	// ordered: nothing had failed when suspect ended the generation. A rank whose peer was halted before it fails for that.
	ordered bool
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

// becomeRunning begins the run of Record.Generation, which is handed out once it is stored.
func (s *State) becomeRunning(r run) {
	r.exits, r.exitBytes = map[exitOf]cause.Exit{}, map[Slot]int64{}
	s.run = r
	s.Record.Phase = Running
	s.account.BeginGeneration()
	s.ledger.BeginGeneration()
}

// becomeHalting ends the run; suspect is what is known of its failure beside exits, ordered that nothing had failed.
func (s *State) becomeHalting(suspect *cause.Cause, ordered bool, now time.Time) {
	watch := replacements.NewWatch(s.members, s.replacements, s.Record.Generation, s.launch(), now)
	s.run.halting = &halting{suspect: suspect, ordered: ordered, detected: now, watch: watch}
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
