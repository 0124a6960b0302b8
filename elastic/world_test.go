package elastic

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// world is a gang with its agents, a store, and connections between them that lose, double and delay messages. Reports are also reordered,
// because the coordinator may read reports of an older stream last. world checks the promises of package elastic after every event.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Time
	state   *State
	was     *Record // copy of wasOf after the previous event
	wasOf   *State
	stored  Record
	pending []Persist // writes on their way to the store
	agents  []*simAgent
	reports [][]Reported
	orders  [][]protocol.Directive
	pods    int

	promises promises
	acked    protocol.Point // newest step that all ranks ever held at the same time
	failures int
	verdicts int
	log      []string
	lag      time.Duration // how long reports wait for a walk

	faults // evidence for verdicts

	outside // terminations and storage
	*shelf  // retained steps; nil: no step is removed

	branches // rollbacks that users requested

	launches // the launchers that the command runs one after another
}

type seal struct {
	step, born int64 // the generation that trained the step: all ranks must restore the same
	branch     int64
}

func (s seal) point() protocol.Point { return protocol.Point{Branch: s.branch, Step: s.step} }

type simRank struct {
	sealed []seal
	step   int64
	exit   *protocol.Exit
	alive  bool
	copied protocol.Mark
}

type simAgent struct {
	pod          Pod
	inc          uint64
	launch       int
	gen          int64
	branch       int64 // of gen
	state        protocol.AgentState
	ranks        []simRank
	commonStep   int64
	reclaimBelow int64
	reported     int64
	seq          uint64
	exited       bool

	pod2 // what agents do about storage and drains
}

func newWorld(t *testing.T, seed int64, members int) *world {
	w := &world{t: t, rng: rand.New(rand.NewSource(seed)), now: time.Unix(1_700_000_000, 0)}
	w.promises, w.faults = newPromises(w.failf), faults{bugs: map[int]int{}, bests: []best{{}}}
	w.outside = outside{
		unstored:    seed%5 == 4,
		mute:        seed%7 == 3,
		babbles:     seed%6 == 5,
		files:       map[protocol.Mark]map[int]seal{},
		torn:        map[protocol.Mark]bool{},
		pendingOnce: map[string]bool{},
		heardAt:     map[string]time.Time{},
	}
	w.branches = branches{asked: map[int64]protocol.Point{}}
	w.launches = newLaunches(0)
	if seed%3 == 0 {
		w.launches = newLaunches(2 + int(seed%2))
	}
	w.state = New(members, w.interval(), Record{})
	for i := range members {
		w.agents = append(w.agents, w.newAgent(i))
	}
	w.reports = make([][]Reported, members)
	w.orders = make([][]protocol.Directive, members)
	return w
}

// slow lets reports wait so long for a walk, as in a large gang.
func (w *world) slow(lag time.Duration) {
	w.lag = lag
	w.state.walks.every, w.state.walks.texts = lag, 3*lag
}

