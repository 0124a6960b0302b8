package nodehealth

import (
	"fmt"
	"testing"
	"time"
)

func TestSwitchErrorsThatAreAlwaysFatal(t *testing.T) {
	for code, want := range map[int]Cause{
		10003: SwitchError,
		10004: SwitchReport,
		23000: SwitchReport,
		23001: SwitchError,
		23017: SwitchError,
		23018: SwitchReport,
	} {
		if got := ofSXid(code, false); got != want || ofSXid(code, true) != SwitchError {
			t.Errorf("SXid %d is %s, not %s", code, got, want)
		}
	}
}

// TestTheLeastIsForgotten: a full state drops the finding with the weakest action; of several such findings it drops the one of the last
// row.
func TestTheLeastIsForgotten(t *testing.T) {
	s := New("boot")
	s.touch(GPULost, Signal{Device: "worst"}).confirmed = true
	s.touch(UnknownXid, Signal{Device: "least"})
	for i := len(s.findings); i < maxFindings; i++ {
		s.touch(GPUReport, Signal{Device: fmt.Sprint(i)})
	}
	s.touch(GPUReport, Signal{Device: "new"})
	held := map[string]bool{}
	for _, f := range s.findings {
		held[f.device] = true
	}
	if len(s.findings) != maxFindings || !held["worst"] || !held["new"] || held["least"] {
		t.Errorf("%d findings; the worst is there: %v, the new one: %v, the least: %v", len(s.findings), held["worst"], held["new"], held["least"])
	}
}

// TestJoined: two findings turn out to belong to one device. The finding of an earlier process stays, or else the older one.
func TestJoined(t *testing.T) {
	at := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	for name, c := range map[string]struct{ g, f, want finding }{
		"the other is older":     {finding{first: at(5), text: "g"}, finding{first: at(3), text: "f"}, finding{first: at(3), text: "f"}},
		"the other is newer":     {finding{first: at(5), text: "g"}, finding{first: at(9), text: "f"}, finding{first: at(5), text: "g"}},
		"the other was told":     {finding{first: at(5), text: "g"}, finding{first: at(9), text: "f", restored: true}, finding{first: at(9), text: "f", restored: true}},
		"it was told itself":     {finding{first: at(5), text: "g", restored: true}, finding{first: at(3), text: "f"}, finding{first: at(5), text: "g", restored: true}},
		"the other is confirmed": {finding{first: at(5), text: "g"}, finding{first: at(9), text: "f", confirmed: true}, finding{first: at(5), text: "g", confirmed: true}},
	} {
		if got := joined(c.g, c.f); got != c.want {
			t.Errorf("%s: %+v, not %+v", name, got, c.want)
		}
	}
}

// TestAnOldWordOfTheDriver: an old reset request in the kernel log must be confirmed.
func TestAnOldWordOfTheDriver(t *testing.T) {
	for age, want := range map[time.Duration]Action{time.Second: Evict, HoldOffBlind + time.Second: Exclude} {
		s := Fold(New("boot"), Signal{At: epoch.Add(-age), Kind: RecoveryChanged, Source: Kmsg, Device: "p", Code: RecoveryGPUReset}, epoch)
		if v := Assess(s, epoch); v.Action != want {
			t.Errorf("%s old: %s, not %s", age, v.Action, want)
		}
	}
}
