package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"holdfast.dev/holdfast/test/story"
)

// startCluster starts a one-machine cluster of two real nodes and installs Holdfast in it by the manifests that a user would apply.
func startCluster(ctx context.Context, o options, progress io.Writer) (*story.World, func() error, error) {
	source, err := filepath.Abs(string(o.source))
	if err != nil {
		return nil, nil, err
	}
	stage, err := story.SetStage(ctx, story.StageOptions{Name: "bench", Nodes: 2, Source: source, Keep: o.keep, Out: progress})
	if err != nil {
		return nil, nil, err
	}
	if err := stage.Install(ctx); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("installing Holdfast: %w", err), stage.Strike())
	}
	done := func() error {
		if o.keep {
			fmt.Fprintf(progress, "\nThe cluster is still up. To reach it:\n%sTo remove it:\nbin/holdfast-dev down --name bench\n", stage.Env)
		}
		return stage.Strike()
	}
	return stage.World, done, nil
}
