package elastic

import "holdfast.dev/holdfast/elastic/replacements"

// What is stored must fit into one object of the API server (1.5 MiB with all else that a Gang tells), also where all of
// 5,000 pods are evicted again and again. So pods are replaced by turns, and of those whose replacement has not begun
// (replacements.Shorten), or is over, only the first are stored, with the count of all.
const (
	// replacedAtOnce is how many pods are committed and not yet released at most: that these go must be known to the
	// coordinator that comes next.
	replacedAtOnce = 128
	// keptNewest is how many replaced pods are told of in the newest recovery, keptReplaced in each other one; keptRecoveries bounds the
	// recoveries, keptMessage the message of each.
	keptNewest     = 64
	keptReplaced   = 8
	keptRecoveries = 20
	keptMessage    = 700
)

// mayCommit is how many more pods may be committed now.
func (s *State) mayCommit() int {
	left := replacedAtOnce
	for i := range s.Record.Recoveries {
		for _, r := range s.Record.Recoveries[i].Replaced {
			if r.ReleasedAt.IsZero() {
				left--
			}
		}
	}
	return max(0, left)
}

// shorten leaves out pods that are out of their Job, beyond the first few: their own label fences them.
func (r *Recovery) shorten(most int) {
	r.ReplacedPods = max(r.ReplacedPods, len(r.Replaced))
	kept := r.Replaced[:0:0]
	for _, o := range r.Replaced {
		if len(kept) < most || o.ReleasedAt.IsZero() {
			kept = append(kept, o)
		}
	}
	r.Replaced = kept
}

// shorten leaves out what the coordinator that comes next can do without: it is told again which pods must go, but must
// know which of them are about to.
func (r *Record) shorten() {
	committed := map[string]bool{}
	for i := range r.Recoveries {
		most := keptReplaced
		if i == len(r.Recoveries)-1 {
			most = keptNewest
		}
		r.Recoveries[i].shorten(most)
		for _, o := range r.Recoveries[i].Replaced {
			committed[o.Pod] = o.ReleasedAt.IsZero()
		}
	}
	r.PendingPods = len(r.Terminations())
	r.PendingReplacements, r.Suspended = replacements.Shorten(r.PendingReplacements, r.Suspended, func(pod string) bool { return committed[pod] })
}

// Terminations are the pods that must go, each once.
func (r *Record) Terminations() []Termination {
	return replacements.Merge(r.PendingReplacements, r.Suspended)
}
