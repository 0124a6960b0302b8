package waiting

import (
	"fmt"
	"path"
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// What must move between two looks to count as life: more than a recorder's answer, a stack, the watchdogs of torch and a metrics client
// take.
const (
	cpuShare = 0.04
	cpuLook  = 100 * time.Millisecond
	ioRate   = 3 << 10 // bytes a second
	ioLook   = 16 << 10
)

// fact is what the looks at one rank show by themselves.
type fact struct {
	last *protocol.Look
	place
	// compared: there are two looks at least, so that it is known what moved.
	compared bool
	// steps: its counters of operations or its stack moved; bytes: its I/O did; cpu: its processor time did.
	steps, bytes, cpu bool
}

func factsOf(r *Rank) fact {
	n := len(r.Looks)
	if n == 0 || r.Ended {
		return fact{}
	}
	f := fact{last: r.Looks[n-1].Look, compared: n > 1}
	f.place = placeOf(f.last)
	for i := 1; i < n; i++ {
		a, b := &r.Looks[i-1], &r.Looks[i]
		span := max(0, b.At.Sub(a.At))
		f.steps = f.steps || stackMoved(a.Look, b.Look) || countersMoved(a.Groups, b.Groups)
		f.bytes = f.bytes || b.IO > a.IO && float64(b.IO-a.IO) > ioLook+ioRate*span.Seconds()
		f.cpu = f.cpu || b.CPU-a.CPU > cpuLook+time.Duration(cpuShare*float64(span))
	}
	return f
}

func stackMoved(a, b *protocol.Look) bool {
	return a.Stack == protocol.StackFresh && b.Stack == protocol.StackFresh && !slices.Equal(a.Frames, b.Frames)
}

// countersMoved reports whether an operation was enqueued or completed; a group that is new counts.
func countersMoved(a, b []protocol.GroupLook) bool {
	if len(a) == 0 || len(b) == 0 {
		return false // the recorder did not answer
	}
	for i := range b {
		j := slices.IndexFunc(a, func(g protocol.GroupLook) bool { return sameGroup(&g, &b[i]) })
		if j < 0 || a[j].Enqueued != b[i].Enqueued || a[j].Completed != b[i].Completed {
			return true
		}
	}
	return false
}

func sameGroup(a, b *protocol.GroupLook) bool {
	return a.Name == b.Name && slices.Equal(a.Ranks, b.Ranks)
}

// open returns the group's oldest operation that is not completed; nil: none.
func open(g *protocol.GroupLook) *protocol.Operation {
	if g.Open == nil || !g.Open.P2P && g.Completed >= g.Open.Seq {
		return nil
	}
	return g.Open
}

// hasOpen reports whether the rank has an open operation.
func (f *fact) hasOpen() bool {
	if f.last == nil {
		return false
	}
	for i := range f.last.Groups {
		if open(&f.last.Groups[i]) != nil {
			return true
		}
	}
	return false
}

// blind reports whether a look shows neither the rank's stack nor its operations.
func (f *fact) blind() bool { return f.last.Stack == protocol.StackNone && len(f.last.Groups) == 0 }

// waitsByStack reports whether the rank's stack waits for other ranks, and no recorder says for which.
func (f *fact) waitsByStack() bool {
	return f.last != nil && !f.steps && !f.hasOpen() && (f.is == rendezvous || f.is == collective && len(f.last.Groups) == 0)
}

// aside reports whether a rank with an open operation is known to be elsewhere than in it: the operation runs beside.
func (f *fact) aside() bool { return f.is == outside || f.is == storage || f.is == stopped || f.bytes }

// moves reports whether the rank shows life, as a root.
func (f *fact) moves() bool {
	return f.steps || f.bytes || f.cpu && !f.is.spins()
}

// libraries are files whose functions are not the script's; last two elements of the path.
var libraries = []string{
	"python3.*/*", "torch/*", "modules/*", "nn/*", "optim/*", "distributed/*", "utils/_contextlib.py", "parallel/*", "fsdp/*", "accelerate/*",
	"transformers/*", "loops/*", "strategies/*", "_pydev*/*", "encodings/*", "importlib/*",
}

// own reports whether a frame is of the script's own code.
func own(f *protocol.Frame) bool {
	return rowOf(f) == nil && !slices.ContainsFunc(libraries, func(pattern string) bool { return matches(pattern, f.File) })
}

// where returns, as text, the innermost function that is the script's own.
func where(frames []protocol.Frame) string {
	for i := range frames {
		if f := &frames[i]; own(f) {
			return fmt.Sprintf(", in %s of %s:%d", f.Function, path.Base(f.File), f.Line)
		}
	}
	return ""
}
