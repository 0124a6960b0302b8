package elastic

import (
	"fmt"
	"math/rand"
	"testing"

	"holdfast.dev/holdfast/elastic/quorum"
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
	const pods = 600
	for _, least := range []int{1, pods / 2, pods} {
		g := newCrowd(pods)
		if texts := g.arrive(least); texts > pods/20 || g.s.Record.Phase != Forming {
			t.Errorf("with %d pods at least the text changed %d times, and the gang is %s", least, texts, g.s.Record.Phase)
		}
		g.s.run.forming.slots[7].Newest = 99 // stays until slot 7 reports again
		for slot := range 8 {
			g.reports[slot].Port++
			if g.say(slot); slot < 7 && g.s.run.forming.slots[7].Newest != 99 || slot == 7 && g.s.run.forming.slots[7].Newest == 99 {
				t.Fatalf("after the report of slot %d: %+v", slot, g.s.run.forming.slots[7])
			}
		}
	}
}

// BenchmarkForming measures the first reports of all agents but one of a gang that may go on with fewer pods.
func BenchmarkForming(b *testing.B) {
	for _, pods := range []int{1000, 5000} {
		b.Run(fmt.Sprint("pods=", pods), func(b *testing.B) {
			for range b.N {
				newCrowd(pods).arrive(pods / 2)
			}
		})
	}
}
