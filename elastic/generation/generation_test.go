package generation

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

var start = time.Unix(1_700_000_000, 0)

// gang is a generation of pods "a", "b" …, with their reports.
type gang struct {
	*Generation
	reports []protocol.Report
}

func newGang(pods int, r Recorded) *gang {
	ms := members.New(pods, members.Recorded{}, true)
	g := &gang{reports: make([]protocol.Report, pods)}
	g.Generation = New(r, ms, replacements.New(ms, nil, nil, 0, nil), ledger.New(0, ledger.Recorded{}), account.New(account.Recorded{}))
	for i := range g.reports {
		g.reports[i] = protocol.Report{Incarnation: 1, Ranks: 1, Generation: r.Number, State: protocol.StateRunning, Rank: []protocol.Rank{{}}}
	}
	return g
}

func pod(slot members.Slot) members.Pod {
	name := string('a' + rune(slot))
	return members.Pod{UID: name, Name: name}
}

// report changes the report of a slot's pod and sends it.
func (g *gang) report(slot members.Slot, change func(*protocol.Report)) {
	r := g.reports[slot]
	change(&r)
	g.ms.Take(slot, pod(slot), &r, g.Number, start)
	g.ms.NoteRan(slot, g.Number, 0)
	g.KeepExits(slot)
	g.reports[slot] = r
}

func (g *gang) all(change func(*protocol.Report)) {
	for slot := range g.ms.Each {
		g.report(slot, change)
	}
}

func ends(code, signal int) func(*protocol.Report) {
	return func(r *protocol.Report) {
		r.State, r.Rank = protocol.StateFailed, []protocol.Rank{{Exit: &protocol.Exit{Code: code, Signal: signal, At: start}}}
	}
}

func same(*protocol.Report) {}

// TestBegin: the next generation restores what all ranks hold, and has new levels and no exits.
func TestBegin(t *testing.T) {
	g := newGang(2, Recorded{Number: 3})
	g.all(ends(1, 0))
	g.all(func(r *protocol.Report) { r.Rank = []protocol.Rank{{Sealed: protocoltest.FirstBranch(4, 6)}} })
	g.report(1, func(r *protocol.Report) { r.Rank = []protocol.Rank{{Sealed: protocoltest.FirstBranch(4)}} })
	from := g.Begin(start, start)
	if from.Step != 4 || g.Number != 4 || g.RestoreStep != 4 || g.CommonStep() != 4 || g.firstExit() != nil || g.ExitBytes(0) != 0 {
		t.Errorf("generation %+v begins from %+v with %v", g.Recorded, from, g.firstExit())
	}
	if r, ok := g.Run(1, "b"); !ok || r.WorldSize != 2 || r.BaseRank != 1 || r.RestoreStep != 4 {
		t.Errorf("b runs %+v, %t", r, ok)
	}
	if _, ok := g.Run(1, "another"); ok {
		t.Error("a pod that takes no part runs it")
	}
	lost := func(r *protocol.Report) { r.Generation, r.State, r.Incarnation = 4, protocol.StateIdle, 2 }
	if g.report(0, lost); !g.Lost(0) || g.Lost(1) {
		t.Errorf("ranks are lost with another incarnation: %t, with none: %t", g.Lost(0), g.Lost(1))
	}
	g.Adopt(9)
	if g.Number != 9 || g.Restored() != (protocol.Run{}) {
		t.Errorf("adopted is %+v, restored %+v", g.Recorded, g.Restored())
	}
}

// TestCause: the rank that failed first is the cause, unless its pod ended before that, or a dead peer explains its failure.
func TestCause(t *testing.T) {
	dead := replacements.Termination{Slot: 1, Pod: "b", Name: "b", Cause: "XidFatal", Dead: true}
	for name, c := range map[string]struct {
		happens func(*gang)
		want    cause.Code
		slot    int
	}{
		"nothing is reported": {func(*gang) {}, cause.RanksLost, -1},
		"a script fails":      {func(g *gang) { g.report(1, ends(7, 0)) }, cause.RankFailed, 1},
		"a killed rank of a pod that terminates": {func(g *gang) {
			g.report(0, ends(137, 9))
			g.report(0, func(r *protocol.Report) { r.Terminating = true })
		}, cause.PodLost, 0},
		"a dead pod, whose peer lost it": {func(g *gang) {
			g.rs.SetPending([]replacements.Termination{dead}, start)
			g.report(0, ends(1, 0))
		}, cause.PodReplaced, 1},
		"a dead pod that had reported its exit": {func(g *gang) {
			g.report(1, ends(7, 0))
			g.rs.SetPending([]replacements.Termination{dead}, start)
		}, cause.RankFailed, 1},
		"a container that was restarted": {func(g *gang) {
			g.report(1, func(r *protocol.Report) { r.State = protocol.StateIdle })
			g.report(0, ends(1, 0))
		}, cause.ContainerRestarted, 1},
	} {
		g := newGang(2, Recorded{Number: 1})
		g.all(same)
		c.happens(g)
		if got := g.Cause(Suspect{}); got.Code != c.want || got.Slot != c.slot {
			t.Errorf("%s: %+v, want %s in slot %d", name, got, c.want, c.slot)
		}
	}
}

