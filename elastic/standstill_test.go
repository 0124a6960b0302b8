package elastic

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// silence is a gang in which one rank stands still and all others wait for it, while agents and coordinators restart and reports are lost.
type silence struct {
	*rand.Rand
	t       *testing.T
	now     time.Time
	state   *State
	pods    []string
	reports []protocol.Report
	culprit int
	// kind is what the culprit is in (lookAt), or "waits": all are in one operation; mute is a slot whose agent answers no look, or -1.
	kind string
	mute int
	job  Supervision
	// stored is the record as it was last written: at once, or with progress.
	stored Record
	// named counts events about a rank; ended the generations that were ended, lost those of them that an agent's restart ended; maxPods
	// counts pods.
	named, ended, lost, maxPods int
}

const ranksPerPod = 2

func newSilence(t *testing.T, seed uint64) *silence {
	w := &silence{t: t, Rand: rand.New(rand.NewPCG(seed, 3)), now: time.Unix(1_700_000_000, 0), kind: "sleeps", mute: -1}
	w.job.Hang = HangReport
	pods := 1 + w.IntN(4)
	w.culprit = w.IntN(pods * ranksPerPod)
	w.state = New(pods, 0, Record{})
	for slot := range pods {
		w.pods = append(w.pods, fmt.Sprint("pod", slot))
		w.reports = append(w.reports, protocol.Report{
			Incarnation: 1,
			Ranks:       ranksPerPod,
			Address:     "10.0.0.1",
			Port:        4000,
			State:       protocol.StateIdle,
			Rank:        make([]protocol.Rank, ranksPerPod),
		})
		w.reports[slot].Rank[1].Local = 1
		w.send(slot)
	}
	for slot := range w.reports {
		w.reports[slot].State, w.reports[slot].Generation = protocol.StateRunning, 1
	}
	w.maxPods = pods
	w.apply(Supervise{w.job})
	return w
}

func (w *silence) pod(slot int) Pod {
	return Pod{UID: w.pods[slot], Name: w.pods[slot], Created: w.now}
}

func (w *silence) apply(e Event) {
	for _, eff := range Step(w.state, e, w.now) {
		switch eff := eff.(type) {
		case PersistLater:
			w.stored = w.state.Snapshot()
		case Persist:
			w.stored = w.state.Snapshot()
			w.apply(Stored{Revision: eff.Revision, Generation: eff.Record.Generation})
		case Replace:
			w.apply(Released{Pod: eff.Termination.Pod, At: w.now})
			w.replaced(int(eff.Termination.Slot))
		case End:
			w.apply(Ended{})
		case EmitEvent:
			n := eff.Notice
			if n.Reason == NoticeRecovering {
				w.ended++
				// An agent restarted while its ranks were halted, or the coordinator before they were started.
				if strings.Contains(n.Message, "RanksLost") || strings.Contains(n.Message, "StartInterrupted") {
					w.lost++
				}
			}
			if n.Reason != NoticeStandsStill || !n.Warning || strings.HasPrefix(n.Message, "is only reported") {
				continue
			}
			w.named++
			if who := fmt.Sprintf(": rank %d on slot %d: ", w.culprit, w.culprit/ranksPerPod); w.names() && !strings.Contains(n.Message, who) {
				w.t.Fatalf("rank %d stands still: %s", w.culprit, n.Message)
			}
		}
	}
}

// names reports whether the verdict names a rank.
func (w *silence) names() bool { return w.kind != "waits" && w.kind != "other" }

// replaced puts a new pod into a slot.
func (w *silence) replaced(slot int) {
	w.pods[slot] = fmt.Sprint("pod", w.maxPods)
	w.maxPods++
	old := w.reports[slot]
	w.reports[slot] = protocol.Report{
		Incarnation: 1, Ranks: ranksPerPod, Address: "10.0.0.2", Port: 4000, State: protocol.StateHalted, Generation: old.Generation,
		Rank: []protocol.Rank{{}, {Local: 1}},
	}
}

// send sends an agent's report, with the answer to the look that it is directed to make, and carries out its directive.
func (w *silence) send(slot int) {
	r := &w.reports[slot]
	d := w.state.Directive(Slot(slot), w.pods[slot])
	switch {
	case d.Order == protocol.OrderHalt && d.Generation >= r.Generation && d.Generation > 0:
		r.State, r.Generation = protocol.StateHalted, d.Generation
	case d.Order == protocol.OrderRun && d.Run.Number > r.Generation:
		r.State, r.Generation = protocol.StateRunning, d.Run.Number
	}
	switch {
	case d.Look == 0 || slot == w.mute:
		r.Looks = nil
	case d.Look > r.Look:
		r.Look, r.Looks = d.Look, w.looks(slot)
	}
	r.Sequence++
	w.apply(Reported{Slot: Slot(slot), Pod: w.pod(slot), Report: *r})
}

func (w *silence) looks(slot int) (looks []protocol.Look) {
	for i := range ranksPerPod {
		what := "waits"
		if slot*ranksPerPod+i == w.culprit {
			what = w.kind
		}
		looks = append(looks, lookAt(i, what, len(w.reports)*ranksPerPod, w.now))
	}
	return looks
}

// start starts another coordinator.
func (w *silence) start() {
	w.state = New(len(w.reports), 0, w.stored)
	w.apply(Supervise{w.job})
}

// disturb restarts an agent or the coordinator, or cuts an agent off.
func (w *silence) disturb() {
	slot := w.IntN(len(w.reports))
	switch r := &w.reports[slot]; w.IntN(3) {
	case 0:
		r.Incarnation, r.Sequence, r.Look, r.Looks = r.Incarnation+1, 0, 0, nil
	case 1:
		w.start()
	default:
		w.apply(Detached{Slot: Slot(slot), Pod: w.pod(slot).UID})
	}
}

