package status

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The lists of a Gang must fit into one object of the API server (1.5 MiB) together with status.run, which elastic/bounds.go bounds,
// however many pods there are and whatever their names are. Up to some 3,000 pods all are listed.
const (
	memberBytes = 512 << 10
	nameBytes   = 128 << 10
	// keptNotes bounds the notes, noteBytes each of them.
	keptNotes = 32
	noteBytes = 512
)

// first returns as many elements of a list as fit into that many bytes.
func first[T any](all []T, bytes int, size func(T) int) []T {
	for i, one := range all {
		if bytes -= size(one); bytes < 0 {
			return all[:i:i]
		}
	}
	return all
}

// memberSize returns how many bytes of the object an entry takes, as JSON.
func memberSize(m v1alpha1.MemberStatus) int { return 90 + len(m.Pod) + len(m.Node) }

// Names lists the first nodes, pods or gangs of a list, up to a bound.
func Names(all []string) []string {
	return first(all, nameBytes, func(name string) int { return len(name) + len(`"",`) })
}

// notesOf returns the first of the notes, and a note with the number of the others.
func notesOf(all []string) []string {
	for i, n := range all {
		if len(n) > noteBytes {
			all[i] = strings.ToValidUTF8(n[:noteBytes], "") + "…"
		}
	}
	if len(all) > keptNotes {
		all = append(all[:keptNotes-1:keptNotes-1], fmt.Sprintf("%d more notes", len(all)-keptNotes+1))
	}
	return all
}
