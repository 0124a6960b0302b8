package serve

import (
	"context"
	"maps"
	"slices"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/preemption"
)

// Fabric returns how fragmented the fabric is, and which moves would free domains, at most that many for a level; level: only this one, if
// not empty. The scheduler waits only while its view is read.
func (s *Server) Fabric(ctx context.Context, level string, most int) (v1alpha1.FabricResponse, error) {
	var world preemption.World
	var levels []v1alpha1.FabricLevel
	err := s.between(ctx, s.any, func(ctx context.Context, i *Instance) (err error) {
		world, err = i.Preemption.World(ctx)
		levels = i.Planner.Fragmentation()
		return err
	})
	if err != nil {
		return v1alpha1.FabricResponse{}, err
	}
	out := v1alpha1.FabricResponse{Nodes: int32(len(world.Nodes)), Levels: []v1alpha1.FabricLevel{}}
	known := ""
	for _, l := range levels {
		known += ", " + l.Level
		if level == "" || l.Level == level {
			out.Levels = append(out.Levels, l)
		}
	}
	if level != "" && len(out.Levels) == 0 {
		return out, invalid("level: the fabric has no level %q, use one of: %s", level, known[min(len(known), 2):])
	}
	freed, stopped := preemption.Defragment(world, level, most)
	out.Stopped = stopped
	for i := range out.Levels {
		for _, f := range freed {
			if f.Level == out.Levels[i].Level {
				out.Levels[i].Freed = append(out.Levels[i].Freed, freedDomain(f))
			}
		}
	}
	return out, nil
}

func freedDomain(f preemption.Freed) v1alpha1.FreedDomain {
	d := v1alpha1.FreedDomain{Domain: f.Domain, Nodes: int32(f.Nodes), Used: int32(f.Used), Pods: int32(f.Pods)}
	for _, m := range f.Moves {
		move := v1alpha1.FabricMove{Unit: m.Unit}
		for _, assignment := range m.Assignments {
			move.Pods = append(move.Pods, v1alpha1.PodMove{From: assignment.Member, To: assignment.Node})
		}
		d.Moves = append(d.Moves, move)
	}
	return d
}

// any returns one of the instances: all see the same cluster. The caller holds mu.
func (s *Server) any() (*Instance, error) {
	for _, name := range slices.Sorted(maps.Keys(s.instances)) {
		return s.instances[name], nil
	}
	return nil, invalid("this scheduler has no profile with the plugin Holdfast")
}
