package ckptagent

import "time"

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
		WholeCommand: s.Whole, Unprotected: s.Unprotected, ModulesKnown: len(s.Modules),
	}
	if s.Want.WantModules {
		r.Modules = s.Modules
	}
	if s.Known && !(s.Unsure && s.Clean) {
		r.Ranks, r.Rank = s.Ranks, s.clone().Rank
	}
	return r
}

// Urgent says whether the change from old to this report must be sent at once: anything but progress.
func (r Report) Urgent(old Report) bool {
	if r.Incarnation != old.Incarnation || r.Ranks != old.Ranks || r.Port != old.Port || r.Generation != old.Generation ||
		r.State != old.State || r.StateBytes != old.StateBytes || len(r.Notes) != len(old.Notes) || r.Refused != old.Refused ||
		r.Leaving != old.Leaving || r.Timeline != old.Timeline || r.Storage != old.Storage || r.Manifested != old.Manifested ||
		r.FetchFailed != old.FetchFailed || r.Hold != old.Hold || len(r.Rank) != len(old.Rank) ||
		r.WholeCommand != old.WholeCommand || r.Unprotected != old.Unprotected ||
		r.ModulesKnown != old.ModulesKnown || len(r.Modules) != len(old.Modules) {
		return true
	}
	for i := range r.Rank {
		if r.Rank[i].Exit != old.Rank[i].Exit || r.Rank[i].StandbyReady != old.Rank[i].StandbyReady || r.Rank[i].PID != old.Rank[i].PID ||
			r.Rank[i].Copied != old.Rank[i].Copied {
			return true
		}
	}
	return false
}
