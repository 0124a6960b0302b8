package coordinator

import (
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/elastic/cause"
	nodecheck "holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/internal/protocol"
)

// trialBytes is the memory of an answer to a trial, without texts; maxUID bounds the UID of its partner.
const trialBytes, maxUID = 128, 64

// checkTrials refuses answers that no correct agent sends.
func checkTrials(r *protocol.Report) error {
	for i, a := range r.Trials {
		switch {
		case a.Check < 0 || a.Check > protocol.MaxGeneration:
			return status.Errorf(codes.InvalidArgument, "trials[%d].id.check %d", i, a.Check)
		case a.Round < 0 || a.Round >= int(nodecheck.Rounds):
			return status.Errorf(codes.InvalidArgument, "trials[%d].id.round %d, below %d", i, a.Round, nodecheck.Rounds)
		case a.Attempt < 0 || a.Attempt > nodecheck.LastAttempt:
			return status.Errorf(codes.InvalidArgument, "trials[%d].id.attempt %d, %d at most", i, a.Attempt, nodecheck.LastAttempt)
		case len(a.Partner) > maxUID:
			return status.Errorf(codes.InvalidArgument, "trials[%d].id.partner has %d bytes, %d at most", i, len(a.Partner), maxUID)
		case len(a.Outcome) > maxUID:
			return status.Errorf(codes.InvalidArgument, "trials[%d].outcome has %d bytes, %d at most", i, len(a.Outcome), maxUID)
		case len(a.Backend) > maxUID:
			return status.Errorf(codes.InvalidArgument, "trials[%d].backend has %d bytes, %d at most", i, len(a.Backend), maxUID)
		case math.IsNaN(a.Speed) || a.Speed < 0 || math.IsInf(a.Speed, 0):
			return status.Errorf(codes.InvalidArgument, "trials[%d].speed %g", i, a.Speed)
		}
	}
	return nil
}

// cleanTrials shortens texts of answers and makes them printable.
func cleanTrials(r *protocol.Report) {
	for i := range r.Trials {
		for _, text := range []*string{&r.Trials[i].Text, &r.Trials[i].Model, &r.Trials[i].Backend} {
			*text = cause.Cut(cause.Printable(cause.Cut(*text, protocol.MaxTrialText)), protocol.MaxTrialText)
		}
	}
}

// sizeOfTrials estimates the memory of answers.
func sizeOfTrials(all []protocol.TrialAnswer) (n int) {
	for _, a := range all {
		n += trialBytes + len(a.Partner) + len(a.Outcome) + len(a.Text) + len(a.Model) + len(a.Backend)
	}
	return n
}
