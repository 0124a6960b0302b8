package elastic

import (
	"cmp"
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// A container that ends while a generation runs is a failure of that generation. One that ends while the gang forms ends no generation. If
// the kubelet restarts it, each end counts here like a failure, whatever its exit code; after as many as remain of the restarts without
// progress, the gang is given up. Kubernetes does not count containers that were killed whole (137, by restart rules); with restartPolicy
// OnFailure the Job counts them as well, under backoffLimit. Only the pod whose container ended most often counts: one cause may end the
// containers of many pods at once.

// containerEnded counts a container that ended and was restarted while the gang forms.
func (s *State) containerEnded(slot Slot, now time.Time) {
	m, f := s.members.At(slot), s.run.forming
	if s.Record.Phase != Forming || !s.members.Takes(slot) || s.replacements.For(slot) != nil ||
		m.Report().Containers <= f.containers[slot]+f.deaths {
		return
	}
	f.deaths = m.Report().Containers - f.containers[slot]
	c := cause.Cause{
		Code:    cause.ContainerRestarted,
		Rank:    -1,
		Slot:    int(slot),
		Message: containerEnds(m.Pod(), slot, f.deaths, s.generation.Number+1),
	}
	reason, bound := ReasonNoProgress, fmt.Sprintf("%d restarts without progress", protocol.RestartsWithoutProgress)
	if most, said := s.members.MaxRestarts(); said {
		reason, bound = ReasonMaxRestarts, fmt.Sprintf("%d restarts", most)
	}
	if left, _ := s.restartsLeft(); int(f.deaths) > left {
		s.becomeFinal(Verdict{Reason: reason, ExitCode: cmp.Or(c.ExitCode, 1), Cause: &c, At: now}, GivenUp)
		s.emit(Broadcast{})
		return
	}
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeRecovering, Message: fmt.Sprintf("%s; the job is given up after %s", c.Message, bound)}})
}

// containerEnds describes how often a container ended before a generation could begin.
func containerEnds(p Pod, slot Slot, times uint64, next int64) string {
	how, often := "", "once"
	if times > 1 {
		often = fmt.Sprintf("%d times", times)
	}
	if p.Restarted != "" {
		how = ", most recently with " + p.Restarted
	}
	return fmt.Sprintf("the container of pod %s in slot %d ended %s before generation %d began%s", p.Name, slot, often, next, how)
}
