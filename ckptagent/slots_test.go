package ckptagent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

const slotBytes = 100

// slotGang has ranks, the Books of their arenas, and the coordinator's core. Messages between them are delayed, but stay in order. No rank
// ends a step that another rank has not begun.
type slotGang struct {
	t     *testing.T
	seed  uint64
	rnd   *rand.Rand
	now   time.Time
	coord *elastic.State
	ranks []*slotRank
	// acknowledged is the newest common step that any coordinator has sent.
	acknowledged int64
}

// slotRank is one rank, its agent and its arena.
type slotRank struct {
	pod    elastic.Pod
	mem    []byte
	book   *format.Book
	copied format.Copy // announced and not sealed yet; Step 0: none
	used   uint64      // the newest grant that was used for a copy
	step   int64
	saving bool // the step must still be saved
	vain   bool // the rank has waited for a slot in vain
	up     []protocol.Report
	down   []protocol.Directive
}

func newSlotGang(t *testing.T, seed uint64, slots uint32) *slotGang {
	g := &slotGang{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(0, 0).UTC()}
	members := 2 + g.rnd.IntN(3)
	g.coord = elastic.New(members, time.Hour, elastic.Record{})
	for i := range members {
		r := &slotRank{pod: elastic.Pod{UID: fmt.Sprint(i), Name: fmt.Sprint("pod-", i)}, mem: make([]byte, format.FileSize(slotBytes, slots))}
		g.ranks = append(g.ranks, r)
		first := r.report()
		first.Generation, first.State = 0, protocol.StateIdle
		g.decide(elastic.Reported{Slot: elastic.Slot(i), Pod: r.pod, Report: first})
		book, writes := format.Create(format.Header{StateBytes: slotBytes, Slots: slots})
		r.book = book
		r.carryOut(writes)
		r.carryOut(book.Begin(1, 0, format.Point{}))
		r.up = []protocol.Report{r.report()}
	}
	return g
}

func (r *slotRank) carryOut(writes []format.Write) {
	for _, w := range writes {
		copy(r.mem[w.Offset:], w.Bytes)
	}
}

func (r *slotRank) report() protocol.Report {
	k := protocol.Rank{Step: r.step}
	if r.book != nil {
		k.Sealed = r.book.Held()
	}
	return protocol.Report{Incarnation: 1, Protocol: protocol.Version, Ranks: 1, Address: "10.0.0.1", Port: 4000, StateBytes: slotBytes,
		Generation: 1, State: protocol.StateRunning, Rank: []protocol.Rank{k}}
}

// decide passes an event to the coordinator. decide checks that every common step that the coordinator ever sent, or a newer one, still
// exists.
func (g *slotGang) decide(e elastic.Event) {
	for _, f := range elastic.Step(g.coord, e, g.now) {
		switch f := f.(type) {
		case elastic.Persist:
			g.decide(elastic.Stored{Revision: f.Revision, Generation: f.Record.Generation})
		case elastic.Broadcast:
			for i := range g.ranks {
				g.direct(i)
			}
		}
	}
	if r, reported := e.(elastic.Reported); reported {
		g.direct(int(r.Slot))
	}
}

func (g *slotGang) direct(slot int) {
	r := g.ranks[slot]
	r.down = sent(r.down, g.coord.Directive(elastic.Slot(slot), r.pod.UID))
}

func (g *slotGang) check() {
	g.t.Helper()
	for i, r := range g.ranks {
		g.acknowledged = max(g.acknowledged, g.coord.Directive(elastic.Slot(i), r.pod.UID).CommonStep)
	}
	var held [][]int64
	for _, r := range g.ranks {
		held = append(held, r.book.Sealed())
	}
	if g.acknowledged > 0 && !slices.ContainsFunc(held[0], func(step int64) bool {
		return step >= g.acknowledged && !slices.ContainsFunc(held, func(of []int64) bool { return !slices.Contains(of, step) })
	}) {
		g.t.Fatalf("seed %d: step %d was common, and nothing as new is held by all: %v", g.seed, g.acknowledged, held)
	}
}

