// Package generation holds the newest generation of a gang: the step that it started from, its members, the steps that
// its ranks hold, the exits of its ranks, and the cause of its failure.
//
//   - The generation's number and its branch never decrease.
//   - The next generation starts without the exits and without the progress (commonStep, reclaimBelow) of the previous one.
//   - A generation that fails has one cause, whatever the order in which reports arrive.
package generation

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// StepUnknown is Recorded.RestoreStep if the store lost the record of a generation that agents have run.
const StepUnknown = -1

// Recorded is what outlives a coordinator.
type Recorded struct {
	Number, RestoreStep int64
	// Branch is the generation's branch of training, RestoreBranch that of RestoreStep.
	Branch, RestoreBranch int64
	// After is the newest generation of earlier launchers.
	After int64
	// Worlds are the numbers of ranks of earlier generations, where they differ.
	Worlds []restore.World
}

// Generation is the newest generation of a gang.
type Generation struct {
	Recorded
	ms      *members.Members
	rs      *replacements.Replacements
	ledger  *ledger.Ledger
	account *account.Account
	// out are the slots that take no part.
	out []members.Slot
	run
}

// run is the state of one generation. The next generation gets a new value, so nothing is reset.
type run struct {
	// layout is its members; nil: an earlier coordinator started the generation.
	layout *members.Layout
	// commonStep and reclaimBelow as in protocol.Directive; they only rise.
	commonStep, reclaimBelow int64
	// exits stay after their pod is gone, exitBytes is their estimated memory by slot.
	exits     map[exitOf]exit
	exitBytes map[members.Slot]int64
}

// New returns the recorded newest generation.
func New(r Recorded, ms *members.Members, rs *replacements.Replacements, l *ledger.Ledger, a *account.Account) *Generation {
	g := &Generation{Recorded: r, ms: ms, rs: rs, ledger: l, account: a, out: ms.Out()}
	g.renew()
	return g
}

func (g *Generation) renew() {
	g.run = run{exits: map[exitOf]exit{}, exitBytes: map[members.Slot]int64{}}
}

// Begin lays out the next generation of the present pods, and returns its restore step; agents receive it once it is stored. Pods had
// halted the previous one at halted, if known, and were all ready at ready. If no step newer than the start of its branch is left, the
// steps in between are given up.
func (g *Generation) Begin(halted, ready time.Time) protocol.Point {
	from := g.InMemory()
	l := g.ms.LayOut(from)
	g.ms.NoteLaunched(g.Number)
	if g.Branch = g.NewestBranch(); from.Branch < g.Branch {
		g.ledger.Extend(g.Branch, from.Step)
	}
	g.account.Began(g.Number, from.Step, l.World, halted, ready)
	g.noteWorld(l.World)
	g.ledger.Forget(from, g.ms.Pods(g.ledger.Line(), members.NoneLost), g.Stored())
	g.Number++
	g.RestoreStep, g.RestoreBranch = from.Step, from.Branch
	g.ms.NoteWorld(l.World)
	g.begin()
	g.out = g.ms.Out()
	g.layout, g.commonStep, g.reclaimBelow = l, from.Step, from.Step
	return from
}

// maxWorlds bounds Recorded.Worlds. Older generations count with the oldest number that is kept: storage keeps no step of theirs.
const maxWorlds = 16

// noteWorld records the number of ranks of the generations so far, if a gang that can go on with fewer pods begins one with another number.
func (g *Generation) noteWorld(next int) {
	if before := g.ms.Recorded(); g.ms.Elastic() && g.Number > 0 && before > 0 && before != next {
		g.Worlds = append(slices.Clone(g.Worlds[max(0, len(g.Worlds)-maxWorlds+1):]), restore.World{Until: g.Number, Ranks: before})
		g.account.NoteRanksBefore(g.Number, before)
	}
}

// WorldOf returns the number of ranks of a generation; 0: unknown.
func (g *Generation) WorldOf(generation int64) int {
	return restore.Stored{World: g.ms.Recorded(), Worlds: g.Worlds}.WorldOf(generation)
}

// TookPart reports whether a slot takes part in the generation.
func (g *Generation) TookPart(slot members.Slot) bool {
	_, out := slices.BinarySearch(g.out, slot)
	return !out
}

// Out returns the slots that take no part in the generation.
func (g *Generation) Out() []members.Slot { return g.out }

func (g *Generation) begin() {
	g.renew()
	g.account.BeginGeneration()
	g.ledger.BeginGeneration()
}

// Adopt adopts a generation that agents have run and the store has lost. Copies of drained pods are dropped: they were for an earlier one.
func (g *Generation) Adopt(number int64) {
	g.Number, g.RestoreStep = number, StepUnknown
	g.ledger.ForgetCopies()
	g.begin()
}

