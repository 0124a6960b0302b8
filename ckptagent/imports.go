package ckptagent

import "time"

// These decide when a list of modules is complete enough for standbys. A script imports its last modules in its first step, when compilers
// and collectives are loaded lazily; if no step is seen, a time decides.
const (
	QuietAfterStep = 2 * time.Second
	settledAnyway  = 10 * time.Second
	quietOtherwise = 5 * time.Second
	// neverQuiet bounds the wait for a script that keeps importing.
	neverQuiet = 40 * time.Second
)

// Imports is the state of one rank's imports: the number of modules, since when the rank runs, when it imported the last one, and whether
// it has finished a step.
type Imports struct {
	Count          int
	Began, Changed time.Time
	Stepped        bool
	// Published is the number of modules when the list was last settled; 0: never.
	Published int
	// Took is the rank's memory while the list grew.
	Took []Took
}

// Took is a rank's memory after it had imported that many modules.
type Took struct {
	Modules int
	Bytes   uint64
}

// Memory estimates the memory of the imports alone, in bytes, 0: unknown. It scales the least memory that the rank had from half of its
// modules on: later modules are imported beside the model.
func (i Imports) Memory() uint64 {
	var least uint64
	for _, t := range i.Took {
		if t.Modules == 0 || t.Bytes == 0 || 2*t.Modules < i.Count {
			continue
		}
		if bytes := uint64(float64(t.Bytes) * max(1, float64(i.Count)/float64(t.Modules))); least == 0 || bytes < least {
			least = bytes
		}
	}
	return least
}

// Outgrown reports whether a list of count modules should replace one of known modules.
func Outgrown(known, count int) bool {
	return count > 0 && (known == 0 || count-known > max(20, known/20))
}

// Settled reports whether to pass the list to standbys now: once it has stopped growing, and again after it has outgrown the published
// list.
func (i Imports) Settled(now time.Time) bool {
	if !Outgrown(i.Published, i.Count) {
		return false
	}
	running, quiet := now.Sub(i.Began), now.Sub(i.Changed)
	return i.Stepped && quiet >= QuietAfterStep || running >= settledAnyway && quiet >= quietOtherwise ||
		i.Published == 0 && running >= neverQuiet
}