// TestBlame: a termination explains lost ranks, failures in its own slot, and failures in the slot of another terminating pod.
func TestBlame(t *testing.T) {
	pressing := &cause.Cause{Code: cause.PodReplaced, Slot: 1}
	for name, c := range map[string]struct {
		lost *cause.Cause
		want cause.Code
	}{
		"nothing else is known": {nil, cause.PodReplaced},
		"ranks are gone":        {&cause.Cause{Code: cause.RanksLost, Slot: 0}, cause.PodReplaced},
		"another slot":          {&cause.Cause{Code: cause.LauncherStarted, Slot: 0}, cause.LauncherStarted},
		"the same slot":         {&cause.Cause{Code: cause.LauncherStarted, Slot: 1}, cause.PodReplaced},
		"a pod that must go":    {&cause.Cause{Code: cause.LauncherStarted, Slot: 2}, cause.PodReplaced},
	} {
		g := newGang(3, Recorded{Number: 1})
		g.all(same)
		g.rs.SetPending([]replacements.Termination{{Slot: 2, Pod: "c", Name: "c", Cause: "XidFatal"}}, start)
		if got := g.Blame(c.lost, pressing); got.Code != c.want {
			t.Errorf("%s: %s, want %s", name, got.Code, c.want)
		}
	}
}

// TestExitsAreThoseOfRanks: a pod has at most as many exits as ranks, whatever its agent reports about other ranks.
func TestExitsAreThoseOfRanks(t *testing.T) {
	const most = 64
	g := newGang(2, Recorded{Number: 1})
	for n := 1; n <= most; n++ {
		g.report(1, func(r *protocol.Report) {
			r.Ranks, r.Rank, r.State = n, nil, protocol.StateFailed
			for i := range n {
				r.Rank = append(r.Rank, protocol.Rank{Local: i, Exit: &protocol.Exit{Code: 1, Traceback: "ValueError: x", At: start}})
			}
		})
	}
	if bytes := g.ExitBytes(1); len(g.exits) != most || bytes != most*int64(exitBytes+len("ValueError: x")) {
		t.Errorf("%d exits are kept, said to be %d bytes, want %d exits", len(g.exits), bytes, most)
	}
}

// TestSurvivesWithout: a step survives the end of pods if another rank holds it and may give it, and not if all of these leave at once.
func TestSurvivesWithout(t *testing.T) {
	g := newGang(4, Recorded{Number: 3})
	holds := func(steps ...int64) func(*protocol.Report) {
		return func(r *protocol.Report) {
			r.State, r.Rank = protocol.StateHalted, []protocol.Rank{{Span: 1, Grouped: true, Sealed: protocoltest.FirstBranch(steps...)}}
		}
	}
	g.all(holds(100))
	if g.SurvivesWithout(1) {
		t.Error("the step of a gang without a minimum survives without one of its pods")
	}
	g.ms.SetElastic(1)
	g.report(2, holds())
	g.report(3, holds())
	for _, c := range []struct {
		without []members.Slot
		want    bool
	}{
		{[]members.Slot{2}, true}, {[]members.Slot{1}, true}, {[]members.Slot{2, 3}, true}, {[]members.Slot{0, 2}, true},
		{[]members.Slot{0, 1}, false},
	} {
		if got := g.SurvivesWithout(c.without...); got != c.want {
			t.Errorf("without slots %d: %t", c.without, got)
		}
	}
	g.report(1, holds())
	if g.SurvivesWithout(0) {
		t.Error("the step survives without the only pod that holds it")
	}
}