func (w *world) newAgent(slot int) *simAgent {
	w.pods++
	return &simAgent{
		pod:    Pod{UID: fmt.Sprint("uid-", w.pods), Name: fmt.Sprint("pod-", slot), Created: w.now},
		inc:    1,
		launch: 1,
		state:  protocol.StateIdle,
		ranks:  make([]simRank, 2),
	}
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

func (w *world) report(a *simAgent) protocol.Report {
	a.seq++
	r := protocol.Report{
		Incarnation: a.inc,
		Sequence:    a.seq,
		Ranks:       len(a.ranks),
		Address:     "10.0.0.1",
		Port:        1024 + int(a.inc),
		Generation:  a.gen,
		State:       a.state,
		StateBytes:  1 << 20,
	}
	for i, k := range a.ranks {
		rank := protocol.Rank{Local: i, Step: k.step, Exit: k.exit, Copied: protocol.Copied{Mark: k.copied}}
		for _, s := range k.sealed {
			rank.Sealed = append(rank.Sealed, s.point())
		}
		protocol.ByStep(rank.Sealed)
		r.Rank = append(r.Rank, rank)
	}
	r.Terminating, r.Launch = a.leaving, a.launch
	r.Storage, r.Manifested, r.FetchFailed = !w.unstored, a.manifested, a.fetchFailed
	if !w.mute {
		r.BarrierStep = a.hold
	}
	if w.babbles && a.fetchFailed == (protocol.Mark{}) { // a step that was never stored
		r.FetchFailed = protocol.Mark{Step: 1<<40 + int64(a.seq), Generation: 1}
	}
	return r
}

func (w *world) send(slot int) {
	w.reports[slot] = append(w.reports[slot], Reported{Slot: Slot(slot), Pod: w.agents[slot].pod, Report: w.report(w.agents[slot])})
}

// apply passes an event to the core, and its effects to the connections.
func (w *world) apply(e Event) {
	if w.wasOf != w.state {
		w.was, w.wasOf = w.state.rec(), w.state
	}
	was, notified := *w.was, false
	switch e := e.(type) {
	case Reported:
		w.heardAt[e.Pod.UID] = w.now
	case Detached:
		if m := w.state.members.At(e.Slot); m.Attached() && m.Pod().UID == e.Pod {
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
			w.checkVerdict(eff.Verdict)
			w.apply(Ended{})
		case Replace:
			w.noteStuck()
			w.checkReplace(eff.Termination)
			w.replacing = append(w.replacing, eff.Termination)
		case LookupHolders:
			w.seeks = append(w.seeks, eff.Slots...)
		case Broadcast:
			notified = true
		case GoBackRefused:
			w.refused++
		case PersistLater, EmitEvent, Settled:
		}
	}
	now := w.state.rec()
	w.was = now
	w.promises.record(&was, now)
	w.noteLaunch(&was, now)
	w.noteStuck()
	for slot := range w.agents {
		if n := w.state.members.At(Slot(slot)).FailedFetches(); n > members.MaxFailedFetches {
			w.failf("what agents say is bounded", "slot %d has %d fetches that could not be done", slot, n)
		} else if n == members.MaxFailedFetches {
			w.full++
		}
		d := w.state.Directive(Slot(slot), w.agents[slot].pod.UID)
		w.promises.directive(e, slot, w.agents[slot].pod.UID, d, notified, w.stored.Generation)
		if a := w.agents[slot]; d.Order == protocol.OrderRun && d.Run.WorldSize == 0 && a.gen < d.Run.Number {
			w.failf("no agent runs half a generation", "slot %d in generation %d is told to run %+v", slot, a.gen, d.Run)
		}
		w.checkBranch(slot, d)
		w.orders[slot] = append(w.orders[slot], d)
		if n := len(w.orders[slot]); n > 4 {
			w.orders[slot] = w.orders[slot][n-4:]
		}
	}
}

// obey carries out a directive in the agent of a slot.
func (w *world) obey(slot int, d protocol.Directive) {
	a := w.agents[slot]
	if d.Generation < a.reported || a.exited || a.dead {
		return
	}
	if d.Generation > a.reported {
		a.hold, a.copy = 0, protocol.Mark{}
	}
	a.reported = d.Generation
	if w.pass(slot, d) {
		return
	}
	switch d.Order {
	case protocol.OrderRun:
		if a.gen >= d.Run.Number {
			break
		}
		w.start(slot, d.Run)
	case protocol.OrderHalt:
		if d.Generation >= a.gen && d.Generation > 0 {
			if d.Run != (protocol.Run{}) && a.gen < d.Run.Number {
				a.discard(d.Run.Restores())
			}
			a.gen, a.state = d.Generation, protocol.StateHalted
			for i := range a.ranks {
				a.ranks[i].alive = false
			}
		}
	case protocol.OrderExit:
		a.exited = true
	case protocol.OrderWait, protocol.OrderNone:
	}
	w.obeyStorage(slot, d)
	if d.Generation == a.gen {
		a.commonStep, a.reclaimBelow = max(a.commonStep, d.CommonStep), max(a.reclaimBelow, d.ReclaimBelow)
	}
}

func (w *world) start(slot int, run protocol.Run) {
	a := w.agents[slot]
	a.gen, a.branch, a.state, a.commonStep, a.reclaimBelow = run.Number, run.Branch, protocol.StateRunning, run.RestoreStep, run.RestoreStep
	for i := range a.ranks {
		k := &a.ranks[i]
		if run.RestoreStep > 0 && !slices.ContainsFunc(k.sealed, func(s seal) bool { return s.point() == run.Restores() }) {
			w.failf("no restore of what a rank lacks", "slot %d rank %d holds %v, generation %d restores %d", slot, i, k.sealed, run.Number, run.RestoreStep)
		}
		k.step, k.alive, k.exit = run.RestoreStep, true, nil
	}
	a.discard(run.Restores())
	w.checkLaunch(slot, run)
	w.checkSameBirth(run)
	if run.Restores().Compare(w.acked) < 0 {
		w.failf("no acknowledged step is lost", "restores %v after %v", run.Restores(), w.acked)
	}
	w.notef("slot %d starts generation %d of branch %d from %v", slot, run.Number, run.Branch, run.Restores())
}

// discard drops the steps that a restore gives up.
func (a *simAgent) discard(restore protocol.Point) {
	for i := range a.ranks {
		a.ranks[i].sealed = slices.DeleteFunc(a.ranks[i].sealed, func(s seal) bool { return restore.GivesUp(s.point()) })
	}
}

// checkSameBirth checks that all ranks restore the same state: not a step of the same number from another generation, nor one that a later
// generation gave up.
func (w *world) checkSameBirth(run protocol.Run) {
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
					for number, other := range w.promises.runs {
						if s.born < number && number < run.Number && other.RestoreStep < s.step &&
							!w.untold[protocol.Mark{Step: s.step, Generation: s.born}] {
							w.failf(
								"what is given up stays so",
								"generation %d restores step %d of generation %d, generation %d restored %d",
								run.Number,
								s.step,
								s.born,
								number,
								other.RestoreStep,
							)
						}
					}
				}
			}
		}
	}
}

