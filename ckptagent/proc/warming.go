//go:build linux

package proc

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Settings of the warming of standbys.
const (
	// warmTick is how often the share is checked: the longest that warming may delay a rank. warmBurst is how much unused share
	// accumulates.
	warmTick        = 4 * time.Millisecond
	warmBurst       = 50 * time.Millisecond
	standbyRetry    = time.Second
	standbyRetryMax = time.Minute
	// memoryRetry is the pause after memory was short.
	memoryRetry = 10 * time.Second
	// memoryReserve is the free memory, in bytes, below which sources and standbys are ended, before the kernel ends the container.
	// memoryLook is how often that is checked, memorySoon while a source imports.
	memoryReserve = 64 << 20
	memoryLook    = 500 * time.Millisecond
	memorySoon    = 50 * time.Millisecond
	// ampleMemory is the free memory, in bytes, that a source needs if the memory of its imports is unknown: torch alone takes 300 MiB.
	ampleMemory = 512<<20 + memoryReserve
)

// look does what is due and returns when to look again; 0: at the next change.
func (s *Standbys) look(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaited != nil {
		s.yieldMemory(now)
		if s.worthwhile(now) {
			if importing := s.importing(); importing != nil {
				importing.ration.goOn(now, true)
			}
			return warmTick
		}
		s.giveUp(now)
		close(s.awaited.over)
		s.awaited = nil
	}
	importing := s.importing()
	if s.supply == supplyOff || s.pace == paceHeld || len(s.modules) == 0 || s.job == nil {
		if importing != nil {
			importing.ration.pause(now)
		}
		return 0
	}
	if s.yieldMemory(now) {
		return memoryRetry
	}
	if importing != nil && s.pace == paceFull && !s.yields {
		importing.ration.goOn(now, true) // no rank runs that it could slow down
		return warmTick
	}
	if importing != nil {
		least := guaranteed(s.within(), s.missing(), s.cost, importing.ration.used, now.Sub(s.since))
		s.spent = importing.ration.duty(now, s.share.now(now, s.spent, least))
		return warmTick
	}
	if wait := s.fill(now); wait > 0 {
		return wait
	}
	if s.renew(now) {
		return warmTick
	}
	if len(s.sources()) > 0 {
		return memoryLook
	}
	return 0
}

// yieldMemory ends all sources and standbys if the container's memory is nearly used up, and reports that.
func (s *Standbys) yieldMemory(now time.Time) bool {
	every := memoryLook
	if s.importing() != nil {
		every = memorySoon
	}
	if now.Sub(s.measured) < every {
		return false
	}
	s.measured = now
	room, known := s.room()
	if !known || room >= memoryReserve || len(s.sources()) == 0 {
		return false
	}
	for _, src := range s.sources() {
		s.discard(src, unfitRoom, warmLine{}, now)
	}
	for local := range s.notBefore {
		s.notBefore[local] = now.Add(memoryRetry)
	}
	s.supplied(supplyShort, fmt.Sprintf("standbys were ended: the container's memory limit left %d MiB; "+
		"raise the limit or holdfast.dev/standby-memory", room>>20))
	return true
}

// fill starts a source for ranks that have none. fill returns when to look again; 0: no source is missing.
func (s *Standbys) fill(now time.Time) time.Duration {
	var wait time.Duration
	if s.serving == servesRank && s.pace == paceFull {
		return 0 // the number of ranks is unknown yet
	}
	for local, b := range s.slots {
		if b != nil {
			continue
		}
		if d := s.notBefore[local].Sub(now); d > 0 {
			wait = max(d, warmTick)
			continue
		}
		if why := s.lacksRoom(); why != "" {
			s.supplied(supplyShort, why)
			return memoryRetry
		}
		s.supplied(supplyOn, "")
		if s.since.IsZero() {
			s.since = now
		}
		if err := s.start(local, now); err != nil {
			s.supplied(supplyShort, err.Error())
			s.retryLater(now, s.together(local)...)
			return warmTick
		}
		return warmTick
	}
	return wait
}

// lacksRoom returns why there is no memory for another source beside the reserve; "": there is.
func (s *Standbys) lacksRoom() string {
	room, limited := s.room()
	need, needs := uint64(ampleMemory), "one needs memory that is not known yet, for which %d MiB are kept,"
	if took := cmp.Or(s.sourceTook, s.rankTook); took > 0 {
		need, needs = took+took/10+memoryReserve, "one needs %d MiB"
	}
	if !limited || room >= need {
		return ""
	}
	why := fmt.Sprintf("standbys wait: "+needs+" and the container's memory limit leaves %d MiB; "+
		"raise the limit or holdfast.dev/standby-memory", need>>20, room>>20)
	if s.serving == servesRank {
		why += "; each rank needs one of its own, because " + s.servingWhy
	}
	return why
}

// renew makes one source import new modules, and ends standbys that were forked before their source had imported them. renew reports
// whether there was anything to do.
func (s *Standbys) renew(now time.Time) bool {
	for _, src := range s.sources() {
		if !src.outdated(s.modules) {
			for _, b := range src.standbys {
				if b.state == standbyStale {
					b.rank.Kill()
					b.enter(standbyForking, Process{})
					s.lost = append(s.lost, b.local)
				}
			}
			continue
		}
		s.since = now
		if src.state == sourceAlone { // it becomes a rank, not a source
			s.discard(src, unfitOld, warmLine{}, now)
			return true
		}
		src.begin(s.job.own(s.run), s.modules, s.skipped(), now)
		return true
	}
	return false
}

// skipped are the modules that standbys leave out, by the user's setting and by what sources found.
func (s *Standbys) skipped() []string { return append(slices.Clone(s.job.Skip), s.without...) }

// importing returns the source that still imports.
func (s *Standbys) importing() *source {
	for _, b := range s.slots {
		if b != nil && b.source.imports() {
			return b.source
		}
	}
	return nil
}

// missing returns the number of sources that are not warm.
func (s *Standbys) missing() int {
	n := 0
	for _, b := range s.slots {
		if b == nil || b.source.imports() {
			n++
		}
	}
	if n > 0 && s.serving == servesPod {
		return 1
	}
	return n
}

// within returns the time in which all standbys should be warm.
func (s *Standbys) within() time.Duration {
	if s.serving == servesPod {
		return warmWithin
	}
	return warmEachWithin
}

// together returns the ranks of the source that would be started for one rank.
func (s *Standbys) together(local int) []int {
	if s.serving == servesRank {
		return []int{local}
	}
	all := make([]int, len(s.slots))
	for i := range all {
		all[i] = i
	}
	return all
}

// retryLater delays the next source of ranks whose source failed.
func (s *Standbys) retryLater(now time.Time, locals ...int) {
	for _, local := range locals {
		s.notBefore[local] = now.Add(min(standbyRetry<<min(s.failures[local], 10), standbyRetryMax))
		s.failures[local]++
	}
}

// start starts the source of one rank, or of all ranks.
func (s *Standbys) start(local int, now time.Time) error {
	locals := s.together(local)
	src, err := newSource(s.job, s.job.argv(local), s.job.Launch.Files, s.run, locals)
	if err != nil {
		return err
	}
	for _, b := range src.standbys {
		s.slots[b.local] = b
		go listen(s, src, b.line, func(said readyLine) { s.onStandbyMessage(b, said) })
	}
	go listen(s, src, src.control, func(said warmLine) { s.onSourceMessage(src, said) })
	go s.reap(src)
	src.begin(s.job.own(s.run), s.modules, s.skipped(), now)
	return nil
}
