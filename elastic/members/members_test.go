package members

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

func noneFenced(string) bool { return false }

var began = time.Unix(1_700_000_000, 0)

// podAt returns a pod with this name, created that many seconds after the first pod.
func podAt(name string, seconds int) Pod {
	return Pod{UID: name, Name: name, Created: began.Add(time.Duration(seconds) * time.Second)}
}

// take handles a report of a slot's pod, if the report counts.
func take(ms *Members, slot Slot, p Pod, r protocol.Report, fenced func(string) bool) Admission {
	a := ms.Admit(slot, p, &r, fenced)
	if a >= Admitted && !ms.At(slot).RecordRepeat(&r) {
		ms.Take(slot, p, &r, 1, began)
		ms.NoteRan(slot, 1, 0)
	}
	return a
}

// TestAdmit: of two pods of a slot the newer pod counts, and of two reports of an agent the later report. No report of a fenced pod counts.
func TestAdmit(t *testing.T) {
	old, heir := podAt("old", 0), podAt("heir", 1)
	twin := podAt("twin", 0) // created in the same second
	fences := func(uid string) func(string) bool { return func(pod string) bool { return pod == uid } }
	for name, tt := range map[string]struct {
		pod    Pod
		r      protocol.Report
		fenced string
		want   Admission
	}{
		"the same pod goes on":                    {old, protocol.Report{Incarnation: 1, Sequence: 6}, "", Admitted},
		"what it said comes late":                 {old, protocol.Report{Incarnation: 1, Sequence: 4}, "", Stale},
		"its agent began again":                   {old, protocol.Report{Incarnation: 2, Sequence: 1}, "", Admitted},
		"it is fenced":                            {old, protocol.Report{Incarnation: 1, Sequence: 6}, "old", Refused},
		"a newer pod":                             {heir, protocol.Report{Incarnation: 1}, "", Succeeds},
		"an older pod":                            {podAt("older", -1), protocol.Report{Incarnation: 9}, "", Refused},
		"of the same second, the other is fenced": {podAt("a", 0), protocol.Report{}, "old", Succeeds},
		"of the same second, it is not":           {podAt("a", 0), protocol.Report{}, "", Refused},
		"of the same second, by name":             {twin, protocol.Report{}, "", Succeeds},
	} {
		ms := New(1, Recorded{}, false)
		take(ms, 0, old, protocol.Report{Incarnation: 1, Sequence: 5, Ranks: 1}, noneFenced)
		if got := take(ms, 0, tt.pod, tt.r, fences(tt.fenced)); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
		if m := ms.At(0); tt.want < Admitted && (!m.Is("old") || m.Report().Sequence != 5) {
			t.Errorf("%s: pod %s, report %d: what does not count has changed it", name, m.Pod().UID, m.Report().Sequence)
		}
	}
}

// TestHandOver: a slot that was handed over has no state of the previous pod. That pod never gets the slot again.
func TestHandOver(t *testing.T) {
	ms, old, heir := New(2, Recorded{}, false), podAt("old", 0), podAt("heir", 1)
	take(ms, 0, old, protocol.Report{Generation: 1, State: protocol.StateRunning, Ranks: 3, FetchFailed: protocol.Mark{Step: 1}}, noneFenced)
	if !ms.At(0).RanIn(1) || ms.World() != 6 {
		t.Fatalf("ran: %t, world %d: slot 1 is taken to be as large", ms.At(0).RanIn(1), ms.World())
	}
	take(ms, 0, heir, protocol.Report{Ranks: 2}, noneFenced)
	if m := ms.At(0); !m.Is("heir") || m.RanIn(1) || m.FailedFetches() > 0 || ms.World() != 4 {
		t.Errorf("%s holds the slot, ran %t, failed %d fetches, world %d", m.Pod().UID, m.RanIn(1), m.FailedFetches(), ms.World())
	}
	if ms.Holds(0, "old") || !ms.Superseded("old") || !ms.Orphan(0, "old") || ms.TakesOver(old, heir, true) {
		t.Error("the pod before may hold the slot again")
	}
	if ms.Detach(0, "old") || !ms.Detach(0, "heir") || ms.At(0).Attached() {
		t.Error("the end of another pod's stream counts")
	}
}

