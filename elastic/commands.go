package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// keptUnprotected bounds how many pods are listed: usually all pods of a gang have the same command.
const keptUnprotected = 4

// mixedTimeout is how long a gang may be mixed: some pods start ranks with a launcher, and in others the whole command
// is the one rank, whose first run is over, so that no launcher will start there. It is longer than agents wait for the
// generation of a command that has ended.
const mixedTimeout = 15 * time.Minute

// commands updates what the record says of pods that run something unexpected: no rank under the agent, or the whole
// command as one rank. Until all agents have reported to this coordinator, what the previous one recorded stays.
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
		s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeUnprotected, Message: unprotected(found[0], n)}})
	case n == 0 && p.UnprotectedPods > 0:
		s.emit(EmitEvent{Notice{Reason: NoticeUnprotected, Message: "is resolved: every pod runs only ranks under its agent"}})
	}
	if launched != s.launched {
		s.launched = launched
		s.emit(Broadcast{})
	}
	if n != p.UnprotectedPods || whole != p.WholeCommand || !slices.Equal(found, p.Unprotected) {
		p.Unprotected, p.UnprotectedPods, p.WholeCommand = found, n, whole
		s.emit(PersistLater{})
		s.emit(Broadcast{})
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

// hasLauncher reports whether a pod starts its ranks with a launcher, or will: the agent reports ranks a moment after
// the pod left the generation for them.
func (s *State) hasLauncher(r *protocol.Report) bool {
	return !r.WholeCommand && !r.Terminating && (r.Ranks > 0 || s.leftForLauncher(r))
}

// leftForLauncher reports whether a pod left the newest generation, or did not start it, because a launcher starts its
// ranks.
func (s *State) leftForLauncher(r *protocol.Report) bool {
	return r.LeftForLauncher > 0 && r.LeftForLauncher == s.Record.Generation
}

// firstRunContinues reports whether a whole command may still start a launcher: its first run belongs to no generation
// and has not ended.
func (s *State) firstRunContinues(m *member) bool {
	return s.Record.Generation == 0 && len(m.report.Rank) > 0 && m.report.Rank[0].Exit == nil
}

// mixedFinally returns why a mixed gang cannot run once none of its whole commands may still start a launcher; "" where
// it may.
func (s *State) mixedFinally() string {
	for i := range s.slots {
		if m := &s.slots[i]; m.known && m.report.WholeCommand && s.firstRunContinues(m) {
			return ""
		}
	}
	return s.mixed()
}

// trackMixed records since when commands have been finally mixed.
func (s *State) trackMixed(now time.Time) {
	switch mixed := s.mixedFinally() != ""; {
	case !mixed:
		s.mixedSince = time.Time{}
	case s.mixedSince.IsZero():
		s.mixedSince = now
	}
}

// mixed returns why a gang cannot run in which the whole command is the one rank of some pods while others start ranks
// with a launcher; "" where it is not mixed. Each kind would restart what the other continues.
func (s *State) mixed() string {
	whole, launched := -1, -1
	for i := range s.slots {
		switch m := &s.slots[i]; {
		case !m.known || m.report.Ranks == 0 || s.Fenced(m.pod.UID) || s.terminationFor(Slot(i)) != nil:
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