// train makes one rank finish a step and, if a slot is free, seal it.
func (w *world) train(slot, local int) {
	a := w.agents[slot]
	k := &a.ranks[local]
	if !k.alive || a.state != protocol.StateRunning || a.dead || a.held(k) {
		return
	}
	k.step++
	s := seal{step: k.step, born: a.gen, branch: a.branch}
	if w.rng.Intn(5) == 0 {
		return // skipped
	}
	if len(k.sealed) < 3 {
		k.sealed = append(k.sealed, s)
	} else if i := slices.IndexFunc(
		k.sealed,
		func(o seal) bool { return o.step != a.commonStep && o.step != a.copy.Step && o.step < a.reclaimBelow },
	); i >= 0 {
		k.sealed[i] = s
	}
	w.acknowledge()
}

func (w *world) acknowledge() {
	inventories := [][]protocol.Point{}
	for _, a := range w.agents {
		if a.gen != w.agents[0].gen || !members.Ran(a.state) || a.launch != w.state.members.Launch() {
			return
		}
		for _, k := range w.report(a).Rank {
			inventories = append(inventories, k.Sealed)
		}
	}
	w.acked = newer(w.acked, restore.InMemory(inventories, w.stored.Branches))
}

func (w *world) kill(slot, local int, e protocol.Exit) {
	a := w.agents[slot]
	if !a.ranks[local].alive || !members.Ran(a.state) || a.dead {
		return
	}
	w.failures++
	w.fault()
	if e.Signal == 0 {
		w.bugs[2*slot+local]++
	}
	e.At = w.now
	a.ranks[local].alive, a.ranks[local].exit, a.state = false, &e, protocol.StateFailed
	w.notef("slot %d rank %d ends with %d", slot, local, e.Code)
}

