package preview

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/settings"
)

// Storage is what the steps of a job take of its claim.
type Storage struct {
	Claim string `json:"claim"`
	// Step is the largest size of one step of all ranks. Steps is how many steps are kept at once: those kept by number, one that
	// they supersede and one that is being written, without those kept by time or pinned.
	Step  int64 `json:"step"`
	Steps int64 `json:"steps"`
	Room  int64 `json:"room"`
	// Every is at which pace steps stay besides, up to EveryMost of them; 0: none do.
	Every     time.Duration `json:"every,omitempty"`
	EveryMost int64         `json:"everyMost,omitempty"`
}

// storage counts what steps take of the claim.
func (p Preview) storage(a Answers) *Storage {
	s, errs := settings.JobSettings(a.Job)
	if p.Injection == nil || len(errs) > 0 || s.StorageClaim == "" {
		return nil
	}
	out := &Storage{
		Claim: s.StorageClaim,
		Step:  p.Injection.StateBytes * int64(p.Injection.Ranks) * int64(p.Members),
		Steps: max(v1alpha1.MinKept, int64(s.Keep)) + 2,
	}
	out.Room = out.Step * out.Steps
	if s.KeepEvery > 0 {
		out.Every, out.EveryMost = s.KeepEvery, v1alpha1.MaxKeptEvery
	}
	return out
}

// text says what room the claim should have.
func (s *Storage) text(w *page.Page) {
	more := ""
	if s.Every > 0 {
		more = fmt.Sprintf(", and up to %d × %s = %s more for one each %s", s.EveryMost, page.Bytes(s.Step), page.Bytes(s.EveryMost*s.Step), s.Every)
	}
	w.Wrapf("  storage: ", "claim %s should have room for %d × %s = %s, %s for each pin%s", s.Claim, s.Steps, page.Bytes(s.Step), page.Bytes(s.Room), page.Bytes(s.Step), more)
}
