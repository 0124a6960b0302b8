package story

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

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
	Env   string
	child *exec.Cmd
	stdin io.Closer
}

// SetStage starts a cluster and connects to it.
func SetStage(ctx context.Context, o StageOptions) (*Stage, error) {
	dev := filepath.Join(o.Source, "bin/holdfast-dev")
	down := exec.CommandContext(ctx, dev, "down", "--name", o.Name)
	if out, err := down.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("removing what an earlier cluster %s left: %w: %s", o.Name, err, out)
	}
	args := []string{"up", "--name", o.Name, "--nodes", fmt.Sprint(o.Nodes)}
	if !o.Keep {
		args = append(args, "--attached")
	}
	s := &Stage{child: exec.Command(dev, args...)}
	s.child.Stderr = o.Out
	// A Ctrl-C is ours to handle: the cluster must outlive it for long enough to be taken down in order.
	s.child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := s.child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.stdin, err = s.child.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.child.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w; build it with make build", dev, err)
	}
	kubeconfig, bin, err := s.awaitEnv(ctx, stdout)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the cluster: %w", err), s.Strike())
	}
	s.World, err = NewWorld(Options{Kubeconfig: kubeconfig, Kubectl: filepath.Join(bin, "kubectl"), Source: o.Source, Python: Python, Out: o.Out,
		LoadImages: func(ctx context.Context) error { return LoadImages(ctx, dev, o.Name, o.Source) }})
	if err != nil {
		return nil, errors.Join(err, s.Strike())
	}
	return s, nil
}

// awaitEnv reads the two lines that holdfast-dev prints once the cluster is ready.
func (s *Stage) awaitEnv(ctx context.Context, stdout io.Reader) (kubeconfig, bin string, err error) {
	ended := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(stdout)
		for bin == "" && lines.Scan() {
			s.Env += lines.Text() + "\n"
			if v, ok := strings.CutPrefix(lines.Text(), "export KUBECONFIG="); ok {
				kubeconfig = v
			}
			if v, ok := strings.CutPrefix(lines.Text(), "export PATH="); ok {
				bin = strings.TrimSuffix(v, ":$PATH")
			}
		}
		if bin == "" || kubeconfig == "" {
			ended <- errors.New("holdfast-dev up ended before the cluster was ready")
			return
		}
		ended <- nil
		_, _ = io.Copy(io.Discard, stdout)
	}()
	select {
	case err := <-ended:
		return kubeconfig, bin, err
	case <-ctx.Done():
		return "", "", ctx.Err()
	}
}

// Strike ends the cluster and waits until nothing of it is left; a kept one stays.
func (s *Stage) Strike() error {
	err := s.stdin.Close()
	return errors.Join(err, s.child.Wait())
}

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
	if err := build("base.tar", layout.BaseImage, "--base"); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, dev, append([]string{"image", "load", "--name", cluster}, archives...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("loading images: %w: %s", err, out)
	}
	return nil
}