// chaos plays one random event.
func (w *world) chaos() {
	slot, local := w.rng.Intn(len(w.agents)), w.rng.Intn(2)
	a := w.agents[slot]
	w.now = w.now.Add(time.Duration(w.rng.Intn(200)) * time.Millisecond)
	if w.rng.Intn(25) == 0 {
		w.outsideChaos(slot)
		w.fault()
		return
	}
	if a.dead {
		return
	}
	if w.ending > 0 && w.rng.Intn(10) == 0 {
		w.finish(slot)
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
		w.kill(slot, local, protocol.Exit{Code: 137, Signal: 9})
	case p < 972:
		w.kill(slot, local, protocol.Exit{Code: 1, Traceback: fmt.Sprintf("ValueError: bug %d", w.rng.Intn(1000000))})
	case p < 980: // the agent is killed; the next agent takes over its ranks
		a.inc++
	case p < 983: // the container restarts without its ranks; memory stays
		a.inc++
		a.launch = 1
		if members.Ran(a.state) {
			a.state = protocol.StateIdle
			w.failures++
			w.fault()
		}
		for i := range a.ranks {
			a.ranks[i].alive = false
		}
		w.notef("slot %d container restarts", slot)
	case p < 986:
		w.replace(slot)
	case p < 992:
		w.crash()
	case p < 994:
		w.goBack()
	case p < 996:
		w.apply(Detached{Slot: Slot(slot), Pod: a.pod.UID})
	default:
		w.now = w.now.Add(time.Second)
	}
}

func (w *world) replace(slot int) {
	w.now = w.now.Add(time.Second)
	w.agents[slot] = w.newAgent(slot)
	w.orders[slot], w.reports[slot] = nil, nil
	w.lose() // its memory is gone
	w.fault()
	w.notef("slot %d has a new pod", slot)
}

// crash ends the coordinator. Pending writes reach the store or not.
func (w *world) crash() {
	w.noteBest()
	if w.rng.Intn(2) == 0 {
		w.store()
	}
	w.pending = nil
	w.crashReplacing()
	w.state = New(len(w.agents), w.interval(), w.stored)
	w.slow(w.lag)
	w.forgetBests(w.stored.BestStep)
	w.promises.successor()
	if w.shelf != nil {
		w.tell(w.wish)
	}
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
	if w.shelf != nil {
		w.promise()
	}
	w.noteBranch()
	w.apply(Stored{Revision: p.Revision, Generation: p.Record.Generation})
}

func (w *world) deliverReport(slot int) {
	q := w.reports[slot]
	if len(q) == 0 {
		return
	}
	i := w.rng.Intn(len(q)) // out of order
	r := q[i]
	if w.rng.Intn(4) > 0 { // otherwise the message comes twice
		w.reports[slot] = slices.Delete(q, i, i+1)
	}
	if w.rng.Intn(10) == 0 {
		return // lost
	}
	w.apply(r)
}

// deliverOrder loses some directives and delivers some twice. An older directive never follows a newer one: an agent has one stream at a
// time, and opens the next one after the previous has ended.
func (w *world) deliverOrder(slot int) {
	if q := w.orders[slot]; len(q) > 0 && w.rng.Intn(10) > 0 {
		i := w.rng.Intn(len(q))
		w.orders[slot] = q[i:]
		w.obey(slot, q[i])
	}
}

