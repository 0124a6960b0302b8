package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// run is the coordinator's work on the newest generation. The next generation gets a new value, so nothing is reset.
type run struct {
	// halting and forming belong to these phases; nil in any other. A verdict does not change them. Phase Running needs no state beside the
	// generation's.
	halting *halting
	forming *forming
	// still is what is known of a silence.
	still standstill
	// growth is the way to a planned halt.
	growth growth
}

// Held returns what is stored of a slot's reports: the newest that counts, and the estimated bytes of exits, which stay until the next
// generation, whatever later reports contain.
func (s *State) Held(slot Slot) (newest *protocol.Report, exits int64) {
	return s.members.At(slot).Report(), s.generation.ExitBytes(slot)
}

// halting is the state while all processes of a generation are being ended.
type halting struct {
	// suspect is what is known of the failure beside exits; detected is when it was seen, by the coordinator's clock.
	suspect  generation.Suspect
	detected time.Time
	// stillSince is since when ranks stood still when the halt began; zero: they did not.
	stillSince time.Time
	// watch tracks which pods have not halted yet.
	watch *replacements.Watch
	// haltedAt is when all had halted; zero: they have not.
	haltedAt time.Time
}

// forget drops the state of a slot that another pod holds.
func (h *halting) forget(slot Slot) {
	if h != nil {
		h.watch.Forget(slot)
	}
}

// heard records a report of a slot's agent.
func (h *halting) heard(slot Slot) {
	if h != nil {
		h.watch.Heard(slot)
	}
}

// forming is the state while the next generation is being prepared.
type forming struct {
	// since is when this coordinator began that.
	since time.Time
	// haltedAt is when all pods had halted the previous generation; zero: unknown. readyAt is when all pods were ready.
	haltedAt, readyAt time.Time
	// fetching is what pods fetch from storage, fetched whether some did; planned: it is computed from the last reports.
	fetching restore.Point
	fetched  bool
	planned  bool
	// unread is one more than the step in the last event about an unreadable step; 0: there was none.
	unread int64
	// containers is each pod's number of containers when the gang began to form; deaths is the most ends of one pod's container since.
	containers []uint64
	deaths     uint64
	checking   checking
	// decision is with which slots the generation begins, for a gang with a minimum. enoughAt is since when at least the minimum is ready.
	decision quorum.Decision
	enoughAt time.Time
	// slots is what was last known of each pod by itself; nil: something other than a report came since. news are the slots that reported
	// since.
	slots []quorum.Slot
	news  []Slot
	nodes nodes
	room  room
}

// replan makes gather compute fetching again.
func (f *forming) replan() {
	if f != nil {
		f.planned = false
	}
}

// noteReport records that what is known of a slot's pod has changed.
func (f *forming) noteReport(slot Slot) {
	if f != nil && f.slots != nil {
		f.news = append(f.news, slot)
	}
}

// forget makes all that was computed from events be computed again.
func (f *forming) forget() {
	if f != nil {
		f.planned, f.slots = false, nil
	}
}

// noteFirst records from which number on containers count for a pod whose agent reports for the first time. Before the first generation all
// count; later, those that ended before this coordinator started may have been counted already.
func (f *forming) noteFirst(slot Slot, r *protocol.Report, generation int64) {
	if f.containers[slot] = 1; generation > 0 {
		f.containers[slot] = r.Containers
	}
}

// becomeRunning starts the newest generation, which agents receive once it is stored.
func (s *State) becomeRunning() {
	s.drain.Drop()
	s.run, s.Record.Phase, s.Record.Progress.Standstill = run{}, Running, Standstill{}
	s.quiet.Begin(s.now)
}

// becomeHalting ends the generation; suspect is what is known of its failure beside exits.
func (s *State) becomeHalting(suspect generation.Suspect, now time.Time) {
	watch := replacements.NewWatch(s.members, s.replacements, s.generation.Number, now)
	s.run.halting = &halting{suspect: suspect, detected: now, stillSince: s.stillSince(suspect), watch: watch}
	s.Record.Phase, s.Record.Progress.Standstill = Halting, Standstill{}
	s.emit(PersistLater{})
}

// becomeForming prepares the generation after one that was halted and judged.
func (s *State) becomeForming() {
	f := &forming{haltedAt: s.run.halting.haltedAt, containers: s.members.Containers()}
	s.run.halting, s.run.forming = nil, f
	s.Record.Phase = Forming
}

// becomeFinal ends the gang with a verdict.
func (s *State) becomeFinal(v Verdict, p Phase) {
	s.Record.Phase, s.Record.Verdict, s.Record.Progress.Standstill = p, &v, Standstill{}
	s.verdictRevision = s.revision + 1
	s.save()
}