// AdoptLaunch adopts the launcher of a running generation whose record the store lost.
func (g *Generation) AdoptLaunch(r *protocol.Report) {
	if r.Generation > g.Number && members.Ran(r.State) && r.Launch > g.ms.Launch() && r.Launch <= protocol.MaxLaunch {
		g.ms.AdoptLaunch(r.Launch)
		g.After = r.Generation - 1
		g.account.ForgetLaunches()
		g.ledger.ForgetLaunches()
	}
}

// BeginLaunch resets the state for another launcher: its ranks continue no earlier training.
func (g *Generation) BeginLaunch(number int) {
	g.ledger.BeginLaunch()
	g.ms.BeginLaunch(number)
	g.account.BeginLaunch()
	if g.After = g.Number; g.Number > 0 {
		g.RestoreStep, g.RestoreBranch = 0, 0
		g.ledger.BeginBranch(g.NewestBranch()+1, 0)
	}
	g.renew()
}

// Stepless reports whether no rank has finished a step of the generation, which ended then.
func (g *Generation) Stepless(endedAt time.Time) bool {
	return g.ms.All(func(m *members.Member) bool { return !m.Stepped(g.Number, g.RestoreStep) }) && g.account.Stepless(g.Cost(), endedAt)
}

// Begun reports whether a generation of the gang's launcher was started.
func (g *Generation) Begun() bool { return g.Number > g.After }

// Stored returns the generation for the ledger.
func (g *Generation) Stored() ledger.Generation {
	return ledger.Generation{
		Number: g.Number, Branch: g.Branch, World: g.ms.Recorded(), Worlds: g.Worlds, Unknown: g.RestoreStep == StepUnknown,
	}
}

// Cost returns the generation for the account.
func (g *Generation) Cost() account.Generation {
	return account.Generation{Number: g.Number, RestoreStep: g.RestoreStep, CommonStep: g.commonStep}
}

// Branching reports whether the line has a newer branch than the generation.
func (g *Generation) Branching() bool { return g.ledger.Line().Newest() > g.Branch }

// NewestBranch returns the branch of the next generation.
func (g *Generation) NewestBranch() int64 { return max(g.Branch, g.ledger.Line().Newest()) }

// CanGiveUpStep reports whether the generation is known to have restored a step, so that another branch can begin before it.
func (g *Generation) CanGiveUpStep() bool {
	return g.RestoreStep > 0 && g.NewestBranch() < protocol.MaxBranch
}

// Mark returns the mark of a step that the generation holds.
func (g *Generation) Mark(step int64) protocol.Mark {
	branch, held := g.ms.BranchOf(step, g.Number)
	switch {
	case held:
	case step > g.RestoreStep:
		branch = g.Branch
	default:
		branch = g.RestoreBranch
	}
	return protocol.Mark{Step: step, Generation: g.Number, Branch: branch}
}

// CommonStep returns the newest step that all ranks have held sealed.
func (g *Generation) CommonStep() int64 { return g.commonStep }

// Levels returns commonStep and reclaimBelow, as in protocol.Directive.
func (g *Generation) Levels() (commonStep, reclaimBelow int64) { return g.commonStep, g.reclaimBelow }

// NoteSealed updates the levels from the sealed steps; it reports whether they have risen.
func (g *Generation) NoteSealed(now time.Time) bool {
	common, reclaimBelow := g.ms.CommonStep(), g.ms.ReclaimBelow(g.commonStep)
	risen := common > g.commonStep || reclaimBelow > g.reclaimBelow
	g.commonStep, g.reclaimBelow = max(g.commonStep, common), max(g.reclaimBelow, reclaimBelow)
	g.account.NoteCommon(g.commonStep, now)
	return risen
}

// InMemory returns the step that halted ranks can restore without storage.
func (g *Generation) InMemory() protocol.Point {
	return restore.InMemory(g.ms.Inventories(g.ledger.Line()), g.ledger.Line())
}

// Plan returns the newest step that every rank can restore without the memory of fenced and unknown pods.
func (g *Generation) Plan() restore.Point {
	absent := func(slot members.Slot) bool {
		m := g.ms.At(slot)
		return !m.Known() || g.rs.Fenced(m.Pod().UID)
	}
	return g.ledger.Plan(g.ms.Pods(g.ledger.Line(), absent), g.Stored(), false)
}

// HasPart reports whether storage has a slot's part of a step.
func (g *Generation) HasPart(slot members.Slot, step protocol.Point) bool {
	return g.ledger.HasPart(step, g.Stored(), g.BaseRank(slot), g.ms.Ranks(slot), g.ms.World())
}

