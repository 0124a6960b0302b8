package elastic

// What is stored must fit into one object of the API server (1.5 MiB with all else that a Gang tells), also where all of
// 5,000 pods are evicted again and again. So pods are replaced by turns, and of those whose replacement has not begun, or
// is over, only the first are stored, with the count of all. Of those that this package itself gave up more are: nobody tells
// the next coordinator of them. Should there be more yet, it awaits their agents anew.
const (
	// replacedAtOnce is how many pods are committed and not yet released at most: that these go must be known to the
	// coordinator that comes next.
	replacedAtOnce = 128
	// keptPending is how many pods are told of beside those, keptGivenUp how many of those that were given up here, with
	// message and node of the first keptPending; keptNewest of the newest recovery's and keptReplaced of each
	// other's; keptRecoveries bounds the recoveries, keptMessage the message of each, keptTerminationMessage that of each pod.
	keptPending            = 64
	keptGivenUp            = 1024
	keptNewest             = 64
	keptReplaced           = 8
	keptRecoveries         = 20
	keptMessage            = 700
	keptTerminationMessage = 300
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
	others, own := 0, 0
	kept := r.PendingReplacements[:0:0]
	for _, d := range r.PendingReplacements {
		stays := true
		switch {
		case committed[d.Pod]:
		case d.ownVerdict():
			if own++; own > keptPending {
				d.Message, d.Node = "", ""
			}
			stays = own <= keptGivenUp
		default:
			others++
			stays = others <= keptPending
		}
		if stays {
			kept = append(kept, d)
		}
	}
	r.PendingReplacements = kept
	r.Suspended = r.Suspended[:min(len(r.Suspended), max(0, keptPending-others))]
}
