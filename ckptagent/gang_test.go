package ckptagent_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// lateGang has the cores of agents and of their coordinator. The commands of the job start their launchers after the agents' timeout.
// Messages between an agent and the coordinator are delayed, but stay in order.
type lateGang struct {
	t      *testing.T
	rnd    *rand.Rand
	now    time.Time
	coord  *elastic.State
	record elastic.Record // as stored
	pods   []*latePod
	log    []string
	born   int // pods so far
	sequence
}

// latePod is a container. Its command runs until the end of the history, and starts a launcher at some time.
type latePod struct {
	pod      elastic.Pod
	agent    ckptagent.State
	command  ckptagent.Command
	starts   time.Time // the launcher
	serves   bool      // it runs
	number   int       // of the launcher
	done     bool      // no other launcher follows
	answers  []ckptagent.Event
	up       []protocol.Report
	down     []protocol.Directive
	reported uint64
}

func (g *lateGang) fail(format string, args ...any) {
	g.t.Helper()
	for _, l := range g.log {
		g.t.Log(l)
	}
	g.t.Fatalf(format, args...)
}

func (g *lateGang) take(slot int, e ckptagent.Event) {
	p := g.pods[slot]
	agent, effects := ckptagent.Step(p.agent, e, g.now)
	p.agent = agent
	g.log = append(g.log, fmt.Sprintf("%s agent %d: %T%+v -> %+v", g.now.Format("04:05.000"), slot, e, e, effects))
	for _, f := range effects {
		switch f := f.(type) {
		case ckptagent.Start:
			for local := range f.Ranks {
				p.answers = append(p.answers, ckptagent.Started{Generation: f.Run.Number, Local: local, PID: 100 + local})
			}
			g.starting(slot, f.Run)
		case ckptagent.End:
			if agent.Whole {
				g.fail("the command of pod %d is ended", slot)
			}
			p.answers = append(p.answers, ckptagent.Gone{})
		case ckptagent.TakeInventory:
			p.answers = append(p.answers, ckptagent.Inventoried{})
		case ckptagent.OfferPort:
			p.answers = append(p.answers, ckptagent.PortOffered{Port: 4000})
		case ckptagent.Return:
			g.returned(slot, f.Returned.Code)
		}
	}
	g.ends(slot)
	p.report()
}

// begin puts a new pod into a slot. Its launcher starts within two minutes.
func (g *lateGang) begin(slot int) {
	g.born++
	p := &latePod{pod: elastic.Pod{UID: fmt.Sprint(g.born), Name: fmt.Sprint("pod-", slot), Created: g.now}, agent: ckptagent.New()}
	g.pods[slot] = p
	g.contain(slot)
}

// contain starts a container of a pod. The command in it starts its launcher within two minutes.
func (g *lateGang) contain(slot int) {
	p := g.pods[slot]
	p.command, p.number, p.done = ckptagent.Command{PID: 1, BeganAt: g.now, Timeout: time.Minute}, 1, false
	if g.launchers > 0 {
		p.command.Timeout = -1
	}
	p.starts, p.serves, p.answers = g.now.Add(time.Duration(g.rnd.IntN(120))*time.Second), false, nil
	g.take(slot, ckptagent.Resumed{})
	g.take(slot, ckptagent.CommandBegan{Command: p.command})
}

// report sends a report.
func (p *latePod) report() {
	r := p.agent.Report()
	p.reported++
	r.Protocol, r.Sequence, r.Address = protocol.Version, p.reported, "10.0.0.1"
	p.up = append(p.up, r)
}

func (g *lateGang) decide(e elastic.Event) {
	for _, f := range elastic.Step(g.coord, e, g.now) {
		switch f := f.(type) {
		case elastic.Persist:
			g.record = f.Record
			g.decide(elastic.Stored{Revision: f.Revision, Generation: f.Record.Generation})
		case elastic.Broadcast:
			for slot := range g.pods {
				g.direct(slot)
			}
		case elastic.End:
			g.fail("the job is given up: %+v", f.Verdict)
		case elastic.EmitEvent:
			g.log = append(g.log, "tell "+f.Notice.Message)
		}
	}
	if r, reported := e.(elastic.Reported); reported {
		g.direct(int(r.Slot))
	}
}

// sent adds a directive to those under way, unless it is the newest of them.
func sent(down []protocol.Directive, d protocol.Directive) []protocol.Directive {
	if n := len(down); n > 0 && reflect.DeepEqual(down[n-1], d) {
		return down
	}
	return append(down, d)
}

func (g *lateGang) direct(slot int) {
	p := g.pods[slot]
	p.down = sent(p.down, g.coord.Directive(elastic.Slot(slot), p.pod.UID))
}

