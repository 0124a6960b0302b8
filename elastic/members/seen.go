package members

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// Seen is what users see of a gang's pods. It is recorded.
type Seen struct {
	Ranks         int
	StandbysReady int
	Attached      []Slot
	Notes         []string
	// Unprotected are the first of the UnprotectedPods in which processes run but no rank does; WholeCommand: the one rank of each pod is
	// its whole command.
	Unprotected     []Unprotected
	UnprotectedPods int
	WholeCommand    bool
}

// Unprotected is a pod in which no rank runs under its agent, and the command that runs there.
type Unprotected struct {
	Slot Slot
	Pod  string
	Runs string
}

// maxNotes bounds the recorded notes, maxUnprotected the listed pods: usually all pods of a gang have the same command. maxNote bounds the
// text of a note, maxRuns that about such a pod: two or three command lines and the remedy.
const maxNotes, maxUnprotected, maxNote, maxRuns = 10, 4, 200, 700

// Seen returns what users see of the pods now; it shares nothing with them.
func (ms *Members) Seen() Seen {
	s := ms.seen
	s.Attached, s.Notes, s.Unprotected = slices.Clone(s.Attached), slices.Clone(s.Notes), slices.Clone(s.Unprotected)
	return s
}

// WholeCommand reports whether each pod's one rank is its whole command.
func (ms *Members) WholeCommand() bool { return ms.seen.WholeCommand }

// News is what Refresh has changed.
type News struct {
	// People: what users see has changed; Orders: directives may change as well.
	People, Orders bool
	// Unprotected is the text for users; "": none. Mended: no pod is unprotected any more.
	Unprotected string
	Mended      bool
}

// Refresh updates what users see. Until all agents have reported to this coordinator, its predecessor's record about commands stays. fenced
// reports whether the reports of a pod are ignored.
func (ms *Members) Refresh(generation int64, fenced func(pod string) bool) News {
	next, all, launched := Seen{Ranks: ms.seen.Ranks, Attached: []Slot{}, Notes: []string{}}, true, ms.launched
	for i := range ms.slots {
		m := &ms.slots[i]
		all = all && (m.known || !ms.Takes(Slot(i)))
		if !m.known {
			continue
		}
		next.see(Slot(i), m)
		if fenced(m.pod.UID) {
			continue
		}
		next.WholeCommand = next.WholeCommand || m.report.WholeCommand && m.report.Ranks > 0
		launched = launched || HasLauncher(&m.report, generation)
		if runs := m.report.Unprotected; runs != "" {
			if next.UnprotectedPods++; next.UnprotectedPods <= maxUnprotected {
				next.Unprotected = append(next.Unprotected, Unprotected{Slot(i), m.pod.Name, cause.Tail(runs, maxRuns)})
			}
		}
	}
	old := &ms.seen
	if !all {
		next.WholeCommand = next.WholeCommand || old.WholeCommand
		if next.UnprotectedPods < old.UnprotectedPods {
			next.Unprotected, next.UnprotectedPods = old.Unprotected, old.UnprotectedPods
		}
	}
	commands := next.UnprotectedPods != old.UnprotectedPods || next.WholeCommand != old.WholeCommand ||
		!slices.Equal(next.Unprotected, old.Unprotected)
	news := News{
		People: commands || next.StandbysReady != old.StandbysReady || !slices.Equal(next.Attached, old.Attached) ||
			!slices.Equal(next.Notes, old.Notes),
		Orders: commands || launched != ms.launched,
		Mended: next.UnprotectedPods == 0 && old.UnprotectedPods > 0,
	}
	if next.UnprotectedPods > 0 && old.UnprotectedPods == 0 {
		news.Unprotected = unprotected(next.Unprotected[0], next.UnprotectedPods)
	}
	ms.seen, ms.launched = next, launched
	return news
}

// see adds what users see of a pod.
func (s *Seen) see(slot Slot, m *Member) {
	if m.attached {
		s.Attached = append(s.Attached, slot)
	}
	for _, n := range m.report.Notes {
		if n = cause.Tail(n, maxNote); len(s.Notes) < maxNotes && !slices.Contains(s.Notes, n) {
			s.Notes = append(s.Notes, n)
		}
	}
	if m.attached {
		s.StandbysReady += standbysReady(&m.report)
	}
}

func standbysReady(r *protocol.Report) (n int) {
	for i := range r.Rank {
		if r.Rank[i].StandbyReady {
			n++
		}
	}
	return n
}

