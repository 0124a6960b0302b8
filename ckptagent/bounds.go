package ckptagent

import (
	"slices"
	"strings"

	"holdfast.dev/holdfast/internal/protocol"
)

// A report is one message of at most protocol.MaxReport bytes. Texts for users and optional data are dropped if they do not fit; data for
// decisions always fits.
const (
	// mostTracebacks is how many ranks' tracebacks a report has: those of the ranks that ended first. The gang's cause names one of these;
	// a failure without a traceback counts as that of a rank that reports no reason.
	mostTracebacks = 16
	// mostNotes and noteBytes bound a report's notes.
	mostNotes, noteBytes = 16, 1 << 10
	// headBytes is the size of a report without ranks and texts, rankBytes that of a rank without its traceback, moduleBytes that of a
	// module beside its name.
	headBytes, rankBytes, moduleBytes = 4 << 10, 144, 4
)

// fit drops from a report what does not fit, and returns how many bytes are free beside the names of modules.
func fit(r *protocol.Report, modules []string) int {
	notes := slices.Clone(r.Notes[:min(len(r.Notes), mostNotes)])
	free := protocol.MaxReport - headBytes - len(r.Rank)*rankBytes
	for i, note := range notes {
		notes[i] = cut(note, noteBytes)
		free -= len(notes[i])
	}
	r.Notes = notes
	for _, text := range []*string{&r.Refused, &r.Unprotected} {
		*text = cut(*text, protocol.MaxText)
		free -= len(*text)
	}
	for _, local := range lateTracebacks(r.Rank) {
		e := *r.Rank[local].Exit
		e.Traceback = ""
		r.Rank[local].Exit = &e
	}
	for _, k := range r.Rank {
		if k.Exit != nil {
			free -= len(k.Exit.Traceback)
		}
	}
	left := free
	for _, name := range modules {
		if left -= len(name) + moduleBytes; left < 0 {
			break
		}
		r.ModulesKnown++
	}
	return free
}

// cut returns the first bytes of a text, at most that many, as valid UTF-8: protobuf accepts no other.
func cut(text string, bytes int) string {
	return strings.ToValidUTF8(text[:min(len(text), bytes)], "")
}

// lateTracebacks returns the ranks that ended with a traceback after mostTracebacks others.
func lateTracebacks(ranks []protocol.Rank) []int {
	var ended []int
	for i, k := range ranks {
		if k.Exit != nil && k.Exit.Traceback != "" {
			ended = append(ended, i)
		}
	}
	slices.SortStableFunc(ended, func(a, b int) int { return ranks[a].Exit.At.Compare(ranks[b].Exit.At) })
	return ended[min(len(ended), mostTracebacks):]
}
