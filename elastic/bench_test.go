package elastic

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

// BenchmarkReport measures what one report costs the coordinator: a Step of the core and, if directives change, one directive per agent.
// Each pod has eight ranks, and every other report differs from the previous one.
func BenchmarkReport(b *testing.B) {
	for _, phase := range []string{"running", "halting", "fetching"} {
		for _, pods := range []int{8, 1000} {
			b.Run(fmt.Sprintf("%s/pods=%d", phase, pods), func(b *testing.B) {
				g := newCrowd(pods)
				g.bring(b, phase)
				b.ResetTimer()
				for i := range b.N {
					slot := i / 2 % pods
					if i%2 == 0 {
						g.news(slot, phase)
					}
					g.say(slot)
				}
			})
		}
	}
}

// crowd is a gang with many pods.
type crowd struct {
	s       *State
	now     time.Time
	reports []protocol.Report
	pods    []Pod
	n       int64
	// walks is how often all pods were walked, directives how many were computed.
	walks, directives int
}

func newCrowd(pods int) *crowd {
	g := &crowd{s: New(pods, time.Minute, Record{}), now: time.Unix(1_700_000_000, 0)}
	for i := range pods {
		r := protocol.Report{
			Incarnation: 1,
			Ranks:       8,
			Address:     fmt.Sprint("10.0.0.", i),
			Port:        4000,
			State:       protocol.StateIdle,
			StateBytes:  1 << 30,
			Storage:     true,
		}
		for local := range 8 {
			r.Rank = append(r.Rank, protocol.Rank{Local: local})
		}
		g.reports = append(g.reports, r)
		g.pods = append(g.pods, Pod{UID: fmt.Sprint("uid-", i), Name: fmt.Sprint("pod-", i), Created: g.now})
	}
	return g
}

func (g *crowd) step(e Event) {
	g.now = g.now.Add(100 * time.Microsecond)
	effects, direct := Step(g.s, e, g.now), false
	if g.s.walks.at.Equal(g.now) {
		g.walks++
	}
	for _, eff := range effects {
		switch eff := eff.(type) {
		case Broadcast:
			direct = true
		case Persist:
			g.step(Stored{Revision: eff.Revision, Generation: eff.Record.Generation})
		}
	}
	r, reported := e.(Reported)
	for i := range g.pods {
		if direct || reported && Slot(i) == r.Slot {
			_ = g.s.Directive(Slot(i), g.pods[i].UID)
			g.directives++
		}
	}
}

// rest lets a report that waits for a walk have it.
func (g *crowd) rest() {
	g.now = g.now.Add(time.Second)
	g.step(Tick{})
}

func (g *crowd) say(slot int) {
	r := g.reports[slot]
	r.Rank = slices.Clone(r.Rank)
	for i := range r.Rank {
		r.Rank[i].Sealed = slices.Clone(r.Rank[i].Sealed)
	}
	g.step(Reported{Slot: Slot(slot), Pod: g.pods[slot], Report: r})
}

// each lets all pods report in the order of their slots.
func (g *crowd) each(do func(r *protocol.Report)) {
	for i := range g.reports {
		do(&g.reports[i])
		g.say(i)
	}
	g.rest()
}

func seals(steps ...int64) func(*protocol.Report) {
	return func(r *protocol.Report) {
		for i := range r.Rank {
			r.Rank[i].Sealed, r.Rank[i].Step = protocoltest.FirstBranch(steps...), steps[len(steps)-1]
		}
	}
}

// bring brings the gang into a phase.
func (g *crowd) bring(b testing.TB, phase string) {
	g.each(func(*protocol.Report) {})
	g.each(func(r *protocol.Report) { r.Generation, r.State = 1, protocol.StateRunning })
	g.each(seals(3, 4, 5))
	if phase == "running" {
		return
	}
	g.s.ledger.RecordManifest(protocol.Mark{Step: 4, Generation: 1}, g.s.generation.Stored(), time.Time{}, g.now)
	g.reports[0].State = protocol.StateFailed
	g.reports[0].Rank[0].Exit = &protocol.Exit{Code: 137, Signal: 9, At: g.now}
	g.say(0)
	if phase == "halting" {
		if g.s.Record.Phase != Halting {
			b.Fatalf("the gang is %s", g.s.Record.Phase)
		}
		return
	}
	last := len(g.pods) - 1
	g.pods[last] = Pod{UID: "heir", Name: "heir", Created: g.now.Add(time.Second)}
	seals(0)(&g.reports[last])
	for i := range g.reports[last].Rank {
		g.reports[last].Rank[i].Sealed = nil
	}
	g.each(func(r *protocol.Report) { r.State = protocol.StateHalted })
	if g.s.Record.Phase != Forming || len(g.s.run.forming.fetching.Fetch) == 0 {
		b.Fatalf("the gang is %s and fetches %v", g.s.Record.Phase, g.s.run.forming.fetching)
	}
}

// news changes a pod's report in a way that affects no decision.
func (g *crowd) news(slot int, phase string) {
	g.n++
	if phase != "running" {
		g.reports[slot].Rank[0].Step = 5 + g.n%2
		return
	}
	step := 6 + g.n/int64(len(g.pods))
	seals(step-2, step-1, step)(&g.reports[slot])
}
