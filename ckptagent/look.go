package ckptagent

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Looking is the state of looks at the ranks. Directive.Look is a level: the newest number is answered once, and the answer stays in
// reports until another number, or none, is wanted.
type Looking struct {
	// Look is the newest number that this incarnation has answered, Looks the answer.
	Look  int64
	Looks []protocol.Look
	// Begun: a look is under way.
	Begun bool
	// Kept is the newest Directive.Keep that this incarnation has answered. Keeping: evidence is being taken.
	Kept    int64
	Keeping bool
}

// KeepEvidence keeps what the running ranks of a generation are in as files; answered by Kept.
type KeepEvidence struct{ Number, Generation int64 }

func (KeepEvidence) effect() {}

// Kept answers KeepEvidence: nothing more is taken from ranks.
type Kept struct{ Number int64 }

func (e Kept) apply(m *machine) {
	if l := &m.s.Looking; l.Keeping {
		l.Kept, l.Keeping = max(l.Kept, e.Number), false
	}
}

// keep answers the number that the coordinator wants files for: without files if there are no ranks to look at. A look and the taking of
// evidence follow each other, because each excludes its own costs.
func (m *machine) keep() {
	l, want := &m.s.Looking, m.s.Want.Keep
	switch {
	case l.Keeping || l.Begun || want <= l.Kept:
	case m.s.visible():
		l.Keeping = true
		m.emit(KeepEvidence{Number: want, Generation: m.s.Run.Number})
	default:
		l.Kept = want
	}
}

// LookAt looks at the running ranks of a generation; answered by Looked.
type LookAt struct{ Number, Generation int64 }

func (LookAt) effect() {}

// Looked answers LookAt with a look for each rank that lives.
type Looked struct {
	Number, Generation int64
	Looks              []protocol.Look
}

func (e Looked) apply(m *machine) {
	if !m.s.Looking.Begun {
		return
	}
	l := &m.s.Looking
	l.Look, l.Looks, l.Begun = e.Number, nil, false
	if e.Generation == m.s.Run.Number && m.s.visible() {
		m.s.Looks = slices.DeleteFunc(slices.Clone(e.Looks), func(l protocol.Look) bool {
			return l.Local < 0 || l.Local >= len(m.s.Rank) || m.s.Rank[l.Local].Exit != nil
		})
	}
}

// visible reports whether there are ranks to look at.
func (s State) visible() bool {
	return !s.Clean && !s.Ending && slices.ContainsFunc(s.Rank, func(r Rank) bool { return r.Alive })
}

// look answers the number that the coordinator wants: with nothing if there are no ranks to look at.
func (m *machine) look() {
	l, want := &m.s.Looking, m.s.Want.Look
	if want == 0 || m.s.Clean {
		l.Looks = nil
	}
	switch {
	case l.Begun || l.Keeping || want <= l.Look:
	case m.s.visible():
		l.Begun = true
		m.emit(LookAt{Number: want, Generation: m.s.Run.Number})
	default:
		l.Look, l.Looks = want, nil
	}
}

// The size of a look in a message beside its texts: lookBytes for itself, the others for each of its parts.
const lookBytes, frameBytes, groupBytes, rangeBytes, operationBytes, faultBytes, phaseBytes = 80, 16, 48, 20, 40, 12, 16

// fewestFrames is the number of frames that a look keeps when it is shortened, as long as it has other parts.
const fewestFrames = 4

// fitLooks shortens looks so that together they take at most that many bytes. Groups come with those that are waited for first.
func fitLooks(looks []protocol.Look, free int) []protocol.Look {
	looks = slices.Clone(looks[:min(len(looks), protocol.MaxLooks)])
	for i := range looks {
		shorten(&looks[i], min(protocol.MaxLookBytes, free/len(looks)))
	}
	return slices.DeleteFunc(looks, func(l protocol.Look) bool { return lookSize(&l) > free/len(looks) })
}

// shorten drops outer frames, the last groups and then the faults until a look has at most that many bytes.
func shorten(l *protocol.Look, bytes int) {
	for lookSize(l) > bytes {
		frames, groups := len(l.Frames), len(l.Groups)
		switch {
		case frames > fewestFrames, frames > 0 && groups <= 1:
			l.Frames = l.Frames[:frames-1]
		case groups > 0:
			l.Groups = l.Groups[:groups-1]
		case len(l.Faults) > 0:
			l.Faults = nil
		default:
			return
		}
	}
}

// lookSize returns the most bytes that a look takes in a message.
func lookSize(l *protocol.Look) int {
	n := lookBytes + len(l.Native) + len(l.Faults)*faultBytes
	if l.Phase != nil {
		n += phaseBytes + len(l.Phase.Name)
	}
	for _, f := range l.Frames {
		n += frameBytes + len(f.Function) + len(f.File)
	}
	for i := range l.Groups {
		g := &l.Groups[i]
		n += groupBytes + len(g.Name) + len(g.Ranks)*rangeBytes
		for _, o := range []*protocol.Operation{g.Open, g.Last} {
			if o != nil {
				n += operationBytes + len(o.Name) + len(o.Sizes)
			}
		}
	}
	return n
}
