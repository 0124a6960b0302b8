package wire

import (
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
)

// Directive converts a message; no run is the zero Run.
func Directive(m *v1.Directive) protocol.Directive {
	r := m.GetRun()
	d := protocol.Directive{
		Generation: int64(m.GetGeneration()), Order: protocol.Order(m.GetOrder()),
		Run: protocol.Run{
			Number: int64(
				r.GetNumber(),
			),
			WorldSize:     int(r.GetWorldSize()),
			BaseRank:      int(r.GetBaseRank()),
			NodeRank:      int(r.GetNodeRank()),
			Nodes:         int(r.GetNodes()),
			MasterAddr:    r.GetMasterAddr(),
			MasterPort:    int(r.GetMasterPort()),
			RestoreStep:   int64(r.GetRestoreStep()),
			RestartCount:  int(r.GetRestartCount()),
			Branch:        int64(r.GetBranch()),
			RestoreBranch: int64(r.GetRestoreBranch()),
			Slots:         int(r.GetSlots()),
			Donor:         int(r.GetDonor()),
		},
		CommonStep: int64(m.GetCommonStep()), ReclaimBelow: int64(m.GetReclaimBelow()), ExitCode: int(m.GetExitCode()), Reason: m.GetReason(),
	}
	if d.Order == protocol.OrderRun && d.Run == (protocol.Run{}) {
		d.Order = protocol.OrderWait
	}
	d.DurableStep, d.DurableBranch = int64(m.GetDurableStep()), int64(m.GetDurableBranch())
	d.BarrierStep, d.Copy, d.Manifest, d.Fetch = int64(m.GetBarrierStep()), mark(m.GetCopy()), manifest(m.GetManifest()), mark(m.GetFetch())
	d.WantModules, d.Modules, d.WholeCommand, d.Launched = m.GetWantModules(), m.GetModules(), m.GetWholeCommand(), m.GetLaunched()
	d.Authorities, d.Launch = m.GetAuthorities(), int(m.GetLaunch())
	d.HaltWithin, d.Look, d.Keep = time.Duration(m.GetHaltWithinSeconds())*time.Second, int64(m.GetLook()), int64(m.GetKeep())
	d.Trial, d.CopyNext = trial(m.GetTrial()), int64(m.GetCopyNext())
	return d
}

// DirectiveMessage converts a directive to a message.
func DirectiveMessage(d protocol.Directive) *v1.Directive {
	m := &v1.Directive{
		Generation: uint64(d.Generation), Order: v1.Order(d.Order),
		CommonStep: uint64(d.CommonStep), ReclaimBelow: uint64(d.ReclaimBelow), ExitCode: int32(d.ExitCode), Reason: d.Reason,
	}
	if r := d.Run; r != (protocol.Run{}) {
		m.Run = &v1.Generation{
			Number: uint64(
				r.Number,
			), WorldSize: uint32(r.WorldSize), BaseRank: uint32(r.BaseRank), NodeRank: uint32(r.NodeRank), Nodes: uint32(r.Nodes),
			MasterAddr: r.MasterAddr, MasterPort: uint32(r.MasterPort), RestoreStep: uint64(r.RestoreStep), RestartCount: uint32(r.RestartCount),
			Branch: uint64(r.Branch), RestoreBranch: uint64(r.RestoreBranch), Slots: uint32(r.Slots), Donor: uint32(r.Donor),
		}
	}
	m.DurableStep, m.DurableBranch = uint64(d.DurableStep), uint64(d.DurableBranch)
	m.BarrierStep, m.Copy, m.Manifest, m.Fetch = uint64(d.BarrierStep), markMessage(d.Copy), manifestMessage(d.Manifest), markMessage(d.Fetch)
	m.WantModules, m.Modules, m.WholeCommand, m.Launched = d.WantModules, d.Modules, d.WholeCommand, d.Launched
	m.Authorities, m.Launch = d.Authorities, uint32(d.Launch)
	m.HaltWithinSeconds, m.Look, m.Keep = uint32(d.HaltWithin/time.Second), uint64(d.Look), uint64(d.Keep)
	m.Trial, m.CopyNext = trialMessage(d.Trial), uint64(d.CopyNext)
	return m
}

func manifest(m *v1.Manifest) protocol.Manifest {
	out := protocol.Manifest{Mark: mark(m.GetMark()), Below: mark(m.GetBelow())}
	for _, r := range m.GetRank() {
		out.Ranks = append(out.Ranks, protocol.ManifestRank{Length: r.GetLength(), Checksum: r.GetChecksum()})
	}
	for _, o := range m.GetRecorded() {
		out.Recorded = append(out.Recorded, mark(o))
	}
	return out
}

func manifestMessage(m protocol.Manifest) *v1.Manifest {
	if m.Mark == (protocol.Mark{}) {
		return nil
	}
	out := &v1.Manifest{Mark: markMessage(m.Mark), Below: markMessage(m.Below)}
	for _, r := range m.Ranks {
		out.Rank = append(out.Rank, &v1.ManifestRank{Length: r.Length, Checksum: r.Checksum})
	}
	for _, o := range m.Recorded {
		out.Recorded = append(out.Recorded, markMessage(o))
	}
	return out
}
