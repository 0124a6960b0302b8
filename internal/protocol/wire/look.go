package wire

import (
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
)

func look(m *v1.Look) protocol.Look {
	l := protocol.Look{
		Local:     int(m.GetLocalRank()),
		PID:       int(m.GetPid()),
		Stack:     protocol.StackState(m.GetStack()),
		Native:    m.GetNative(),
		State:     byte(m.GetState()),
		CPU:       time.Duration(m.GetCpuMs()) * time.Millisecond,
		MainCPU:   time.Duration(m.GetMainCpuMs()) * time.Millisecond,
		IO:        m.GetIo(),
		Processes: int(m.GetProcesses()),
	}
	for _, g := range m.GetGroups() {
		group := protocol.GroupLook{
			Name:      g.GetName(),
			Enqueued:  g.GetEnqueued(),
			Started:   g.GetStarted(),
			Completed: g.GetCompleted(),
			Open:      operation(g.GetOpen()),
			Last:      operation(g.GetLast()),
		}
		for _, r := range g.GetRanks() {
			group.Ranks = append(group.Ranks, protocol.RankRange{First: int(r.GetFirst()), Count: int(r.GetCount()), Step: int(r.GetStep())})
		}
		l.Groups = append(l.Groups, group)
	}
	for _, f := range m.GetFrames() {
		l.Frames = append(l.Frames, protocol.Frame{Function: f.GetFunction(), File: f.GetFile(), Line: int(f.GetLine())})
	}
	for _, f := range m.GetFaults() {
		l.Faults = append(l.Faults, protocol.RankFault{Rank: int(f.GetRank()), Fault: protocol.Fault(f.GetFault())})
	}
	if p := m.GetPhase(); p != nil {
		l.Phase = &protocol.Phase{
			Name: p.GetName(),
			Left: time.Duration(p.GetLeftMs()) * time.Millisecond,
			Of:   time.Duration(p.GetOfMs()) * time.Millisecond,
		}
	}
	return l
}

func lookMessage(l *protocol.Look) *v1.Look {
	m := &v1.Look{
		LocalRank: uint32(l.Local),
		Pid:       int32(l.PID),
		Stack:     uint32(l.Stack),
		Native:    l.Native,
		State:     uint32(l.State),
		CpuMs:     uint64(l.CPU.Milliseconds()),
		MainCpuMs: uint64(l.MainCPU.Milliseconds()),
		Io:        l.IO,
		Processes: uint32(l.Processes),
	}
	for i := range l.Groups {
		g := &l.Groups[i]
		group := &v1.GroupLook{
			Name:      g.Name,
			Enqueued:  g.Enqueued,
			Started:   g.Started,
			Completed: g.Completed,
			Open:      operationMessage(g.Open),
			Last:      operationMessage(g.Last),
		}
		for _, r := range g.Ranks {
			group.Ranks = append(group.Ranks, &v1.RankRange{First: uint32(r.First), Count: uint32(r.Count), Step: int32(r.Step)})
		}
		m.Groups = append(m.Groups, group)
	}
	for _, f := range l.Frames {
		m.Frames = append(m.Frames, &v1.Frame{Function: f.Function, File: f.File, Line: uint32(f.Line)})
	}
	for _, f := range l.Faults {
		m.Faults = append(m.Faults, &v1.RankFault{Rank: uint32(f.Rank), Fault: uint32(f.Fault)})
	}
	if p := l.Phase; p != nil {
		m.Phase = &v1.Phase{Name: p.Name, LeftMs: uint64(p.Left.Milliseconds()), OfMs: uint64(p.Of.Milliseconds())}
	}
	return m
}

func operation(m *v1.Operation) *protocol.Operation {
	if m == nil {
		return nil
	}
	return &protocol.Operation{Seq: m.GetSeq(), P2P: m.GetP2P(), Peer: int(m.GetPeer()), Name: m.GetName(), Sizes: m.GetSizes()}
}

func operationMessage(o *protocol.Operation) *v1.Operation {
	if o == nil {
		return nil
	}
	return &v1.Operation{Seq: o.Seq, P2P: o.P2P, Peer: uint32(o.Peer), Name: o.Name, Sizes: o.Sizes}
}
