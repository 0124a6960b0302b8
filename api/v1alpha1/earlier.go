package v1alpha1

import "encoding/json"

// What earlier versions wrote into Gangs, from the version on that hack/upgrade-from names, becomes today's words here, where it is decoded.
// So nobody else knows the old words, and whoever writes a part of the status anew writes today's. The definition of the object has the old
// fields, too: the API server would drop them before anybody reads them.

// earlierCauses are the names that causes of replacements had.
var earlierCauses = map[string]string{"AgentSilent": CauseAgentUnreachable, "NodeSilent": CauseNodeUnreachable}

// UnmarshalJSON reads the record of any version.
func (s *RunStatus) UnmarshalJSON(data []byte) error {
	type asWritten RunStatus
	if err := json.Unmarshal(data, (*asWritten)(s)); err != nil {
		return err
	}
	if len(s.PendingReplacements) == 0 {
		s.PendingReplacements = s.Doomed
	}
	s.Doomed = nil
	for i := range s.PendingReplacements {
		s.PendingReplacements[i].rename()
	}
	for i := range s.Recoveries {
		for j := range s.Recoveries[i].Replaced {
			s.Recoveries[i].Replaced[j].rename()
		}
	}
	return nil
}

// rename is no UnmarshalJSON, which Replacement, that holds a Termination, would have for all of itself.
func (t *Termination) rename() {
	if now, ok := earlierCauses[t.Cause]; ok {
		t.Cause = now
	}
}

// UnmarshalJSON reads what any version says of held room.
func (h *HeldRoom) UnmarshalJSON(data []byte) error {
	type asWritten HeldRoom
	if err := json.Unmarshal(data, (*asWritten)(h)); err != nil {
		return err
	}
	if h.Kind == HeldClaim {
		h.Kind = HeldNomination
	}
	if len(h.Victims) == 0 {
		h.Victims, h.VictimPods = h.Leaving, h.LeavingPods
	}
	h.Leaving, h.LeavingPods = nil, 0
	return nil
}
