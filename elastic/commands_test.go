package elastic

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestLateLaunchersAreBounded: again and again the launcher of a gang starts late, and its container ends before the next generation
// begins. Neither counts as a failure at first, but then the gang is given up.
func TestLateLaunchersAreBounded(t *testing.T) {
	s, now, seq := New(1, 0, Record{}), time.Unix(1_700_000_000, 0), uint64(0)
	report := func(containers int, state protocol.AgentState, ranks int, whole bool) {
		seq++
		now = now.Add(time.Second)
		r := protocol.Report{Incarnation: uint64(containers), Containers: uint64(containers), Sequence: seq, Address: "a", Port: 1, State: state,
			Generation: s.generation.Number, Ranks: ranks, Rank: make([]protocol.Rank, ranks), WholeCommand: whole}
		if state == protocol.StateHalted && !whole {
			r.LeftForLauncher = s.generation.Number
		}
		for _, f := range Step(s, Reported{Pod: Pod{UID: "u", Name: "p", Created: time.Unix(1, 0)}, Report: r}, now) {
			if p, ok := f.(Persist); ok {
				Step(s, Stored{Revision: p.Revision, Generation: p.Record.Generation}, now)
			}
		}
	}
	round := 1
	for ; s.Record.Verdict == nil; round++ {
		if round > 100 {
			t.Fatalf("generation %d, %d restarts", s.generation.Number, s.rec().Restarts)
		}
		report(round, protocol.StateHalted, 1, true)
		report(round, protocol.StateRunning, 1, true)
		report(round, protocol.StateHalted, 0, false)
		if free := min(round, account.MaxExcused); s.Record.Verdict == nil && s.rec().Restarts != round-free {
			t.Fatalf("%d restarts after %d late launchers", s.rec().Restarts, round)
		}
	}
	if v := s.Record.Verdict; v.Reason != ReasonNoProgress || round < protocol.RestartsWithoutProgress {
		t.Fatalf("verdict %+v in round %d", v, round)
	}
}

// TestAnotherLeaderHandsTheFirstGenerationOutAgain: a coordinator ends while it orders the first generation of whole commands. The next
// coordinator sends the order to a pod that has not received it, and no command is ended. If a pod was replaced or ran the generation
// before, all commands are ended.
func TestAnotherLeaderHandsTheFirstGenerationOutAgain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(r *Record, missed *protocol.Report)
		want   protocol.Order
	}{
		{"missed", func(*Record, *protocol.Report) {}, protocol.OrderRun},
		{"its container was started again", func(_ *Record, m *protocol.Report) { m.Containers = 2 }, protocol.OrderHalt},
		{"its command has ended", func(_ *Record, m *protocol.Report) { m.Rank[0].Exit = &protocol.Exit{Code: 1} }, protocol.OrderHalt},
		{"its launcher has come", func(_ *Record, m *protocol.Report) { m.WholeCommand = false }, protocol.OrderHalt},
		{"all have run it", func(r *Record, _ *protocol.Report) { r.StartedAt = time.Unix(5, 0) }, protocol.OrderHalt},
		{"others were restarted", func(r *Record, _ *protocol.Report) { r.Restarts = 1 }, protocol.OrderHalt},
	} {
		record := Record{Generation: 1, Phase: Running, Progress: Progress{Seen: members.Seen{WholeCommand: true, Ranks: 3}}}
		missed := protocol.Report{State: protocol.StateIdle}
		missed.Ranks, missed.Rank, missed.WholeCommand, missed.Containers = 1, make([]protocol.Rank, 1), true, 1
		tt.change(&record, &missed)
		s, now := New(3, 0, record), time.Unix(1_700_000_000, 0)
		for slot, r := range []protocol.Report{
			missed,
			{State: protocol.StateRunning, Generation: 1, Ranks: 1, Rank: make([]protocol.Rank, 1), WholeCommand: true, Containers: 1},
			{State: protocol.StateRunning, Generation: 1, Ranks: 1, Rank: make([]protocol.Rank, 1), WholeCommand: true, Containers: 1},
		} {
			r.Incarnation, r.Sequence, r.Address, r.Port = 1, 1, "a", 1
			for _, f := range Step(s, Reported{
				Slot:   Slot(slot),
				Pod:    Pod{UID: string(rune('a' + slot)), Name: "p", Created: time.Unix(1, 0)},
				Report: r,
			}, now) {
				if p, ok := f.(Persist); ok {
					Step(s, Stored{Revision: p.Revision, Generation: p.Record.Generation}, now)
				}
			}
			if d := s.Directive(0, "a"); slot < 2 && tt.want == protocol.OrderRun && d.Order != protocol.OrderWait {
				t.Errorf("%s: %+v before all are known", tt.name, d)
			}
		}
		d := s.Directive(0, "a")
		if d.Order != tt.want ||
			d.Order == protocol.OrderRun && (d.Run.Number != 1 || d.Run.Nodes != 3 || d.Run.WorldSize != 3 || d.Run.RestartCount != 0) {
			t.Errorf("%s: %+v", tt.name, d)
		}
		if d := s.Directive(1, "b"); d.Order != tt.want {
			t.Errorf("%s: a pod that runs it gets %+v", tt.name, d)
		}
	}
}

