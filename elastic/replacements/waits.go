package replacements

import (
	"fmt"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// maxUnprotected bounds the text about processes that run instead of a launcher.
const maxUnprotected = 700

// WaitsFor returns, for users, which pod keeps the next generation from starting; "": none does.
func (rs *Replacements) WaitsFor(generation int64) string {
	for slot := range rs.ms.Each {
		if why := rs.Lacks(slot, generation); why != "" {
			return why
		}
	}
	return ""
}

// Lacks returns, for users, why the pod of a slot cannot start the next generation; "": it can.
func (rs *Replacements) Lacks(slot members.Slot, generation int64) string {
	m := rs.ms.At(slot)
	r, d := m.Report(), rs.For(slot)
	switch {
	case rs.Suspended(slot):
		return "the Job is suspended; waits for its pods to be re-created"
	case d != nil:
		return fmt.Sprintf("replaces %s of slot %d: %s", d.Where(), slot, d.Why())
	case m.Known() && rs.Fenced(m.Pod().UID):
		return fmt.Sprintf("waits for the replacement of pod %s in slot %d", m.Pod().Name, slot)
	case !m.Attached():
		return fmt.Sprintf("waits for the agent of slot %d", slot)
	case r.Terminating:
		return fmt.Sprintf("pod %s of slot %d is terminating; waits for its replacement", m.Pod().Name, slot)
	case rs.ms.Behind(slot):
		return fmt.Sprintf("pod %s of slot %d is at launcher %d of its command, the gang at launcher %d: waits until all pods are at the same launcher",
			m.Pod().Name, slot, max(1, r.Launch), rs.ms.Launch())
	case r.Ranks == 0:
		text := fmt.Sprintf("waits for the launcher of slot %d", slot)
		if r.Unprotected != "" {
			text += ": " + cause.Tail(r.Unprotected, maxUnprotected)
		}
		return text
	case r.Port == 0:
		return fmt.Sprintf("waits for a free port for pod %s of slot %d", m.Pod().Name, slot)
	case r.Address == "":
		return fmt.Sprintf("waits for the address of pod %s of slot %d", m.Pod().Name, slot)
	case generation > 0 && !m.Halted(generation):
		return fmt.Sprintf("waits for slot %d to halt generation %d", slot, generation)
	}
	return ""
}

// Leaves reports whether reports of a slot's pod do not count, or the pod must terminate.
func (rs *Replacements) Leaves(slot members.Slot) bool {
	return rs.Fenced(rs.ms.At(slot).Pod().UID) || rs.For(slot) != nil
}

// Stops reports whether a pod is terminating, or no longer holds its slot.
func (rs *Replacements) Stops(slot members.Slot, pod string) bool {
	m := rs.ms.At(slot)
	return rs.Fenced(pod) || !rs.ms.Holds(slot, pod) || m.Known() && m.Report().Terminating
}
