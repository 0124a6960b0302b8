//go:build linux

package proc

import (
	"cmp"
	"time"
)

// onSourceMessage handles a source's message.
func (s *Standbys) onSourceMessage(src *source, said warmLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !src.lives() {
		return
	}
	if said.Half {
		src.enter(sourceHalfway)
	}
	if !said.Warm {
		return
	}
	now := time.Now()
	if because := judge(src, said); because != fit {
		s.discard(src, because, said, now)
		return
	}
	defer s.poke()
	if src.begun == 1 {
		s.cost = max(src.ration.used, time.Second/10)
		for _, b := range src.standbys {
			s.failures[b.local] = 0
		}
	}
	if said.Alone == "" {
		src.enter(sourceWarm)
		s.prove()
	} else {
		src.enter(sourceAlone)
	}
	if s.missing() == 0 {
		s.since = time.Time{}
	}
	src.ration.goOn(now, false)
	s.sourceTook = cmp.Or(said.Memory, s.sourceTook)
	for _, b := range src.standbys {
		if src.begun > 1 && b.state == standbyReady {
			b.enter(standbyStale, b.rank)
		}
	}
	src.fork(now) // from now on the source is not stopped
}

// onStandbyMessage records that a standby waits. Its pid is accepted only if it is the source's, for a source of one rank, or a process of
// the job's own in its own session: the agent will kill that pid with its session.
func (s *Standbys) onStandbyMessage(b *standby, said readyLine) {
	if !said.Ready {
		return
	}
	s.mu.Lock()
	src, job := b.source, *s.job
	s.mu.Unlock()
	copied, isCopy := Process{}, false
	if said.PID != src.process.PID {
		copied, isCopy = job.ownSession(said.PID) // outside the lock: it may start a program
	}
	s.mu.Lock()
	if !src.lives() {
		s.mu.Unlock()
		return
	}
	rank := src.process
	switch {
	case isCopy:
		rank = copied
		go s.watch(b, rank)
	case said.PID == rank.PID && !src.shared():
		src.enter(sourceAlone)
	default:
		s.mu.Unlock() // it has ended and its source forks another, or it is a foreign process
		return
	}
	if said.Learned < src.begun { // forked before its source imported more, but received after that
		b.enter(standbyStale, rank)
	} else {
		b.enter(standbyReady, rank)
	}
	s.poke()
	s.mu.Unlock()
	s.publish(b.local)
}

// watch waits for the end of a standby that did not become its rank; its source forks another.
func (s *Standbys) watch(b *standby, rank Process) {
	waitGone(rank)
	s.mu.Lock()
	lost := b.source.lives() && b.rank == rank
	if lost {
		b.enter(standbyForking, Process{})
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
	s.discard(src, unfitDied, warmLine{}, time.Now())
}