// TestWhoHasNotMissedTheFirstGeneration: the next coordinator does not repeat the order for a pod that must be replaced, nor for a
// replacement pod, whose predecessor's command has ended, nor while another pod has restarted without its ranks.
func TestWhoHasNotMissedTheFirstGeneration(t *testing.T) {
	type told struct {
		slot    Slot
		pod     string
		created int64
		change  func(*protocol.Report)
	}
	missed := func(r *protocol.Report) { r.State, r.Generation = protocol.StateIdle, 0 }
	runs := func(*protocol.Report) {}
	goes := func(r *protocol.Report) { missed(r); r.Terminating = true }
	for name, c := range map[string]struct {
		told []told
		want protocol.Order // for the pod of slot 1, which runs the generation
	}{
		"one that is to go":                         {[]told{{0, "a", 1, goes}, {1, "b", 1, runs}}, protocol.OrderRun},
		"in the place of one that missed it":        {[]told{{0, "a", 1, goes}, {1, "b", 1, runs}, {0, "a2", 9, missed}}, protocol.OrderHalt},
		"in the place of one that ran it":           {[]told{{0, "a", 1, runs}, {0, "a2", 9, missed}, {1, "b", 1, runs}}, protocol.OrderHalt},
		"beside one that came back without its own": {[]told{{0, "a", 1, missed}, {1, "b", 1, func(r *protocol.Report) { r.State = protocol.StateIdle }}}, protocol.OrderHalt},
	} {
		s, now := New(
			2,
			0,
			Record{Generation: 1, Phase: Running, Progress: Progress{Seen: members.Seen{WholeCommand: true, Ranks: 2}}},
		), time.Unix(
			1_700_000_000,
			0,
		)
		for _, of := range c.told {
			r := protocol.Report{
				State:        protocol.StateRunning,
				Generation:   1,
				Ranks:        1,
				Rank:         make([]protocol.Rank, 1),
				WholeCommand: true,
				Containers:   1,
				Incarnation:  1,
				Sequence:     1,
				Address:      "a",
				Port:         1,
			}
			of.change(&r)
			for _, f := range Step(s, Reported{Slot: of.slot, Pod: Pod{UID: of.pod, Name: "p", Created: time.Unix(of.created, 0)}, Report: r}, now) {
				if p, ok := f.(Persist); ok {
					Step(s, Stored{Revision: p.Revision, Generation: p.Record.Generation}, now)
				}
			}
		}
		if d := s.Directive(1, "b"); d.Order != c.want || d.Run.WorldSize != 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