// TestFailedFetchesAreBounded: only the newest failed fetches of an agent are stored.
func TestFailedFetchesAreBounded(t *testing.T) {
	ms := New(1, Recorded{}, false)
	last := protocol.Mark{Step: 10_000}
	for i := range last.Step {
		take(ms, 0, podAt("a", 0), protocol.Report{Sequence: uint64(i), FetchFailed: protocol.Mark{Step: i + 1}}, noneFenced)
	}
	if m := ms.At(0); m.FailedFetches() != MaxFailedFetches || !m.FailedFetch(last) {
		t.Errorf("%d fetches are remembered, of the newest %t", m.FailedFetches(), m.FailedFetch(last))
	}
}

// TestLevels: a step is common if every rank holds it. Slots with older steps than the lowest of the ranks' newest steps may be written
// again.
func TestLevels(t *testing.T) {
	for name, tt := range map[string]struct {
		ranks                int // that each pod reports
		sealed               [][]int64
		common, reclaimBelow int64
	}{
		"in step":                {1, [][]int64{{3, 4, 5}, {3, 4, 5}}, 5, 5},
		"one is behind":          {1, [][]int64{{3, 4, 5}, {2, 3, 4}}, 4, 4},
		"one has gone past it":   {1, [][]int64{{3, 5}, {3, 4}}, 3, 5},
		"nothing in common":      {1, [][]int64{{5}, {4}}, 0, 5},
		"a rank that is unknown": {2, [][]int64{{5}, {5}}, 0, 0},
	} {
		ms := New(2, Recorded{}, false)
		for slot, sealed := range tt.sealed {
			take(
				ms,
				Slot(slot),
				podAt("a", slot),
				protocol.Report{Ranks: tt.ranks, Rank: []protocol.Rank{{Sealed: protocoltest.FirstBranch(sealed...)}}},
				noneFenced,
			)
		}
		if c, r := ms.CommonStep(), ms.ReclaimBelow(ms.CommonStep()); c != tt.common || r != tt.reclaimBelow {
			t.Errorf("%s: common %d, reclaim below %d; want %d, %d", name, c, r, tt.common, tt.reclaimBelow)
		}
	}
}

// TestUnprotectedKeepsItsRemedy: the agent's text ends with the remedy, after up to three command lines.
func TestUnprotectedKeepsItsRemedy(t *testing.T) {
	ms := New(1, Recorded{}, false)
	runs := strings.Repeat("bash -c 'source venv/bin/activate' ", 12) + "write torchrun"
	take(ms, 0, podAt("a", 0), protocol.Report{Unprotected: runs}, noneFenced)
	if news := ms.Refresh(1, noneFenced); !strings.Contains(news.Unprotected, runs) || ms.Seen().Unprotected[0].Runs != runs {
		t.Errorf("event %q, status %+v", news.Unprotected, ms.Seen().Unprotected)
	}
}

// TestRefreshUnknownPods: the recorded commands count until all agents have reported. Then the reports count.
func TestRefreshUnknownPods(t *testing.T) {
	recorded := Seen{
		WholeCommand:    true,
		UnprotectedPods: 2,
		Unprotected:     []Unprotected{{Slot: 1, Pod: "b", Runs: "mpirun"}},
		Attached:        []Slot{1},
	}
	ms := New(2, Recorded{Seen: recorded}, false)
	take(ms, 0, podAt("a", 0), protocol.Report{Ranks: 1, Notes: []string{"n"}}, noneFenced)
	news := ms.Refresh(1, noneFenced)
	if s := ms.Seen(); !news.People || !s.WholeCommand || s.UnprotectedPods != 2 || !slices.Equal(s.Attached, []Slot{0}) ||
		!slices.Equal(s.Notes, []string{"n"}) {
		t.Errorf("%+v, %+v", news, s)
	}
	take(ms, 1, podAt("b", 0), protocol.Report{Ranks: 1}, noneFenced)
	news = ms.Refresh(1, noneFenced)
	if s := ms.Seen(); !news.Mended || !news.Orders || s.WholeCommand || s.UnprotectedPods != 0 || !ms.Launched() {
		t.Errorf("%+v, %+v", news, s)
	}
	if news := ms.Refresh(1, noneFenced); news != (News{}) {
		t.Errorf("nothing has changed, and it says %+v", news)
	}
}