// SurvivesWithout reports whether the step that all ranks would restore is still available once the pods of these slots are gone.
func (g *Generation) SurvivesWithout(slots ...members.Slot) bool {
	p := g.Plan()
	gone := func(slot members.Slot) bool { return slices.Contains(slots, slot) }
	if p.Step == 0 || g.ms.Gives() && g.ledger.Reaches(p.Point, g.ms.Pods(g.ledger.Line(), gone), g.Stored()) {
		return true
	}
	mark := protocol.Mark{Step: p.Step, Generation: g.Number, Branch: p.Branch}
	return !slices.ContainsFunc(slots, func(slot members.Slot) bool {
		return !g.HasPart(slot, p.Point) && !g.ms.At(slot).CanSave(g.Number, mark)
	})
}

// CanHave reports whether a step is available to all ranks and will be until all are halted: of the steps in memory of ranks that run, or
// that agents have yet to start, only the common step is sure to stay.
func (g *Generation) CanHave(to protocol.Point) bool {
	return to.Step == 0 || g.ledger.Reaches(to, g.ms.PodsKeeping(g.ledger.Line(), g.commonStep, g.ordered), g.Stored())
}

// ordered reports whether the agent of a pod was ordered to start the generation and has not reported it.
func (g *Generation) ordered(slot members.Slot, m *members.Member) bool {
	return g.layout != nil && g.layout.Pods[slot] == m.Pod().UID && m.Report().Generation < g.Number
}

// BaseRank returns the rank of a slot's first local rank. If an earlier coordinator laid out the generation and not all slots are known,
// all pods count with the same number of ranks.
func (g *Generation) BaseRank(slot members.Slot) int {
	if g.layout != nil {
		return g.layout.Base[slot]
	}
	return g.ms.Base(slot)
}

// Restored returns what the generation restored, for orders to halt; the zero Run: unknown.
func (g *Generation) Restored() protocol.Run {
	if g.RestoreStep == StepUnknown {
		return protocol.Run{}
	}
	return protocol.Run{Number: g.Number, RestoreStep: g.RestoreStep, Branch: g.Branch, RestoreBranch: g.RestoreBranch}
}

// Run returns what a pod must run; false: it is no member. If an earlier coordinator started the generation, an agent that runs it
// continues with the present levels.
func (g *Generation) Run(slot members.Slot, pod string) (protocol.Run, bool) {
	l, m := g.layout, g.ms.At(slot)
	r := protocol.Run{Number: g.Number, RestoreStep: max(0, g.RestoreStep), Branch: g.Branch, RestoreBranch: g.RestoreBranch}
	switch {
	case l == nil:
		if !m.Known() || m.Pod().UID != pod || m.Report().Generation != g.Number || !members.Ran(m.Report().State) {
			return protocol.Run{}, false
		}
	case l.Pods[slot] != pod:
		return protocol.Run{}, false
	default:
		r.WorldSize, r.BaseRank, r.Nodes = l.World, l.Base[slot], len(l.Slots)
		r.NodeRank, _ = l.Node(slot)
		if r.Donor = l.Donor; g.ms.Elastic() {
			r.Slots = g.ms.Len()
		}
		r.MasterAddr, r.MasterPort, r.RestartCount = l.Addr, l.Port, g.account.LaunchRestarts()
	}
	return r, true
}

// missedFirst reports whether the pod's whole command is in its first run but never joined a generation: the earlier coordinator stopped
// before its order arrived. It is false once a pod of the gang was replaced or seen running. Halting instead would end the commands of all
// pods.
func (g *Generation) missedFirst(m *members.Member) bool {
	r, never := m.Report(), g.account.StartedAt().IsZero() && g.account.Restarts() == 0 && g.Number == 1 && !g.ms.AnySuperseded()
	return m.Known() && never && g.layout == nil && r.WholeCommand && r.Generation == 0 && r.Containers <= 1 && len(r.Rank) == 1 &&
		r.Rank[0].Exit == nil
}

// TakeMissed orders the first generation again for pods that missed it, once all others are known to run it; it reports whether it did.
func (g *Generation) TakeMissed() bool {
	missed := false
	for _, m := range g.ms.Each {
		switch {
		case g.missedFirst(m) && m.Attached() && !m.Report().Terminating:
			missed = true
		case !m.Known() || !m.Report().WholeCommand || !m.Current(g.Number) || !members.Ran(m.Report().State):
			return false
		}
	}
	if missed {
		g.layout = g.ms.LayOut(protocol.Point{})
	}
	return missed
}
