package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/image"
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
		LoadImages: func(ctx context.Context) error { return LoadImages(ctx, cluster, o.Source) }})
	if err != nil {
		return nil, errors.Join(err, s.Strike())
	}
	return s, nil
}

// Strike ends the cluster and waits until nothing of it is left; a kept one stays.
func (s *Stage) Strike() error { return s.cluster.Down() }

// ControlPlane are the product's images that only nodes of the control plane need.
var ControlPlane = []string{"holdfast-controller", "holdfast-scheduler"}

// base names the training base image among ours, daemon the image that needs more than its binary: the probe, and what that one loads.
const (
	base   = "base"
	daemon = "holdfast-node"
	probe  = "holdfast-nvml"
)

// Injected are the images that pods of jobs need: the agent's and the training base image.
var Injected = []string{"holdfast-agent", base}

// LoadImages builds the product's images from the source tree's bin/ and loads them, with the training base image, into all nodes.
func LoadImages(ctx context.Context, c *devcluster.Cluster, source string) error {
	return LoadImagesInto(ctx, c, c.Nodes(), source, slices.Concat(ControlPlane, Injected, []string{daemon})...)
}

// LoadImagesInto builds some of these images and loads them into some nodes.
func LoadImagesInto(ctx context.Context, c *devcluster.Cluster, nodes []*devcluster.Node, source string, names ...string) error {
	for _, name := range names {
		img, err := productImage(source, c.Spec().PythonDir, name)
		if err != nil {
			return fmt.Errorf("building image %s: %w", name, err)
		}
		if err := c.LoadInto(ctx, nodes, img); err != nil {
			return err
		}
	}
	return nil
}

// productImage is what `make images` builds of the binary of that name, or the training base image.
func productImage(source, pythonDir, name string) (*image.Image, error) {
	if name == base {
		return image.Base(pythonDir)
	}
	files, err := image.Copy(filepath.Join(source, "bin", name), "/"+name)
	if err != nil {
		return nil, err
	}
	img := &image.Image{Name: "holdfast.dev/" + name + ":" + ImageTag, Entrypoint: []string{"/" + name}, User: "65532:65532", Files: files}
	if name == daemon {
		asks, err := image.Copy(filepath.Join(source, "bin", probe), "/"+probe)
		if err != nil {
			return nil, err
		}
		img.User, img.Files = "0:0", append(img.Files, asks...)
		return img, img.AddLibraries()
	}
	return img, nil
}
