package elastic

import (
	"fmt"
	"math/rand"
	"testing"

	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/internal/protocol"
)

// arrive lets all agents but one report for the first time, in a random order, and returns how often the text changed for which the gang
// waits.
func (g *crowd) arrive(least int) (texts int) {
	g.step(Limit{quorum.Limits{Min: least}})
	last := ""
	for _, slot := range rand.New(rand.NewSource(1)).Perm(len(g.pods))[1:] {
		g.reports[slot].Shrinks = true
		if g.say(slot); g.s.Record.Progress.Waits != last {
			last = g.s.Record.Progress.Waits
			texts++
		}
	}
	return texts
}

// TestReportsWhileForming: while pods arrive, most reports change nothing for other agents, and each is read once.
func TestReportsWhileForming(t *testing.T) {
	const pods = 4 * walkAlways
	for _, least := range []int{1, pods / 2, pods} {
		g := newCrowd(pods)
		if texts := g.arrive(least); texts > pods/20 || g.s.Record.Phase != Forming {
			t.Errorf("with %d pods at least the text changed %d times, and the gang is %s", least, texts, g.s.Record.Phase)
		}
		g.rest()
		g.s.run.forming.slots[7].Newest = 99 // stays until slot 7 reports again
		for slot := range 8 {
			g.reports[slot].Port++
			g.say(slot)
			g.rest()
			if slot < 7 && g.s.run.forming.slots[7].Newest != 99 || slot == 7 && g.s.run.forming.slots[7].Newest == 99 {
				t.Fatalf("after the report of slot %d: %+v", slot, g.s.run.forming.slots[7])
			}
		}
	}
}

// TestReportsOfLargeGangs: what all reports of a gang cost together rises with the number of its pods, in every phase.
func TestReportsOfLargeGangs(t *testing.T) {
	work := func(pods, least int, phase string) int {
		g := newCrowd(pods)
		g.step(Limit{quorum.Limits{Min: least}})
		switch phase {
		case "forming":
			if g.arrive(least); g.s.Record.Phase != Forming {
				t.Fatalf("the gang is %s", g.s.Record.Phase)
			}
		case "in the order of slots":
			if g.each(func(*protocol.Report) {}); g.s.Record.Phase != Running {
				t.Fatalf("the gang is %s", g.s.Record.Phase)
			}
		case "leaving":
			g.each(func(*protocol.Report) {})
			for i := range g.pods {
				g.step(Detached{Slot: Slot(i), Pod: g.pods[i].UID})
			}
		default:
			g.bring(t, phase)
		}
		return g.directives + g.walks*pods
	}
	const few, many = 300, 1200
	for _, phase := range []string{"forming", "in the order of slots", "leaving", "running", "halting", "fetching"} {
		for _, least := range []int{0, 2} {
			if a, b := work(few, least, phase), work(many, least*many/few, phase); b > a*many/few*5/4 {
				t.Errorf("%s, at least %d: %d for %d pods and %d for %d", phase, least, a, few, b, many)
			}
		}
	}
}

// TestAFailureDoesNotWait: the failure of a rank ends the generation of a large gang at once. What else is reported soon after a walk waits
// for the next one.
func TestAFailureDoesNotWait(t *testing.T) {
	g := newCrowd(4 * walkAlways)
	g.bring(t, "running")
	before := g.walks
	g.reports[5].Rank[0].Step++
	if g.say(5); g.walks != before {
		t.Error("a walk for a report that came soon after another walk")
	}
	g.reports[7].State = protocol.StateFailed
	g.reports[7].Rank[0].Exit = &protocol.Exit{Code: 1, Traceback: "ValueError: no", At: g.now}
	if g.say(7); g.s.Record.Phase != Halting {
		t.Errorf("the gang is %s after a failure", g.s.Record.Phase)
	}
}

// BenchmarkForming measures the first reports of all agents of a gang, with the directives that follow, in the order of slots and, for one
// that may go on with fewer pods, in a random one.
func BenchmarkForming(b *testing.B) {
	for _, pods := range []int{1000, 5000, 10000} {
		b.Run(fmt.Sprint("pods=", pods), func(b *testing.B) {
			for range b.N {
				newCrowd(pods).each(func(*protocol.Report) {})
			}
		})
		b.Run(fmt.Sprint("elastic/pods=", pods), func(b *testing.B) {
			for range b.N {
				newCrowd(pods).arrive(pods / 2)
			}
		})
	}
}
