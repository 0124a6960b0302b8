//go:build linux

package proc

import (
	"fmt"
	"slices"
	"time"
)

// sourceState is how far a source is:
//
//	              {"half"}               {"warm"}            {"pid": its own}
//	importing ──────────────> halfway ──────────────> warm ──────────────> alone ──> taken
//	  ^   └────────────────────────────────────────────^ │                   ^
//	  │            more modules                          │                   │
//	  └──────────────────────────────────────────────────┘                   │
//	importing, halfway: {"warm","alone"} ────────────────────────────────────┘
//
// Each but taken goes to ended, by discard. What a source in taken or ended says, or whether it dies, changes nothing.
type sourceState int

const (
	sourceImporting sourceState = iota
	sourceHalfway               // half of the modules are imported
	sourceWarm                  // all are; it forks standbys
	sourceAlone                 // all are; it is not copied, but becomes the rank itself
	sourceTaken                 // it is the rank
	sourceEnded
)

// sourceAfter lists what each state may lead to. Its two sockets are read beside one another, so a source that is not copied may be read to
// wait at its line before it is read to have imported.
var sourceAfter = map[sourceState][]sourceState{
	sourceImporting: {sourceHalfway, sourceWarm, sourceAlone, sourceEnded},
	sourceHalfway:   {sourceWarm, sourceAlone, sourceEnded},
	sourceWarm:      {sourceImporting, sourceAlone, sourceEnded},
	sourceAlone:     {sourceTaken, sourceEnded},
}

// enter moves a source to a state; false where that does not follow.
func (src *source) enter(next sourceState) bool {
	if !slices.Contains(sourceAfter[src.state], next) {
		return false
	}
	src.state = next
	return true
}

// imports reports whether a source has yet to import; lives, whether it is a source still; warmed, that it has imported.
func (src *source) imports() bool { return src.state == sourceImporting || src.state == sourceHalfway }
func (src *source) lives() bool   { return src.state != sourceTaken && src.state != sourceEnded }
func (src *source) warmed() bool  { return src.state == sourceWarm || src.state == sourceAlone }

// standbyState is what there is for one rank of a source:
//
//	        asked to fork            {"ready"}               the source has imported more
//	absent ───────────────> forking ───────────> ready ───────────────────────────────────> stale
//	                           ^                   │ taken, or dead                            │ taken, ended or dead
//	                           └───────────────────┴───────────────────────────────────────────┘
type standbyState int

const (
	standbyAbsent  standbyState = iota // its source has yet to import
	standbyForking                     // its source forks one: at once where it was asked to, else after a rest
	standbyReady                       // it waits for the line that makes it the rank
	standbyStale                       // it waits, but lacks modules that its source has
)

// enter moves a standby to a state. rank is the process that waits from then on, in ready and stale.
func (b *standby) enter(next standbyState, rank Process) {
	if !(next == standbyReady || next == standbyStale) {
		rank = Process{}
	}
	b.state, b.rank = next, rank
}

// waits says that a process waits to become the rank.
func (b *standby) waits() bool { return b.state == standbyReady || b.state == standbyStale }

// supply is whether standbys are made:
//
//	   memory lacks, a source could not be started           off for this launcher
//	on <──────────────────────────────────────────> short ──────────────────────────> off
//	└──────────────────────────────────────────────────────────────────────────────────^
//
// The reason stands beside it, in Standbys.supplyWhy.
type supply int

const (
	supplyOn supply = iota
	supplyShort
	supplyOff
)

// supplied moves the supply to a state, which off is the last of until the next launcher.
func (s *Standbys) supplied(next supply, why string) {
	if s.supply == supplyOff && next != supplyOff {
		return
	}
	s.supply, s.supplyWhy = next, why
}

// serving is whom a source serves. A pod begins with the first, and goes to the second for good; the reason stands in Standbys.servingWhy.
type serving int

const (
	servesPod  serving = iota // all local ranks
	servesRank                // one, so there is one source for each
)

// pace is how fast sources may import: it follows SetWarm.
type pace int

const (
	paceHeld  pace = iota // not at all: a generation starts or ends
	paceFull              // at full speed: no generation has run here yet
	paceShare             // with a share of a processor: ranks run
)

// proof is what is known of the list of modules; it only rises.
type proof int

const (
	proofNone  proof = iota
	proofShown       // a source that is copied has imported them, here or in another pod of the gang
	proofNoted       // that stands in Root.ProvenModulesFile, for the next agent
)

// unfit is why a source, and what it forked, is of no use: all the reasons that there are. discard says what follows from each.
type unfit int

const (
	fit          unfit = iota
	unfitDied          // it has ended, cannot be understood, or was waited for in vain
	unfitRoom          // the container's memory is nearly used up
	unfitModules       // it cannot import what it found wrong in a standby
	unfitGPU           // it would hold memory of a device beside the rank
	unfitShared        // it cannot serve several ranks, or lacks variables that were not known yet
	unfitCopies        // it was copied and cannot be any more
	unfitOld           // it is the standby itself, and lacks modules
	unfitLine          // the process at one of its lines cannot be written to
	unfitClosed        // the launcher has returned, or another one has come
)

// judge reports whether a source is of no use by what it says once it has imported.
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

// discard ends a source with what it forked, unless it has ended or is a rank, and prepares what follows: another one at once, unless the
// reason says something else. said is what it said of itself, if that is the reason.
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

// vacate has the ranks of a source without a standby.
func (s *Standbys) vacate(src *source) {
	for _, b := range src.standbys {
		if b.local < len(s.slots) && s.slots[b.local] == b {
			s.slots[b.local] = nil
			s.lost = append(s.lost, b.local)
		}
	}
}

// maxWithout bounds what sources may find unfit, one after the other.
const maxWithout = 256

// leaveOut has no further source import what one of them found unfit. One that finds nothing new, or too much, finds no end.
func (s *Standbys) leaveOut(said warmLine) {
	before := len(s.without)
	for _, name := range said.Without {
		if moduleName.MatchString(name) && !slices.Contains(s.without, name) {
			s.without = append(s.without, name)
		}
	}
	if s.withoutWhy == "" {
		s.withoutWhy = fmt.Sprintf("standbys do not import these modules, ranks import them: %s; name such modules in "+
			"holdfast.dev/standby-skip-modules to spare sources the attempt", said.Why)
	}
	if len(s.without) == before || len(s.without) > maxWithout {
		s.supplied(supplyOff, "standbys are off: "+said.Why)
	}
}