// TestMixed: if some pods run whole commands and others launchers, the gang has a timeout, unless one of the commands may still start a
// launcher, or its pod is leaving.
func TestMixed(t *testing.T) {
	ms, none := New(2, Recorded{}, false), func(Slot) bool { return false }
	whole := protocol.Report{Ranks: 1, WholeCommand: true, Rank: []protocol.Rank{{}}}
	take(ms, 0, podAt("a", 0), whole, noneFenced)
	take(ms, 1, podAt("b", 0), protocol.Report{Ranks: 1}, noneFenced)
	from := time.Unix(1, 0)
	for _, c := range []struct {
		generation int64
		leaves     func(Slot) bool
		after      time.Duration
		want       bool
	}{
		{0, none, 0, false},
		{0, none, mixedTimeout, false}, // its first run
		{1, none, 2 * mixedTimeout, false},
		{1, none, 3*mixedTimeout - 1, false},
		{1, none, 3 * mixedTimeout, true},
		{1, func(slot Slot) bool { return slot == 0 }, 4 * mixedTimeout, false},
	} {
		if got := ms.NoteMixed(c.generation, c.leaves, from.Add(c.after)); got != c.want {
			t.Errorf("after %s in generation %d: too long: %t", c.after, c.generation, got)
		}
	}
}

// TestAtFault: the pod at fault is the one that other pods lost, if that is known, otherwise the pod of the failed rank.
func TestAtFault(t *testing.T) {
	ms := New(2, Recorded{}, false)
	take(ms, 1, podAt("b", 0), protocol.Report{Ranks: 1, Address: "10.0.0.2"}, noneFenced)
	for address, want := range map[string]Slot{"10.0.0.2": 1, "10.0.0.9": 0, "": 0} {
		if got := ms.AtFault(cause.Cause{Accused: address}); got != want {
			t.Errorf("accused %q: slot %d", address, got)
		}
	}
}

// TestStepped: one rank that has made a step of its own is enough: others may evaluate. The step that was restored is none of its own.
func TestStepped(t *testing.T) {
	steps := func(steps ...int64) (r protocol.Report) {
		for i, n := range steps {
			r.Rank = append(r.Rank, protocol.Rank{Local: i, Step: n})
		}
		return r
	}
	optimizer := func(n int64, bytes uint64) protocol.Report {
		return protocol.Report{Rank: []protocol.Rank{{}, {Local: 1, OptimizerSteps: n}}, StateBytes: bytes}
	}
	for name, c := range map[string]struct {
		r        protocol.Report
		restored int64
		want     bool
	}{
		"none yet":                           {steps(7, 7), 7, false},
		"one rank":                           {steps(7, 8), 7, true},
		"the restored step is unknown":       {steps(7, 8), -1, false},
		"all, by the agent's timeline":       {protocol.Report{Timeline: protocol.Timeline{FirstStep: began}}, -1, true},
		"one optimizer step":                 {optimizer(1, 0), 0, true},
		"one optimizer step of a saved step": {optimizer(1, 1), 0, false},
		"two of them":                        {optimizer(2, 1), 0, true},
	} {
		ms := New(1, Recorded{}, false)
		c.r.Generation, c.r.Ranks = 3, 2
		take(ms, 0, podAt("a", 0), c.r, noneFenced)
		if got := ms.At(0).Stepped(3, c.restored); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if ms.At(0).Stepped(4, c.restored) {
			t.Errorf("%s: the steps of another generation count", name)
		}
	}
}
