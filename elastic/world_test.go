package elastic

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"
)

// world is a gang with its agents, a store, and lines between them that lose, double and reorder. It
// checks the named properties of package elastic at every step.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Time
	state   *State
	stored  Record
	pending []Persist // on their way to the store
	agents  []*simAgent
	reports [][]Reported
	orders  [][]Directive
	pods    int

	generations map[int64]Launch // what was handed out under each number, slot 0's share
	acked       int64            // newest step that all ranks truly held at one time
	failures    int
	verdicts    int
	log         []string

	last map[string]Directive // of each pod, as it was told

	outside // dooms and storage
}

type seal struct {
	step, born int64 // the generation that made it: what restores must agree on
}

type simRank struct {
	sealed []seal
	step   int64
	exit   *Exit
	alive  bool
	copied Mark
}

type simAgent struct {
	pod      Pod
	inc      uint64
	gen      int64
	state    AgentState
	ranks    []simRank
	common   int64
	frontier int64
	told     int64
	seq      uint64
	exited   bool

	pod2 // what is of protocol 2
}

func newWorld(t *testing.T, seed int64, members int) *world {
	w := &world{t: t, rng: rand.New(rand.NewSource(seed)), now: time.Unix(1_700_000_000, 0), generations: map[int64]Launch{}, last: map[string]Directive{}}
	w.outside = outside{old: seed%5 == 4, mute: seed%7 == 3, files: map[Mark]map[int]seal{}, torn: map[Mark]bool{}, doomedOnce: map[string]bool{}, heardAt: map[string]time.Time{}}
	w.state = New(members, w.interval(), Record{})
	for i := range members {
		w.agents = append(w.agents, w.newAgent(i))
	}
	w.reports = make([][]Reported, members)
	w.orders = make([][]Directive, members)
	return w
}

func (w *world) newAgent(slot int) *simAgent {
	w.pods++
	return &simAgent{pod: Pod{UID: fmt.Sprint("uid-", w.pods), Name: fmt.Sprint("pod-", slot), Created: w.now}, inc: 1, state: AgentIdle, ranks: make([]simRank, 2)}
}

func (w *world) notef(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) failf(property, format string, args ...any) {
	w.t.Helper()
	tail := w.log[max(0, len(w.log)-40):]
	for _, l := range tail {
		w.t.Log(l)
	}
	w.t.Fatalf("%s: %s", property, fmt.Sprintf(format, args...))
}

func (w *world) report(a *simAgent) Report {
	a.seq++
	r := Report{Incarnation: a.inc, Sequence: a.seq, Ranks: len(a.ranks), Address: "10.0.0.1", Port: 1024 + int(a.inc), Generation: a.gen, State: a.state, StateBytes: 1 << 20}
	for i, k := range a.ranks {
		rank := Rank{Local: i, Step: k.step, Exit: k.exit, Copied: Copied{Mark: k.copied}}
		for _, s := range k.sealed {
			rank.Sealed = append(rank.Sealed, s.step)
		}
		slices.Sort(rank.Sealed)
		r.Rank = append(r.Rank, rank)
	}
	r.Protocol, r.Leaving = 1, a.leaving
	if !w.old {
		r.Protocol, r.Storage, r.Manifested, r.FetchFailed = 2, true, a.manifested, a.fetchFailed
		if !w.mute {
			r.Hold = a.hold
		}
	}
	return r
}

func (w *world) send(slot int) {
	w.reports[slot] = append(w.reports[slot], Reported{Slot: Slot(slot), Pod: w.agents[slot].pod, Report: w.report(w.agents[slot])})
}

