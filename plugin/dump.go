package plugin

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/gang/replay"
)

// dump decides about a gang as planning would now, and returns all that the decision was made from. Nothing is reserved
// or written. It belongs to the scheduling goroutine.
func (p *Plugin) dump(ctx context.Context, key types.NamespacedName) (replay.Record, error) {
	roster, missing := p.gangs.PlanInput(key)
	if missing != nil {
		return replay.Record{}, invalid("gang %s is not to be planned: %s", key, missing.Message)
	}
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return replay.Record{}, fmt.Errorf("listing the snapshot's nodes: %w", err)
	}
	record := replay.Record{Version: replay.Version, At: time.Now().UTC(), By: p.handle.ProfileName(), Name: key.String()}
	p.planner.Follow(nodes)
	record.Levels = p.planner.Levels()
	record.Nodes = p.planner.Nodes(nodes)
	if _, _, err := p.planner.Answer(ctx, nodes, roster, &record); err != nil {
		return replay.Record{}, err
	}
	if record.Full() {
		return replay.Record{}, invalid("gang %s has rules among its members, and deciding about it took more than %d questions: too many for a record", key, len(record.Agreed))
	}
	if len(record.Gang.Members) == 0 {
		return replay.Record{}, invalid("gang %s is not to be planned: %s", key, record.Answer.Message)
	}
	return record, nil
}

// Dump has a gang's record made. It is found by its name in any of the profiles.
func (s *Station) Dump(ctx context.Context, namespace, name string) (replay.Record, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	var record replay.Record
	err := s.between(ctx, func() (*Plugin, error) {
		for _, p := range s.plugins {
			if p.gangs.Knows(key) {
				return p, nil
			}
		}
		return nil, invalid("no pods of gang %s are known", key)
	}, func(ctx context.Context, p *Plugin) (err error) {
		record, err = p.dump(ctx, key)
		return err
	})
	return record, err
}
