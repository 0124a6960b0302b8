//go:build linux

package proc

import (
	"regexp"
	"time"
)

const (
	// forkTimeout is how long to wait for a fork of a warm source, which takes some 10 ms on an idle machine; a cold start takes seconds.
	forkTimeout = time.Second
	// importTimeout bounds the wait for a source that imports. A cold rank would import the same modules.
	importTimeout = time.Minute
	// maxKnown and maxKnownBytes bound the modules in a report, as the coordinator does.
	maxKnown, maxKnownBytes = 8192, 512 << 10
)

var moduleName = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// awaited is the wait of a generation for standbys.
type awaited struct {
	since time.Time
	over  chan struct{}
}

// Await makes sources fork the missing standbys of a generation at once. Await returns a channel that is closed when waiting no longer
// pays; nil if it does not pay now.
func (s *Standbys) Await() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.supply == supplyOff || s.awaited != nil {
		return nil
	}
	now := time.Now()
	if s.pace == paceFull && len(s.modules) > 0 && s.job != nil && s.importing() == nil {
		s.fill(now) // the next tick may be late
	}
	s.awaited = &awaited{since: now, over: make(chan struct{})}
	for _, src := range s.sources() {
		if src.warmed() {
			src.fork(now)
		}
	}
	if !s.worthwhile(now) {
		s.awaited = nil
		return nil
	}
	s.poke()
	return s.awaited.over
}

// Forgo ends the wait of a generation that ends before its ranks have started.
func (s *Standbys) Forgo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaited != nil {
		close(s.awaited.over)
		s.awaited = nil
		s.poke()
	}
}

// worthwhile reports whether some rank's standby would be ready before a cold start had imported as much. A fork of a warm source is. A
// source that still imports does so once for all its ranks, while cold ranks would each import at the same time: it is worth the wait if it
// serves several ranks and began at full speed in a pod without ranks, or has imported half, and no source before it has failed.
func (s *Standbys) worthwhile(now time.Time) bool {
	waited := now.Sub(s.awaited.since)
	for _, b := range s.slots {
		switch {
		case b == nil || b.waits():
		case b.source.warmed() && now.Sub(b.asked) < forkTimeout:
			return true
		case s.promising(b) && waited < importTimeout:
			return true
		}
	}
	return false
}

// promising reports whether a source that still imports is worth waiting for.
func (s *Standbys) promising(b *standby) bool {
	src := b.source
	return src.imports() && s.failures[b.local] == 0 && (src.state == sourceHalfway || src.generation == 0 && src.shared())
}

// giveUp discards, at the end of a wait, a source that did not become ready: each generation would wait for it as long.
func (s *Standbys) giveUp(now time.Time) {
	if now.Sub(s.awaited.since) < importTimeout {
		return
	}
	for _, b := range s.slots {
		if b != nil && s.promising(b) {
			s.discard(b.source, unfitDied, warmLine{}, now)
		}
	}
}

// sendable returns the module names that a report may have.
func sendable(modules []string) []string {
	names, bytes := []string{}, 0
	for _, name := range modules {
		if !moduleName.MatchString(name) {
			continue
		}
		if bytes += len(name); len(names) == maxKnown || bytes > maxKnownBytes {
			break
		}
		names = append(names, name)
	}
	return names
}
