package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// keptUnprotected bounds the pods that are named: as a rule all pods of a gang have the same command.
const keptUnprotected = 4

// mixedPatience is how long some pods of a gang may start ranks with a launcher while the whole command of others counts as one
// rank and its first run is over, so that it starts no launcher any more. It is more than agents wait for the generation of a
// command that has ended.
const mixedPatience = 15 * time.Minute

// commands brings up to date what runs in pods that is not as people expect: nothing under the agent, or the whole command as one
// rank. While a coordinator has not heard all pods, what the one before it told stands.
func (s *State) commands() {
	p := &s.Record.Progress
	found, n, whole, all := []Unprotected(nil), 0, false, true
	launched := s.launched
	for i := range s.slots {
		m := &s.slots[i]
		all = all && m.known
		if !m.known || s.Fenced(m.pod.UID) {
			continue
		}
		whole = whole || m.report.WholeCommand && m.report.Ranks > 0
		launched = launched || s.hasLauncher(&m.report)
		if runs := m.report.Unprotected; runs != "" {
			if n++; n <= keptUnprotected {
				found = append(found, Unprotected{Slot(i), m.pod.Name, cause.Tail(runs, 200)})
			}
		}
	}
	if !all {
		whole = whole || p.WholeCommand
		if n < p.UnprotectedPods {
			found, n = p.Unprotected, p.UnprotectedPods
		}
	}
	switch {
	case n > 0 && p.UnprotectedPods == 0:
		s.emit(Tell{Notice{Warning: true, Reason: NoticeUnprotected, Message: unprotected(found[0], n)}})
	case n == 0 && p.UnprotectedPods > 0:
		s.emit(Tell{Notice{Reason: NoticeUnprotected, Message: "is over: no pod runs anything but ranks under its agent"}})
	}
	if launched != s.launched {
		s.launched = launched
		s.emit(Direct{})
	}
	if n != p.UnprotectedPods || whole != p.WholeCommand || !slices.Equal(found, p.Unprotected) {
		p.Unprotected, p.UnprotectedPods, p.WholeCommand = found, n, whole
		s.emit(Touch{})
		s.emit(Direct{})
	}
}

// unprotected says what is found and what to do.
func unprotected(u Unprotected, pods int) string {
	more := ""
	if pods > 1 {
		more = fmt.Sprintf(" (and %d more)", pods-1)
	}
	return fmt.Sprintf("pod %s of slot %d%s: no rank was started under its agent, and nothing restarts what runs there: %s; "+
		"start the ranks with torchrun, python -m torch.distributed.run or another launcher that docs/launchers.md lists, and create the job again", u.Pod, u.Slot, more, u.Runs)
}

// hasLauncher says whether a pod starts its ranks with a launcher, or is to: it tells of ranks a moment after it has left the generation
// for them.
func (s *State) hasLauncher(r *Report) bool {
	return !r.WholeCommand && !r.Leaving && (r.Ranks > 0 || s.leftForLauncher(r))
}

// leftForLauncher says whether a pod left the newest generation, or did not begin it, for the ranks of a launcher.
func (s *State) leftForLauncher(r *Report) bool {
	return r.LeftForLauncher > 0 && r.LeftForLauncher == s.Record.Generation
}

// firstRunGoesOn says whether a whole command may start a launcher yet: its first run belongs to no generation and has not ended.
func (s *State) firstRunGoesOn(m *member) bool {
	return s.Record.Generation == 0 && len(m.report.Rank) > 0 && m.report.Rank[0].Exit == nil
}

// mixedForGood says why a gang cannot run whose pods are mixed, where no whole command among them may start a launcher yet; "": it may.
func (s *State) mixedForGood() string {
	for i := range s.slots {
		if m := &s.slots[i]; m.known && m.report.WholeCommand && s.firstRunGoesOn(m) {
			return ""
		}
	}
	return s.mixed()
}

// trackMixed takes note of since when commands are mixed for good.
func (s *State) trackMixed(now time.Time) {
	switch mixed := s.mixedForGood() != ""; {
	case !mixed:
		s.mixedSince = time.Time{}
	case s.mixedSince.IsZero():
		s.mixedSince = now
	}
}

// mixed says why a gang cannot run of which some pods' one rank is the whole command and others start ranks with a launcher; "": it
// is none. One of them would restart what the other goes on with.
func (s *State) mixed() string {
	whole, launched := -1, -1
	for i := range s.slots {
		switch m := &s.slots[i]; {
		case !m.known || m.report.Ranks == 0 || s.Fenced(m.pod.UID) || s.doom(Slot(i)) != nil:
		case m.report.WholeCommand && whole < 0:
			whole = i
		case !m.report.WholeCommand && launched < 0:
			launched = i
		}
	}
	if whole < 0 || launched < 0 {
		return ""
	}
	return fmt.Sprintf("pod %s of slot %d runs its whole command as one rank, and pod %s of slot %d starts its ranks with a launcher: give all pods of the job the same command",
		s.slots[whole].pod.Name, whole, s.slots[launched].pod.Name, launched)
}