// apply gives the core an event and carries its effects as far as the lines.
func (w *world) apply(e Event) {
	before := w.state.Record.Generation
	was, told := w.state.Record, false
	switch e := e.(type) {
	case Reported:
		w.heardAt[e.Pod.UID] = w.now
	case Detached:
		if m := &w.state.slots[e.Slot]; m.attached && m.pod.UID == e.Pod {
			w.heardAt[e.Pod] = w.now
		}
	}
	for _, eff := range Step(w.state, e, w.now) {
		switch eff := eff.(type) {
		case Persist:
			w.checkCopies(&was, &eff.Record)
			w.pending = append(w.pending, eff)
		case End:
			w.verdicts++
			w.apply(Ended{})
		case Replace:
			w.checkReplace(eff.Doom)
			w.replacing = append(w.replacing, eff.Doom)
		case Seek:
			w.seeks = append(w.seeks, eff.Slots...)
		case Direct:
			told = true
		case Touch, Tell, Settled:
		}
	}
	if w.state.Record.Generation < before {
		w.failf("generation only rises", "%d after %d", w.state.Record.Generation, before)
	}
	if r := &w.state.Record; r.Generation > before && r.RestoreStep == 0 && was.Durable != nil {
		w.failf("no beginning over a stored step", "generation %d begins anew over %+v", r.Generation, *was.Durable)
	}
	for slot := range w.agents {
		d := w.state.Directive(Slot(slot), w.agents[slot].pod.UID)
		w.checkDirective(slot, d)
		w.checkTold(e, slot, d, told)
		w.orders[slot] = append(w.orders[slot], d)
		if n := len(w.orders[slot]); n > 4 {
			w.orders[slot] = w.orders[slot][n-4:]
		}
	}
}

// checkTold: agents hear of every change of what they must do, unless it is the first word to one.
func (w *world) checkTold(e Event, slot int, d Directive, told bool) {
	uid := w.agents[slot].pod.UID
	if old, known := w.last[uid]; known && !told && !reflect.DeepEqual(old, d) {
		w.failf("what changes is told", "%T left slot %d with %+v, it is %+v", e, slot, old, d)
	}
	w.last[uid] = d
}

func (w *world) checkDirective(slot int, d Directive) {
	if d.Order != OrderRun {
		return
	}
	if d.Run.Number > w.stored.Generation {
		w.failf("no run before it is stored", "generation %d, stored %d", d.Run.Number, w.stored.Generation)
	}
	if d.Run.WorldSize == 0 {
		if a := w.agents[slot]; a.gen < d.Run.Number {
			w.failf("no agent runs half a generation", "slot %d in generation %d is told to run %+v", slot, a.gen, d.Run)
		}
		return
	}
	share := *d.Run
	share.BaseRank, share.NodeRank = 0, 0
	if old, ok := w.generations[share.Number]; ok && old != share {
		w.failf("no number for two generations", "%+v and %+v", old, share)
	}
	w.generations[share.Number] = share
}

// obey is the agent's side of the protocol.
func (w *world) obey(slot int, d Directive) {
	a := w.agents[slot]
	if d.Generation < a.told || a.exited || a.dead {
		return
	}
	if d.Generation > a.told {
		a.hold, a.copy = 0, Mark{}
	}
	a.told = d.Generation
	switch d.Order {
	case OrderRun:
		if a.gen >= d.Run.Number {
			break
		}
		w.start(slot, d.Run)
	case OrderHalt:
		if d.Generation >= a.gen && d.Generation > 0 {
			if d.Run != nil && a.gen < d.Run.Number {
				a.discard(d.Run.RestoreStep)
			}
			a.gen, a.state = d.Generation, AgentHalted
			for i := range a.ranks {
				a.ranks[i].alive = false
			}
		}
	case OrderExit:
		a.exited = true
	case OrderWait, OrderNone:
	}
	w.obey2(slot, d)
	if d.Generation == a.gen {
		a.common, a.frontier = max(a.common, d.Common), max(a.frontier, d.Frontier)
	}
}

func (w *world) start(slot int, run *Launch) {
	a := w.agents[slot]
	a.gen, a.state, a.common, a.frontier = run.Number, AgentRunning, run.RestoreStep, run.RestoreStep
	for i := range a.ranks {
		k := &a.ranks[i]
		if run.RestoreStep > 0 && !slices.ContainsFunc(k.sealed, func(s seal) bool { return s.step == run.RestoreStep }) {
			w.failf("no restore of what a rank lacks", "slot %d rank %d holds %v, generation %d restores %d", slot, i, k.sealed, run.Number, run.RestoreStep)
		}
		k.step, k.alive, k.exit = run.RestoreStep, true, nil
	}
	a.discard(run.RestoreStep)
	w.checkSameBirth(run)
	if run.RestoreStep < w.acked {
		w.failf("no acknowledged step is lost", "restores %d after %d", run.RestoreStep, w.acked)
	}
	w.notef("slot %d starts generation %d from %d", slot, run.Number, run.RestoreStep)
}