// WarmUp reports whether standbys of this slot, or of a slot that takes part, are not ready, where the pods of the gang have some.
func (ms *Members) WarmUp(slot Slot) bool {
	short := func(m *Member) bool { return standbysReady(&m.report) < m.report.Ranks }
	some := !ms.All(func(m *Member) bool { return m.report.ModulesKnown == 0 })
	return some && (short(ms.At(slot)) || !ms.All(func(m *Member) bool { return !short(m) }))
}

// SameToPeople reports whether two reports are equal in all that Refresh reads.
func SameToPeople(a, b *protocol.Report) bool {
	return slices.Equal(a.Notes, b.Notes) && standbysReady(a) == standbysReady(b) && a.Unprotected == b.Unprotected &&
		a.WholeCommand == b.WholeCommand && (a.Ranks > 0) == (b.Ranks > 0) &&
		a.LeftForLauncher == b.LeftForLauncher && a.Terminating == b.Terminating
}

// unprotected returns a note with the finding and the remedy.
func unprotected(u Unprotected, pods int) string {
	more := ""
	if pods > 1 {
		more = fmt.Sprintf(" (and %d more)", pods-1)
	}
	return fmt.Sprintf("pod %s of slot %d%s: the agent started no rank, and nothing restarts the processes that run there: %s; "+
		"start the ranks with torchrun, python -m torch.distributed.run or another launcher that docs/launchers.md lists, "+
		"and create the job again", u.Pod, u.Slot, more, u.Runs)
}

// Launched reports whether the newest generation's ranks were started with launchers, so that they may be again.
func (ms *Members) Launched() bool { return ms.launched }

// NoteLaunched records how the ranks of a new generation are started: all pods use the same way.
func (ms *Members) NoteLaunched(generation int64) {
	ms.launched = HasLauncher(&ms.slots[ms.First()].report, generation)
}

// HasLauncher reports whether a pod starts its ranks with a launcher, or will: the agent reports ranks a moment after the pod left the
// generation for them.
func HasLauncher(r *protocol.Report, generation int64) bool {
	return !r.WholeCommand && !r.Terminating && (r.Ranks > 0 || LeftForLauncher(r, generation))
}

// LeftForLauncher reports whether a pod left the newest generation, or did not start it, because a launcher starts its
// ranks.
func LeftForLauncher(r *protocol.Report, generation int64) bool {
	return r.LeftForLauncher > 0 && r.LeftForLauncher == generation
}

// inFirstRun reports whether a whole command may still start a launcher: its first run belongs to no generation and has not ended.
func (m *Member) inFirstRun(generation int64) bool {
	return generation == 0 && len(m.report.Rank) > 0 && m.report.Rank[0].Exit == nil
}

// mixedTimeout is how long a gang may be mixed: some pods start ranks with a launcher, and in others the whole command is the one rank,
// whose first run is over, so that no launcher will start there. It is longer than agents wait for the generation of a command that has
// ended.
const mixedTimeout = 15 * time.Minute

// NoteMixed records since when commands have been mixed for good, and reports whether that is too long. leaves: see Mixed.
func (ms *Members) NoteMixed(generation int64, leaves func(Slot) bool, now time.Time) (tooLong bool) {
	switch mixed := ms.mixedFinally(generation, leaves); {
	case !mixed:
		ms.mixedSince = time.Time{}
	case ms.mixedSince.IsZero():
		ms.mixedSince = now
	}
	return !ms.mixedSince.IsZero() && now.Sub(ms.mixedSince) >= mixedTimeout
}

// mixedFinally reports whether a gang is mixed and none of its whole commands may still start a launcher.
func (ms *Members) mixedFinally(generation int64, leaves func(Slot) bool) bool {
	return ms.All(func(m *Member) bool { return !m.known || !m.report.WholeCommand || !m.inFirstRun(generation) }) && ms.Mixed(leaves) != ""
}

// Mixed returns why a gang cannot run because in some pods the whole command is the one rank, while others start ranks with a launcher; "":
// it is not mixed. Each kind would restart what the other continues. Pods that leave do not count.
func (ms *Members) Mixed(leaves func(Slot) bool) string {
	whole, launched := Slot(-1), Slot(-1)
	for slot, m := range ms.Each {
		switch {
		case !m.known || m.report.Ranks == 0 || leaves(slot):
		case m.report.WholeCommand && whole < 0:
			whole = slot
		case !m.report.WholeCommand && launched < 0:
			launched = slot
		}
	}
	if whole < 0 || launched < 0 {
		return ""
	}
	return fmt.Sprintf("pod %s of slot %d runs its command as one rank, and pod %s of slot %d starts its ranks with a launcher: "+
		"give all pods of the job the same command", ms.slots[whole].pod.Name, whole, ms.slots[launched].pod.Name, launched)
}
