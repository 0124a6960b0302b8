package elastic

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/internal/seeds"
)

// lockstep is a training gang with one rank per pod. No rank finishes a step that another rank has not begun. Arenas, agents and client
// behave as in docs/formats/checkpoint.md. One agent hangs for a while, as on a node without free CPU time.
type lockstep struct {
	t     *testing.T
	now   time.Time
	state *State
	pods  []*lockPod
	pace  time.Duration // of steps
	late  time.Duration // of directives
	seal  time.Duration // time to seal a copy; the step is not reported before
	mute  bool          // agents do not confirm the barrier
}

type lockPod struct {
	pod Pod
	// Shared by rank and agent: a free slot, a copy that is not sealed yet, the sealed steps, and the barrier step.
	granted  bool
	copied   int64
	copiedAt time.Time
	sealed   []int64
	hold     int64
	// Of the agent: its levels, and when it hangs.
	commonStep, reclaimBelow int64
	reported                 protocol.Report
	hangs, until             time.Time
	unheard                  bool // by this coordinator
	// Of the rank: its last finished step, what it does now and since when, and whether it waited for a slot in vain.
	step  int64
	does  string
	since time.Time
	vain  bool
	// word has the messages on their way.
	word []lockWord
}

type lockWord struct {
	sent time.Time
	d    protocol.Directive
}

const lockWait = time.Second // how long a save waits for a free slot

func newLockstep(t *testing.T, members int) *lockstep {
	l := &lockstep{
		t:     t,
		pace:  100 * time.Millisecond,
		seal:  30 * time.Millisecond,
		now:   time.Unix(1_700_000_000, 0),
		state: New(members, time.Hour, Record{}),
	}
	for i := range members {
		l.pods = append(l.pods, &lockPod{pod: Pod{UID: fmt.Sprint("uid-", i), Name: fmt.Sprint("pod-", i)}, does: "train", since: l.now})
	}
	for slot, p := range l.pods {
		p.reported = protocol.Report{Incarnation: 1, Storage: true, Ranks: 1, Address: "10.0.0.1", Port: 4000, StateBytes: 1, Rank: []protocol.Rank{{}}}
		l.apply(Reported{Slot: Slot(slot), Pod: p.pod, Report: p.reported})
	}
	for slot, p := range l.pods {
		p.reported.Generation, p.reported.State = 1, protocol.StateRunning
		l.apply(Reported{Slot: Slot(slot), Pod: p.pod, Report: p.reported})
	}
	return l
}

// apply passes an event to the core and stores its record at once.
func (l *lockstep) apply(e Event) {
	for _, eff := range Step(l.state, e, l.now) {
		if p, ok := eff.(Persist); ok {
			l.apply(Stored{Revision: p.Revision, Generation: p.Record.Generation})
		}
	}
}

// train lets a rank continue.
func (l *lockstep) train(p *lockPod) {
	switch p.does {
	case "train":
		if slices.ContainsFunc(l.pods, func(o *lockPod) bool {
			return o.step < p.step || o.step == p.step && (o.does != "train" || l.now.Sub(o.since) < l.pace)
		}) {
			return
		}
		p.step++
		p.does, p.since = "save", l.now
	case "save":
		switch {
		case p.granted:
			p.granted, p.copied, p.copiedAt, p.vain, p.does = false, p.step, l.now, false, "stay"
		case p.vain || l.now.Sub(p.since) >= lockWait:
			p.vain, p.does, p.since = true, "train", l.now
		}
	case "stay":
		if p.hold == 0 || p.step < p.hold {
			p.does, p.since = "train", l.now
		}
	}
}

// serve does the work of an agent, unless the agent hangs.
func (l *lockstep) serve(slot int) {
	p := l.pods[slot]
	if l.now.After(p.hangs) && l.now.Before(p.until) {
		return
	}
	if p.copied > 0 && l.now.Sub(p.copiedAt) >= l.seal {
		p.sealed, p.copied = append(p.sealed, p.copied), 0
	}
	p.word = append(p.word, lockWord{l.now, l.state.Directive(Slot(slot), p.pod.UID)})
	d := p.word[0].d
	for len(p.word) > 1 && l.now.Sub(p.word[1].sent) >= l.late {
		d, p.word = p.word[1].d, p.word[1:]
	}
	step := p.step
	if p.copied > 0 && p.hold == d.BarrierStep { // otherwise the agent only reads the rank's progress
		step = p.reported.Rank[0].Step
	}
	p.commonStep, p.reclaimBelow, p.hold = max(p.commonStep, d.CommonStep), max(p.reclaimBelow, d.ReclaimBelow), d.BarrierStep
	if !p.granted && p.copied == 0 {
		old := slices.IndexFunc(p.sealed, func(step int64) bool {
			return step != p.commonStep && step < p.reclaimBelow && step != slices.Max(p.sealed)
		})
		if len(p.sealed) == 3 && old >= 0 {
			p.sealed = slices.Delete(p.sealed, old, old+1)
		}
		p.granted = len(p.sealed) < 3
	}
	r := p.reported
	if !l.mute {
		r.BarrierStep = p.hold
	}
	r.Rank = []protocol.Rank{{Step: step, Sealed: protocoltest.FirstBranch(p.sealed...)}}
	if p.unheard || !reflect.DeepEqual(r, p.reported) {
		p.reported, p.unheard = r, false
		l.apply(Reported{Slot: Slot(slot), Pod: p.pod, Report: r})
	}
}

