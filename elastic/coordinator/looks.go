package coordinator

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// lookBytes, groupBytes and entryBytes are the memory of a look, of each of its groups, and of each frame, range of ranks, operation, fault
// or phase, without texts.
const lookBytes, groupBytes, entryBytes = 192, 120, 64

// checkLooks refuses looks that no correct agent sends.
func checkLooks(r *protocol.Report) error {
	if r.Look < 0 || r.Look > protocol.MaxGeneration {
		return status.Errorf(codes.InvalidArgument, "look %d", r.Look)
	}
	for i := range r.Looks {
		if l := &r.Looks[i]; l.Local >= r.Ranks || i > 0 && l.Local <= r.Looks[i-1].Local {
			return status.Errorf(codes.InvalidArgument, "looks[%d] is of local rank %d: one per rank, in order", i, l.Local)
		}
		if p := r.Looks[i].Phase; p != nil && !p.Valid() {
			return status.Errorf(codes.InvalidArgument, "looks[%d] has a phase with a name of %d bytes and %s left of %s", i, len(p.Name), p.Left, p.Of)
		}
	}
	return nil
}

// cleanLooks shortens texts of looks and makes them printable.
func cleanLooks(r *protocol.Report) {
	short := func(text *string) {
		*text = cause.Cut(cause.Printable(cause.Cut(*text, protocol.MaxLookText)), protocol.MaxLookText)
	}
	for i := range r.Looks {
		l := &r.Looks[i]
		short(&l.Native)
		if l.Phase != nil {
			short(&l.Phase.Name)
		}
		for j := range l.Frames {
			short(&l.Frames[j].Function)
			short(&l.Frames[j].File)
		}
		for j := range l.Groups {
			g := &l.Groups[j]
			short(&g.Name)
			for _, o := range []*protocol.Operation{g.Open, g.Last} {
				if o != nil {
					short(&o.Name)
					short(&o.Sizes)
				}
			}
		}
	}
}

// sizeOfLooks estimates the memory of looks.
func sizeOfLooks(looks []protocol.Look) (n int) {
	for i := range looks {
		l := &looks[i]
		n += lookBytes + len(l.Native) + len(l.Faults)*entryBytes
		if l.Phase != nil {
			n += entryBytes + len(l.Phase.Name)
		}
		for _, f := range l.Frames {
			n += entryBytes + len(f.Function) + len(f.File)
		}
		for j := range l.Groups {
			g := &l.Groups[j]
			n += groupBytes + len(g.Name) + len(g.Ranks)*entryBytes
			for _, o := range []*protocol.Operation{g.Open, g.Last} {
				if o != nil {
					n += entryBytes + len(o.Name) + len(o.Sizes)
				}
			}
		}
	}
	return n
}
