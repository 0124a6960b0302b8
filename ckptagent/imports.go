package ckptagent

import "time"

// When a list of modules is taken for what standbys are to import. A script imports the last ones in its first step, where
// compilers and collectives are loaded lazily; where none is seen, some time has to do.
const (
	QuietAfterStep = 2 * time.Second
	settledAnyway  = 10 * time.Second
	quietOtherwise = 5 * time.Second
	// neverQuiet bounds how long a script that goes on importing is waited for.
	neverQuiet = 40 * time.Second
)

// Imports is what is known of one rank's imports: how many modules, since when it runs, when the last one came, and whether
// it has finished a step.
type Imports struct {
	Count          int
	Began, Changed time.Time
	Stepped        bool
	// Published is how many there were when the list was last settled; 0: it never was.
	Published int
	// Took is what the rank's memory was as the list grew.
	Took []Took
}

// Took is how much memory a rank used after it had imported this number of modules.
type Took struct {
	Modules int
	Bytes   uint64
}

// Memory estimates what the imports alone take, 0 where that is not known: the least that the rank had from half of its modules on, in
// proportion. Modules that it imports late it imports beside its model.
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

// Outgrown reports whether a list of so many modules is worth having where one of known is there.
func Outgrown(known, count int) bool {
	return count > 0 && (known == 0 || count-known > max(20, known/20))
}

// Settled reports whether the list is to be handed to standbys now: once it is quiet, and again where it has grown by so much
// that standbys would miss it.
func (i Imports) Settled(now time.Time) bool {
	if !Outgrown(i.Published, i.Count) {
		return false
	}
	running, quiet := now.Sub(i.Began), now.Sub(i.Changed)
	return i.Stepped && quiet >= QuietAfterStep || running >= settledAnyway && quiet >= quietOtherwise ||
		i.Published == 0 && running >= neverQuiet
}
