package elastic

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"
)

// lockstep is a gang of one rank per pod as it trains: no rank ends a step that another one has not begun. Arenas, agents and the client
// keep the rules of formats/checkpoint.md; one agent hangs for a while, as on a node that has no time for it.
type lockstep struct {
	t     *testing.T
	now   time.Time
	state *State
	pods  []*lockPod
}

type lockPod struct {
	pod Pod
	// What rank and agent share: a slot to write to, a copy that is not sealed yet, the steps that are, and where to stay.
	granted  bool
	copied   int64
	copiedAt time.Time
	sealed   []int64
	hold     int64
	// What the agent knows, and when it hangs.
	common, frontier int64
	told             Report
	hangs, until     time.Time
	// The rank: the step that it finished last, what it does, since when, and whether waiting for a slot was of no use.
	step  int64
	does  string
	since time.Time
	vain  bool
}

const (
	lockPace = 100 * time.Millisecond
	lockSeal = 30 * time.Millisecond
	lockWait = time.Second // how long a save waits for a slot
)

func newLockstep(t *testing.T, members int) *lockstep {
	l := &lockstep{t: t, now: time.Unix(1_700_000_000, 0), state: New(members, time.Hour, Record{})}
	for i := range members {
		l.pods = append(l.pods, &lockPod{pod: Pod{UID: fmt.Sprint("uid-", i), Name: fmt.Sprint("pod-", i)}, does: "train", since: l.now})
	}
	for slot, p := range l.pods {
		p.told = Report{Incarnation: 1, Protocol: 2, Storage: true, Ranks: 1, Address: "10.0.0.1", Port: 4000, StateBytes: 1, Rank: []Rank{{}}}
		l.apply(Reported{Slot: Slot(slot), Pod: p.pod, Report: p.told})
	}
	for slot, p := range l.pods {
		p.told.Generation, p.told.State = 1, AgentRunning
		l.apply(Reported{Slot: Slot(slot), Pod: p.pod, Report: p.told})
	}
	return l
}

// apply gives the core an event; what it wants stored is stored at once.
func (l *lockstep) apply(e Event) {
	for _, eff := range Step(l.state, e, l.now) {
		if p, ok := eff.(Persist); ok {
			l.apply(Stored{Revision: p.Revision, Generation: p.Record.Generation})
		}
	}
}

// train goes on with a rank.
func (l *lockstep) train(p *lockPod) {
	switch p.does {
	case "train":
		if slices.ContainsFunc(l.pods, func(o *lockPod) bool {
			return o.step < p.step || o.step == p.step && (o.does != "train" || l.now.Sub(o.since) < lockPace)
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

// serve is what an agent does, unless it hangs.
func (l *lockstep) serve(slot int) {
	p := l.pods[slot]
	if l.now.After(p.hangs) && l.now.Before(p.until) {
		return
	}
	if p.copied > 0 && l.now.Sub(p.copiedAt) >= lockSeal {
		p.sealed, p.copied = append(p.sealed, p.copied), 0
	}
	d := l.state.Directive(Slot(slot), p.pod.UID)
	p.common, p.frontier, p.hold = max(p.common, d.Common), max(p.frontier, d.Frontier), d.Hold
	if !p.granted && p.copied == 0 {
		old := slices.IndexFunc(p.sealed, func(step int64) bool { return step != p.common && step < p.frontier && step != slices.Max(p.sealed) })
		if len(p.sealed) == 3 && old >= 0 {
			p.sealed = slices.Delete(p.sealed, old, old+1)
		}
		p.granted = len(p.sealed) < 3
	}
	r := p.told
	r.Rank = []Rank{{Step: p.step, Sealed: slices.Clone(p.sealed)}}
	if !reflect.DeepEqual(r, p.told) {
		p.told = r
		l.apply(Reported{Slot: Slot(slot), Pod: p.pod, Report: r})
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

// TestDrainLosesNothing: whenever an agent hangs before or while the gang is drained, the step that is copied is the newest that any
// rank has finished.
func TestDrainLosesNothing(t *testing.T) {
	for seed := range int64(200) {
		rng := rand.New(rand.NewSource(seed))
		l := newLockstep(t, 2+rng.Intn(2))
		doomed, hangs := l.pods[rng.Intn(len(l.pods))], l.pods[rng.Intn(len(l.pods))]
		at := l.now.Add(5 * time.Second)
		hangs.hangs = at.Add(time.Duration(rng.Intn(4000)-3000) * time.Millisecond)
		hangs.until = hangs.hangs.Add(time.Duration(rng.Intn(5000)) * time.Millisecond)
		l.run(at.Sub(l.now), func() bool { return false })
		slot := Slot(slices.Index(l.pods, doomed))
		l.apply(Doomed{Pods: []Doom{{Slot: slot, Pod: doomed.pod.UID, Name: doomed.pod.Name, Node: "n", Cause: "XidFatal"}}})
		copies := func() bool { return l.state.Directive(slot, doomed.pod.UID).Copy != Mark{} }
		finished := func() (step int64) {
			for _, p := range l.pods {
				step = max(step, p.step)
			}
			return step
		}
		if !l.run(time.Minute, func() bool { return copies() || l.state.Record.Phase != Running }) || !copies() {
			t.Errorf("seed %d: nothing was copied", seed)
		} else if mark := l.state.Directive(slot, doomed.pod.UID).Copy; mark.Step != finished() {
			t.Errorf("seed %d: step %d was copied after %s, step %d was finished; the agent hung for %s from %s on", seed, mark.Step, l.now.Sub(at), finished(), hangs.until.Sub(hangs.hangs), hangs.hangs.Sub(at))
		}
	}
}
