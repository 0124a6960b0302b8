package elastic

import (
	"fmt"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

// A container's command may run launchers one after another. All pods of the gang are at the same one, by number:
//
//	launcher n: all ranks have ended with 0 ── stored ──► launchers up to n return 0 ──► a pod reports launcher n+1 ── stored ──► generations of n+1
//
// The number only rises. A pod whose command begins again, or has only begun, is told it, and its launchers before return 0 at once, so
// that it comes to the gang's; a failure restarts the ranks of the gang's launcher. What the launchers before sealed or stored is of
// another script: each launcher begins a branch of training at step 0 (branch.go).

// Launch is the launcher that a gang is at; the zero Launch is the first.
type Launch struct {
	Number int
	// After is the newest generation of the launchers before, Restarts what those cost.
	After    int64
	Restarts int
	// Kept are the newest stored steps of the launchers before, and first of all that of this one which ranks failed to restore
	// (unrestorable.go), newest first: they stay in storage, and no generation begins from them.
	Kept []StoredStep
}

// launch is the number of the launcher that the gang is at.
func (s *State) launch() int { return max(1, s.Record.Launch.Number) }

// begun says whether a generation of the launcher was handed out.
func (r *Record) begun() bool { return r.Generation > r.Launch.After }

// passed is the number below which launchers return 0: that of the gang's own, and the one after it once that is known to be over.
func (s *State) passed() int {
	if s.Record.Phase == Finished && s.carriedOut() {
		return s.launch() + 1
	}
	return s.launch()
}

// behind says whether a pod's command has yet to come to the gang's launcher.
func (s *State) behind(r *protocol.Report) bool { return max(1, r.Launch) < s.launch() }

// behindText says so to people.
func (s *State) behindText(slot Slot) string {
	m := s.members.At(slot)
	return fmt.Sprintf("pod %s of slot %d is at launcher %d of its command, the gang at launcher %d: waits until all pods are at the same", m.Pod().Name, slot, max(1, m.Report().Launch), s.launch())
}

// noteLeft takes note of slots that left while others go on: another coordinator would wait for a pod that is over.
func (s *State) noteLeft() {
	if s.Record.Phase != Running && s.Record.Phase != Halting {
		return
	}
	if s.members.NoteLeft(s.launch()) {
		s.save()
	}
}

// memberEnded is why a generation that failed cannot be followed by another one; nil: it can.
func (s *State) memberEnded(c cause.Cause) *cause.Cause {
	for i := range s.members.Len() {
		// A suspended Job makes a pod again that it has deleted, whatever its launcher had returned, and none that had ended.
		if s.left(Slot(i)) && !s.replacements.Suspended(Slot(i)) {
			c.Message = fmt.Sprintf("slot %d had ended with exit code 0 before, and the gang cannot run again without it: %s", i, c.Message)
			return &c
		}
	}
	return nil
}

// adoptLaunch takes over the launcher of a generation that goes on, where the store lost its record.
func (s *State) adoptLaunch(r *protocol.Report) {
	if r.Generation > s.Record.Generation && members.Ran(r.State) && r.Launch > s.launch() && r.Launch <= protocol.MaxLaunch && !s.Final() {
		s.Record.Launch = Launch{Number: r.Launch, After: r.Generation - 1}
		s.ledger.ForgetLaunches()
	}
}

// stepLaunch has the gang go on to the launcher that a pod has come to, once the one before is over on all pods.
func (s *State) stepLaunch() {
	next, over := s.launch(), s.Record.Phase == Finished || !s.Record.begun()
	all := true
	for i := range s.members.Len() {
		m := s.members.At(Slot(i))
		if m.Known() && !s.replacements.Fenced(m.Pod().UID) && m.Report().Ranks > 0 && m.Report().Launch <= protocol.MaxLaunch {
			next = max(next, m.Report().Launch)
		}
		all = all && s.left(Slot(i))
	}
	if next > s.launch() && (over || all) && !s.over && s.Record.Phase != GivenUp {
		s.becomeLaunch(next)
	}
}

// becomeLaunch prepares the first generation of a later launcher: nothing that its ranks do goes on from what those before did.
func (s *State) becomeLaunch(number int) {
	r := &s.Record
	s.ledger.BeginLaunch()
	r.Launch = Launch{Number: number, After: r.Generation, Restarts: s.account.Restarts()}
	r.Verdict = nil
	s.members.Rejoin()
	s.account.BeginLaunch()
	if r.Generation > 0 {
		r.RestoreStep, r.RestoreBranch = 0, 0
		s.ledger.BeginBranch(s.newestBranch()+1, 0)
	}
	f := &forming{containers: s.members.Containers()}
	s.run = run{exits: map[exitOf]cause.Exit{}, exitBytes: map[Slot]int64{}, forming: f}
	r.Phase = Forming
	s.saveAndTell()
}
