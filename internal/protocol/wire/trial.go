package wire

import (
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
)

func trialID(m *v1.TrialId) protocol.TrialID {
	return protocol.TrialID{Check: int64(m.GetCheck()), Round: int(m.GetRound()), Attempt: int(m.GetAttempt()), Partner: m.GetPartner()}
}

func trialIDMessage(t protocol.TrialID) *v1.TrialId {
	return &v1.TrialId{Check: uint64(t.Check), Round: uint32(t.Round), Attempt: uint32(t.Attempt), Partner: t.Partner}
}

func trial(m *v1.Trial) protocol.Trial {
	return protocol.Trial{
		TrialID: trialID(m.GetId()), BaseRank: int(m.GetBaseRank()), WorldSize: int(m.GetWorldSize()), Store: m.GetStore(),
		Imports: time.Duration(m.GetImportsSeconds()) * time.Second, Within: time.Duration(m.GetWithinSeconds()) * time.Second,
	}
}

func trialMessage(t protocol.Trial) *v1.Trial {
	if t == (protocol.Trial{}) {
		return nil
	}
	return &v1.Trial{
		Id: trialIDMessage(t.TrialID), BaseRank: uint32(t.BaseRank), WorldSize: uint32(t.WorldSize), Store: t.Store,
		ImportsSeconds: uint32(t.Imports / time.Second), WithinSeconds: uint32(t.Within / time.Second),
	}
}

func trialAnswers(ms []*v1.TrialAnswer) []protocol.TrialAnswer {
	var out []protocol.TrialAnswer
	for _, m := range ms {
		out = append(out, protocol.TrialAnswer{
			TrialID: trialID(m.GetId()), Outcome: protocol.TrialOutcome(m.GetOutcome()), Text: m.GetText(), Speed: m.GetSpeed(), Model: m.GetModel(),
			Backend: m.GetBackend(),
		})
	}
	return out
}

func trialAnswerMessages(all []protocol.TrialAnswer) []*v1.TrialAnswer {
	var out []*v1.TrialAnswer
	for _, a := range all {
		out = append(out, &v1.TrialAnswer{
			Id: trialIDMessage(a.TrialID), Outcome: string(a.Outcome), Text: a.Text, Speed: a.Speed, Model: a.Model, Backend: a.Backend,
		})
	}
	return out
}