// play lets all agents report each second.
func (w *silence) play(seconds int) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		for slot := range w.reports {
			w.send(slot)
		}
	}
}

// step makes all ranks finish a step.
func (w *silence) step() {
	for slot := range w.reports {
		r := &w.reports[slot]
		r.Rank = slices.Clone(r.Rank) // the state has the other one
		for i := range r.Rank {
			r.Rank[i].OptimizerSteps++
		}
	}
	w.play(1)
}

// TestLongestSilence: how long the ranks once made no step, and then moved on, stays known to the next generation and to a coordinator
// that succeeds another one, so that these do not end such a silence.
func TestLongestSilence(t *testing.T) {
	w := newSilence(t, 1)
	w.kind, w.job.Hang = "reads", HangAct
	w.apply(Supervise{w.job})
	for range 35 {
		w.step()
	}
	w.play(17)
	w.step() // before there is a verdict, and before the steps are stored
	if stored := w.stored.Progress.LongestSilence; stored < 17*time.Second {
		t.Errorf("%s is stored", stored)
	}
	w.play(150)
	w.step()
	known := w.state.quiet.Longest()
	w.start()
	w.step()
	w.step()
	if now := w.state.quiet.Longest(); now != known || now < 150*time.Second {
		t.Fatalf("it was %s, the next coordinator knows %s", known, now)
	}
	w.kind = "stuck"
	if w.play(3*150 - 5); w.ended > 0 {
		t.Error("a silence of less than three times that was ended")
	}
	w.play(50)
	if now := w.state.quiet.Longest(); w.ended != 1 || now != known {
		t.Errorf("ended %d times; in the next generation it is %s", w.ended, now)
	}
	w.step()
	w.start()
	if w.step(); w.state.quiet.Longest() != known {
		t.Errorf("after both it is %s", w.state.quiet.Longest())
	}
}

// TestSilences: whatever restarts between looks, the rank that the others wait for is reported once the agents answer, no other one is, and
// nothing is ended.
func TestSilences(t *testing.T) {
	for seed := range seeds.All(t, uint64(400)) {
		w := newSilence(t, seed)
		const disturbed, calm = 120, 150
		for second := range disturbed + calm {
			w.now = w.now.Add(time.Second)
			if second < disturbed && w.IntN(15) == 0 {
				w.disturb()
			}
			if second == disturbed {
				w.named = 0
				w.start()
			}
			for slot := range w.reports {
				if second >= disturbed || w.IntN(5) > 0 {
					w.send(slot)
				}
			}
		}
		if r := w.state.Snapshot(); w.named == 0 || r.Restarts > 0 || r.Phase != Running {
			t.Fatalf("seed %d: reported %d times, %d restarts, %s", seed, w.named, r.Restarts, r.Phase)
		}
	}
}

// TestHangs: whatever restarts between looks, ranks that stand still restart twice, the second time with a move of the one pod if torch or
// a device is suspected; then they are only reported. That ends no job and spends no restart. A bug of the script ends the job the second
// time. Nothing is ended that moves, has a phase open, hides what it is in, is stopped or was not looked at, nor if the job's setting is
// HangReport.
func TestHangs(t *testing.T) {
	kinds := []string{"stuck", "sleeps", "nfs", "waits", "other", "reads", "evaluates", "hidden", "stopped"}
	ends := map[string]int{"stuck": 2, "sleeps": 2, "waits": 2, "other": 2, "nfs": 2} // a rank on one node waits outside
	moved := 0
	for seed := range seeds.All(t, uint64(64)) {
		w := newSilence(t, seed)
		w.kind, w.job.Hang = kinds[seed%9], HangAct
		switch w.IntN(8) {
		case 0:
			w.mute = w.IntN(len(w.reports))
		case 1:
			w.job.Hang = HangReport
		}
		w.apply(Supervise{w.job})
		w.reports[0].Rank[0].OptimizerSteps = 1 // so that steps are expected
		const disturbed, calm = 2000, 4000      // a restarted coordinator waits from its start
		for second := range disturbed + calm {
			w.now = w.now.Add(time.Second)
			if second < disturbed && w.IntN(200) == 0 {
				w.disturb()
			}
			for slot := range w.reports {
				w.send(slot)
			}
		}
		want := ends[w.kind]
		if w.mute >= 0 || w.job.Hang == HangReport {
			want = 0
		}
		r := w.state.Snapshot()
		if w.kind == "other" && want > 0 {
			if r.Verdict == nil || r.Verdict.Reason != ReasonSameFailureTwice || r.Restarts < 1 || r.Restarts > 1+w.lost {
				t.Fatalf("seed %d: a bug twice ends with %+v after %d restarts", seed, r.Verdict, r.Restarts)
			}
			continue
		}
		if w.ended-w.lost != want || r.Verdict != nil || r.Restarts > w.lost || r.Phase != Running {
			t.Fatalf("seed %d, %s, mute %d, mode %d: ended %d times, want %d; %s, %d restarts, %+v", seed, w.kind, w.mute, w.job.Hang, w.ended, want, r.Phase, r.Restarts, r.Verdict)
		}
		if r.Replacements > 0 {
			moved++
			if w.kind != "stuck" || r.Replacements > 1 {
				t.Fatalf("seed %d: %d pods moved for a rank that %s", seed, r.Replacements, w.kind)
			}
		}
	}
	if moved == 0 && !seeds.One() {
		t.Error("no pod was moved")
	}
}
