//go:build linux

package proc

import (
	"fmt"
	"slices"
	"time"
)

// onSourceMessage takes in what a source says of itself.
func (s *Standbys) onSourceMessage(src *source, said warmLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := src.standbys[0]; s.slots[first.local] != first {
		return
	}
	src.half = src.half || said.Half
	if !said.Warm {
		return
	}
	defer s.poke()
	again := src.rss > 0
	switch {
	case len(said.Without) > 0:
		s.leaveOut(said)
		s.forget(src) // and another one is begun without
		return
	case said.CUDA: // it would hold memory of the device: better cold than in the way
		s.off = "standbys are off: a module that the script imports opens a GPU context at import"
		s.forget(src)
		return
	case said.Alone != "" && (src.shared() || src.early):
		s.perRank = said.Alone
		s.forget(src)
		return
	case said.Alone != "" && again: // it has forked and cannot any more; the next one becomes the rank itself
		s.forget(src)
		return
	}
	if !again {
		s.cost = max(src.used, time.Second/10)
		for _, b := range src.standbys {
			s.failures[b.local] = 0
		}
	}
	src.warmed, src.rss = true, max(said.RSS, 1)
	if s.missing() == 0 {
		s.since = time.Time{}
	}
	src.goOn(time.Now())
	if said.Alone == "" {
		s.prove()
	}
	if said.RSS > 0 {
		s.need = said.RSS + said.RSS/10
	}
	for _, b := range src.standbys {
		b.stale = again && b.ready
	}
	src.fork(time.Now()) // from now on nobody stops it
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
		s.withoutWhy = fmt.Sprintf("standbys leave modules out, which ranks import themselves: %s; name such modules in holdfast.dev/standby-skip-modules to spare sources the attempt", said.Why)
	}
	if len(s.without) == before || len(s.without) > maxWithout {
		s.off = "standbys are off: " + said.Why
	}
}

// onStandbyMessage takes in that a standby waits for its line.
func (s *Standbys) onStandbyMessage(b *standby, said readyLine) {
	if !said.Ready {
		return
	}
	s.mu.Lock()
	if s.slots[b.local] != b {
		s.mu.Unlock()
		return
	}
	rank := b.source.process
	if said.PID != rank.PID {
		st, err := readStat(said.PID)
		own, _ := isMarked(said.PID, st, s.job.Mark)
		if err != nil || said.PID <= 1 || st.session != said.PID || !own {
			s.mu.Unlock() // it is gone again: its source forks another one; or says the pid of what it is not, which is nobody's to kill
			return
		}
		rank = Process{PID: said.PID, Start: st.start}
		go s.watch(b, rank)
	}
	b.rank, b.ready = rank, true
	b.stale = said.Learned < b.source.begun // forked before, heard after what its source says of having learned more
	s.poke()
	s.mu.Unlock()
	s.publish(b.local)
}

// watch hears of the end of a copy that was not taken; its source forks another one.
func (s *Standbys) watch(b *standby, rank Process) {
	waitGone(rank)
	s.mu.Lock()
	lost := s.slots[b.local] == b && b.rank == rank
	if lost {
		b.rank, b.ready = Process{}, false
	}
	s.mu.Unlock()
	if lost {
		s.publish(b.local)
	}
}

// reap waits for the end of a source, or of the rank that it became.
func (s *Standbys) reap(src *source) {
	src.ended <- src.process.Wait(s.exits)
	close(src.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(src, time.Now())
}

// fail ends a source that is of no use, unless that was done, and puts off the next one of all the ranks that it serves.
func (s *Standbys) fail(src *source, now time.Time) {
	if first := src.standbys[0]; first.local >= len(s.slots) || s.slots[first.local] != first {
		return
	}
	s.forget(src)
	for _, b := range src.standbys {
		s.retryLater(now, b.local)
	}
}
