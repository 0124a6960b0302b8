package elastic

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// silence is a gang in which one rank sleeps and all others wait for it, while agents and coordinators restart and reports are lost.
type silence struct {
	*rand.Rand
	t       *testing.T
	now     time.Time
	state   *State
	reports []protocol.Report
	culprit int
	named   int
}

const ranksPerPod = 2

func newSilence(t *testing.T, seed uint64) *silence {
	w := &silence{t: t, Rand: rand.New(rand.NewPCG(seed, 3)), now: time.Unix(1_700_000_000, 0)}
	pods := 1 + w.IntN(4)
	w.culprit = w.IntN(pods * ranksPerPod)
	w.state = New(pods, 0, Record{})
	for slot := range pods {
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
	w.apply(Supervise{Supervision{Hang: HangReport}})
	return w
}

func (w *silence) pod(slot int) Pod {
	return Pod{UID: fmt.Sprint("pod", slot), Name: fmt.Sprint("pod", slot)}
}

func (w *silence) apply(e Event) {
	for _, eff := range Step(w.state, e, w.now) {
		switch eff := eff.(type) {
		case Persist:
			w.apply(Stored{Revision: eff.Revision, Generation: eff.Record.Generation})
		case EmitEvent:
			n := eff.Notice
			if n.Reason != NoticeStandsStill || !n.Warning {
				continue
			}
			if w.named++; !strings.Contains(n.Message, fmt.Sprintf(": rank %d on slot %d: sleep", w.culprit, w.culprit/ranksPerPod)) {
				w.t.Fatalf("rank %d sleeps: %s", w.culprit, n.Message)
			}
		}
	}
}

// send sends an agent's report, with the answer to the look that it is directed to make.
func (w *silence) send(slot int) {
	r := &w.reports[slot]
	d := w.state.Directive(Slot(slot), w.pod(slot).UID)
	switch {
	case d.Look == 0:
		r.Looks = nil
	case d.Look > r.Look:
		r.Look, r.Looks = d.Look, w.looks(slot)
	}
	r.Sequence++
	w.apply(Reported{Slot: Slot(slot), Pod: w.pod(slot), Report: *r})
}

func (w *silence) looks(slot int) (looks []protocol.Look) {
	for i := range ranksPerPod {
		g := protocol.GroupLook{Name: "0", Ranks: []protocol.RankRange{{Count: len(w.reports) * ranksPerPod, Step: 1}}, Enqueued: 4, Completed: 4}
		l := protocol.Look{Local: i, PID: 100 + i, Stack: protocol.StackFresh, State: 'S', Native: "hrtimer_nanosleep"}
		l.Frames = []protocol.Frame{{Function: "load_batch", File: "app/train.py", Line: 20}}
		if slot*ranksPerPod+i != w.culprit {
			g.Enqueued, g.Open = 5, &protocol.Operation{Seq: 5, Name: "gloo:all_reduce"}
			l.Frames, l.Native = []protocol.Frame{{Function: "all_reduce", File: "distributed/distributed_c10d.py", Line: 1}}, ""
		}
		l.Groups = append(l.Groups, g)
		looks = append(looks, l)
	}
	return looks
}

// disturb restarts an agent or the coordinator, or cuts an agent off.
func (w *silence) disturb() {
	slot := w.IntN(len(w.reports))
	switch r := &w.reports[slot]; w.IntN(3) {
	case 0:
		r.Incarnation, r.Sequence, r.Look, r.Looks = r.Incarnation+1, 0, 0, nil
	case 1:
		w.state = New(len(w.reports), 0, w.state.Snapshot())
		w.apply(Supervise{Supervision{Hang: HangReport}})
	default:
		w.apply(Detached{Slot: Slot(slot), Pod: w.pod(slot).UID})
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
				w.state = New(len(w.reports), 0, w.state.Snapshot())
				w.apply(Supervise{Supervision{Hang: HangReport}})
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
