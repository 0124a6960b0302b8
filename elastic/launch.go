package elastic

// A container's command may run launchers one after another. All pods of the gang are at the same one, by number:
//
//	launcher n: all ranks have ended with 0 ── stored ──► launchers up to n return 0 ──► a pod reports launcher n+1 ── stored ──► generations of n+1
//
// The number only rises. A pod whose command starts or restarts receives it, and its earlier launchers return 0 at once, so that the pod
// reaches the gang's launcher; a failure restarts the ranks of the gang's launcher. Sealed and stored steps of earlier launchers are
// another script's: each launcher begins a branch of training at step 0 (branch.go).

// Launch is the present launcher of a gang; the zero Launch is the first.
type Launch struct {
	Number int
	// After is the newest generation of earlier launchers, Restarts the number of their restarts.
	After    int64
	Restarts int
	// Kept are steps that stay in storage and from which no generation starts, newest first: the step of this launcher that ranks failed to
	// restore (unrestorable.go), then the newest stored steps of earlier launchers.
	Kept []StoredStep
}

// stepLaunch moves the gang to the launcher that a pod has reached, once the previous one is over on all pods.
func (s *State) stepLaunch() {
	next, left := s.members.NextLaunch(s.replacements.Fenced)
	over := left || s.Record.Phase == Finished || !s.generation.Begun()
	if next > s.members.Launch() && over && !s.over && s.Record.Phase != GivenUp {
		s.becomeLaunch(next)
	}
}

// becomeLaunch prepares the first generation of a later launcher: its ranks continue no earlier training.
func (s *State) becomeLaunch(number int) {
	s.generation.BeginLaunch(number)
	s.drain.Drop()
	s.sizes.struck = nil
	s.quiet.BeginLaunch(s.now)
	s.run = run{forming: &forming{containers: s.members.Containers()}}
	s.Record.Phase, s.Record.Verdict, s.Record.Progress.Standstill = Forming, nil, Standstill{}
	s.saveAndTell()
}
