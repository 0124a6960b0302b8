package protocol

import (
	"iter"
	"time"
)

// Limits of looks: what exceeds them is not sent, and is dropped where it is received.
const (
	// MaxLooks is the most looks of a report, MaxLookBytes the most bytes of one in its message.
	MaxLooks     = 128
	MaxLookBytes = 2 << 10
	// MaxLookGroups, MaxLookRanges, MaxLookFrames and MaxLookFaults bound the lists of a look, MaxLookText each of its texts.
	MaxLookGroups = 32
	MaxLookRanges = 64
	MaxLookFrames = 12
	MaxLookFaults = 32
	MaxLookText   = 128
	// MaxPhase is the longest lease of a phase, MaxPhaseName the most bytes of its name.
	MaxPhase     = 24 * time.Hour
	MaxPhaseName = 64
)

// Look is the evidence of one local rank at one moment: where its process group recorder, its main thread and its processes are. Two looks
// show what moved between them; those of different processes are not compared.
type Look struct {
	// Local is the local rank, PID its process.
	Local, PID int
	// Groups are the process groups of torch's recorder; none: it did not answer.
	Groups []GroupLook
	Stack  StackState
	// Frames are the main thread's Python frames, innermost first, where Stack is StackFresh.
	Frames []Frame
	// Native is the kernel function, or the name of the system call, in which the main thread waits; "": it runs, or that is unknown.
	Native string
	// State is the letter of the main thread's state in /proc (R S D T Z …); 0: unknown.
	State byte
	// CPU is the processor time of the rank's process and all its descendants, MainCPU that of its main thread alone. Both only rise.
	CPU, MainCPU time.Duration
	// IO is the number of bytes that these processes have read and written (rchar + wchar), and what passed their TCP connections if that is
	// more than keep-alive messages; Processes is their number.
	IO        uint64
	Processes int
	// Faults are those that NCCL's RAS has of any ranks, ascending by rank. Only the look at global rank 0 has them; none: there are none,
	// or RAS did not answer.
	Faults []RankFault
	// Phase is the phase that the rank's script has open; nil: none, or its lease has run out.
	Phase *Phase
}

// Phase is what a script says that its rank does for some time without a step.
type Phase struct {
	Name string
	// Left is what was left of the lease at the time of the look, Of the whole lease.
	Left, Of time.Duration
}

// Valid reports whether a phase is one that a client can open, and whose lease has not run out.
func (p *Phase) Valid() bool {
	return p.Name != "" && len(p.Name) <= MaxPhaseName && p.Left > 0 && p.Left <= p.Of && p.Of <= MaxPhase
}

// RankFault is a fault of one global rank.
type RankFault struct {
	Rank  int
	Fault Fault
}

// Fault is what NCCL's RAS has of one rank; the gravest first.
type Fault int

const (
	// FaultNone is none, or an unknown one.
	FaultNone Fault = iota
	// FaultSilent: NCCL does not reach its process.
	FaultSilent
	// FaultError: NCCL reports an error of its process, which is not that of another one.
	FaultError
	// FaultBehind: its process has launched fewer operations than most of a communicator.
	FaultBehind
)

// StackState is whether a look has the main thread's stack.
type StackState int

const (
	// StackNone: no stack can be asked for.
	StackNone StackState = iota
	// StackFresh: Frames are of this look.
	StackFresh
	// StackWithheld: the main thread did not write its stack in time: it takes no signal.
	StackWithheld
)

// Frame is one Python frame; File is the last two elements of its path.
type Frame struct {
	Function, File string
	Line           int
}

// GroupLook is one process group as one rank's process group recorder shows it.
type GroupLook struct {
	Name string
	// Ranks are the group's members, global ranks in the group's order (Members).
	Ranks []RankRange
	// Enqueued, Started and Completed are numbers of the newest collective that was; Started 0: unknown.
	Enqueued, Started, Completed int64
	// Open is the oldest operation that is not completed, Last the newest that was enqueued; nil: none.
	Open, Last *Operation
}

// Operation is one operation of a process group. The numbers of P2P operations count those of one rank, so they are not compared between
// ranks.
type Operation struct {
	Seq int64
	P2P bool
	// Peer is the other global rank of a P2P operation.
	Peer int
	Name string
	// Sizes are sizes and type of the operands.
	Sizes string
}

// RankRange is Count ranks from First, Step apart.
type RankRange struct{ First, Count, Step int }

// Ranges returns ranks, in their order, as ranges.
func Ranges(ranks []int) []RankRange {
	var out []RankRange
	for _, r := range ranks {
		if n := len(out) - 1; n >= 0 {
			switch last := &out[n]; {
			case last.Count == 1:
				last.Step, last.Count = r-last.First, 2
				continue
			case last.First+last.Count*last.Step == r:
				last.Count++
				continue
			}
		}
		out = append(out, RankRange{First: r, Count: 1})
	}
	return out
}

// Members yields the ranks of the group that are in a world of that many ranks.
func (g *GroupLook) Members(world int) iter.Seq[int] {
	return func(yield func(int) bool) {
		left := world
		for _, r := range g.Ranks {
			rank := r.First
			for i := 0; i < r.Count && left > 0; i, rank, left = i+1, rank+r.Step, left-1 {
				if rank >= 0 && rank < world && !yield(rank) {
					return
				}
			}
		}
	}
}
