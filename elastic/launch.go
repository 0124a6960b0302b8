package elastic

// A container's command may run launchers one after another. All pods of the gang are at the same one, by number:
//
//	launcher n: all ranks have ended with 0 ── stored ──► launchers up to n return 0 ──► a pod reports launcher n+1 ── stored ──► generations of n+1
//
// The number only rises. A pod whose command begins again, or has only begun, is told it, and its launchers before return 0 at once, so
// that it comes to the gang's; a failure restarts the ranks of the gang's launcher. What the launchers before sealed or stored is of
// another script: each launcher begins a branch of training at step 0 (branch.go).

// Launch is the present launcher of a gang; the zero Launch is the first.
type Launch struct {
	Number int
	// After is the newest generation of earlier launchers, Restarts the number of their restarts.
	After    int64
	Restarts int
	// Kept are steps that stay in storage and from which no generation begins, newest first: the step of this launcher that ranks
	// failed to restore (unrestorable.go), then the newest stored steps of earlier launchers.
	Kept []StoredStep
}

// stepLaunch has the gang go on to the launcher that a pod has come to, once the one before is over on all pods.
func (s *State) stepLaunch() {
	next, left := s.members.NextLaunch(s.replacements.Fenced)
	over := left || s.Record.Phase == Finished || !s.generation.Begun()
	if next > s.members.Launch() && over && !s.over && s.Record.Phase != GivenUp {
		s.becomeLaunch(next)
	}
}

// becomeLaunch prepares the first generation of a later launcher: nothing that its ranks do goes on from what those before did.
func (s *State) becomeLaunch(number int) {
	s.generation.BeginLaunch(number)
	s.drain.Drop()
	s.run = run{forming: &forming{containers: s.members.Containers()}}
	s.Record.Phase, s.Record.Verdict = Forming, nil
	s.saveAndTell()
}
