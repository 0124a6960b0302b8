package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

// startCluster starts a one-machine cluster of two real nodes and installs Holdfast in it by the manifests that a user would apply.
func startCluster(ctx context.Context, o options, progress io.Writer) (*harness.World, func() error, error) {
	source, err := filepath.Abs(o.Root())
	if err != nil {
		return nil, nil, err
	}
	c, err := harness.Up(ctx, source, devcluster.Options{Name: "bench", Nodes: 2, Replace: true, Keep: o.keep, Out: progress})
	if err != nil {
		return nil, nil, err
	}
	if err := c.Install(ctx); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("installing Holdfast: %w", err), c.Down())
	}
	done := func() error {
		if o.keep {
			fmt.Fprintf(progress, "\nThe cluster is still up. To reach it:\n%sTo remove it:\nbin/holdfast-dev down --name bench\n", c.Spec().Env())
		}
		return c.Down()
	}
	return c.World, done, nil
}
