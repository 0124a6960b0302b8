package elastic

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestPodsGivenUpOutliveTheCoordinator: the agents of given-up pods send no reports, so the next coordinator must read these pods from the
// record.
func TestPodsGivenUpOutliveTheCoordinator(t *testing.T) {
	const pods = 1000
	now := time.Unix(1_700_000_000, 0)
	s := New(pods, 0, Record{Generation: 1, Phase: Running, Progress: Progress{Seen: members.Seen{Ranks: pods}}})
	s.becomeHalting(generation.Suspect{}, now)
	for i := range pods {
		s.replacements.GiveUp(
			Termination{
				Slot:     Slot(i),
				Pod:      fmt.Sprint("uid-", i),
				Name:     fmt.Sprint("pod-", i),
				Cause:    replacements.AgentUnreachable,
				Dead:     true,
				At:       now,
				Deadline: now,
				Message:  "its agent was unreachable for 10m0s while generation 1 was halting",
			},
			now,
		)
	}
	stored, waiting, released := Record{}, []string{}, map[string]bool{}
	step := func(e Event) {
		now = now.Add(time.Millisecond)
		for events := []Event{e}; len(events) > 0; events = events[1:] {
			for _, eff := range Step(s, events[0], now) {
				switch eff := eff.(type) {
				case Replace:
					waiting = append(waiting, eff.Termination.Pod)
				case Persist:
					stored = eff.Record
					events = append(events, Stored{Revision: eff.Revision, Generation: eff.Record.Generation})
				}
			}
		}
	}
	step(Tick{})
	long := 0
	for _, d := range stored.PendingReplacements {
		if d.Message != "" {
			long++
		}
	}
	if most := account.ReplacedAtOnce + replacements.MaxListed; len(stored.PendingReplacements) != pods || long > most {
		t.Errorf("%d of %d are stored, %d with a message, %d at most", len(stored.PendingReplacements), pods, long, most)
	}
	s, waiting = New(pods, 0, stored), nil
	for step(Tick{}); len(waiting) > 0; {
		pod := waiting[0]
		waiting, released[pod] = waiting[1:], true
		step(Released{Pod: pod, At: now})
	}
	if len(released) != pods {
		t.Errorf("%d of %d are replaced after the change of coordinators", len(released), pods)
	}
}

