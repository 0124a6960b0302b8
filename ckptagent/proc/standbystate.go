//go:build linux

package proc

import (
	"fmt"
	"slices"
	"time"
)

// sourceState is the progress of a source:
//
//	              {"half"}               {"warm"}            {"pid": its own}
//	importing ──────────────> halfway ──────────────> warm ──────────────> alone ──> taken
//	  ^   └────────────────────────────────────────────^ │                   ^
//	  │            more modules                          │                   │
//	  └──────────────────────────────────────────────────┘                   │
//	importing, halfway: {"warm","alone"} ────────────────────────────────────┘
//
// Each state but taken leads to ended, by discard. Messages and the end of a source in taken or ended change nothing.
type sourceState int

const (
	sourceImporting sourceState = iota
	sourceHalfway               // half of the modules are imported
	sourceWarm                  // all are imported; it forks standbys
	sourceAlone                 // all are imported; it cannot be copied and becomes the rank itself
	sourceTaken                 // it is the rank
	sourceEnded
)

// sourceAfter lists the states that may follow each. The source's two sockets are read concurrently, so "ready" of a source that cannot be
// copied may be read before "warm".
var sourceAfter = map[sourceState][]sourceState{
	sourceImporting: {sourceHalfway, sourceWarm, sourceAlone, sourceEnded},
	sourceHalfway:   {sourceWarm, sourceAlone, sourceEnded},
	sourceWarm:      {sourceImporting, sourceAlone, sourceEnded},
	sourceAlone:     {sourceTaken, sourceEnded},
}

// enter moves a source to a state; false: that state must not follow.
func (src *source) enter(next sourceState) bool {
	if !slices.Contains(sourceAfter[src.state], next) {
		return false
	}
	src.state = next
	return true
}

// imports reports whether a source still imports; lives, whether it is still a source; warmed, whether it has imported.
func (src *source) imports() bool { return src.state == sourceImporting || src.state == sourceHalfway }
func (src *source) lives() bool   { return src.state != sourceTaken && src.state != sourceEnded }
func (src *source) warmed() bool  { return src.state == sourceWarm || src.state == sourceAlone }

// standbyState is the state of one rank's standby:
//
//	        asked to fork            {"ready"}               the source has imported more
//	absent ───────────────> forking ───────────> ready ───────────────────────────────────> stale
//	                           ^                   │ taken, or dead                            │ taken, ended or dead
//	                           └───────────────────┴───────────────────────────────────────────┘
type standbyState int

const (
	standbyAbsent  standbyState = iota // its source still imports
	standbyForking                     // its source forks one: at once if ordered to, else after a pause
	standbyReady                       // it waits for the line that makes it the rank
	standbyStale                       // it waits, but lacks modules that its source has
)

// enter moves a standby to a state. rank is the process that then waits, in ready and stale.
func (b *standby) enter(next standbyState, rank Process) {
	if !(next == standbyReady || next == standbyStale) {
		rank = Process{}
	}
	b.state, b.rank = next, rank
}

// waits reports whether a process waits to become the rank.
func (b *standby) waits() bool { return b.state == standbyReady || b.state == standbyStale }

// supply is whether standbys are created:
//
//	   memory lacks, a source could not be started           off for this launcher
//	on <──────────────────────────────────────────> short ──────────────────────────> off
//	└──────────────────────────────────────────────────────────────────────────────────^
//
// Standbys.supplyWhy has the reason.
type supply int

const (
	supplyOn supply = iota
	supplyShort
	supplyOff
)

// supplied changes the supply. off is final until the next launcher.
func (s *Standbys) supplied(next supply, why string) {
	if s.supply == supplyOff && next != supplyOff {
		return
	}
	s.supply, s.supplyWhy = next, why
}

// serving is which ranks a source serves. A pod begins with servesPod and may change once to servesRank; Standbys.servingWhy has the
// reason.
type serving int

const (
	servesPod  serving = iota // all local ranks
	servesRank                // one, so each rank has its own source
)

// pace is how fast sources may import; SetWarm sets it.
type pace int

const (
	paceHeld  pace = iota // not at all: a generation starts or ends
	paceFull              // at full speed: no generation has run here yet
	paceShare             // with a share of a processor: ranks run
)

// proof is how well the list of modules was tested; it only rises.
type proof int

const (
	proofNone  proof = iota
	proofShown       // a source that is copied has imported them, here or in another pod of the gang
	proofNoted       // Root.ProvenModulesFile records that for the next agent
)

// unfit is a reason to discard a source with its standbys. discard has the consequence of each.
type unfit int

const (
	fit          unfit = iota
	unfitDied          // it has ended, sent an invalid message, or never became ready
	unfitRoom          // the container's memory is nearly used up
	unfitModules       // it has imported a module that standbys must not have
	unfitGPU           // it would hold memory of a device beside the rank
	unfitShared        // it cannot serve several ranks, or lacks variables that were unknown at its start
	unfitCopies        // it was copied and can no longer be
	unfitOld           // it is itself the standby, and lacks modules
	unfitLine          // a standby's socket cannot be written to
	unfitClosed        // the launcher has returned, or another has connected
)

// judge returns why a source must be discarded, from its message after its imports.
func judge(src *source, said warmLine) unfit {
	switch {
	case len(said.Without) > 0:
		return unfitModules
	case said.CUDA:
		return unfitGPU
	case said.Alone != "" && (src.shared() || src.generation == 0):
		return unfitShared
	case said.Alone != "" && src.begun > 1:
		return unfitCopies
	}
	return fit
}

// discard ends a source with its standbys, unless it has ended or is a rank. Another source is started at once, unless the reason requires
// something else. said is the source's message, if that is the reason.
func (s *Standbys) discard(src *source, because unfit, said warmLine, now time.Time) {
	if !src.enter(sourceEnded) {
		return
	}
	s.vacate(src)
	src.kill()
	s.poke()
	switch because {
	case unfitDied, unfitRoom:
		for _, b := range src.standbys {
			s.retryLater(now, b.local)
		}
	case unfitModules:
		s.leaveOut(said)
	case unfitGPU:
		s.supplied(supplyOff, "standbys are off: a module that the script imports opens a GPU context at import")
	case unfitShared:
		s.serving, s.servingWhy = servesRank, said.Alone
	}
}

// vacate sets the standbys of a source to absent.
func (s *Standbys) vacate(src *source) {
	for _, b := range src.standbys {
		if b.local < len(s.slots) && s.slots[b.local] == b {
			s.slots[b.local] = nil
			s.lost = append(s.lost, b.local)
		}
	}
}

// maxWithout bounds the number of modules that sources may find unfit.
const maxWithout = 256

// leaveOut excludes modules that a source found unfit from further sources. If it found no new one, or too many, there are no standbys.
func (s *Standbys) leaveOut(said warmLine) {
	before := len(s.without)
	for _, name := range said.Without {
		if moduleName.MatchString(name) && !slices.Contains(s.without, name) {
			s.without = append(s.without, name)
		}
	}
	if s.withoutWhy == "" {
		s.withoutWhy = fmt.Sprintf("standbys do not import these modules, and each rank imports them when it starts: %s; list them in "+
			"holdfast.dev/standby-skip-modules, so that no source of standbys tries to import them", said.Why)
	}
	if len(s.without) == before || len(s.without) > maxWithout {
		s.supplied(supplyOff, "standbys are off: "+said.Why)
	}
}
