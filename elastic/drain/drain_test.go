package drain

import (
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

var start = time.Unix(1_700_000_000, 0)

// gang has pods "a" and "b", of which "a" must be replaced.
type gang struct {
	*Drain
	reports [2]protocol.Report
}

func newGang(dead bool) *gang {
	ms := members.New(2, members.Recorded{}, true)
	rs, l, a := replacements.New(ms, nil, nil, 0, nil), ledger.New(time.Minute, ledger.Recorded{}), account.New(account.Recorded{})
	g := &gang{Drain: New(ms, rs, l, a, generation.New(generation.Recorded{Number: 1}, ms, rs, l, a))}
	g.NoteStart(start)
	for slot := range g.reports {
		g.reports[slot] = protocol.Report{
			Incarnation: 1,
			Ranks:       1,
			Generation:  1,
			State:       protocol.StateRunning,
			StateBytes:  1,
			Storage:     true,
			Rank:        []protocol.Rank{{Step: 4, Sealed: protocoltest.FirstBranch(4)}},
		}
	}
	g.all(func(*protocol.Report) {}, start)
	rs.SetPending([]replacements.Termination{{Pod: "a", Name: "a", Cause: "XidFatal", Dead: dead}}, start)
	return g
}

func (g *gang) all(change func(*protocol.Report), now time.Time) {
	for slot := range g.reports {
		r := &g.reports[slot]
		change(r)
		name := string('a' + rune(slot))
		g.ms.Take(members.Slot(slot), members.Pod{UID: name, Name: name}, r, 1, now)
		g.ms.NoteRan(members.Slot(slot), 1, 0)
	}
	g.generation.NoteSealed(now)
}

// TestDrainWhileTraining: all ranks stay at a step ahead of them, and the pod to be replaced copies that step. Only then is the drain over.
func TestDrainWhileTraining(t *testing.T) {
	g, now := newGang(false), start
	if o := g.Advance(now); !o.Directives || g.Since() != start || g.Over() {
		t.Fatalf("at first: %+v, over: %t", o, g.Over())
	}
	step, _ := g.Barrier()
	if step <= 4 {
		t.Fatalf("the barrier %d is not ahead of step 4", step)
	}
	for range 30 {
		now = now.Add(100 * time.Millisecond)
		g.all(func(r *protocol.Report) {
			r.BarrierStep, r.Rank = step, []protocol.Rank{{Step: step, Sealed: protocoltest.FirstBranch(step)}}
		}, now)
		g.Advance(now)
	}
	_, mark := g.Barrier()
	if mark.Step != step || g.Over() {
		t.Fatalf("copied is to be %+v, want step %d; over: %t", mark, step, g.Over())
	}
	g.all(func(r *protocol.Report) { r.Rank[0].Copied.Mark = mark }, now)
	if o := g.Advance(now); !g.Over() || !o.Save || o.Note == nil || o.Note.Warning {
		t.Errorf("once it is copied: %+v, over: %t", o, g.Over())
	}
	if !g.Drop() || g.Drop() || g.Begun() {
		t.Error("a dropped drain has begun")
	}
}

// TestUndrainable: a drain that cannot lead to a copy ends at once or after its time, with the reason.
func TestUndrainable(t *testing.T) {
	for want, c := range map[string]struct {
		dead  bool
		after time.Duration
		is    func(*protocol.Report)
	}{
		"is dead":                      {true, 0, func(*protocol.Report) {}},
		"has no storage":               {false, 0, func(r *protocol.Report) { r.Storage = false }},
		"state is not kept in memory":  {false, 0, func(r *protocol.Report) { r.StateBytes = 0 }},
		"timed out after 1m0s":         {false, time.Minute, func(*protocol.Report) {}},
		"not all agents are connected": {false, 11 * time.Second, func(r *protocol.Report) { r.State = protocol.StateIdle }},
	} {
		g := newGang(c.dead)
		g.all(c.is, start)
		g.Advance(start)
		if o := g.Advance(start.Add(c.after)); !g.Over() || o.Note == nil || !o.Note.Warning || !strings.Contains(o.Note.Message, want) {
			t.Errorf("%s: %+v, over: %t", want, o.Note, g.Over())
		}
	}
}

// TestCopyOnceHalted: while all ranks are halted, the pod to be replaced copies the step from which training would continue, and no other
// step.
func TestCopyOnceHalted(t *testing.T) {
	g := newGang(false)
	g.all(func(r *protocol.Report) { r.State = protocol.StateHalted }, start)
	if o := g.AdvanceHalted(start); !o.Directives || g.HaltedOver() || g.NothingOwed(start) || g.Halted().Step != 4 {
		t.Fatalf("asked for is %+v: %+v", g.Halted(), o)
	}
	mark := g.Halted()
	g.all(func(r *protocol.Report) { r.Rank[0].Copied.Mark = mark }, start)
	if o := g.AdvanceHalted(start); !o.Save || !g.HaltedOver() || g.Halted() != (protocol.Mark{}) {
		t.Errorf("once it is copied %+v is asked for: %+v", g.Halted(), o)
	}
	g = newGang(false)
	g.all(func(r *protocol.Report) { r.State, r.Storage = protocol.StateHalted, false }, start)
	if o := g.AdvanceHalted(start); !g.HaltedOver() || o.Save {
		t.Errorf("without storage %+v is asked for: %+v", g.Halted(), o)
	}
}
