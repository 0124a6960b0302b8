package members

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// savesPerSecond is the most saves of a rank that count, of each result: far more than a script makes, which limits a false report's
	// effect.
	savesPerSecond = 1000
	// savesAtOnce is how long such saves may accumulate before a report.
	savesAtOnce = time.Minute
)

// savesSeen is the reported saves of a pod's ranks in one generation. Every process counts its own from 0.
type savesSeen struct {
	generation int64
	// begun: this coordinator had a report of the pod before that generation, so that all of its saves count.
	begun bool
	// counts are the last reported ones, by local rank; nil: none was reported yet.
	counts []*protocol.Saves
	// credit is the remaining time for which saves may count at once, as of at.
	credit time.Duration
	at     time.Time
}

// countSaves returns how many more saves a report has than the previous ones, of all ranks together. Saves in a pod's first report to this
// coordinator were counted by an earlier one.
func (m *Member) countSaves(r *protocol.Report, now time.Time) (more protocol.Saves) {
	seen := &m.saves
	if !m.known {
		*seen = savesSeen{generation: r.Generation, credit: savesAtOnce, at: now}
	}
	if seen.generation != r.Generation {
		seen.generation, seen.begun, seen.counts = r.Generation, true, nil
	}
	for len(seen.counts) < len(r.Rank) {
		seen.counts = append(seen.counts, nil)
	}
	seen.credit, seen.at = min(savesAtOnce, seen.credit+max(0, now.Sub(seen.at))), now
	most, spent := uint32(seen.credit.Seconds()*savesPerSecond), uint32(0)
	for i := range r.Rank {
		saves := r.Rank[i].Saves
		if saves == nil {
			continue
		}
		from := seen.counts[i]
		if from == nil && seen.begun {
			from = &protocol.Saves{}
		}
		if from != nil {
			n := savesSince(*saves, *from, most)
			spent = max(spent, n.Copied, n.Overlapped, n.Dropped, n.Skipped, n.Refused)
			more.Copied, more.Overlapped, more.Dropped = more.Copied+n.Copied, more.Overlapped+n.Overlapped, more.Dropped+n.Dropped
			more.Skipped, more.Refused = more.Skipped+n.Skipped, more.Refused+n.Refused
		}
		seen.counts[i] = saves
	}
	seen.credit -= time.Duration(spent) * (time.Second / savesPerSecond)
	return more
}

// savesSince returns the difference of two counts, at most most of each. If a count has fallen, it is a new process's, and counts whole.
func savesSince(saves, from protocol.Saves, most uint32) protocol.Saves {
	if saves.Copied < from.Copied || saves.Overlapped < from.Overlapped || saves.Dropped < from.Dropped || saves.Skipped < from.Skipped ||
		saves.Refused < from.Refused {
		from = protocol.Saves{}
	}
	return protocol.Saves{
		Copied: min(
			most,
			saves.Copied-from.Copied,
		), Overlapped: min(most, saves.Overlapped-from.Overlapped), Dropped: min(most, saves.Dropped-from.Dropped),
		Skipped: min(most, saves.Skipped-from.Skipped), Refused: min(most, saves.Refused-from.Refused),
	}
}