// train lets a rank begin a step, or save the step that it has ended. A patient rank waits for a slot.
func (g *slotGang) train(r *slotRank, patient bool) {
	c := r.book.Control
	switch {
	case !r.saving:
		if !slices.ContainsFunc(g.ranks, func(o *slotRank) bool { return o.step < r.step }) {
			r.step, r.saving = r.step+1, true
		}
	case c.Slot != format.NoSlot && c.Grant > r.used:
		r.copied = format.Copy{Slot: c.Slot, Grant: c.Grant, Step: r.step, Length: 1}
		r.used, r.saving, r.vain = c.Grant, false, false
	case r.vain || !patient:
		r.saving, r.vain = false, true
	}
}

func (g *slotGang) seal(r *slotRank) {
	if r.copied.Step > 0 {
		r.carryOut(r.book.Seal(r.copied, 0, 0))
		r.copied = format.Copy{}
		r.up = append(r.up, r.report())
	}
}

func (g *slotGang) hear(slot int) {
	if r := g.ranks[slot]; len(r.up) > 0 {
		said := r.up[0]
		r.up = r.up[1:]
		g.decide(elastic.Reported{Slot: elastic.Slot(slot), Pod: r.pod, Report: said})
	}
}

func (g *slotGang) tell(r *slotRank) {
	if len(r.down) > 0 {
		before := r.book.Sealed()
		r.carryOut(r.book.Levels(r.down[0].CommonStep, r.down[0].ReclaimBelow))
		r.down = r.down[1:]
		if !slices.Equal(before, r.book.Sealed()) {
			r.up = append(r.up, r.report())
		}
	}
}

// die ends an agent. The next agent reads the arena; messages on their way are lost.
func (g *slotGang) die(slot int) {
	r := g.ranks[slot]
	book, err := format.Open(r.mem[:format.MetaBytes])
	if err != nil {
		g.t.Fatal(err)
	}
	r.book = book
	r.carryOut(book.Begin(1, 0, format.Point{}))
	r.up, r.down = []protocol.Report{r.report()}, []protocol.Directive{g.coord.Directive(elastic.Slot(slot), r.pod.UID)}
}

// lead starts another coordinator, which has the stored record.
func (g *slotGang) lead() {
	g.coord = elastic.New(len(g.ranks), time.Hour, g.coord.Snapshot())
	for _, r := range g.ranks {
		r.up, r.down = []protocol.Report{r.report()}, nil
	}
}

// disturb plays any event, in any order.
func (g *slotGang) disturb() {
	slot := g.rnd.IntN(len(g.ranks))
	r := g.ranks[slot]
	switch n := g.rnd.IntN(100); {
	case n < 40:
		g.train(r, g.rnd.IntN(8) > 0)
	case n < 55:
		g.seal(r)
	case n < 75:
		g.hear(slot)
	case n < 98:
		g.tell(r)
	case n < 99:
		g.die(slot)
	default:
		g.lead()
	}
	g.now = g.now.Add(time.Millisecond)
	g.check()
}

// settle lets each rank do a step without delays. A rank that waits for a slot gives up once no message is on its way.
func (g *slotGang) settle() {
	for _, patient := range []bool{true, true, true, true, false} {
		for slot, r := range g.ranks {
			g.train(r, patient)
			g.seal(r)
			for len(r.up) > 0 {
				g.hear(slot)
			}
		}
		for _, r := range g.ranks {
			for len(r.down) > 0 {
				g.tell(r)
				g.check()
			}
		}
		g.check()
	}
}

// TestSlots: with two or three slots, no common step that the coordinator has sent is ever lost, whichever rank skips saves, is late or
// dies. Once no message is delayed, saves become common again, whatever each rank holds.
func TestSlots(t *testing.T) {
	for _, slots := range []uint32{format.MinSlots, format.Slots} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			for seed := range seeds.All(t, uint64(300)) {
				g := newSlotGang(t, seed, slots)
				for range 1500 {
					g.disturb()
				}
				before := g.acknowledged
				for range 8 {
					g.settle()
				}
				if g.acknowledged <= before {
					var held [][]int64
					for _, r := range g.ranks {
						held = append(held, r.book.Sealed())
					}
					t.Fatalf("seed %d: nothing newer than step %d becomes common: %v", seed, before, held)
				}
			}
		})
	}
}