// discard drops what lies above a restore point: it belongs to a past that is given up.
func (a *simAgent) discard(above int64) {
	for i := range a.ranks {
		a.ranks[i].sealed = slices.DeleteFunc(a.ranks[i].sealed, func(s seal) bool { return s.step > above })
	}
}

// checkSameBirth: all ranks restore the same training's step, not another one's of the same number.
func (w *world) checkSameBirth(run *Launch) {
	born := int64(-1)
	for _, a := range w.agents {
		if a.gen != run.Number || run.RestoreStep == 0 {
			continue
		}
		for _, k := range a.ranks {
			for _, s := range k.sealed {
				if s.step == run.RestoreStep {
					if born >= 0 && s.born != born {
						w.failf("one past", "generation %d restores step %d of generations %d and %d", run.Number, s.step, born, s.born)
					}
					born = s.born
				}
			}
		}
	}
}

// train lets one rank finish a step and, where a slot is free, seal it.
func (w *world) train(slot, local int) {
	a := w.agents[slot]
	k := &a.ranks[local]
	if !k.alive || a.state != AgentRunning || a.dead || a.held(k) {
		return
	}
	k.step++
	s := seal{k.step, a.gen}
	if w.rng.Intn(5) == 0 {
		return // skipped
	}
	if len(k.sealed) < 3 {
		k.sealed = append(k.sealed, s)
	} else if i := slices.IndexFunc(k.sealed, func(o seal) bool { return o.step != a.common && o.step != a.copy.Step && o.step < a.frontier }); i >= 0 {
		k.sealed[i] = s
	}
	w.acknowledge()
}

func (w *world) acknowledge() {
	inventories := [][]int64{}
	for _, a := range w.agents {
		if a.gen != w.agents[0].gen || !ran(a.state) {
			return
		}
		for _, k := range w.report(a).Rank {
			inventories = append(inventories, k.Sealed)
		}
	}
	if step, ok := RestorePoint(inventories); ok {
		w.acked = max(w.acked, step)
	}
}

func (w *world) kill(slot, local int, e Exit) {
	a := w.agents[slot]
	if !a.ranks[local].alive || !ran(a.state) || a.dead {
		return
	}
	w.failures++
	e.At = w.now
	a.ranks[local].alive, a.ranks[local].exit, a.state = false, &e, AgentFailed
	w.notef("slot %d rank %d ends with %d", slot, local, e.Code)
}

// chaos does one random thing.
func (w *world) chaos() {
	slot, local := w.rng.Intn(len(w.agents)), w.rng.Intn(2)
	a := w.agents[slot]
	w.now = w.now.Add(time.Duration(w.rng.Intn(200)) * time.Millisecond)
	if w.rng.Intn(25) == 0 {
		w.outsideChaos(slot)
		return
	}
	if a.dead {
		return
	}
	switch p := w.rng.Intn(1000); {
	case p < 350:
		w.train(slot, local)
	case p < 500:
		w.send(slot)
	case p < 700:
		w.deliverReport(slot)
	case p < 900:
		w.deliverOrder(slot)
	case p < 960:
		w.store()
	case p < 968:
		w.kill(slot, local, Exit{Code: 137, Signal: 9})
	case p < 972:
		w.kill(slot, local, Exit{Code: 1, Traceback: fmt.Sprintf("ValueError: bug %d", w.rng.Intn(1000000))})
	case p < 980: // the agent is killed and takes its ranks over
		a.inc++
	case p < 983: // the container comes back without its ranks, memory stays
		a.inc++
		if ran(a.state) {
			a.state = AgentIdle
			w.failures++
		}
		for i := range a.ranks {
			a.ranks[i].alive = false
		}
		w.notef("slot %d container restarts", slot)
	case p < 986:
		w.replace(slot)
	case p < 992:
		w.crash()
	case p < 995:
		w.apply(Detached{Slot: Slot(slot), Pod: a.pod.UID})
	default:
		w.now = w.now.Add(time.Second)
	}
}

func (w *world) replace(slot int) {
	w.now = w.now.Add(time.Second)
	w.agents[slot] = w.newAgent(slot)
	w.orders[slot], w.reports[slot] = nil, nil
	w.acked = min(w.acked, w.obtainable()) // its memory is gone
	w.notef("slot %d has a new pod", slot)
}