// succeed starts another coordinator, which has the record and does not know the pace.
func (l *lockstep) succeed() {
	l.state = New(len(l.pods), time.Hour, l.state.Snapshot())
	for _, p := range l.pods {
		p.unheard = true
	}
}

func (l *lockstep) run(d time.Duration, until func() bool) bool {
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(10 * time.Millisecond)
		for slot, p := range l.pods {
			l.train(p)
			l.serve(slot)
		}
		if l.state.Ticks() {
			l.apply(Tick{})
		}
		if until() {
			return true
		}
	}
	return false
}

// drain lets the gang train for a while and terminates pods. It continues until the coordinator orders these pods to copy a step.
func (l *lockstep) drain(pending int) (copies protocol.Mark, after time.Duration) {
	began, pod := l.now, l.pods[pending].pod
	l.apply(ReplacementsPending{Pods: []Termination{{Slot: Slot(pending), Pod: pod.UID, Name: pod.Name, Node: "n", Cause: "XidFatal"}}})
	mark := func() protocol.Mark { return l.state.Directive(Slot(pending), pod.UID).Copy }
	l.run(time.Minute, func() bool { return mark() != protocol.Mark{} || l.state.Record.Phase != Running })
	return mark(), l.now.Sub(began)
}

// finished returns the newest step that any rank has finished.
func (l *lockstep) finished() (step int64) {
	for _, p := range l.pods {
		step = max(step, p.step)
	}
	return step
}

var lockPaces = []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}

// copiesAll drains a gang and checks that the copied step is the newest that any rank has finished before the copy or finishes after it.
func (l *lockstep) copiesAll(pending int, how string) {
	copies, after := l.drain(pending)
	l.run(l.late+4*l.pace, func() bool { return false })
	if copies == (protocol.Mark{}) {
		l.t.Errorf("%s: nothing was copied", how)
	} else if copies.Step != l.finished() {
		l.t.Errorf("%s: step %d was copied after %s, step %d was finished; a step takes %s", how, copies.Step, after, l.finished(), l.pace)
	}
}

// TestDrainLosesNothing: no step is repeated after a drain, whenever an agent hangs before or during the drain.
func TestDrainLosesNothing(t *testing.T) {
	for seed := range seeds.All(t, int64(150)) {
		rng := rand.New(rand.NewSource(seed))
		l := newLockstep(t, 2+rng.Intn(2))
		l.pace = lockPaces[seed%3]
		hangs, at := l.pods[rng.Intn(len(l.pods))], l.now.Add(5*time.Second+time.Duration(rng.Intn(100))*time.Millisecond)
		hangs.hangs = at.Add(time.Duration(rng.Intn(4000)-3000) * time.Millisecond)
		hangs.until = hangs.hangs.Add(time.Duration(rng.Intn(5000)) * time.Millisecond)
		l.run(at.Sub(l.now), func() bool { return false })
		l.copiesAll(rng.Intn(len(l.pods)), fmt.Sprintf("seed %d, an agent hung for %s from %s on", seed, hangs.until.Sub(hangs.hangs), hangs.hangs.Sub(at)))
	}
}

// TestDrainWaitsForWord: no step is repeated after a drain if the barrier step reaches agents late. Ranks pass the step until they receive
// it.
func TestDrainWaitsForWord(t *testing.T) {
	for seed := range seeds.All(t, int64(150)) {
		rng := rand.New(rand.NewSource(seed))
		l := newLockstep(t, 2+rng.Intn(2))
		l.pace, l.mute = lockPaces[seed%3], seed%2 == 0
		if seed%5 == 0 {
			l.seal = 400 * time.Millisecond
		}
		l.run(5*time.Second+time.Duration(rng.Intn(100))*time.Millisecond, func() bool { return false })
		l.late = time.Duration(rng.Intn(3000)) * time.Millisecond
		l.copiesAll(rng.Intn(len(l.pods)), fmt.Sprintf("seed %d, word comes after %s, agents that say so: %t", seed, l.late, !l.mute))
	}
}

// TestDrainBySuccessor: no step is repeated if the coordinator has just started, does not know the pace, and receives the termination
// before any report.
func TestDrainBySuccessor(t *testing.T) {
	for seed := range seeds.All(t, int64(60)) {
		rng := rand.New(rand.NewSource(seed))
		l := newLockstep(t, 2+rng.Intn(2))
		l.pace = lockPaces[seed%3]
		l.run(5*time.Second+time.Duration(rng.Intn(100))*time.Millisecond, func() bool { return false })
		l.late = time.Duration(rng.Intn(1500)) * time.Millisecond
		l.succeed()
		l.copiesAll(rng.Intn(len(l.pods)), fmt.Sprintf("seed %d, word comes after %s", seed, l.late))
	}
}

// TestDrainIsShort: if messages are not delayed, a drain takes a tenth of a second longer than the step and its seal.
func TestDrainIsShort(t *testing.T) {
	for _, pace := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		l := newLockstep(t, 3)
		l.pace = pace
		l.run(20*time.Second, func() bool { return false })
		copies, after := l.drain(1)
		if most := barrier.LeadTime + 4*pace + barrier.RestConfirmed + 100*time.Millisecond; copies.Step != l.finished() || after > most {
			t.Errorf("a step takes %s: %d of %d is copied after %s, not %s", pace, copies.Step, l.finished(), after, most)
		}
	}
}
