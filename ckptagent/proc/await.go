//go:build linux

package proc

import (
	"regexp"
	"time"
)

const (
	// forkTimeout is how long a copy of a warm source is waited for, which takes hundredths of a second on a machine with time to
	// spare: a cold start takes seconds.
	forkTimeout = time.Second
	// importTimeout bounds the wait for a source that imports. A rank that starts cold would import the same.
	importTimeout = time.Minute
	// maxKnown and maxKnownBytes bound what others are told of modules, as the coordinator does.
	maxKnown, maxKnownBytes = 8192, 512 << 10
)

var moduleName = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// awaited is what a generation waits for.
type awaited struct {
	since time.Time
	over  chan struct{}
}

// Await has sources fork at once what the ranks of a generation lack. It returns a channel that is closed when no more standbys are
// worth waiting for; nil where none is now.
func (s *Standbys) Await() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.supply == supplyOff || s.awaited != nil {
		return nil
	}
	now := time.Now()
	if s.pace == paceFull && len(s.modules) > 0 && s.job != nil && s.importing() == nil {
		s.fill(now) // the look that does so may be to come yet
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

// Forgo ends the wait of a generation that is ended before its ranks have started.
func (s *Standbys) Forgo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaited != nil {
		close(s.awaited.over)
		s.awaited = nil
		s.poke()
	}
}

// worthwhile reports whether there is a rank whose standby comes sooner than a cold start would have it where it then is. A fork of a warm
// source does. A source that still imports does so for all its ranks, while cold ranks would each import the same beside one another:
// it is waited for where it was begun in an empty pod for several ranks, at full speed, or has half behind it, and none before it has
// failed.
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

// promising says that a source which still imports is worth waiting for.
func (s *Standbys) promising(b *standby) bool {
	src := b.source
	return src.imports() && s.failures[b.local] == 0 && (src.state == sourceHalfway || src.generation == 0 && src.shared())
}

// giveUp ends, at the end of a wait, a source that was waited for in vain: it hangs, and each generation would wait for it as long.
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

// sendable are the names that others may be told.
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
