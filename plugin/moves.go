package plugin

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// inhabited is the cluster with all who could be moved taken out, as values. It belongs to the scheduling goroutine; what is
// made of it does not.
func (p *Plugin) inhabited(ctx context.Context) (yield.World, []v1alpha1.FabricLevel, error) {
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return yield.World{}, nil, fmt.Errorf("listing the snapshot's nodes: %w", err)
	}
	p.planner.Follow(nodes)
	// Nobody asks, of the lowest priority: all that is held is as good as taken.
	nobody := gangcache.Snapshot{Members: []gangcache.Member{{Pod: &v1.Pod{Spec: v1.PodSpec{Priority: ptr.To[int32](math.MinInt32)}}, State: gangcache.Bound}}}
	s := &survey{p: p, b: &blocked{}, nodes: nodes, ctx: ctx}
	if s.taken, err = p.planner.Expected(nodes, nobody); err != nil {
		return yield.World{}, nil, err
	}
	s.units(func(*yield.Unit) bool { return true }, time.Now())
	s.world.Levels, s.world.Nodes = p.planner.Levels(), s.without(func(int) bool { return true }).Nodes()
	return s.world, p.planner.Fragmentation(), nil
}

// Fabric says how broken up the fabric is, and which moves would make domains whole, at most so many for a level; level: of
// this one alone, where it is not empty. The scheduler is stopped only while its view is read.
func (s *Station) Fabric(ctx context.Context, level string, most int) (v1alpha1.FabricResponse, error) {
	var world yield.World
	var levels []v1alpha1.FabricLevel
	err := s.between(ctx, s.any, func(ctx context.Context, p *Plugin) (err error) {
		world, levels, err = p.inhabited(ctx)
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
	freed, stopped := yield.Defragment(world, level, most)
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

func freedDomain(f yield.Freed) v1alpha1.FreedDomain {
	d := v1alpha1.FreedDomain{Domain: f.Domain, Nodes: int32(f.Nodes), Used: int32(f.Used), Pods: int32(f.Pods)}
	for _, m := range f.Moves {
		move := v1alpha1.FabricMove{Unit: m.Unit}
		for _, seat := range m.Seats {
			move.Pods = append(move.Pods, v1alpha1.FabricSeat{From: seat.Member, To: seat.Node})
		}
		d.Moves = append(d.Moves, move)
	}
	return d
}

// any is one of the plugins: all see the same cluster. It is called with mu held.
func (s *Station) any() (*Plugin, error) {
	for _, name := range slices.Sorted(maps.Keys(s.plugins)) {
		return s.plugins[name], nil
	}
	return nil, invalid("this scheduler has no profile with the plugin %s", Name)
}
