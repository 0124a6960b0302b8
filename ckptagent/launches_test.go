package ckptagent_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// sequence has the launchers that the commands of a gang run one after another. The zero sequence is one launcher that does not end.
type sequence struct {
	launchers int
	of        map[int64]int          // the launcher of each generation
	ended     map[int64]map[int]bool // slots whose ranks ended well, by launcher
	over      map[int]bool
	gone      int // the newest launcher that has returned in some pod
}

// id names the present launcher of a container.
func (p *latePod) id() string { return fmt.Sprintf("l%d", p.number) }

// starting records the start of a generation and decides how its ranks end.
func (g *lateGang) starting(slot int, run protocol.Run) {
	p := g.pods[slot]
	if g.launchers == 0 {
		return
	}
	if of, known := g.of[run.Number]; known && of != p.number {
		g.fail("generation %d is of launchers %d and %d", run.Number, of, p.number)
	}
	if p.number <= g.gone {
		g.fail("launcher %d starts generation %d after it has returned in some pod", p.number, run.Number)
	}
	g.of[run.Number] = p.number
	for local := range 2 {
		exit := protocol.Exit{At: g.now}
		if g.rnd.IntN(12) == 0 {
			exit.Code, exit.Signal = 137, 9
		}
		p.answers = append(p.answers, ckptagent.Exited{Generation: run.Number, Local: local, Exit: exit})
	}
}

// ends records that the ranks of a slot ended well.
func (g *lateGang) ends(slot int) {
	s := g.pods[slot].agent
	if s.Phase != protocol.StateFinished || g.launchers == 0 {
		return
	}
	of := g.ended[s.Run.Number]
	if of == nil {
		of = map[int]bool{}
		g.ended[s.Run.Number] = of
	}
	if of[slot] = true; len(of) == len(g.pods) {
		g.over[g.of[s.Run.Number]] = true
	}
}

// returned ends a launcher. After a while the command starts its next launcher.
func (g *lateGang) returned(slot, code int) {
	p := g.pods[slot]
	if !g.over[p.number] || code != 0 {
		g.fail("launcher %d of pod %d returns %d", p.number, slot, code)
	}
	g.gone = max(g.gone, p.number)
	p.number, p.serves = p.number+1, false
	p.starts = g.now.Add(time.Duration(g.rnd.IntN(10)) * time.Second)
	p.done = p.number > g.launchers
}

// TestLaunchersOneAfterAnother: the launchers of all commands are served in turn, each on all pods together and until its ranks have
// succeeded, and no launcher is served again after that. The same holds when any process dies, in a replacement pod and in a restarted
// container.
func TestLaunchersOneAfterAnother(t *testing.T) {
	replaced := 0
	for seed := range seeds.All(t, uint64(150)) {
		g := &lateGang{t: t, rnd: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(0, 0).UTC(), log: []string{fmt.Sprintf("seed %d", seed)}}
		members := 1 + g.rnd.IntN(3)
		g.sequence = sequence{launchers: 2 + g.rnd.IntN(2), of: map[int64]int{}, ended: map[int64]map[int]bool{}, over: map[int]bool{}}
		g.coord = elastic.New(members, 0, elastic.Record{})
		for slot := range members {
			g.pods = append(g.pods, nil)
			g.begin(slot)
		}
		done := func() bool {
			for _, p := range g.pods {
				if !p.done {
					return false
				}
			}
			return true
		}
		for second := 0; !done(); second++ {
			if r := g.coord.Snapshot(); second == 900 {
				g.fail("after %d s: launcher %+v, %s, generation %d, waits %q", second, r.Launch, r.Phase, r.Generation, r.Progress.Waits)
			}
			g.now = g.now.Add(time.Second)
			g.decide(elastic.Tick{})
			for slot := range members {
				g.take(slot, ckptagent.Tick{})
				switch n := g.rnd.IntN(200); {
				case second > 200 || g.pods[slot].done:
				case n < 4:
					g.die(slot)
				case n == 4:
					g.begin(slot)
					replaced++
				case n == 5:
					g.contain(slot)
				}
			}
			if second < 200 && g.rnd.IntN(60) == 0 {
				g.lead()
			}
			for range 20 * members {
				g.now = g.now.Add(time.Millisecond)
				g.move()
			}
		}
		for len(g.pods[0].up) > 0 { // messages under way arrive
			g.move()
		}
		if r := g.coord.Snapshot(); r.Phase != elastic.Finished || r.Launch.Number != g.launchers {
			g.fail("in the end %s at launcher %d of %d", r.Phase, r.Launch.Number, g.launchers)
		}
	}
	if replaced < 50 && !seeds.One() {
		t.Errorf("%d pods took another's place: too few to show anything", replaced)
	}
}
