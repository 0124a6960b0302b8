package serve

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/gang/replay"
)

// dump decides about a gang as planning would now, and returns all that the decision was made from. Nothing is reserved
// or written. It belongs to the scheduling goroutine.
func (i *Instance) dump(ctx context.Context, key types.NamespacedName) (replay.Record, error) {
	snapshot, missing := i.Gangs.PlanInput(key)
	if missing != nil {
		return replay.Record{}, invalid("gang %s is not to be planned: %s", key, missing.Message)
	}
	nodes, err := i.Framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return replay.Record{}, fmt.Errorf("listing the snapshot's nodes: %w", err)
	}
	record := replay.Record{Version: replay.Version, At: time.Now().UTC(), By: i.Framework.ProfileName(), Name: key.String()}
	i.Planner.Follow(nodes)
	record.Levels = i.Planner.Levels()
	record.Nodes = i.Planner.Nodes(nodes)
	if _, _, err := i.Planner.Answer(ctx, nodes, snapshot, &record); err != nil {
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
func (s *Server) Dump(ctx context.Context, namespace, name string) (replay.Record, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	var record replay.Record
	err := s.between(ctx, func() (*Instance, error) {
		for _, i := range s.instances {
			if i.Gangs.Knows(key) {
				return i, nil
			}
		}
		return nil, invalid("no pods of gang %s are known", key)
	}, func(ctx context.Context, i *Instance) (err error) {
		record, err = i.dump(ctx, key)
		return err
	})
	return record, err
}
