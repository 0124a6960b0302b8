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
	m.s.Looking = Looking{Look: e.Number}
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
	case l.Begun || want <= l.Look:
	case m.s.visible():
		l.Begun = true
		m.emit(LookAt{Number: want, Generation: m.s.Run.Number})
	default:
		*l = Looking{Look: want}
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