// move plays one event that is due.
func (g *lateGang) move() {
	slot := g.rnd.IntN(len(g.pods))
	p := g.pods[slot]
	switch g.rnd.IntN(4) {
	case 0:
		if len(p.answers) > 0 {
			i := g.rnd.IntN(len(p.answers))
			e := p.answers[i]
			p.answers = slices.Delete(p.answers, i, i+1)
			g.take(slot, e)
		}
	case 1:
		if len(p.up) > 0 {
			r := p.up[0]
			p.up = p.up[1:]
			g.decide(elastic.Reported{Slot: elastic.Slot(slot), Pod: p.pod, Report: r})
		}
	case 2:
		if len(p.down) > 0 {
			d := p.down[0]
			p.down = p.down[1:]
			g.take(slot, ckptagent.Directed{Directive: d})
		}
	case 3:
		if !p.serves && !p.done && !g.now.Before(p.starts) {
			if ok, why := p.agent.Serves(p.id()); !ok {
				g.fail("pod %d refuses its launcher: %s", slot, why)
			}
			p.serves = true
			g.take(slot, ckptagent.Launched{ID: p.id(), Ranks: 2})
		}
	}
}

// die ends an agent. The next agent continues from the stored state.
func (g *lateGang) die(slot int) {
	p := g.pods[slot]
	raw, err := json.Marshal(p.agent.Stored())
	p.agent = ckptagent.State{}
	if err == nil {
		err = json.Unmarshal(raw, &p.agent.Durable)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	p.answers, p.up, p.down = nil, nil, nil
	g.take(slot, ckptagent.Resumed{SameContainer: true})
	g.take(slot, ckptagent.CommandBegan{Command: p.command})
	if p.serves {
		g.take(slot, ckptagent.Launched{ID: p.id(), Ranks: 2})
	}
	if s := p.agent; s.Phase == protocol.StateRunning { // the next agent finds its ranks again
		for local, r := range s.Rank {
			if r.PID == 0 {
				p.answers = append(p.answers, ckptagent.Started{Generation: s.Run.Number, Local: local, PID: 100 + local})
			}
			if r.Exit == nil && g.launchers > 0 {
				p.answers = append(p.answers, ckptagent.Exited{Generation: s.Run.Number, Local: local, Exit: protocol.Exit{At: g.now}})
			}
		}
	}
	g.direct(slot)
}

// lead starts another coordinator, which has the stored record.
func (g *lateGang) lead() {
	g.log = append(g.log, "another coordinator leads")
	g.coord = elastic.New(len(g.pods), 0, g.record)
	for slot, p := range g.pods {
		p.up, p.down = nil, nil
		p.report()
		g.direct(slot)
	}
}

// TestLateLaunchers: launchers start at any time, in any order, and any process may die meanwhile. No command is ended in its first run,
// and at last all ranks belong to launchers. As long as the coordinator lives, this counts as no failure. The same holds for a replacement
// pod after all launchers have started. A restarted container counts as one failure.
func TestLateLaunchers(t *testing.T) {
	for seed := range seeds.All(t, uint64(100)) {
		g := &lateGang{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(0, 0).UTC(), log: []string{fmt.Sprintf("seed %d", seed)}}
		members := 1 + g.rnd.IntN(4)
		g.coord = elastic.New(members, 0, elastic.Record{})
		for slot := range members {
			g.pods = append(g.pods, nil)
			g.begin(slot)
		}
		leaders, lost := g.rnd.IntN(3), g.rnd.IntN(3)
		for second := range 320 {
			g.now = g.now.Add(time.Second)
			g.decide(elastic.Tick{})
			switch slot := g.rnd.IntN(members); {
			case second != 140 || lost == 0: // by then all launchers have started
			case lost == 1:
				g.begin(slot)
			default:
				g.contain(slot)
			}
			for slot := range members {
				g.take(slot, ckptagent.Tick{})
				if g.rnd.IntN(60) == 0 {
					g.die(slot)
				}
			}
			if leaders > 1 && g.rnd.IntN(30) == 0 {
				g.lead()
			}
			for range 40 * members {
				g.now = g.now.Add(time.Millisecond)
				g.move()
			}
		}
		r := g.coord.Snapshot()
		if run := g.pods[0].agent.Run; r.Phase != elastic.Running || run.WorldSize != 2*members ||
			g.pods[0].agent.Phase != protocol.StateRunning {
			g.fail("in the end %s, generation %d of %d ranks, waits %q", r.Phase, r.Generation, run.WorldSize, r.Progress.Waits)
		}
		if leaders <= 1 && r.Restarts > min(lost, 1) {
			g.fail("%d failures are counted", r.Restarts)
		}
	}
}
