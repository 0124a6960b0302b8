package ckptagent

import (
	"reflect"
	"slices"
	"time"
)

// Report is the whole present truth of the agent, for the coordinator.
type Report struct {
	Incarnation uint64
	// Containers is how many this pod has had; 0: not known.
	Containers uint64
	Ranks      int
	Port       int
	Generation uint64
	State      Phase
	Rank       []Rank
	StateBytes uint64
	Notes      []string
	Refused    string
	Leaving    bool
	Timeline   Timeline

	Storage                 bool
	Grace                   time.Duration
	Manifested, FetchFailed Mark
	CopyTook                time.Duration
	// Hold is what the arenas were told.
	Hold uint64
	// WholeCommand: the pod's one rank is its whole command.
	WholeCommand bool
	// LeftForLauncher is the newest generation that this pod left, or did not begin, for the ranks of a launcher; 0: none.
	LeftForLauncher uint64
	// Unprotected says what runs where no rank does; "": ranks run, or it is too early to say.
	Unprotected string
	// ModulesKnown is how many modules standbys import; Modules names them while the coordinator wants them.
	ModulesKnown int
	Modules      []string
}

// Report says what the state amounts to. Ranks stays 0 until the first inventory is taken, so that a
// coordinator never decides on a pod whose sealed steps it does not know; and where nothing runs until storage
// has answered, so that it does not go back behind what lies there.
func (s State) Report() Report {
	r := Report{
		Incarnation: s.Incarnation, Containers: s.Containers, Port: s.Port, Generation: s.Generation, State: s.Phase,
		StateBytes: s.StateBytes, Notes: s.Notes, Refused: s.Refused, Leaving: s.Leaving, Timeline: s.Timeline,
		Storage: s.Storage, Grace: s.Grace, Manifested: s.Manifested, FetchFailed: s.FetchFailed, CopyTook: s.CopyTook, Hold: s.Hold,
		WholeCommand: s.Whole, LeftForLauncher: s.LeftForLauncher, Unprotected: s.Unprotected, ModulesKnown: len(s.Modules),
	}
	if s.Want.WantModules {
		r.Modules = s.Modules
	}
	if s.Known && !(s.Unsure && s.Clean) {
		r.Ranks, r.Rank = s.Ranks, s.clone().Rank
	}
	return r
}

// Urgent says whether the change from old to this report must be sent at once: anything but progress. A field that is new is urgent
// unless withoutProgress leaves it out.
func (r Report) Urgent(old Report) bool {
	return !reflect.DeepEqual(r.withoutProgress(), old.withoutProgress())
}

// withoutProgress leaves out what changes while all goes on as it did, and may wait for the next report that is sent anyway. Of what is
// for people, and of modules, the number counts.
func (r Report) withoutProgress() Report {
	r.Grace, r.CopyTook = 0, 0
	r.Notes, r.Modules = make([]string, len(r.Notes)), make([]string, len(r.Modules))
	r.Rank = slices.Clone(r.Rank)
	for i := range r.Rank {
		k := &r.Rank[i]
		k.Step, k.Sealed, k.OptimizerSteps, k.ResumedAt, k.ResumeKnown = 0, nil, 0, 0, false
		k.Alive, k.Attached, k.Restored, k.Stepped = false, false, false, false // which are told as times and exits
	}
	return r
}