// settle stops all faults and delivers all messages.
func (w *world) settle() {
	for range 60 {
		w.settleOutside()
		for slot := range w.agents {
			w.reports[slot], w.orders[slot] = nil, nil
			w.now = w.now.Add(time.Millisecond)
			a := w.agents[slot]
			if w.ending > 0 {
				w.finish(slot)
			}
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

// faults has the faults that the world has played, independent of the core.
type faults struct {
	// bugs has the failures of scripts, by rank. done counts events that may cost a restart. bests has the best steps, with done before
	// each; a best step that was not stored is unknown to the next coordinator.
	bugs  map[int]int
	done  int
	bests []best
}

type best struct {
	step int64
	done int
}

// fault counts one event that may cost a restart.
func (w *world) fault() {
	w.noteBest()
	w.done++
}

func (w *world) noteBest() {
	if step := w.state.rec().BestStep; step > w.bests[len(w.bests)-1].step {
		w.bests = append(w.bests, best{step, w.done})
	}
}

// forgetBests: after a new coordinator started, steps count as progress again above the stored best step, and after a rollback above its
// restore point.
func (w *world) forgetBests(step int64) {
	w.bests = slices.DeleteFunc(w.bests, func(b best) bool { return b.step > step })
	if last := w.bests[len(w.bests)-1]; last.step < step {
		w.bests = append(w.bests, best{step, last.done})
	}
}

// checkVerdict checks that a gang is given up only for its own faults: a script that failed twice, or too many restarts without progress.
func (w *world) checkVerdict(v Verdict) {
	switch v.Reason {
	case ReasonSameFailureTwice:
		if v.Cause == nil || w.bugs[v.Cause.Rank] < 2 {
			w.failf("no verdict without its reason", "%+v, but scripts failed %v times", v, w.bugs)
		}
	case ReasonNoProgress:
		w.fault()
		if last := w.bests[len(w.bests)-1]; w.done-last.done <= protocol.RestartsWithoutProgress {
			w.failf("no verdict without its reason", "%+v after %d faults since step %d", v, w.done-last.done, last.step)
		}
	default:
		w.failf("no verdict without its reason", "%+v", v)
	}
	if v.ExitCode == 0 {
		w.failf("every failure is answered", "verdict %+v", v)
	}
}

func (w *world) checkSettled() {
	r := w.state.rec()
	if r.Verdict != nil {
		for slot, a := range w.agents {
			if !a.exited && !a.dead {
				w.failf("every failure is answered", "slot %d was not told to exit", slot)
			}
		}
		return
	}
	for slot, a := range w.agents {
		if a.state != protocol.StateRunning || a.gen != r.Generation || r.Phase != Running || a.branch != w.newest() {
			w.failf("every failure is answered", "phase %s generation %d, yet slot %d is %s in generation %d (waits: %s)", r.Phase, r.Generation, slot, a.state, a.gen, w.state.waitsFor())
		}
	}
}

// TestProperties plays random histories. The name of a failing subtest is its seed.
func TestProperties(t *testing.T) {
	generations, failures, verdicts := int64(0), 0, 0
	durable, fetches, replaced, drains, mended, silenced, deafened, stuck, full := 0, 0, 0, 0, 0, 0, 0, 0, 0
	begun, refused, fromStorage, launchers := 0, 0, 0, 0
	for seed := range seeds.All(t, int64(400)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed, 1+int(seed%4))
			w.slow(time.Duration(seed/4%2) * 300 * time.Millisecond)
			for range 8 {
				if w.rng.Intn(3) == 0 {
					w.endScripts()
				}
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
			generations += w.state.generation.Number
			failures += w.failures
			verdicts += w.verdicts
			durable, fetches, replaced, drains, mended = durable+w.durable, fetches+w.fetches, replaced+w.replaced, drains+w.drains, mended+w.mended
			launchers += w.launches.begun
			begun, refused, fromStorage = begun+len(w.branches.begun), refused+w.refused, fromStorage+w.fromStorage
			silenced, deafened, stuck, full = silenced+w.silenced, deafened+w.deafened, stuck+w.stuck, full+w.full
		})
	}
	t.Logf(
		"%d generations, %d failures, %d verdicts; %d steps made durable, %d fetched, %d pods replaced, %d parts drained, %d times files mended, %d silent pods given up, %d of them more than half of their gang, %d that did not halt",
		generations,
		failures,
		verdicts,
		durable,
		fetches,
		replaced,
		drains,
		mended,
		silenced,
		deafened,
		stuck,
	)
	if !seeds.One() &&
		(durable < 500 || fetches < 200 || replaced < 500 || drains < 200 || silenced < 20 || deafened < 20 || stuck < 20 || full < 20) {
		t.Errorf("storage, pending replacements and agents that babble are too rare to show anything")
	}
	t.Logf("%d branches begun, %d times refused; %d times a step of an older branch was fetched", begun, refused, fromStorage)
	if !seeds.One() && (begun < 300 || refused < 300 || fromStorage < 50) {
		t.Errorf("going back is too rare to show anything")
	}
	t.Logf("%d launchers began after another one", launchers)
	if !seeds.One() && launchers < 80 {
		t.Errorf("launchers one after another are too rare to show anything")
	}
	if !seeds.One() && (generations < 2000 || failures < 1500) {
		t.Errorf("histories are too quiet to show anything: %d generations, %d failures", generations, failures)
	}
}
