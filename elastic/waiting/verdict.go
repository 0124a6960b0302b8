package waiting

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Kind is what a gang that stands still does; package comment.
type Kind string

// The kinds of a Verdict.
const (
	Unexplained   Kind = "Unexplained"
	Busy          Kind = "Busy"
	Stopped       Kind = "Stopped"
	StorageStalls Kind = "StorageStalls"
	Hang          Kind = "Hang"
	WaitsOutside  Kind = "WaitsOutside"
	EndedEarly    Kind = "EndedEarly"
	Desync        Kind = "Desync"
	Deadlock      Kind = "Deadlock"
	FabricHang    Kind = "FabricHang"
)

// Kinds are all kinds.
var Kinds = []Kind{Unexplained, Busy, Stopped, StorageStalls, Hang, WaitsOutside, EndedEarly, Desync, Deadlock, FabricHang}

// Rank is the evidence about one rank.
type Rank struct {
	// Looks are the newest of the rank's present process, oldest first.
	Looks []Look
	// Ended: the rank has ended with exit code 0.
	Ended bool
	// Slot and Node are where it runs.
	Slot int
	Node string
}

// Look is one look, and when its answer arrived.
type Look struct {
	At time.Time
	*protocol.Look
}

// Verdict is what the looks show.
type Verdict struct {
	Kind Kind
	// Culprits are the ranks that others wait for and that stand still, ascending; Kind Unexplained and Busy have none.
	Culprits []int
	// Missing is the number of running ranks of which there are too few looks, Compared that of the others, Blind the number of those with
	// neither a stack nor a recorder.
	Missing, Compared, Blind int
	// Slow: a rank in question, of kind Hang or FabricHang, may still work where no look shows it: on its device, or in a thread of the
	// backward pass.
	Slow bool
	// Activity is what moves, for Busy. Phase: a rank has a phase open. Moves: a root is active, whether it has a phase open or not.
	Activity     string
	Phase, Moves bool
	// Text describes the verdict in one line, for users; Signature is the part that is the same when the same happens again.
	Text, Signature string
}

// Seen reports whether every rank was looked at often enough, with a stack or a recorder: otherwise one that was not may be the one that
// all others wait for.
func (v *Verdict) Seen() bool { return v.Missing+v.Blind == 0 }

// Judge returns the verdict on the ranks of a gang, by global rank.
func Judge(ranks []Rank) Verdict {
	j := &judge{ranks: ranks, facts: make([]fact, len(ranks))}
	for i := range ranks {
		j.facts[i] = factsOf(&ranks[i])
	}
	j.collect()
	j.connect()
	j.settle()
	return j.verdict()
}
