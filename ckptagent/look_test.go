package ckptagent

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/wire"
)

// evidence is the largest look of a rank: the first groups are waited for.
func evidence(local int) protocol.Look {
	text := strings.Repeat("x", protocol.MaxLookText)
	l := protocol.Look{
		Local:     local,
		PID:       1 << 22,
		Stack:     protocol.StackFresh,
		Native:    text,
		State:     'S',
		CPU:       1 << 60,
		MainCPU:   1 << 60,
		IO:        1 << 62,
		Processes: 1 << 20,
		Phase:     &protocol.Phase{Name: text[:protocol.MaxPhaseName], Left: protocol.MaxPhase, Of: protocol.MaxPhase},
	}
	for range protocol.MaxLookFrames {
		l.Frames = append(l.Frames, protocol.Frame{Function: text, File: text, Line: 1 << 30})
	}
	for i := range protocol.MaxLookGroups {
		o := &protocol.Operation{Seq: 1 << 62, P2P: true, Peer: 1 << 20, Name: text, Sizes: text}
		g := protocol.GroupLook{Name: fmt.Sprint(i) + text[3:], Enqueued: 1 << 62, Started: 1 << 62, Completed: 1 << 62, Open: o, Last: o}
		for range protocol.MaxLookRanges {
			g.Ranks = append(g.Ranks, protocol.RankRange{First: 1 << 20, Count: 1 << 20, Step: -1 << 20})
		}
		l.Groups = append(l.Groups, g)
	}
	for range protocol.MaxLookFaults {
		l.Faults = append(l.Faults, protocol.RankFault{Rank: 1 << 20, Fault: protocol.FaultBehind})
	}
	return l
}

// small is a look as of a rank in ten groups of a large gang.
func small(local int) protocol.Look {
	l := protocol.Look{
		Local:     local,
		PID:       1 << 22,
		Stack:     protocol.StackFresh,
		Native:    "futex_do_wait",
		State:     'S',
		CPU:       1 << 60,
		MainCPU:   1 << 60,
		IO:        1 << 50,
		Processes: 20,
	}
	for range protocol.MaxLookFrames {
		l.Frames = append(l.Frames, protocol.Frame{Function: "_wait_for_all_reduce", File: "distributed/distributed_c10d.py", Line: 4181})
	}
	for range 10 {
		o := &protocol.Operation{Seq: 1 << 30, Name: "_reduce_scatter_base", Sizes: "134217728 BFloat16"}
		l.Groups = append(l.Groups, protocol.GroupLook{
			Name:      "nccl2:12",
			Ranks:     []protocol.RankRange{{First: 0, Count: 1024, Step: 8}},
			Enqueued:  1 << 30,
			Completed: 1 << 30,
			Last:      o,
		})
	}
	return l
}

// TestLooksFit: beside all that a report must have, each in its own bound, and as many as there is room for.
func TestLooksFit(t *testing.T) {
	for _, c := range []struct {
		ranks, looks int
		of           func(int) protocol.Look
		groups       int // that are left of each
	}{
		{8, 8, small, 10},
		{64, 64, small, 8},
		{8, 8, evidence, 0},
		{128, 128, evidence, 0},
		{protocol.MaxRanks, 0, evidence, 0},
	} {
		for _, modules := range []int{0, 20000} {
			s := full(c.ranks, modules)
			s.Look = 1 << 50
			for local := range c.ranks {
				s.Looks = append(s.Looks, c.of(local))
			}
			r := s.Report()
			if size := proto.Size(wire.ReportMessage(r)); size > protocol.MaxReport {
				t.Errorf("%d ranks: %d bytes", c.ranks, size)
			}
			if modules == 0 && (len(r.Looks) < c.looks || len(r.Looks) > protocol.MaxLooks) {
				t.Errorf("%d ranks: %d looks", c.ranks, len(r.Looks))
			}
			for _, l := range r.Looks {
				if size := proto.Size(wire.ReportMessage(protocol.Report{Looks: []protocol.Look{l}})); size > protocol.MaxLookBytes {
					t.Errorf("%d ranks: a look takes %d bytes", c.ranks, size)
				}
				first := len(l.Groups) == 0 || l.Groups[0].Name == c.of(0).Groups[0].Name
				if len(l.Groups) < c.groups || len(l.Frames) < fewestFrames && len(l.Groups) > 1 || !first {
					t.Errorf("%d ranks: %d frames and %d groups are left", c.ranks, len(l.Frames), len(l.Groups))
				}
			}
		}
	}
}
