package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// ImageTag is the tag of the product's images in manifests/kustomization.yaml.
const ImageTag = "v0.1.0-dev"

// Python is the interpreter with PyTorch that hack/python.sh prepares.
const Python = "/opt/holdfast-python/venv/bin/python3"

// StageOptions say which cluster to start.
type StageOptions struct {
	// Name of the cluster; what an earlier one of this name left behind is removed first.
	Name string
	// Nodes is the number of real nodes.
	Nodes int
	// Source is the root of the source tree; its bin/ holds the binaries.
	Source string
	// Keep leaves the cluster up when the stage is struck.
	Keep bool
	Out  io.Writer
}

// Stage is a cluster that was started for a story and ends with this process, whatever ends it.
type Stage struct {
	*World
	// Env are the lines that point a shell at the cluster.
	Env     string
	cluster *devcluster.Cluster
}

// SetStage starts a cluster and connects to it.
func SetStage(ctx context.Context, o StageOptions) (*Stage, error) {
	dev := filepath.Join(o.Source, "bin/holdfast-dev")
	cluster, err := devcluster.Up(ctx, devcluster.Options{Name: o.Name, Nodes: o.Nodes, Binary: dev, Replace: true, Keep: o.Keep, Out: o.Out})
	if err != nil {
		return nil, fmt.Errorf("starting the cluster: %w", err)
	}
	s := &Stage{Env: cluster.Spec().Env(), cluster: cluster}
	kubeconfig, bin := cluster.Kubeconfig(), cluster.Spec().BinDir()
	s.World, err = NewWorld(Options{Kubeconfig: kubeconfig, Kubectl: filepath.Join(bin, "kubectl"), Source: o.Source, Python: Python, Out: o.Out,
		Dev: func(ctx context.Context, args ...string) (string, error) {
			out, err := exec.CommandContext(ctx, dev, append(slices.Clone(args), "--name", o.Name)...).CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("holdfast-dev %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
			}
			return string(out), nil
		},
		LoadImages: func(ctx context.Context) error { return LoadImages(ctx, dev, o.Name, o.Source) }})
	if err != nil {
		return nil, errors.Join(err, s.Strike())
	}
	return s, nil
}

// Strike ends the cluster and waits until nothing of it is left; a kept one stays.
func (s *Stage) Strike() error { return s.cluster.Down() }

// LoadImages builds the product's images from the source tree's bin/ and loads them, with the training base image, into all nodes of
// the cluster. dev is the holdfast-dev binary.
func LoadImages(ctx context.Context, dev, cluster, source string) error {
	dir, err := os.MkdirTemp("", "holdfast-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var archives []string
	build := func(archive string, args ...string) error {
		archive = filepath.Join(dir, archive)
		archives = append(archives, archive)
		out, err := exec.CommandContext(ctx, dev, append(append([]string{"image", "build"}, args...), "--output", archive)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("building image %s: %w: %s", args[0], err, out)
		}
		return nil
	}
	for _, name := range []string{"holdfast-controller", "holdfast-scheduler", "holdfast-agent"} {
		if err := build(name+".tar", "holdfast.dev/"+name+":"+ImageTag, "--add", filepath.Join(source, "bin", name)+":/"+name, "--entrypoint", "/"+name); err != nil {
			return err
		}
	}
	if err := build("holdfast-node.tar", "holdfast.dev/holdfast-node:"+ImageTag, "--add", filepath.Join(source, "bin", "holdfast-node")+":/holdfast-node",
		"--entrypoint", "/holdfast-node", "--libraries", "--user", "0:0"); err != nil {
		return err
	}
	if err := build("base.tar", layout.BaseImage, "--base"); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, dev, append([]string{"image", "load", "--name", cluster}, archives...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("loading images: %w: %s", err, out)
	}
	return nil
}