// crash ends the coordinator; what was on its way to the store arrives or not.
func (w *world) crash() {
	if w.rng.Intn(2) == 0 {
		w.store()
	}
	w.pending = nil
	w.crashReplacing()
	w.state = New(len(w.agents), w.interval(), w.stored)
	clear(w.last)
	w.notef("coordinator starts anew at generation %d", w.stored.Generation)
	for i := range w.reports {
		w.reports[i] = nil
	}
}

func (w *world) store() {
	if len(w.pending) == 0 {
		return
	}
	p := w.pending[0]
	w.pending = w.pending[1:]
	if p.Record.Generation < w.stored.Generation {
		w.failf("generation only rises", "%d stored after %d", p.Record.Generation, w.stored.Generation)
	}
	w.stored = p.Record
	w.apply(Stored{Revision: p.Revision, Generation: p.Record.Generation, Verdict: p.Record.Verdict != nil})
}

func (w *world) deliverReport(slot int) {
	q := w.reports[slot]
	if len(q) == 0 {
		return
	}
	i := w.rng.Intn(len(q)) // out of order
	r := q[i]
	if w.rng.Intn(4) > 0 { // else it will come twice
		w.reports[slot] = slices.Delete(q, i, i+1)
	}
	if w.rng.Intn(10) == 0 {
		return // lost
	}
	w.apply(r)
}

func (w *world) deliverOrder(slot int) {
	if q := w.orders[slot]; len(q) > 0 && w.rng.Intn(10) > 0 {
		w.obey(slot, q[w.rng.Intn(len(q))])
	}
}

// settle stops all faults and lets every line deliver.
func (w *world) settle() {
	for range 60 {
		w.settleOutside()
		for slot := range w.agents {
			w.reports[slot] = nil
			w.now = w.now.Add(time.Millisecond)
			a := w.agents[slot]
			if !a.dead {
				w.apply(Reported{Slot: Slot(slot), Pod: a.pod, Report: w.report(a)})
			}
			for len(w.pending) > 0 {
				w.store()
			}
			w.obey(slot, w.state.Directive(Slot(slot), a.pod.UID))
		}
	}
}

func (w *world) checkSettled() {
	r := &w.state.Record
	if r.Verdict != nil {
		if r.Verdict.ExitCode == 0 {
			w.failf("every failure is answered", "verdict %+v", r.Verdict)
		}
		for slot, a := range w.agents {
			if !a.exited && !a.dead {
				w.failf("every failure is answered", "slot %d was not told to exit", slot)
			}
		}
		return
	}
	for slot, a := range w.agents {
		if a.state != AgentRunning || a.gen != r.Generation || r.Phase != Running {
			w.failf("every failure is answered", "phase %s generation %d, yet slot %d is %d in generation %d (waits: %s)", r.Phase, r.Generation, slot, a.state, a.gen, w.state.waitsFor())
		}
	}
}

// TestProperties plays random histories; a seed that fails is printed by the subtest's name.
func TestProperties(t *testing.T) {
	generations, failures, verdicts := int64(0), 0, 0
	durable, fetches, replaced, drains, mended, silenced, deafened := 0, 0, 0, 0, 0, 0, 0
	for seed := range int64(400) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed, 1+int(seed%4))
			for range 8 {
				for range 400 {
					w.chaos()
				}
				w.settle()
				w.checkSettled()
				if w.state.Final() {
					break
				}
			}
			w.deleteJob()
			generations += w.state.Record.Generation
			failures += w.failures
			verdicts += w.verdicts
			durable, fetches, replaced, drains, mended = durable+w.durable, fetches+w.fetches, replaced+w.replaced, drains+w.drains, mended+w.mended
			silenced, deafened = silenced+w.silenced, deafened+w.deafened
		})
	}
	t.Logf("%d generations, %d failures, %d verdicts; %d steps made durable, %d fetched, %d pods replaced, %d parts drained, %d times files mended, %d silent pods given up, %d of them more than half of their gang", generations, failures, verdicts, durable, fetches, replaced, drains, mended, silenced, deafened)
	if durable < 500 || fetches < 200 || replaced < 500 || drains < 200 || silenced < 20 || deafened < 20 {
		t.Errorf("storage and dooms are too rare to show anything")
	}
	if generations < 2000 || failures < 1500 {
		t.Errorf("histories are too quiet to show anything: %d generations, %d failures", generations, failures)
	}
}
