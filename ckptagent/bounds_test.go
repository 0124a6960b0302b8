package ckptagent

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/wire"
)

// full returns the state of an agent whose ranks have all ended with a traceback. Its report is the longest possible.
func full(ranks, modules int) State {
	s, at := New(), time.Unix(1_700_000_000, 0)
	text := strings.Repeat("x", protocol.MaxText)
	s.Known, s.Ranks, s.Incarnation, s.Generation, s.Phase, s.StateBytes = true, ranks, 1<<20, 1<<30, protocol.StateFailed, 1<<44
	s.Refused, s.Unprotected, s.Want.WantModules = text, text, true
	for range 7 {
		s.Notes = append(s.Notes, text)
	}
	for i := range ranks {
		sealed := []protocol.Point{{Branch: 100, Step: 1 << 40}, {Branch: 100, Step: 1<<40 + 1}, {Branch: 100, Step: 1<<40 + 2}}
		s.Rank = append(s.Rank, Rank{
			PID:          1 << 22,
			FromStandby:  true,
			StandbyReady: true,
			Step:         1<<40 + 2,
			Sealed:       sealed,
			Exit:         &protocol.Exit{Code: 255, Signal: 64, At: at.Add(-time.Duration(i) * time.Second), Traceback: text},
			Copied: protocol.Copied{
				Mark:     protocol.Mark{Step: 1 << 40, Generation: 1 << 30, Branch: 100},
				Length:   1 << 44,
				Checksum: 1<<32 - 1,
			},
			OptimizerSteps: 1 << 40,
			ResumedAt:      1 << 40,
			ResumeKnown:    true,
			Saves:          &protocol.Saves{Copied: 1 << 30, Overlapped: 1 << 30, Dropped: 1 << 30, Skipped: 1 << 30, Refused: 1 << 30},
		})
	}
	for range modules {
		s.Modules = append(s.Modules, "torch.distributed.some_module")
	}
	return s
}

// TestEveryReportFits: a report stays within its limit for any number of ranks and any texts. It has the tracebacks of the ranks that ended
// first, and as many modules as its count says.
func TestEveryReportFits(t *testing.T) {
	for _, c := range []struct{ ranks, modules, least int }{
		{1, 10, 10},
		{8, 5000, 5000},
		{8, 20000, 5000},
		{200, 20000, 3000},
		{protocol.MaxRanks, 20000, 100},
	} {
		r := full(c.ranks, c.modules).Report()
		if size := proto.Size(wire.ReportMessage(r)); size > protocol.MaxReport {
			t.Errorf("%d ranks: %d bytes", c.ranks, size)
		}
		if r.ModulesKnown != len(r.Modules) || len(r.Modules) < c.least {
			t.Errorf("%d ranks: %d modules are reported, %d are known", c.ranks, len(r.Modules), r.ModulesKnown)
		}
		for i, k := range r.Rank { // the last ended first
			if announced := k.Exit.Traceback != ""; announced != (i >= c.ranks-mostTracebacks) || k.Exit.Code != 255 {
				t.Errorf("%d ranks: exit of %d: code %d, traceback reported: %t", c.ranks, i, k.Exit.Code, announced)
			}
		}
	}
}

// TestALongNoteStaysText: a shortened message contains no incomplete character.
func TestALongNoteStaysText(t *testing.T) {
	s := New()
	s.Notes = []string{strings.Repeat("é", noteBytes/2-1) + "xé"}
	if _, err := proto.Marshal(wire.ReportMessage(s.Report())); err != nil {
		t.Error(err)
	}
}