// TestAWholeGangGoesByTurns: the record stays small however many pods must be replaced at once. The first coordinator requests each
// replacement once; a coordinator that takes over requests the remaining ones.
func TestAWholeGangGoesByTurns(t *testing.T) {
	const pods = 500
	g := newCrowd(pods)
	g.s = New(pods, 0, Record{Generation: 1, Phase: Running, Progress: Progress{Seen: members.Seen{Ranks: 8 * pods}}})
	level := ReplacementsPending{}
	for i := range pods {
		level.Pods = append(level.Pods, Termination{Slot: Slot(i), Pod: g.pods[i].UID, Name: g.pods[i].Name, Node: "n", Cause: "NodeGone", Dead: true})
	}
	asked, waiting, stored := map[string]int{}, []string{}, Record{}
	step := func(e Event) {
		g.now = g.now.Add(time.Millisecond)
		for events := []Event{e}; len(events) > 0; events = events[1:] {
			for _, eff := range Step(g.s, events[0], g.now) {
				switch eff := eff.(type) {
				case Replace:
					asked[eff.Termination.Pod]++
					waiting = append(waiting, eff.Termination.Pod)
				case Persist:
					stored = eff.Record
					events = append(events, Stored{Revision: eff.Revision, Generation: eff.Record.Generation})
					notified := len(stored.PendingReplacements)
					for _, rec := range stored.Recoveries {
						notified += len(rec.Replaced)
					}
					if most := 2*account.ReplacedAtOnce + replacements.MaxListed + account.MaxNewest; notified > most {
						t.Fatalf("the record tells of %d pods, want %d at most", notified, most)
					}
				}
			}
		}
		if len(waiting) > account.ReplacedAtOnce {
			t.Fatalf("%d pods go at once", len(waiting))
		}
	}
	step(level)
	if len(waiting) != account.ReplacedAtOnce || stored.PendingPods != pods || stored.Recoveries[0].ReplacedPods != account.ReplacedAtOnce {
		t.Fatalf("%d pods go, %d are pending, %d in the account", len(waiting), stored.PendingPods, stored.Recoveries[0].ReplacedPods)
	}
	released := map[string]bool{}
	for n := 0; len(released) < pods; n++ {
		if n == pods/2 { // another coordinator leads; the level lists the pods that are still in the Job
			g.s, waiting = New(pods, 0, stored), nil
			clear(asked)
			level.Pods = slices.DeleteFunc(level.Pods, func(d Termination) bool { return released[d.Pod] })
			step(level)
		}
		if len(waiting) == 0 {
			t.Fatalf("nobody goes, %d of %d are released", len(released), pods)
		}
		pod := waiting[0]
		waiting = waiting[1:]
		released[pod] = true
		step(Released{Pod: pod, At: g.now})
	}
	for pod, n := range asked {
		if n != 1 {
			t.Errorf("%s was asked for %d times", pod, n)
		}
	}
	if stored.PendingPods != 0 || stored.Replacements != pods || stored.Recoveries[0].ReplacedPods != pods {
		t.Errorf("in the end %d are pending, %d were replaced, %d by the recovery", stored.PendingPods, stored.Replacements, stored.Recoveries[0].ReplacedPods)
	}
}

// TestFetchesThatCouldNotBeDoneAreBounded: the record has only the newest failed fetches of an agent. A recorded step that fails again is
// skipped again.
func TestFetchesThatCouldNotBeDoneAreBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	newest, older := protocol.Mark{Step: 20, Generation: 1}, protocol.Mark{Step: 10, Generation: 1}
	s := New(
		1,
		time.Minute,
		Record{
			Generation: 1,
			Phase:      Running,
			Progress:   Progress{Seen: members.Seen{Ranks: 1}},
			Durable:    &StoredStep{Mark: newest},
			Older:      &StoredStep{Mark: older},
		},
	)
	r := protocol.Report{Incarnation: 1, Ranks: 1, Address: "10.0.0.1", Port: 4000, Generation: 1, State: protocol.StateHalted, Storage: true}
	say := func(failed protocol.Mark) restore.Point {
		r.Sequence++
		r.FetchFailed = failed
		now = now.Add(time.Millisecond)
		Step(s, Reported{Pod: Pod{UID: "uid", Name: "pod", Created: now}, Report: r}, now)
		return s.ledger.Plan(s.members.Pods(s.ledger.Line(), members.NoneLost), s.generation.Stored(), false)
	}
	if p := say(protocol.Mark{}); p.Step != newest.Step {
		t.Fatalf("goes on from %+v, want the newest step", p)
	}
	for range 2 {
		if p := say(newest); p.Step != older.Step {
			t.Fatalf("goes on from %+v, want the older step: the newest cannot be read", p)
		}
		for i := range 10_000 {
			say(protocol.Mark{Step: int64(1000 + i), Generation: 1})
		}
		if n := s.members.At(Slot(0)).FailedFetches(); n != members.MaxFailedFetches {
			t.Fatalf("%d fetches are remembered, want %d", n, members.MaxFailedFetches)
		}
		if last := (protocol.Mark{Step: 10_999, Generation: 1}); !s.members.At(0).FailedFetch(last) {
			t.Errorf("the newest one, %+v, is not remembered", last)
		}
	}
	if p := say(older); p.Step != newest.Step || s.Record.Phase != Forming {
		t.Errorf("goes on from %+v in phase %s: nothing began, so the step that was forgotten is to be asked for", p, s.Record.Phase)
	}
}
